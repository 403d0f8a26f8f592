"""A corpus of documents, split by document: of one that is tested on no sentence is trained on.

Sentences of one text repeat each other's words. Split line by line, a test set asks for what was nearly read before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

HELD_OUT_SENTENCES = {
    "test": 667,
    "dev": 500,
}  # sentences of a source of text that are held out, at the least: documents stay whole
MAX_HELD_OUT_DOCUMENT = 150  # a document with more sentences is trained on, since a few such would be all of a test set
MIN_TEST_WORDS = 5  # words of a sentence to test on: what a button says is no sentence


class DocumentLine(NamedTuple):
    """A pair of sentences, and the document that they stand in."""

    source: str
    target: str
    document: str


def split_by_document(
    lines: Sequence[DocumentLine],
    held_out: Mapping[str, int] = HELD_OUT_SENTENCES,
    max_document: int = MAX_HELD_OUT_DOCUMENT,
) -> dict[str, list[DocumentLine]]:
    """The lines of each part, in their order; a document is in one part whole, and its name alone decides which first.

    Documents come in the order of their names' digests. The first are tested on until there are enough sentences that
    are long enough, the next validated on, all others trained on.
    """
    sizes: dict[str, int] = {}
    suitable: dict[str, int] = {}
    for line in lines:
        sizes[line.document] = sizes.get(line.document, 0) + 1
        suitable[line.document] = suitable.get(line.document, 0) + _is_long_enough(line)
    waiting = iter(sorted((name for name, size in sizes.items() if size <= max_document), key=_hash_document_name))
    part_of = {}
    for part, wanted in held_out.items():
        count = 0
        while count < wanted and (name := next(waiting, None)) is not None:
            part_of[name] = part
            count += suitable[name]
    parts: dict[str, list[DocumentLine]] = {name: [] for name in ("train", *held_out)}
    for line in lines:
        parts[part_of.get(line.document, "train")].append(line)
    return parts


def merge_splits(splits: Iterable[Mapping[str, Sequence[DocumentLine]]]) -> dict[str, list[DocumentLine]]:
    """Several corpora that were split as one, without what would make its figures look better than they are.

    What is tested or validated on is long enough, and each source stands there once; its pairs are not trained on, in
    whichever document they stand. Each pair is trained on once.
    """
    every = list(splits)
    test = _drop_known_sources((line for part in every for line in part["test"] if _is_long_enough(line)), set())
    dev = _drop_known_sources(
        (line for part in every for line in part["dev"] if _is_long_enough(line)), _collect_sources(test)
    )
    known = _collect_sources(test) | _collect_sources(dev)
    pairs = {line[:2]: line for part in every for line in part["train"] if line.source not in known}
    return {"train": list(pairs.values()), "dev": dev, "test": test}


def _drop_known_sources(lines: Iterable[DocumentLine], known_sources: set[str]) -> list[DocumentLine]:
    """The first line of each source that is not known yet."""
    first: dict[str, DocumentLine] = {}
    for line in lines:
        if line.source not in known_sources:
            first.setdefault(line.source, line)
    return list(first.values())


def _collect_sources(lines: Iterable[DocumentLine]) -> set[str]:
    """What they translate."""
    return {line.source for line in lines}


def _is_long_enough(line: DocumentLine) -> bool:
    """Whether a line has enough words to be tested on."""
    return len(line.source.split()) >= MIN_TEST_WORDS


def _hash_document_name(name: str) -> bytes:
    """What puts documents in an order that has nothing to do with what they are about."""
    return sha256(name.encode()).digest()
