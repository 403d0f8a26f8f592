"""From files and a recipe to sentences that can be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.config import parse
from regard.data.pair import Pair
from regard.errors import UserError
from regard.recipes import Recipe
from regard.runs import Run
from regard.tasks.holding import parted
from regard.tasks.tagging.columns import Tagged, read
from regard.tasks.tagging.examples import Examples
from regard.tasks.tagging.prediction import written
from regard.tasks.tagging.settings import TagDataSettings, TagTextSettings
from regard.tasks.tagging.tagger import saved
from regard.tasks.tagging.validation import Validator
from regard.tasks.tagging.vocabulary import Vocabulary
from regard.tasks.task import Asked, Job


class Split(NamedTuple):
    """Sentences to train on, to validate on, and how many were too long."""

    train: list[Tagged]
    dev: list[Tagged]
    too_long: int


def prepared(run: Run, config: Recipe, resume: bool) -> Job:
    """Data and vocabulary, encoded."""
    training = config["training"]
    data = parse(TagDataSettings, config["data"], "data")
    text = parse(TagTextSettings, config["text"], "text")
    found = split(data, training["seed"])
    start = training["init_from"]
    if resume or start:
        vocabulary = saved(run if resume else Run(Path(start)), data)
    else:
        vocabulary = Vocabulary.learn(found.train, text, data.inputs or ())
        if len(vocabulary.labels) < 2:
            raise UserError(f"every word has the label {vocabulary.labels[0]!r}: there is nothing to choose from")
    new = sorted({label for one in found.train for label in one.labels} - set(vocabulary.labels))
    if new:
        known = ", ".join(vocabulary.labels)
        raise UserError(f"{start or run.folder} does not know the label {new[0]!r}; it chooses from {known}")
    return Job(
        run,
        config,
        Examples(found.train, vocabulary, text.dropout),
        Validator(found.dev, vocabulary, int(training["batch_tokens"]), int(training["validate_pairs"])),
        vocabulary.sizes,
        vocabulary.save,
        about(found, vocabulary),
    )


def split(data: TagDataSettings, seed: int) -> Split:
    """What is trained on, and the dev set: as it is named, or sentences that their hashes choose."""
    if not data.train:
        raise UserError("nothing to train on: name files with a word and its label on each line")
    every = sentences(data.train, data)
    if data.dev:
        train, dev = every, sentences(data.dev, data)
    else:
        alone = "all sentences are alike" if len(every) > 1 else "there is one sentence, which a blank line would end"
        train, dev = parted(every, as_pair, seed, data.dev_sentences, alone)
    short = [one for one in train if len(one.rows) <= data.max_length]
    if not short:
        raise UserError(f"no sentence has at most {data.max_length} words (data.max_length), nothing to train on")
    return Split(short, dev, len(train) - len(short))


def sentences(names: Sequence[str], data: TagDataSettings) -> list[Tagged]:
    """All of some files, at least one."""
    found = list(read([Path(name) for name in names], data))
    if not found:
        raise UserError(f"{' and '.join(names)}: no sentences in there, nothing to work with")
    return found


def as_pair(sentence: Tagged) -> Pair:
    """Words and labels, for what is held out by its words."""
    return Pair("\n".join(map("\t".join, sentence.rows)), "\n".join(sentence.labels))


def dev(run: Run) -> list[Asked]:
    """The sentences that a run was validated on."""
    config = run.config()
    data = parse(TagDataSettings, config["data"], "data")
    return [Asked(one.rows, written(one.rows, one.labels)) for one in split(data, config["training"]["seed"]).dev]


def about(found: Split, vocabulary: Vocabulary) -> str:
    """What there is to train on."""
    left_out = f" (left out: {found.too_long} too long)" if found.too_long else ""
    words, labels = vocabulary.sizes
    return (
        f"{len(found.train):,} sentences{left_out}, {len(found.dev):,} dev sentences, "
        f"{words - 1:,} features, {labels - 1:,} labels"
    )
