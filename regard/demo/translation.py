"""Demo of translation: synthetic corpus, short training, BLEU, alignment error rate, heat map and report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.console import log_message
from regard.data.readers.dispatch import Pair, read_all_pairs
from regard.demo.next_steps import format_next_steps
from regard.errors import UserError
from regard.evaluate import read_gold_alignments
from regard.plot import format_alignment_matrix
from regard.recipes import read_recipe
from regard.report import ReportSample, compute_head_attention, write_heatmap, write_translation_page
from regard.runs import Run
from regard.runs.summary import summarize_run as known_of
from regard.strict_json import dumps
from regard.synthetic.translation import write_translation_corpus
from regard.training import train
from regard.translate import Translation, evaluate_translator, load, score_alignments

CORPUS_PAIRS = 20_000
MAX_SAMPLES = 5
SAMPLE_LENGTHS = range(6, 13)  # long enough to show something, short enough for a screen
COMMON_OVERRIDES = {
    "text.kind": "word",
    "text.vocabulary": 4000,
    "text.shared": False,
    "model.size": 128,
    "model.layers": 1,
    "model.initialisation": "torch",
    "loss.label_smoothing": 0.1,  # sharpens the alignments, too
    "loss.per": "token",
    "training.optimizer": "adam",
    "training.betas": [0.9, 0.98],
    "training.epsilon": 1e-8,
    "training.learning_rate": 0.003,
    "training.schedule": "cosine",
    "training.batch_tokens": 600,
    "training.steps": 2400,
    "training.epochs": None,
    "training.warmup": 100,
    "training.clip": 1.0,
    "training.ema": 0.0,
    "training.average": 1,
    "training.pool": 20,
    "training.patience": None,
    "training.validate_every": 600,
    "training.validate_pairs": 200,
    "training.checkpoint_every": 600,
    "training.keep": 1,
    "training.log_every": 20,
}
# By `model.kind`: overrides that make a model train in a few minutes on two cores.
OVERRIDES_BY_KIND: dict[str, dict[str, Any]] = {
    "bahdanau": {"model.dropout": 0.1},
    "sutskever": {"model.size": 256, "training.learning_rate": 0.002},
    "luong": {"model.size": 192, "model.dropout": 0.0, "training.learning_rate": 0.002},
    "transformer": {
        "model.size": 112,
        "model.layers": 2,
        "model.heads": 2,
        "model.feedforward": 256,
        "model.dropout": 0.0,  # the corpus has no noise to overfit, and random numbers cost a third of a step
        "model.tie": "none",  # learns in half the updates that tied embeddings need
        "loss.label_smoothing": 0.15,  # sharper alignments than 0.1
        "training.betas": [0.9, 0.99],
        "training.warmup": 200,
        "training.steps": 1150,
        "training.validate_every": 575,
        "training.validate_pairs": 100,
        "training.checkpoint_every": 575,
    },
}

SIMILAR_KIND = {"cho": "sutskever", "mino": "bahdanau", "xu-soft": "bahdanau", "xu-hard": "bahdanau"}


class TranslationDemo(NamedTuple):
    """Result of a demo: metrics, sample translations, and paths of the heat map and the report."""

    results: dict[str, Any]
    samples: list[ReportSample]
    heatmap_path: Path
    report_path: Path


def run_translation_demo(recipe: str, out: Path, pair_count: int = CORPUS_PAIRS, **changes: Any) -> TranslationDemo:
    """Write the corpus, train, evaluate, plot and write the report; resume an interrupted demo.

    Args:
        recipe: Name or path of a recipe.
        out: Folder of the run.
        pair_count: Number of sentence pairs of the synthetic corpus.
        changes: Config overrides with dotted keys, applied after those that make the recipe small.
    """
    start = time.monotonic() - (known_of(out).seconds or 0.0)  # includes the time before an interruption
    overrides = {**make_demo_overrides(read_recipe(recipe)), **changes}
    run = Run(out)
    if run.exists and run.read_config().get("recipe") != recipe:
        raise UserError(f"{out} already holds a run of {run.read_config().get('recipe')}; choose another --out")
    corpus = out / "corpus"
    counts = write_translation_corpus(corpus, pair_count, overwrite=True)
    log_message(
        f"corpus in {corpus}: {counts['train']:,} pairs to train on, {counts['dev']:,} dev, {counts['test']:,} test"
    )
    files = {name: [corpus / f"{name}.{side}" for side in ("en", "de")] for name in counts}
    resume = run.exists and bool(run.list_steps())
    if resume:
        log_message(f"{out}: resuming from step {run.find_newest_step()}")
        train(recipe, None, out, resume=True)
    else:
        train(recipe, files["train"], out, dev=files["dev"], **overrides)
    test = read_all_pairs(files["test"])
    translator = load(out)
    evaluation = evaluate_translator(translator, test, None)
    has_attention = evaluation.translations[0].alignment is not None
    gold = read_gold_alignments(corpus / "test.align", test)
    alignment_error = score_alignments(translator.align(test), gold).aer if has_attention else None
    heatmap_path = out / "attention.png"
    results = {
        "recipe": recipe,
        "bleu": evaluation.bleu.value,
        "signature": evaluation.bleu.signature,
        "chrf": evaluation.chrf.value,
        "aer": alignment_error,
        "seconds": round(time.monotonic() - start, 1),
        "test_pairs": len(test),
        "changes": changes,
        "overrides": overrides,
    }
    samples = [
        sample._replace(heads=compute_head_attention(translator, sample.translation))
        for sample in _choose_samples(evaluation.translations, test)
    ]
    write_heatmap(max((sample.translation for sample in samples), key=_count_crossing_links), heatmap_path)
    report_path = write_translation_page(
        run, _copy_without(results, "changes", "overrides"), samples, evaluation.by_length
    )
    (out / "results.json").write_text(dumps(results, indent=1) + "\n", encoding="utf-8")
    return TranslationDemo(results, samples, heatmap_path, report_path)


def make_demo_overrides(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config overrides that make a recipe small enough for a demo; only keys that the recipe has."""
    kind = recipe["model"]["kind"]  # may be a user-defined model
    wanted = {**COMMON_OVERRIDES, **OVERRIDES_BY_KIND.get(SIMILAR_KIND.get(kind, kind), {})}
    return {key: value for key, value in wanted.items() if key.split(".")[1] in recipe[key.split(".")[0]]}


