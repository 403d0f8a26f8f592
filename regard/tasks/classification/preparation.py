"""From files and a recipe to texts that can be trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from regard.config import parse
from regard.data.pair import Pair
from regard.errors import UserError, shown
from regard.recipes import Recipe, sized
from regard.runs import Run
from regard.tasks.classification.files import Example, read
from regard.tasks.classification.settings import ClassificationSettings, by_sentence
from regard.tasks.classification.texts import Encoding, Texts
from regard.tasks.classification.validation import Validator
from regard.tasks.holding import parted
from regard.tasks.task import Asked, Job
from regard.text import Labels, Tokenizer, VocabularySettings, file_name, learn_one, load_one

LABELS = "labels.txt"
NAMED = 10  # labels that are counted one by one for people
FEW = 20  # labels that nobody doubts; of more, each has two texts on average, or texts were taken for labels


class Survey(NamedTuple):
    """What there is to train and to validate on."""

    train: list[Example]
    dev: list[Example]
    labels: list[str]  # of the training data, what is held out of it included
    empty: int  # texts with nothing in them, which are left out


class Vocabularies(NamedTuple):
    """What a model reads, and what it chooses from."""

    tokenizer: Tokenizer
    labels: Labels

    def save(self, settings: VocabularySettings, folder: Path) -> None:
        """Writes both into a folder."""
        self.tokenizer.save(folder / file_name("text", settings))
        self.labels.save(folder / LABELS)


def prepared(run: Run, config: Recipe, resume: bool) -> Job:
    """Texts and vocabularies, encoded; and the config with nothing left open."""
    nested = by_sentence(config)
    data = parse(ClassificationSettings, config["data"], "data")
    found = survey(data, config["training"]["seed"])
    config = config if resume else sized(config, len(found.train))
    settings = parse(VocabularySettings, config["text"], "text")
    start = config["training"]["init_from"]
    before = run if resume else Run(Path(start)) if start else None
    vocabularies = kept(before) if before else learnt(found, settings)
    encoding = Encoding(vocabularies.tokenizer, nested, data.language, data.max_length, data.max_sentences)
    training = config["training"]
    measured = spread(found.dev, int(training["validate_pairs"]))
    labels = vocabularies.labels
    dev_texts = Texts([encoding(one.text) for one in measured], ids(measured, labels), encoding)
    whole = [encoding.whole(one.text) for one in found.train]
    return Job(
        run,
        config,
        Texts([encoding.cut(document) for document in whole], ids(found.train, labels), encoding, settings.dropout),
        Validator(measured, dev_texts, labels, int(training["batch_tokens"])),
        (vocabularies.tokenizer.size, labels.size),
        partial(vocabularies.save, settings),
        about(found, whole, encoding, vocabularies),
    )


def kept(run: Run) -> Vocabularies:
    """The vocabularies of a run."""
    settings = parse(VocabularySettings, run.config()["text"], "text")
    folder = run.folder / "tokenizer"
    return Vocabularies(load_one(settings, folder / file_name("text", settings)), Labels.load(folder / LABELS))


def learnt(found: Survey, settings: VocabularySettings) -> Vocabularies:
    """Vocabularies of the training texts; a label that only a text held out has is one all the same."""
    labels = Labels(found.labels)
    if labels.size < 2:
        raise UserError(f"every text has the label {labels.name(0)!r}: there is nothing to choose from")
    lines = [" ".join(one.text.split()) for one in found.train]
    return Vocabularies(learn_one(settings, lambda: lines), labels)


def survey(data: ClassificationSettings, seed: int) -> Survey:
    """Reads the texts, and holds some out where no dev set is named: by their content, not by their order."""
    if not data.train:
        raise UserError("nothing to train on: name files of texts with labels, or folders that have one for each label")
    every = list(read([Path(name) for name in data.train], data))
    full = [one for one in every if one.text.strip()]
    empty = len(every) - len(full)
    if not full:
        raise UserError(f"{' and '.join(data.train)}: no texts in there, nothing to work with")
    labels = sorted({one.label for one in full})
    if len(labels) > max(FEW, len(full) // 2):
        raise UserError(
            f"{len(full):,} texts have {len(labels):,} labels, such as {shown(labels[0])}; "
            "data.label and data.text say where both are"
        )
    if data.dev:
        dev = list(read([Path(name) for name in data.dev], data))
        if not dev:
            raise UserError(f"{' and '.join(data.dev)}: no texts in there, nothing to validate on")
        return Survey(full, dev, labels, empty)
    return Survey(*parted(full, as_pair, seed, data.dev_pairs, "all texts are one"), labels, empty)


def as_pair(one: Example) -> Pair:
    """Text and label, for what is held out by its text."""
    return Pair(one.text, one.label)


def dev(run: Run) -> list[Asked]:
    """The texts that a run was validated on."""
    config = run.config()
    found = survey(parse(ClassificationSettings, config["data"], "data"), config["training"]["seed"])
    return [Asked(one.text, one.label) for one in found.dev]


def spread(examples: Sequence[Example], most: int) -> list[Example]:
    """At most so many of them, from the first to the last."""
    if len(examples) <= most:
        return list(examples)
    return [examples[number * len(examples) // most] for number in range(most)]


def ids(examples: Sequence[Example], labels: Labels) -> list[int]:
    """The ids of their labels; one that is not known is named with its place."""
    return [id_of(one, labels) for one in examples]


def id_of(example: Example, labels: Labels) -> int:
    """The id of a text's label."""
    try:
        return labels.id(example.label)
    except UserError as error:
        raise UserError(f"{example.where}: {error}") from error


def about(found: Survey, whole: Sequence[Sequence[Sequence[int]]], encoding: Encoding, made: Vocabularies) -> str:
    """What there is to train on."""
    long = sum(len(ids) > encoding.max_length for document in whole for ids in document)
    many = sum(len(document) > encoding.max_sentences for document in whole)
    cut = [
        (long, f"{'sentences' if encoding.by_sentence else 'texts'} cut at {encoding.max_length} tokens"),
        (many, f"texts cut at {encoding.max_sentences} sentences"),
        (found.empty, "empty ones left out"),
    ]
    told = ", ".join(f"{count:,} {what}" for count, what in cut if count)
    counts = Counter(one.label for one in found.train)
    each = ", ".join(f"{name} {counts[name]:,}" for name in made.labels.names)
    return (
        f"{len(found.train):,} texts{f' ({told})' if told else ''}, {len(found.dev):,} dev texts, vocabulary "
        f"{made.tokenizer.size:,}, {made.labels.size} labels{f' ({each})' if made.labels.size <= NAMED else ''}"
    )
