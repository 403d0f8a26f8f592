"""`regard demo`: train, evaluate and inspect a small model of any task on a synthetic corpus."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.console import log_message
from regard.data.readers.dispatch import read_all_pairs
from regard.data.readers.text import Pair
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import read_gold_alignments
from regard.paths import format_json
from regard.plot.attention_overlay import WeightedWords
from regard.plot.heatmap import format_alignment_matrix
from regard.recipes.recipe import read_recipe
from regard.report.html import ReportSample, compute_head_attention, write_heatmap, write_report, write_translation_page
from regard.runs import Run
from regard.runs.run import summarize_run
from regard.synthetic.corpora import SyntheticCorpus
from regard.synthetic.translation import DEFAULT_PAIR
from regard.tasks import get_task
from regard.tasks.base import DevExample, Prediction, Task
from regard.tasks.translation import TranslationTask
from regard.training import train
from regard.translate import Translation, load
from regard.translate.evaluation import evaluate_translator, score_alignments

MAX_TRANSLATION_SAMPLES = 5
SAMPLE_LENGTHS = range(6, 13)  # long enough to show something, short enough for a screen
PREDICTION_SAMPLES = 3
MAX_LISTED_WORDS = 5  # per line of attention weights
MIN_LISTED_WEIGHT = 0.005  # lower weights would be printed as 0.00


class Demo(NamedTuple):
    """Results of a demo by name, and what `regard demo` prints."""

    results: dict[str, Any]
    text: str


def run_demo(recipe: str, out: Path, pair: str = DEFAULT_PAIR, **changes: Any) -> Demo:
    """Write the corpus, train, evaluate and write the report; resume an interrupted demo.

    Args:
        recipe: Name or path of a recipe.
        out: Folder of the run.
        pair: Languages of the corpus of a translation recipe.
        changes: Config overrides with dotted keys, applied after those that make the recipe small.
    """
    start = time.monotonic() - (summarize_run(out).seconds or 0.0)  # includes the time before an interruption
    run, values = Run(out), read_recipe(recipe)
    if run.exists and run.read_config().get("recipe") != recipe:
        raise UserError(f"{out} already holds a run of {run.read_config().get('recipe')}; choose another --out")
    task, folder = get_task(values), out / "corpus"
    if isinstance(task, TranslationTask):
        if run.exists and (target := run.read_config()["data"]["target"]) != pair.rpartition("-")[2]:
            raise UserError(f"{out} already holds a run into the language {target}; choose another --out")
        corpus = task.write_synthetic_corpus(folder, pair)
    elif pair != DEFAULT_PAIR:
        raise UserError(f"--pair is for translation, and the recipe {recipe} is for another task")
    else:
        corpus = task.write_synthetic_corpus(folder)
    overrides = {**corpus.select_overrides(values), **changes}
    if run.exists and run.list_steps():
        log_message(f"{out}: resuming from step {run.find_newest_step()}")
        train(recipe, None, out, resume=True)
    else:
        train(recipe, corpus.train, out, dev=corpus.dev, **overrides)
    demo = (TranslationDemo if task.command == "translate" else PredictionDemo)(run, task, corpus)
    results = {"recipe": recipe, **demo.metrics, "seconds": round(time.monotonic() - start, 1)}
    demo.write_report(results)
    document = {**results, "changes": changes, "overrides": overrides}
    (out / "results.json").write_text(format_json(document, indent=1) + "\n", encoding="utf-8")
    return Demo(document, demo.format(results))


class TranslationDemo:
    """A trained model's metrics, BLEU by sentence length, and sample translations."""

    def __init__(self, run: Run, task: Task, corpus: SyntheticCorpus) -> None:
        """Translate and align the test set."""
        self.run = run
        # In a language without spaces the gold alignments count the words of these files.
        self.word_files = [shlex.quote(str(path)) for path in corpus.test_words]
        test, words = read_all_pairs(corpus.test), read_all_pairs(corpus.test_words or corpus.test)
        translator = load(run.folder)
        evaluation = evaluate_translator(translator, test, None, tokenize=run.read_config()["evaluation"]["tokenize"])
        gold_file = corpus.test[0].with_name("test.align")
        self.gold_file, gold = shlex.quote(str(gold_file)), read_gold_alignments(gold_file, words, presegmented=True)
        has_attention = evaluation.translations[0].alignment is not None
        self.metrics = {
            "bleu": evaluation.scores.bleu.value,
            "signature": evaluation.scores.bleu.signature,
            "chrf": evaluation.scores.chrf.value,
            "aer": score_alignments(translator.align(words, presegmented=True), gold).aer if has_attention else None,
            "test_pairs": len(test),
        }
        self.by_length = evaluation.scores.by_length
        self.samples = [
            ReportSample(translation, reference, compute_head_attention(translator, translation))
            for translation, reference in _choose_samples(evaluation.translations, test)
        ]

    def write_report(self, results: Mapping[str, Any]) -> None:
        """Write the heat map of the sample with the most reordering, and the report."""
        most_reordered = max((sample.translation for sample in self.samples), key=_count_crossing_links)
        write_heatmap(most_reordered, self.run.folder / "attention.png")
        write_translation_page(self.run, results, self.samples, self.by_length)

    def format(self, results: Mapping[str, Any]) -> str:
        """Format samples, metrics and suggested commands for the end of a demo."""
        folder = self.run.folder
        alignment_error = "none: this model has no attention" if results["aer"] is None else f"{results['aer']:.3f}"
        figures = [
            f"BLEU      {results['bleu']:.1f}  ({results['signature']})",
            *([f"chrF      {results['chrf']:.1f}"] if self.word_files else []),
            f"AER       {alignment_error}  (against the gold alignments of {results['test_pairs']:,} held-out pairs)",
            f"heat map  {folder / 'attention.png'}",
            f"report    {folder / 'report.html'}",
        ]
        run, picture = shlex.quote(str(folder)), shlex.quote(str(folder / "picture.png"))
        other_demo = "{regard} demo --recipe bahdanau2015 --out runs/bahdanau"
        align = f"{{regard}} align {run} {' '.join(self.word_files)} --presegmented --gold {self.gold_file}"
        commands = format_next_steps(
            f'{{regard}} plot {run} "The old teacher gives the child a book ." --out {picture}',
            f'echo "We can not see the dog ." | {{regard}} translate {run} --alignments pharaoh',
            align if self.word_files else other_demo,
            f"{{regard}} serve {run}",
        )
        return "\n\n".join([*map(_format_translation_sample, self.samples), "\n".join(figures), commands])


