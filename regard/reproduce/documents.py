"""A corpus of documents, split by document: of one that is tested on no sentence is trained on.

Sentences of one text repeat each other's words. Split line by line, a test set asks for what was nearly read before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

HELD = {"test": 667, "dev": 500}  # sentences of a source of text that are held out, at the least: documents stay whole
LARGEST = 150  # a document with more sentences is trained on, since a few such would be all of a test set
SHORTEST = 5  # words of a sentence to test on: what a button says is no sentence


class Line(NamedTuple):
    """A pair of sentences, and the document that they stand in."""

    source: str
    target: str
    document: str


def split(lines: Sequence[Line], held: Mapping[str, int] = HELD, largest: int = LARGEST) -> dict[str, list[Line]]:
    """The lines of each part, in their order; a document is in one part whole, and its name alone decides which first.

    Documents come in the order of their names' digests. The first are tested on until there are enough sentences that
    are long enough, the next validated on, all others trained on.
    """
    sizes: dict[str, int] = {}
    suitable: dict[str, int] = {}
    for line in lines:
        sizes[line.document] = sizes.get(line.document, 0) + 1
        suitable[line.document] = suitable.get(line.document, 0) + is_long(line)
    waiting = iter(sorted((name for name, size in sizes.items() if size <= largest), key=digest))
    part_of = {}
    for part, wanted in held.items():
        count = 0
        while count < wanted and (name := next(waiting, None)) is not None:
            part_of[name] = part
            count += suitable[name]
    parts: dict[str, list[Line]] = {name: [] for name in ("train", *held)}
    for line in lines:
        parts[part_of.get(line.document, "train")].append(line)
    return parts


def joined(parts: Iterable[Mapping[str, Sequence[Line]]]) -> dict[str, list[Line]]:
    """Several corpora that were split as one, without what would make its figures look better than they are.

    What is tested or validated on is long enough, and each source stands there once; its pairs are not trained on, in
    whichever document they stand. Each pair is trained on once.
    """
    every = list(parts)
    test = fresh((line for part in every for line in part["test"] if is_long(line)), set())
    dev = fresh((line for part in every for line in part["dev"] if is_long(line)), sources(test))
    known = sources(test) | sources(dev)
    pairs = {line[:2]: line for part in every for line in part["train"] if line.source not in known}
    return {"train": list(pairs.values()), "dev": dev, "test": test}


def fresh(lines: Iterable[Line], known: set[str]) -> list[Line]:
    """The first line of each source that is not known yet."""
    first: dict[str, Line] = {}
    for line in lines:
        if line.source not in known:
            first.setdefault(line.source, line)
    return list(first.values())


def sources(lines: Iterable[Line]) -> set[str]:
    """What they translate."""
    return {line.source for line in lines}


def is_long(line: Line) -> bool:
    """Whether a line has enough words to be tested on."""
    return len(line.source.split()) >= SHORTEST


def digest(name: str) -> bytes:
    """What puts documents in an order that has nothing to do with what they are about."""
    return sha256(name.encode()).digest()
