"""A first pass over the corpora: how many pairs there are, and which are held out to validate on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.console import make_progress_bar
from regard.data import cache
from regard.data.readers.dispatch import (
    Pair,
    find_format_suffix,
    iterate_pairs,
    make_empty_corpus_error,
    parse_languages_from_name,
    read_all_pairs,
)
from regard.data.settings import DataSettings, TrainingCorpus, list_corpora
from regard.errors import UserError
from regard.paths import compute_sha256

Hashes = npt.NDArray[np.uint64]


class CorpusSplit(NamedTuple):
    """Pairs of each corpus that are left to train on, and the dev set."""

    counts: list[int]
    dev: list[Pair]
    held_out_sources: frozenset[str]  # sources that are not trained on
    fingerprints: list[list[str]]  # what tells the corpora from others


def split_corpora(settings: DataSettings, seed: int) -> CorpusSplit:
    """Counts the pairs, and holds some out where no dev set is named. Read once, remembered by content."""
    wanted = list_corpora(settings)
    if not wanted:
        raise UserError("nothing to train on: name one file that holds pairs, or two text files, source first")
    read_from = _fingerprint_corpora(wanted)
    key: dict[str, Any] = {"corpora": read_from, "languages": find_requested_languages(settings)}
    if not settings.dev:
        key |= {"dev_pairs": settings.dev_pairs, "seed": seed, "tagged": [corpus.tag is not None for corpus in wanted]}
    found = cache.find_or_build_entry("survey", key, lambda folder: _write_split(folder, wanted, settings, seed))
    document = json.loads((found / "survey.json").read_text(encoding="utf-8"))
    if not settings.dev:
        dev = [Pair(*pair) for pair in document["dev"]]
        return CorpusSplit(document["counts"], dev, frozenset(pair.source for pair in dev), read_from)
    dev = read_all_pairs([Path(name) for name in settings.dev], *find_requested_languages(settings))
    return CorpusSplit(document["counts"], dev, frozenset(), read_from)


def find_requested_languages(settings: DataSettings) -> tuple[str | None, str | None]:
    """The languages that choose the sides of a file with several."""
    return settings.source, settings.target


def _fingerprint_corpora(training_corpora: Sequence[TrainingCorpus]) -> list[list[str]]:
    """What tells corpora from others: the bytes of their files, and what their names say of them."""
    return [
        [
            f"{find_format_suffix(path)}:{parse_languages_from_name(path)}:{compute_sha256(_check_file_exists(path))}"
            for path in one.paths
        ]
        for one in training_corpora
    ]


def _check_file_exists(path: Path) -> Path:
    """The same path, if there is a file."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    return path


def _write_split(folder: Path, training_corpora: Sequence[TrainingCorpus], settings: DataSettings, seed: int) -> None:
    """The pass itself."""
    counts, hashes = [], []
    with make_progress_bar() as progress:
        task = progress.add_task("reading", total=None, note="")
        for corpus in training_corpora:
            found = np.fromiter(
                (
                    hash_source(pair, seed)
                    for pair in progress.track(
                        iterate_pairs(corpus.paths, *find_requested_languages(settings)), task_id=task
                    )
                ),
                dtype=np.uint64,
            )
            counts.append(len(found))
            hashes.append(found)
    if not any(found.any() for found in hashes):
        raise make_empty_corpus_error(path for corpus in training_corpora for path in corpus.paths)
    dev: list[Pair] = []
    if not settings.dev:
        candidates = [
            found for found, corpus in zip(hashes, training_corpora, strict=True) if corpus.tag is None
        ] or hashes
        held = choose_dev_hashes(np.concatenate(candidates), settings.dev_pairs)
        dev = list(_iterate_dev_pairs(held, training_corpora, settings, seed))
        counts = [int((~np.isin(found, held)).sum()) for found in hashes]
    document = {"counts": counts, "dev": dev}
    (folder / "survey.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def hash_source(pair: Pair, seed: int) -> int:
    """A number of the pair's source that is another with another seed; 0 where a side is empty."""
    if not pair.source.strip() or not pair.target.strip():
        return 0
    found = hashlib.blake2b(pair.source.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(found, "little") | 1


def choose_dev_hashes(hashes: Hashes, dev_pairs: int) -> Hashes:
    """The sources to hold out, at most a tenth of the pairs: as their numbers fall, all pairs of a source together.

    Where no source's pairs fit into a tenth, those of the source with the fewest are dev.
    """
    sources, counts = np.unique(hashes[hashes > 0], return_counts=True)
    if len(sources) < 2:
        raise UserError(f"{len(sources)} distinct source sentence is too little to train and validate on; give --dev")
    room = min(dev_pairs, max(1, int(counts.sum()) // 10))
    held = []
    for source, count in zip(sources, counts, strict=True):
        if count <= room:
            held.append(source)
            room -= int(count)
        if not room:
            break
    return np.array(held or [sources[counts.argmin()]], dtype=np.uint64)


def _iterate_dev_pairs(
    dev_hashes: Hashes, training_corpora: Sequence[TrainingCorpus], settings: DataSettings, seed: int
) -> Iterator[Pair]:
    """The pairs of these sources, from the corpora that are not tagged if any is not."""
    numbers, untagged = frozenset(dev_hashes.tolist()), [corpus for corpus in training_corpora if corpus.tag is None]
    for corpus in untagged or training_corpora:
        yield from (
            pair
            for pair in iterate_pairs(corpus.paths, *find_requested_languages(settings))
            if hash_source(pair, seed) in numbers
        )
