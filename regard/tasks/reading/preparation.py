"""From files of questions and a recipe to questions that can be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from regard.config import parse
from regard.data.pair import Pair
from regard.errors import UserError
from regard.recipes import Recipe
from regard.runs import Run
from regard.tasks.holding import parted
from regard.tasks.reading.cloze import Cloze, cloze
from regard.tasks.reading.examples import Examples
from regard.tasks.reading.files import questions
from regard.tasks.reading.question import Question
from regard.tasks.reading.settings import ClozeSettings, WordSettings
from regard.tasks.reading.validation import Validator
from regard.tasks.reading.vocabulary import learn_vocabulary, load_vocabulary, save_vocabulary
from regard.tasks.task import Asked, Job
from regard.text import Words


class Split(NamedTuple):
    """What is trained on, and what is validated on."""

    train: list[Question]
    dev: list[Question]


class Ready(NamedTuple):
    """Encoded questions, and why others are not among them."""

    examples: Examples
    too_long: int
    unanswerable: int


def prepared(run: Run, config: Recipe, resume: bool) -> Job:
    """Questions and a vocabulary, encoded."""
    data = parse(ClozeSettings, config["data"], "data")
    settings = parse(WordSettings, config["text"], "text")
    training = config["training"]
    found = split(data, training["seed"])
    start = training["init_from"]
    if resume or start:
        vocabulary = load_vocabulary(run if resume else Run(Path(start)))
    else:
        vocabulary = learn_vocabulary(found.train, settings, data.blank)
    ready = encoded(found.train, data, vocabulary)
    dev = [
        cloze(one, data.blank, settings.lowercase, vocabulary.version)
        for one in found.dev[: int(training["validate_pairs"])]
    ]
    return Job(
        run,
        config,
        ready.examples,
        Validator(dev, vocabulary, data.blank, int(training["batch_tokens"])),
        (vocabulary.size, vocabulary.size),
        partial(save_vocabulary, vocabulary),
        about(ready, len(found.dev), sum(not one.answerable for one in dev), vocabulary),
    )


def dev(run: Run) -> list[Asked]:
    """The questions that a run was validated on."""
    config = run.config()
    found = split(parse(ClozeSettings, config["data"], "data"), config["training"]["seed"]).dev
    return [Asked(one, one.answer or "") for one in found]


def split(data: ClozeSettings, seed: int) -> Split:
    """All questions; where no dev set is named, some are held out, those of a document together."""
    if not data.train:
        raise UserError("nothing to train on: name a file of questions, CBT's layout or JSON lines")
    every = answered(data.train, data.blank)
    if data.dev:
        return Split(every, answered(data.dev, data.blank))
    return Split(*parted(every, as_pair, seed, data.dev_questions, "all questions are of one document"))


def as_pair(one: Question) -> Pair:
    """The document and the query, for what is held out by its document."""
    return Pair("\n".join(one.document), one.query)


def answered(names: Sequence[str], blank: str) -> list[Question]:
    """The questions of some files, each with its answer."""
    found = questions([Path(name) for name in names], blank)
    for one in found:
        if one.answer is None:
            raise one.wrong("there is no answer, and nothing to learn from")
    return found


def encoded(asked: Sequence[Question], data: ClozeSettings, vocabulary: Words) -> Ready:
    """The questions that something can be learnt from: their document is not too long, and has the answer in it."""
    left: list[str] = []

    def fits(one: Cloze) -> bool:
        reason = "long" if len(one.places) > data.max_length else "" if one.answerable else "absent"
        left.extend([reason] if reason else [])
        return not reason

    clozes = (cloze(one, data.blank, vocabulary.lowercase, vocabulary.version) for one in asked)
    examples = Examples(filter(fits, clozes), vocabulary, data.blank)
    if not len(examples):
        raise UserError(
            f"no question is left to train on: of {len(asked):,} documents {left.count('long'):,} have more than "
            f"{data.max_length:,} words (data.max_length), and {left.count('absent'):,} do not have the answer in them"
        )
    return Ready(examples, left.count("long"), left.count("absent"))


def about(ready: Ready, dev: int, unanswerable: int, vocabulary: Words) -> str:
    """What there is to train on; what of the dev set cannot be answered counts as wrong."""
    reasons = ((ready.too_long, "too long"), (ready.unanswerable, "without the answer in the document"))
    left_out = [f"{count:,} {reason}" for count, reason in reasons if count]
    return (
        f"{len(ready.examples):,} questions{' (left out: ' + ', '.join(left_out) + ')' if left_out else ''}, "
        f"{dev:,} dev questions{f' ({unanswerable:,} without the answer in the document)' if unanswerable else ''}, "
        f"a vocabulary of {vocabulary.size:,}"
    )
