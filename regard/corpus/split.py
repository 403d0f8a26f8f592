"""Split of a corpus into train, dev and test files, by source or by document: no source is in two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from regard.corpus.writers import open_pair_writer
from regard.data.readers.dispatch import (
    find_corpus_languages,
    find_format_suffix,
    iterate_pairs,
    make_empty_corpus_error,
    make_language_request,
)
from regard.data.readers.text import DECOMPRESSORS, Pair, format_path, is_pipe, iterate_lines
from regard.data.split import Hashes, choose_dev_hashes, hash_source
from regard.errors import UserError

UNNAMED = ("source", "target")  # languages of a corpus that names none


def find_named_languages(
    data: Sequence[Path], source: str | None = None, target: str | None = None
) -> tuple[str, str] | None:
    """Return the languages of a corpus, or None if neither its files, their names nor the arguments say them."""
    languages = find_corpus_languages(data, source, target)
    if languages == UNNAMED:
        return (source, target) if source and target else None
    return source or languages[0], target or languages[1]


def split_corpus(
    data: Sequence[Path],
    folder: Path,
    num_test: int,
    num_dev: int,
    seed: int = 1,
    source: str | None = None,
    target: str | None = None,
    overwrite: bool = False,
    by_document: bool = False,
) -> dict[str, int]:
    """Write `train`, `dev` and `test` to a folder, and return the number of pairs of each.

    They are two text files each, `train.en` and `train.de`, or .tsv files if the languages are unknown. Pairs with an
    empty side are left out. A source is in dev or test by its hash, so it does not depend on the order of the pairs.
    With `by_document` a document is, by the hash of its name, and pairs whose source is in the test set, or in the dev
    set, are left out of the others.
    """
    if pipe := next(filter(is_pipe, data), None):
        raise UserError(
            f"{format_path(pipe)} can be read only once, and a split reads it twice: write it to a file first"
        )

    def iterate_all() -> Iterator[Pair]:
        return iterate_pairs(data, source, target)

    sources = np.fromiter((hash_source(pair, seed) for pair in iterate_all()), dtype=np.uint64)
    if not sources.any():
        raise make_empty_corpus_error(data)
    groups = _hash_documents(data, sources, seed, source, target) if by_document else sources
    is_test = np.isin(groups, choose_dev_hashes(groups, num_test))
    is_dev = np.isin(groups, choose_dev_hashes(groups[~is_test], num_dev))
    is_left_out = (groups == 0) | (~is_test & np.isin(sources, sources[is_test]))
    is_left_out |= ~is_test & ~is_dev & np.isin(sources, sources[is_dev])
    names = np.select([is_left_out, is_test, is_dev], ["", "test", "dev"], "train")
    for part, num_pairs in (("train", 1), ("dev", num_dev), ("test", num_test)) if by_document else ():
        if num_pairs and part not in names:
            raise UserError(f"no pairs are left for {part}: all of its sources are in another part as well")
    languages = find_named_languages(data, source, target)
    suffixes = languages or ("tsv",)
    counts = {"train": 0, "dev": 0, "test": 0}
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(open_pair_writer([folder / f"{name}.{suffix}" for suffix in suffixes], overwrite))
            for name in counts
        }
        for pair, name in zip(iterate_all(), names.tolist(), strict=True):
            if name:
                writers[name](pair)
                counts[name] += 1
    return counts


def _hash_documents(data: Sequence[Path], sources: Hashes, seed: int, source: str | None, target: str | None) -> Hashes:
    """Return a hash of the document of each pair; 0 if a side of it is empty, that of the source without a document.

    A TMX or XLIFF file names documents itself. Beside other files, a text file with the suffix `.doc` does, in a line
    for each pair.
    """
    path = data[0]
    if find_format_suffix(path) in (".tmx", ".xliff", ".xlf"):
        request = make_language_request(data, source, target)
        documents = [request.document for _ in iterate_pairs(data, request=request)]
        if not any(documents):
            raise UserError(f"{path} names no documents: split it without --by-document")
    else:
        inner = path.with_suffix("") if path.suffix.lower() in DECOMPRESSORS else path
        list_of_documents = inner.with_suffix(".doc")
        if not list_of_documents.is_file():
            raise UserError(f"there is no file {list_of_documents}, whose lines name the document of each pair")
        documents = [line.strip() for line in iterate_lines(list_of_documents)]
        if len(documents) != len(sources):
            raise UserError(f"{list_of_documents} has {len(documents):,} lines for {len(sources):,} pairs")
    hashes = (hash_source(Pair(name, name), seed) or value for name, value in zip(documents, sources, strict=True))
    hashes_of_documents = np.where(sources == 0, np.uint64(0), np.fromiter(hashes, dtype=np.uint64))
    if (count := len(np.unique(hashes_of_documents[sources != 0]))) < 3:
        raise UserError(f"{path}: pairs of {count} documents are too few for train, dev and test")
    return hashes_of_documents
