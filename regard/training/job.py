"""From text files and a recipe to a trained run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard import text
from regard.config import parse
from regard.console import say
from regard.data.corpus import Pair, languages, pairs
from regard.data.links import Link
from regard.data.sentences import Examples
from regard.data.settings import DataSettings, Encoding, encode, hold_out
from regard.errors import UserError
from regard.evaluate import read_gold
from regard.models import Seq2Seq, build
from regard.recipes import Recipe, override, read, sized
from regard.runs import Run
from regard.text import TextSettings, Tokenizers
from regard.training.device import choose_device
from regard.training.loop import Trainer
from regard.training.settings import TrainingSettings
from regard.training.validation import Validator

Paths = str | Path | Sequence[str | Path]


def train(
    recipe: str | Path | Mapping[str, Any],
    data: Paths | None,
    out: str | Path,
    *,
    dev: Paths | None = None,
    resume: bool = False,
    **overrides: Any,
) -> Run:
    """Trains a recipe (a name, a file or a mapping) on text and gives back the run.

    `data` and `dev` are each one file that holds pairs or two text files, source first; without `dev` some of `data` is
    held out. Overrides are dotted keys: `train("default", "de-en.tsv", "runs/a", **{"model.size": 256})`. With `resume`
    the run in `out` goes on: its own config counts, and `recipe` is not looked at.
    """
    run = Run(Path(out))
    changes = {**overrides, **files("data.train", data), **files("data.dev", dev)}
    config = going_on(run, changes) if resume else beginning(run, recipe, changes)
    check(config)
    corpus, dev_corpus, links = corpora(config)
    config = config if resume else resolve(config, len(corpus))
    settings = check(config)
    device = choose_device(settings.device)
    tokenizers = run.tokenizers() if resume else learn(config, corpus)
    encoding = encode(corpus, tokenizers, config["data"]["max_length"], links)
    if not resume:
        config = override(config, {"data.max_length": longest(used(encoding))})
    torch.manual_seed(settings.seed)
    model = build(config, tokenizers.source.size, tokenizers.target.size)
    validator = Validator(dev_corpus, tokenizers, settings.batch_tokens, settings.validate_pairs)
    trainer = Trainer(model, used(encoding), validator, settings, run, device)
    if resume:
        trainer.resume()
        run.write_config(located(config))
    else:
        run.create(located(config), tokenizers)
    say(description(config, model, encoding, len(validator.pairs), tokenizers, device))
    trainer.fit()
    return run


def files(key: str, data: Paths | None) -> dict[str, list[str]]:
    """The override that names the files, if any are given."""
    if data is None:
        return {}
    paths = [data] if isinstance(data, str | Path) else list(data)
    return {key: [str(path) for path in paths]}


def beginning(run: Run, recipe: str | Path | Mapping[str, Any], changes: Mapping[str, Any]) -> Recipe:
    """The config of a new run; one that exists is never overwritten."""
    if run.steps():
        raise UserError(f"{run.folder} already holds a run; go on with it by --resume, or choose another --out")
    if run.folder.exists() and not run.folder.is_dir():
        raise UserError(f"{run.folder} is a file; choose another --out")
    return override(dict(recipe) if isinstance(recipe, Mapping) else read(recipe), changes)


def going_on(run: Run, changes: Mapping[str, Any]) -> Recipe:
    """The config of a run that goes on: how long it goes on may change, not what makes it the same run."""
    allowed = ["data.train", "data.dev", *(f"training.{name}" for name in CHANGEABLE)]
    for key in changes:
        if key not in allowed:
            raise UserError(
                f"{key} cannot change when a run goes on, it would be another run; {', '.join(allowed)} can"
            )
    config = run.config()
    if not run.steps():
        raise UserError(f"{run.folder} has no checkpoint yet; start it again without --resume")
    if "training.steps" in changes and config["training"]["schedule"] == "cosine":
        raise UserError(
            "training.steps cannot change when a run with the cosine schedule goes on: the rate depends on it"
        )
    return override(config, changes)


CHANGEABLE = (
    "steps",
    "epochs",
    "patience",
    "validate_every",
    "checkpoint_every",
    "keep",
    "log_every",
    "tensorboard",
    "device",
)


def check(config: Mapping[str, Any]) -> TrainingSettings:
    """Parses every section and builds the model without its numbers: a mistake shows before any work is done."""
    whole = sized(config)
    parse(TextSettings, whole.get("text", {}), "text")
    parse(DataSettings, whole.get("data", {}), "data")
    with torch.device("meta"):
        build(whole, 8, 8)
    return parse(TrainingSettings, whole.get("training", {}), "training")


def corpora(config: Mapping[str, Any]) -> tuple[list[Pair], list[Pair], list[frozenset[Link]] | None]:
    """Training pairs, dev pairs, and the word links of the training pairs where they guide the attention."""
    settings = parse(DataSettings, config["data"], "data")
    if not settings.train:
        raise UserError("nothing to train on: name one file that holds pairs, or two text files, source first")
    corpus = pairs([Path(path) for path in settings.train])
    links = guides(config, settings, corpus)
    if settings.dev:
        return corpus, pairs([Path(path) for path in settings.dev]), links
    kept, dev = hold_out(corpus, settings, config["training"]["seed"])
    held = {pair.source for pair in dev}
    left = links and [some for pair, some in zip(corpus, links, strict=True) if pair.source not in held]
    return kept, dev, left


def guides(config: Mapping[str, Any], settings: DataSettings, corpus: Sequence[Pair]) -> list[frozenset[Link]] | None:
    """The links that guide the attention, if it is guided."""
    weight = config["loss"]["guided"]
    if not weight:
        return None
    if settings.alignments is None:
        raise UserError(f"loss.guided={weight} needs data.alignments: a file with the links of each training pair")
    return [gold.possible for gold in read_gold(Path(settings.alignments), corpus)]


def resolve(config: Mapping[str, Any], count: int) -> Recipe:
    """The config with nothing left open: sizes by the corpus, languages by the files' names, ties that can hold."""
    source, target = languages([Path(path) for path in config["data"]["train"]])
    found = {"data.source": config["data"]["source"] or source, "data.target": config["data"]["target"] or target}
    return sized(override(config, found), count)


