"""Sentences from files with a line for each word: CoNLL's columns, and CoNLL-U."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from regard.data.files import lines, name_of
from regard.errors import UserError, nearest, shown
from regard.tasks.tagging.settings import Column, TagDataSettings

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
WHOLE, PART = re.compile(r"[1-9][0-9]*"), re.compile(r"[0-9]+[-.][0-9]+")  # ids of words; of ranges and empty nodes
FIRST = re.compile(r"(1|1-[0-9]+|0\.1)(\t[^\t]+){9}")

Row = tuple[str, ...]  # a word, then what else is read of it


class Tagged(NamedTuple):
    """A sentence with the label of each word."""

    rows: tuple[Row, ...]
    labels: tuple[str, ...]


class Numbered(NamedTuple):
    """A line, and where it stands."""

    number: int
    text: str


class Form(NamedTuple):
    """Which columns of a line are read, counted from 0."""

    universal: bool  # CoNLL-U
    word: int
    inputs: tuple[int, ...]
    label: int | None  # None: the last

    def needs(self) -> int:
        """How many columns a line has at least, its label not counted."""
        return max(self.word, *self.inputs) + 1 if self.inputs else self.word + 1


def form(settings: TagDataSettings, universal: bool) -> Form:
    """The columns that the settings ask for."""
    inputs = tuple(place(column, universal) for column in settings.inputs or ())
    if settings.label is None:
        label = CONLLU.index("upos") if universal else None
    else:
        label = place(settings.label, universal)
    word = CONLLU.index("form") if universal else 0
    if len({word, label, *inputs}) < 2 + len(inputs):
        read = f"{list(settings.inputs or ())} and {settings.label}"
        raise UserError(f"data.inputs and data.label are columns beside the word, {word + 1}, each once, not {read}")
    return Form(universal, word, inputs, label)


def place(column: Column, universal: bool) -> int:
    """Where a column is, from 0."""
    if column in CONLLU:
        if universal:
            return CONLLU.index(str(column))
        raise UserError(f"a column is named {column!r} in CoNLL-U alone; in other files it has a number, from 1")
    if not isinstance(column, int):
        raise UserError(f"there is no column {column!r}{nearest(column, CONLLU)}, or a number from 1 on")
    if column < 1 or (universal and column > len(CONLLU)):
        raise UserError(f"columns are counted from 1{f' to {len(CONLLU)}' if universal else ''}, not {column}")
    return column - 1


def read(paths: Sequence[Path], settings: TagDataSettings) -> Iterator[Tagged]:
    """The sentences of files, one after the other, with their labels."""
    for path in paths:
        yield from sentences(path, settings)


def sentences(path: Path, settings: TagDataSettings) -> Iterator[Tagged]:
    """Those of one file; CoNLL-U is known by its first word."""
    ahead, every = begun(lines(path))
    wanted = form(settings, is_universal(ahead))
    for some in parted(every, wanted.universal):
        found = [labelled(line, wanted, path) for line in some]
        yield Tagged(tuple(row for row, _ in found), tuple(label for _, label in found))


def unlabelled(given: Iterable[str], settings: TagDataSettings, path: Path | None = None) -> Iterator[tuple[Row, ...]]:
    """The sentences that lines hold, which may have labels or not.

    Where nothing but words is read, a line is a sentence, unless the first word is one of CoNLL-U.
    """
    ahead, every = begun(given)
    universal = is_universal(ahead)
    if not settings.inputs and not universal:
        yield from (tuple((word,) for word in line.split()) for line in every)
        return
    wanted = form(settings, universal)
    for some in parted(every, wanted.universal):
        yield tuple(row(columns(line, wanted), line, wanted, path) for line in some)


def begun(given: Iterable[str]) -> tuple[list[str], Iterator[str]]:
    """The lines up to the first that may be a word's, and all of them."""
    every, ahead = iter(given), []
    for line in every:
        ahead.append(line)
        if line.strip() and not line.startswith("#"):
            break
    return ahead, chain(ahead, every)


def is_universal(ahead: Sequence[str]) -> bool:
    """Whether lines are of CoNLL-U: behind comments, ten columns with a tab between, and an id in the first."""
    return bool(ahead) and FIRST.fullmatch(ahead[-1]) is not None


def parted(every: Iterable[str], universal: bool) -> Iterator[list[Numbered]]:
    """The lines of the words, sentence by sentence: a blank line ends one."""
    some: list[Numbered] = []
    for number, line in enumerate(every, 1):
        if not line.strip():
            if some:
                yield some
            some = []
        elif not (universal and (line.startswith("#") or PART.fullmatch(line.split("\t")[0]))):
            some.append(Numbered(number, line))
    if some:
        yield some


def columns(line: Numbered, wanted: Form) -> list[str]:
    """What stands between tabs in CoNLL-U, between white space elsewhere."""
    return line.text.split("\t") if wanted.universal else line.text.split()


def row(found: Sequence[str], line: Numbered, wanted: Form, path: Path | None) -> Row:
    """The word of a line and what else is read of it."""
    if wanted.universal and (len(found) != len(CONLLU) or not WHOLE.fullmatch(found[0])):
        raise wrong(path, line, f"not a word of CoNLL-U, which has an id and {len(CONLLU)} columns with tabs between")
    if len(found) < wanted.needs():
        raise wrong(path, line, f"column {wanted.needs()} is to be read, of {len(found)}: {shown(line.text)}")
    chosen = tuple(found[place] for place in (wanted.word, *wanted.inputs))
    if not all(map(str.strip, chosen)):
        raise wrong(path, line, "a column that is to be read is empty")
    return chosen


def labelled(line: Numbered, wanted: Form, path: Path) -> tuple[Row, str]:
    """The word of a line, and its label."""
    found = columns(line, wanted)
    last = len(found) - 1 if wanted.label is None else wanted.label
    if wanted.label is None and last < wanted.needs():
        raise wrong(path, line, f"no label behind what is read of a word, white space between: {shown(line.text)}")
    if last >= len(found):
        raise wrong(path, line, f"the label is in column {last + 1} (data.label), of {len(found)}: {shown(line.text)}")
    if not found[last].strip():
        raise wrong(path, line, "the label is empty")
    return row(found, line, wanted, path), found[last]


def wrong(path: Path | None, line: Numbered, what: str) -> UserError:
    """What is said of a line that cannot be read."""
    where = f"{name_of(path)}:{line.number}" if path else f"line {line.number}"
    return UserError(f"{where}: {what}")
