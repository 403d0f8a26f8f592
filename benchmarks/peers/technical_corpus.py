"""Technical prose from English (LibreOffice, manual pages, Debian packages), split by document.

Sentences of one text share words. Split line by line, a test set would contain near copies of training sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import NamedTuple

from regard.data.readers.text import Pair, iterate_lines
from regard.reproduce.corpora import (
    TECHNICAL_STEMS,
    CorpusBuilder,
    CorpusFiles,
    find_data_file,
    read_parallel_files,
    write_lines,
    write_pairs,
)

HELD_OUT_SENTENCES = {
    "test": 667,
    "dev": 500,
}  # minimum per corpus, since documents stay whole
MAX_HELD_OUT_DOCUMENT = 150  # sentences; a few longer documents would be the whole test set
MIN_TEST_WORDS = 5  # per test sentence: labels of buttons are not sentences


class DocumentLine(NamedTuple):
    """A pair of sentences, and the name of its document."""

    source: str
    target: str
    document: str


def split_by_document(
    lines: Sequence[DocumentLine],
    held_out: Mapping[str, int] = HELD_OUT_SENTENCES,
    max_document: int = MAX_HELD_OUT_DOCUMENT,
) -> dict[str, list[DocumentLine]]:
    """Assign whole documents to train, dev and test, by a hash of their names; keep the order of lines.

    Documents are sorted by the hash of their names. The first become the test set until it has enough sentences that
    are long enough, the next ones the dev set, all others training data.
    """
    sizes: dict[str, int] = {}
    suitable: dict[str, int] = {}
    for line in lines:
        sizes[line.document] = sizes.get(line.document, 0) + 1
        suitable[line.document] = suitable.get(line.document, 0) + _is_long_enough(line)
    candidates = iter(sorted((name for name, size in sizes.items() if size <= max_document), key=_hash_document_name))
    part_of = {}
    for part, minimum in held_out.items():
        count = 0
        while count < minimum and (name := next(candidates, None)) is not None:
            part_of[name] = part
            count += suitable[name]
    parts: dict[str, list[DocumentLine]] = {name: [] for name in ("train", *held_out)}
    for line in lines:
        parts[part_of.get(line.document, "train")].append(line)
    return parts


def merge_splits(splits: Iterable[Mapping[str, Sequence[DocumentLine]]]) -> dict[str, list[DocumentLine]]:
    """Merge the splits of several corpora, without overlap that would inflate the scores.

    Test and dev sentences are long enough, and each source occurs once; pairs with these sources are not in the
    training data, whatever their document. Each training pair occurs once.
    """
    all_splits = list(splits)
    test = _drop_known_sources((line for part in all_splits for line in part["test"] if _is_long_enough(line)), set())
    dev = _drop_known_sources(
        (line for part in all_splits for line in part["dev"] if _is_long_enough(line)), _collect_sources(test)
    )
    held_out_sources = _collect_sources(test) | _collect_sources(dev)
    pairs = {line[:2]: line for part in all_splits for line in part["train"] if line.source not in held_out_sources}
    return {"train": list(pairs.values()), "dev": dev, "test": test}


def _drop_known_sources(lines: Iterable[DocumentLine], known_sources: set[str]) -> list[DocumentLine]:
    """Return the first line of each source that is not in `known_sources`."""
    first: dict[str, DocumentLine] = {}
    for line in lines:
        if line.source not in known_sources:
            first.setdefault(line.source, line)
    return list(first.values())


def _collect_sources(lines: Iterable[DocumentLine]) -> set[str]:
    return {line.source for line in lines}


def _is_long_enough(line: DocumentLine) -> bool:
    """Return True if a line has enough words for a test set."""
    return len(line.source.split()) >= MIN_TEST_WORDS


def _hash_document_name(name: str) -> bytes:
    """Return a sort key that does not depend on the content of documents."""
    return sha256(name.encode()).digest()


def prepare_technical_corpus(code: str, folder: Path) -> CorpusFiles:
    """Return the files of the corpus into a language, written to a folder if they do not exist.

    Beside each split is a `.doc` file with the document of each line.
    """

    def write(folder: Path) -> None:
        parts = merge_splits(split_by_document(list(read_document_lines(stem, code))) for stem in TECHNICAL_STEMS)
        Random(1).shuffle(parts["dev"])  # BLEU is measured on its first sentences, which should be of all corpora
        for name, lines in parts.items():
            write_pairs(folder, name, (Pair(line.source, line.target) for line in lines), ("en", code))
            write_lines(folder / f"{name}.doc", (line.document for line in lines))

    return CorpusBuilder(write, ("en", code)).prepare(folder / f"technical-en{code}")


def read_document_lines(stem: str, code: str) -> Iterator[DocumentLine]:
    """Yield the pairs of two files with their documents, which a third file names."""
    lines = zip(
        read_parallel_files(f"{stem}.en-{code}", "en", code),
        iterate_lines(find_data_file(f"{stem}.en-{code}.doc")),
        strict=True,
    )
    for pair, name in lines:
        if pair.source.strip() and pair.target.strip():
            yield DocumentLine(pair.source, pair.target, f"{Path(stem).name}/{name}")