def located(config: Mapping[str, Any]) -> Recipe:
    """The config with its files named in full, so that the run can go on from anywhere."""
    named = {f"data.{name}": config["data"][name] for name in ("train", "dev") if config["data"][name]}
    changes: dict[str, Any] = {key: [str(Path(path).absolute()) for path in paths] for key, paths in named.items()}
    if config["data"].get("alignments"):
        changes["data.alignments"] = str(Path(config["data"]["alignments"]).absolute())
    return override(config, changes)


def learn(config: Mapping[str, Any], corpus: Sequence[Pair]) -> Tokenizers:
    """The vocabularies of a corpus."""
    settings = parse(TextSettings, config["text"], "text")
    return text.learn(settings, lambda: (pair.source for pair in corpus), lambda: (pair.target for pair in corpus))


def longest(examples: Examples) -> int:
    """The most tokens that either side has: what the model learns to take in one piece."""
    return int(max(examples.source.lengths.max(), examples.target.lengths.max()))


def used(encoding: Encoding) -> Examples:
    """The examples, if any are left."""
    if not len(encoding.examples.source):
        raise UserError(
            f"no pair is left to train on: {encoding.empty} have an empty side, {encoding.too_long} are longer than "
            f"data.max_length"
        )
    return encoding.examples


def description(
    config: Mapping[str, Any],
    model: Seq2Seq,
    encoding: Encoding,
    dev: int,
    tokenizers: Tokenizers,
    device: torch.device,
) -> str:
    """What is about to be trained on what."""
    left_out = [
        f"{count} {reason}" for count, reason in ((encoding.empty, "empty"), (encoding.too_long, "too long")) if count
    ]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{config.get('recipe')}: {parameters:,} parameters, {len(encoding.examples.source):,} pairs"
        f"{' (left out: ' + ', '.join(left_out) + ')' if left_out else ''}, {dev:,} dev pairs, "
        f"vocabularies {tokenizers.source.size:,} and {tokenizers.target.size:,}, on {device.type}"
    )
