"""Split of a corpus into train, dev and test files, by the sources: no source is in two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from regard.corpus.writers import open_pair_writer
from regard.data.readers.dispatch import find_corpus_languages, iterate_pairs, make_empty_corpus_error
from regard.data.readers.text import Pair, format_path, is_pipe
from regard.data.split import choose_dev_hashes, hash_source
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
) -> dict[str, int]:
    """Write `train`, `dev` and `test` to a folder, and return the number of pairs of each.

    They are two text files each, `train.en` and `train.de`, or .tsv files if the languages are unknown. Pairs with an
    empty side are left out. A source is in dev or test by its hash, so it does not depend on the order of the pairs.
    """
    if pipe := next(filter(is_pipe, data), None):
        raise UserError(
            f"{format_path(pipe)} can be read only once, and a split reads it twice: write it to a file first"
        )

    def iterate_all() -> Iterator[Pair]:
        return iterate_pairs(data, source, target)

    hashes = np.fromiter((hash_source(pair, seed) for pair in iterate_all()), dtype=np.uint64)
    if not hashes.any():
        raise make_empty_corpus_error(data)
    test = choose_dev_hashes(hashes, num_test)
    dev = choose_dev_hashes(hashes[~np.isin(hashes, test)], num_dev)
    names = dict.fromkeys(test.tolist(), "test") | dict.fromkeys(dev.tolist(), "dev")
    languages = find_named_languages(data, source, target)
    suffixes = languages or ("tsv",)
    counts = {"train": 0, "dev": 0, "test": 0}
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(open_pair_writer([folder / f"{name}.{suffix}" for suffix in suffixes], overwrite))
            for name in counts
        }
        for pair in iterate_all():
            if value := hash_source(pair, seed):
                name = names.get(value, "train")
                writers[name](pair)
                counts[name] += 1
    return counts