def _choose_samples(translations: Sequence[Translation], test: Sequence[Pair]) -> list[tuple[Translation, str]]:
    """Return the first test sentences of a length that fits on a screen, with their references."""
    pairs = zip(translations, test, strict=True)
    chosen = [(one, pair.target) for one, pair in pairs if len(pair.source.split()) in SAMPLE_LENGTHS]
    return chosen[:MAX_TRANSLATION_SAMPLES]


def _count_crossing_links(translation: Translation) -> int:
    """Count crossing pairs of alignment links; the more reordering, the more the heat map shows."""
    links = translation.alignment.pairs if translation.alignment else []
    return sum(left[0] < right[0] and left[1] > right[1] for left in links for right in links)


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


class PredictionDemo:
    """Metrics and sample predictions of a model of any other task, and the files that the metrics are measured on."""

    def __init__(self, run: Run, task: Task, corpus: SyntheticCorpus) -> None:
        """Evaluate the run's model on the test set, and predict a few dev examples."""
        self.run, self.task, self.test_files = run, task, corpus.test
        predictor = task.load(run.folder)
        self.metrics = predictor.evaluate(corpus.test)
        examples = list(task.load_dev_set(task.make_config(run.read_config())))[:PREDICTION_SAMPLES]
        self.samples = list(zip(examples, predictor.predict([example.input for example in examples]), strict=True))

    def write_report(self, results: Mapping[str, Any]) -> None:
        """Write the report of the run."""
        write_report(self.run)

    def format(self, results: Mapping[str, Any]) -> str:
        """Format samples, metrics and suggested commands for the end of a demo."""
        samples = [_format_prediction_sample(*sample) for sample in self.samples]
        values = {name: value for name, value in results.items() if isinstance(value, float)}
        numbers = [f"{name:<12} {value:.{2 if abs(value) >= 1 else 4}f}" for name, value in values.items()]
        figures = "\n".join([*numbers, f"report       {self.run.folder / 'report.html'}"])
        run, *test = (shlex.quote(str(path)) for path in (self.run.folder, *self.test_files))
        commands = format_next_steps(
            f"{{regard}} evaluate {run} {' '.join(test)}",
            f"{{regard}} predict {run} {test[0]}",
            f"{{regard}} serve {run}",
        )
        notes = [self.task.demo_note] if self.task.demo_note else []
        return "\n\n".join([*samples, *notes, figures, commands])


def _format_prediction_sample(example: DevExample, prediction: Prediction) -> str:
    """Format reference, prediction, and the words with the highest attention weights."""
    lines = [line for line in prediction.make_attention_lines() if max(line.weights, default=0.0) >= MIN_LISTED_WEIGHT]
    texts = [f"reference    {example.reference_text}", f"model        {prediction.to_text()}"]
    return "\n".join([*texts, *map(_format_strongest_words, lines)])


def _format_strongest_words(line: WeightedWords) -> str:
    """Format the words of a line that have the highest attention weights."""
    strongest = sorted(zip(line.weights, line.words, strict=True), key=lambda pair: -pair[0])[:MAX_LISTED_WORDS]
    words = [f"{word} {weight:.2f}" for weight, word in strongest if weight >= MIN_LISTED_WEIGHT]
    line_weight = "" if line.weight is None else f" ({line.weight:.2f})"
    return f"  {line.label}{line_weight}: " + ", ".join(words)


def format_next_steps(*commands: str) -> str:
    """Format `Try next:` with each command; `{regard}` is replaced by the way to call `regard` on this machine."""
    regard = _find_regard_command()
    lines = [f"  {command.replace('{regard}', regard)}{_format_install_hint(command)}" for command in commands]
    return "\n".join(["Try next:", *lines])


def _find_regard_command() -> str:
    script = Path(sys.executable).with_name("regard")  # this environment may not be the activated one
    if not os.access(script, os.X_OK):
        return f"{shlex.quote(sys.executable)} -m regard"
    if (on_path := shutil.which("regard")) and Path(on_path).samefile(script):
        return "regard"
    return shlex.quote(str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script))


def _format_install_hint(command: str) -> str:
    """Return a hint if a command needs an extra that is not installed."""
    if " serve " not in command:
        return ""
    try:
        import regard.serve.server  # noqa: F401
    except ModuleNotFoundError:
        return "   # first: pip install 'regard[serve]'"
    return ""
