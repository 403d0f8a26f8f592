"""From nothing to a trained, inspected translator: the embedded corpus, a short training, and what came of it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.console import say
from regard.data.corpus import Pair, pairs
from regard.data.embedded import write
from regard.demo.next_steps import format_next_steps
from regard.errors import UserError
from regard.evaluate import read_gold
from regard.plot import drawing
from regard.recipes import read
from regard.report import Shown, draw, heads, write_page
from regard.runs import Run
from regard.runs.summary import summary as known_of
from regard.strict_json import dumps
from regard.training import train
from regard.translate import Translation, against, assess, load

PAIRS = 20_000
SAMPLES = 5
WORDS = range(6, 13)  # long enough to show something, short enough for a screen
EVERYWHERE = {
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
# What makes each family small and quick enough for two cores and a few minutes, by `model.kind`.
SMALL: dict[str, dict[str, Any]] = {
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

LIKE = {"cho": "sutskever", "mino": "bahdanau", "xu-soft": "bahdanau", "xu-hard": "bahdanau"}


class Demo(NamedTuple):
    """What the demo leaves."""

    results: dict[str, Any]
    samples: list[Shown]
    picture: Path
    report: Path


def run_demo(recipe: str, out: Path, pairs_to_make: int = PAIRS, **changes: Any) -> Demo:
    """Corpus, training, evaluation, pictures; a demo that was interrupted goes on where it was.

    `changes` are dotted keys, on top of what makes the recipe small.
    """
    began = time.monotonic() - (known_of(out).seconds or 0.0)  # which was spent before an interruption
    overrides = {**small(read(recipe)), **changes}
    run = Run(out)
    if run.exists and run.config().get("recipe") != recipe:
        raise UserError(f"{out} already holds a run of {run.config().get('recipe')}; choose another --out")
    corpus = out / "corpus"
    counts = write(corpus, pairs_to_make, overwrite=True)
    say(f"corpus in {corpus}: {counts['train']:,} pairs to train on, {counts['dev']:,} dev, {counts['test']:,} test")
    files = {name: [corpus / f"{name}.{side}" for side in ("en", "de")] for name in counts}
    resume = run.exists and bool(run.steps())
    if resume:
        say(f"{out} goes on from step {run.newest()}")
        train(recipe, None, out, resume=True)
    else:
        train(recipe, files["train"], out, dev=files["dev"], **overrides)
    test = pairs(files["test"])
    translator = load(out)
    assessment = assess(translator, test, None)
    looks = assessment.translations[0].alignment is not None
    gold = read_gold(corpus / "test.align", test)
    error = against(translator.align(test), gold).aer if looks else None
    picture = out / "attention.png"
    results = {
        "recipe": recipe,
        "bleu": assessment.bleu.value,
        "signature": assessment.bleu.signature,
        "chrf": assessment.chrf.value,
        "aer": error,
        "seconds": round(time.monotonic() - began, 1),
        "test_pairs": len(test),
        "changes": changes,
        "overrides": overrides,
    }
    shown = [
        item._replace(heads=heads(translator, item.translation)) for item in samples(assessment.translations, test)
    ]
    draw(max((item.translation for item in shown), key=crossings), picture)
    report = write_page(run, without(results, "changes", "overrides"), shown, assessment.by_length)
    (out / "results.json").write_text(dumps(results, indent=1) + "\n", encoding="utf-8")
    return Demo(results, shown, picture, report)


def small(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that make a recipe a demo; only keys that the recipe has."""
    kind = recipe["model"]["kind"]  # perhaps one of the user's own
    wanted = {**EVERYWHERE, **SMALL.get(LIKE.get(kind, kind), {})}
    return {key: value for key, value in wanted.items() if key.split(".")[1] in recipe[key.split(".")[0]]}


def samples(translations: Sequence[Translation], test: Sequence[Pair]) -> list[Shown]:
    """The first sentences of the test set that fit on a screen."""
    both = zip(translations, test, strict=True)
    fitting = [Shown(translation, pair.target) for translation, pair in both if len(pair.source.split()) in WORDS]
    return fitting[:SAMPLES]


def crossings(translation: Translation) -> int:
    """How many pairs of links cross: what makes a picture worth looking at."""
    links = translation.alignment.pairs if translation.alignment else []
    return sum(left[0] < right[0] and left[1] > right[1] for left in links for right in links)


def without(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A copy less some keys."""
    return {name: value for name, value in mapping.items() if name not in keys}


def summary(demo: Demo, out: Path) -> str:
    """What the demo prints at its end."""
    results = demo.results
    error = "none: this model has no attention" if results["aer"] is None else f"{results['aer']:.3f}"
    figures = [
        f"BLEU      {results['bleu']:.1f}  ({results['signature']})",
        f"AER       {error}  (against the gold alignments of {results['test_pairs']:,} held-out pairs)",
        f"heat map  {demo.picture}",
        f"report    {demo.report}",
    ]
    run, picture = shlex.quote(str(out)), shlex.quote(str(out / "picture.png"))
    commands = format_next_steps(
        f'{{regard}} plot {run} "The old teacher gives the child a book ." --out {picture}',
        f'echo "We can not see the dog ." | {{regard}} translate {run} --alignments pharaoh',
        "{regard} demo --recipe bahdanau2015 --out runs/bahdanau",
        f"{{regard}} serve {run}",
    )
    return "\n\n".join([*map(told, demo.samples), "\n".join(figures), commands])


def told(item: Shown) -> str:
    """One sample with its alignment."""
    translation = item.translation
    lines = [
        f"source       {translation.source}",
        f"reference    {item.reference}",
        f"translation  {translation.text}",
    ]
    alignment = translation.alignment
    if alignment is not None:
        lines.append(drawing(alignment.soft, alignment.source, alignment.target))
    return "\n".join(lines)
