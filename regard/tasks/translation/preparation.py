"""From text files and a recipe to pairs that can be trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard import text
from regard.config import parse
from regard.console import say
from regard.data.corpus import Pair, languages, pairs
from regard.data.languages import are_different_languages, canonical_code
from regard.data.links import Link
from regard.data.preparation import Prepared, prepare, vocabularies
from regard.data.settings import DataSettings, corpora
from regard.data.survey import Survey, survey
from regard.errors import UserError
from regard.evaluate import read_gold
from regard.models import Seq2Seq
from regard.recipes import Recipe, override, sized
from regard.runs import Run, viewpoint
from regard.tasks.task import Asked, Job, OnBest
from regard.tasks.text_scores import report_measure
from regard.tasks.translation.validation import Validator
from regard.text import TextSettings, Tokenizers
from regard.translate import choose_alignment_head

ALIGNED_PAIRS = 100  # by which the alignment head is chosen: few, because each new best model waits for it
MAX_ALIGNED_CHARACTERS = 500  # the attention of every head to a text is in memory at once


def prepared(run: Run, config: Recipe, resume: bool) -> Job:
    """Data and vocabularies, encoded; and the config with nothing left open."""
    config = config if resume else spoken(config)
    data = parse(DataSettings, config["data"], "data")
    found = survey(data, config["training"]["seed"])
    config = config if resume else sized(config, sum(found.counts))
    settings = parse(TextSettings, config["text"], "text")
    links = guides(config, data, found)
    if links is not None and settings.dropout:
        raise UserError("loss.guided needs tokens that stay what they are, and text.dropout changes them: choose one")
    start = config["training"]["init_from"]
    if resume or start:
        tokenizers = (run if resume else Run(Path(start))).tokenizers()
    else:
        tokenizers = vocabularies(data, settings, found)
    ready = prepare(data, settings, tokenizers, found, links)
    if not resume:
        if not (data.sentences or ready.sentences):
            say(
                "sentencex is not installed, so that the sentences of a line were not counted: data.sentences stays "
                "null, and where sentencex is installed each sentence of a line is translated by itself. Install "
                "sentencex, or give data.sentences"
            )
        found_instead = {"longest": data.longest or ready.longest, "sentences": data.sentences or ready.sentences}
        config = override(config, {f"data.{name}": value for name, value in found_instead.items()})
    training = config["training"]
    batch_tokens, translated = int(training["batch_tokens"]), int(training["validate_pairs"])
    validator = Validator(found.dev, tokenizers, batch_tokens, translated, config["data"]["target"])
    report_measure(validator.measure, training["best"])
    return Job(
        run,
        config,
        ready.examples,
        validator,
        tokenizers.sizes,
        partial(text.save, tokenizers, settings),
        about(ready, len(found.dev), tokenizers),
        _alignment_head_writer(run, found.dev, tokenizers) if config["model"].get("align_layer") == "auto" else None,
    )


def _alignment_head_writer(run: Run, dev: Sequence[Pair], tokenizers: Tokenizers) -> OnBest | None:
    """Return a function that writes the layer and head by which a model aligns best on the dev set into the run."""
    short = [pair for pair in dev if all(side.strip() and len(side) <= MAX_ALIGNED_CHARACTERS for side in pair)]
    aligned = short[:ALIGNED_PAIRS]

    def write(model: Seq2Seq, device: torch.device) -> None:
        if model.decoder.viewpoints():
            viewpoint.write(run.folder, choose_alignment_head(model, tokenizers, aligned, device))

    return write if aligned else None


def dev(run: Run) -> list[Asked]:
    """The pairs that a run was validated on."""
    config = run.config()
    found = survey(parse(DataSettings, config["data"], "data"), config["training"]["seed"]).dev
    return [Asked(pair.source, pair.target) for pair in found]


def about(ready: Prepared, dev: int, tokenizers: Tokenizers) -> str:
    """What there is to train on."""
    left_out = [
        f"{count} {reason}" for count, reason in ((ready.empty, "empty"), (ready.too_long, "too long")) if count
    ]
    return (
        f"{len(ready.examples):,} pairs{' (left out: ' + ', '.join(left_out) + ')' if left_out else ''}, "
        f"{dev:,} dev pairs, vocabularies {tokenizers.source.size:,} and {tokenizers.target.size:,}"
    )


def guides(config: Mapping[str, Any], data: DataSettings, found: Survey) -> list[frozenset[Link]] | None:
    """The links of the training pairs that guide the attention, if it is guided."""
    weight = config["loss"]["guided"]
    if not weight:
        return None
    if data.alignments is None:
        raise UserError(f"loss.guided={weight} needs data.alignments: a file with the links of each training pair")
    every = [pair for corpus in corpora(data) for pair in pairs(corpus.paths, data.source, data.target)]
    gold = read_gold(Path(data.alignments), every)
    return [links.possible for pair, links in zip(every, gold, strict=True) if pair.source not in found.held]


def spoken(config: Mapping[str, Any]) -> Recipe:
    """The config with the languages that the first corpus says it is in: the others are read for these as well."""
    wanted = corpora(parse(DataSettings, config["data"], "data"))
    if not wanted:
        raise UserError("nothing to train on: name one file that holds pairs, or two text files, source first")
    first = wanted[0]
    asked = config["data"]["source"], config["data"]["target"]
    named = dict(zip(("source", "target"), languages(first.paths, *asked), strict=True))
    found = {f"data.{side}": config["data"][side] or (name if name != side else None) for side, name in named.items()}
    source, target = found["data.source"], found["data.target"]
    if source and target and canonical_code(source) == canonical_code(target):
        raise UserError(f"source {source} and target {target} are one language: a translation is from one into another")
    dev = [Path(name) for name in config["data"]["dev"] or ()]
    for paths in [corpus.paths for corpus in wanted] + ([dev] if dev else []):
        question(paths, source, target)
    return override(config, found)


def question(paths: Sequence[Path], source: str | None, target: str | None) -> None:
    """A word where files are named for other languages than the run's: sides that were swapped look like this."""
    for ending, wanted in zip(languages(paths, source, target), (source, target), strict=True):
        if are_different_languages(ending, wanted):
            named = " ".join(map(str, paths))
            say(f"{named}: by its name this is {ending}, but {wanted} is expected here; are the files in order?")
