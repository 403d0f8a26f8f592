"""A first pass over the corpora: how many pairs there are, and which are held out to validate on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.console import bar
from regard.data import cache
from regard.data.corpus import Pair, by_name, nothing_in, pairs, read, suffix
from regard.data.disk import digest
from regard.data.settings import Corpus, DataSettings, corpora
from regard.errors import UserError

Hashes = npt.NDArray[np.uint64]


class Survey(NamedTuple):
    """Pairs of each corpus that are left to train on, and the dev set."""

    counts: list[int]
    dev: list[Pair]
    held: frozenset[str]  # sources that are not trained on
    content: list[list[str]]  # what tells the corpora from others


def survey(settings: DataSettings, seed: int) -> Survey:
    """Counts the pairs, and holds some out where no dev set is named. Read once, remembered by content."""
    wanted = corpora(settings)
    if not wanted:
        raise UserError("nothing to train on: name one file that holds pairs, or two text files, source first")
    read_from = content(wanted)
    key: dict[str, Any] = {"corpora": read_from, "languages": languages_of(settings)}
    if not settings.dev:
        key |= {"dev_pairs": settings.dev_pairs, "seed": seed, "tagged": [corpus.tag is not None for corpus in wanted]}
    found = cache.entry("survey", key, lambda folder: write(folder, wanted, settings, seed))
    document = json.loads((found / "survey.json").read_text(encoding="utf-8"))
    if not settings.dev:
        dev = [Pair(*pair) for pair in document["dev"]]
        return Survey(document["counts"], dev, frozenset(pair.source for pair in dev), read_from)
    dev = pairs([Path(name) for name in settings.dev], *languages_of(settings))
    return Survey(document["counts"], dev, frozenset(), read_from)


def languages_of(settings: DataSettings) -> tuple[str | None, str | None]:
    """The languages that choose the sides of a file with several."""
    return settings.source, settings.target


def content(wanted: Sequence[Corpus]) -> list[list[str]]:
    """What tells corpora from others: the bytes of their files, and what their names say of them."""
    return [[f"{suffix(path)}:{by_name(path)}:{digest(present(path))}" for path in one.paths] for one in wanted]


def present(path: Path) -> Path:
    """The same path, if there is a file."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    return path


def write(folder: Path, wanted: Sequence[Corpus], settings: DataSettings, seed: int) -> None:
    """The pass itself."""
    counts, hashes = [], []
    with bar() as progress:
        task = progress.add_task("reading", total=None, note="")
        for corpus in wanted:
            found = np.fromiter(
                (
                    hashed(pair, seed)
                    for pair in progress.track(read(corpus.paths, *languages_of(settings)), task_id=task)
                ),
                dtype=np.uint64,
            )
            counts.append(len(found))
            hashes.append(found)
    if not any(found.any() for found in hashes):
        raise nothing_in(path for corpus in wanted for path in corpus.paths)
    dev: list[Pair] = []
    if not settings.dev:
        candidates = [found for found, corpus in zip(hashes, wanted, strict=True) if corpus.tag is None] or hashes
        held = chosen(np.concatenate(candidates), settings.dev_pairs)
        dev = list(those(held, wanted, settings, seed))
        counts = [int((~np.isin(found, held)).sum()) for found in hashes]
    document = {"counts": counts, "dev": dev}
    (folder / "survey.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def hashed(pair: Pair, seed: int) -> int:
    """A number of the pair's source that is another with another seed; 0 where a side is empty."""
    if not pair.source.strip() or not pair.target.strip():
        return 0
    found = hashlib.blake2b(pair.source.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(found, "little") | 1


def chosen(hashes: Hashes, dev_pairs: int) -> Hashes:
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


def those(held: Hashes, wanted: Sequence[Corpus], settings: DataSettings, seed: int) -> Iterator[Pair]:
    """The pairs of these sources, from the corpora that are not tagged if any is not."""
    numbers, untagged = frozenset(held.tolist()), [corpus for corpus in wanted if corpus.tag is None]
    for corpus in untagged or wanted:
        yield from (pair for pair in read(corpus.paths, *languages_of(settings)) if hashed(pair, seed) in numbers)