def _choose_samples(translations: Sequence[Translation], test: Sequence[Pair]) -> list[ReportSample]:
    """Return the first test sentences of a length that fits on a screen."""
    pairs = zip(translations, test, strict=True)
    fitting = [
        ReportSample(translation, pair.target)
        for translation, pair in pairs
        if len(pair.source.split()) in SAMPLE_LENGTHS
    ]
    return fitting[:MAX_SAMPLES]


def _count_crossing_links(translation: Translation) -> int:
    """Count crossing pairs of alignment links; the more reordering, the more the heat map shows."""
    links = translation.alignment.pairs if translation.alignment else []
    return sum(left[0] < right[0] and left[1] > right[1] for left in links for right in links)


def _copy_without(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in keys}


def format_translation_demo(demo: TranslationDemo, out: Path) -> str:
    """Format samples, metrics and suggested commands for the end of a demo."""
    results = demo.results
    alignment_error = "none: this model has no attention" if results["aer"] is None else f"{results['aer']:.3f}"
    figures = [
        f"BLEU      {results['bleu']:.1f}  ({results['signature']})",
        f"AER       {alignment_error}  (against the gold alignments of {results['test_pairs']:,} held-out pairs)",
        f"heat map  {demo.heatmap_path}",
        f"report    {demo.report_path}",
    ]
    run, picture = shlex.quote(str(out)), shlex.quote(str(out / "picture.png"))
    commands = format_next_steps(
        f'{{regard}} plot {run} "The old teacher gives the child a book ." --out {picture}',
        f'echo "We can not see the dog ." | {{regard}} translate {run} --alignments pharaoh',
        "{regard} demo --recipe bahdanau2015 --out runs/bahdanau",
        f"{{regard}} serve {run}",
    )
    return "\n\n".join([*map(_format_translation_sample, demo.samples), "\n".join(figures), commands])


def _format_translation_sample(sample: ReportSample) -> str:
    translation = sample.translation
    lines = [
        f"source       {translation.source}",
        f"reference    {sample.reference}",
        f"translation  {translation.text}",
    ]
    alignment = translation.alignment
    if alignment is not None:
        lines.append(format_alignment_matrix(alignment.soft, alignment.source, alignment.target))
    return "\n".join(lines)
