"""Corpora of a run: settings (the `data` section of a recipe), and the dev split held out of them, which is cached."""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import sentencepiece

from regard.config import Count, Fraction, NonNegativeInt
from regard.console import make_progress_bar
from regard.data.readers.dispatch import (
    find_format_suffix,
    is_bilingual_file,
    iterate_pairs,
    make_empty_corpus_error,
    parse_languages_from_name,
    read_all_pairs,
)
from regard.data.readers.text import Pair
from regard.errors import UserError
from regard.paths import compute_sha256, find_or_build_cache_entry
from regard.tokenizers.segmentation import find_sentencex_version
from regard.version import VERSION


@dataclass(frozen=True, kw_only=True)
class BaseDataSettings:
    """Data settings of every task."""

    train: tuple[str, ...] | None = None
    dev: tuple[str, ...] | None = None
    workers: NonNegativeInt = 0
    timeout: Count = 600


@dataclass(frozen=True, kw_only=True)
class DataSettings(BaseDataSettings):
    """Data settings of translation: corpora, weights, tags, languages, length limit and dev set."""

    weights: tuple[float, ...] | None = None
    tags: tuple[str | None, ...] | None = None
    mix: tuple[str, ...] | None = None
    mix_fraction: Fraction = 0.3
    alignments: str | None = None
    source: str | None = None
    target: str | None = None
    max_length: Count = 256
    longest: Count | None = None
    sentences: Count | None = None
    dev_pairs: Count = 1000

    def __post_init__(self) -> None:
        if any(not 0 <= weight < math.inf for weight in self.weights or ()) or (self.weights and not any(self.weights)):
            raise ValueError(f"weights are not negative, and one is above 0, not {list(self.weights or ())}")
        for tag in self.tags or ():
            if tag is not None and (not tag.isidentifier() or tag in ("pad", "unk", "s")):
                raise ValueError(
                    f"a tag is a word of letters and digits other than pad, unk and s, or null for none, not {tag!r}"
                )

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Languages that select the sides of a file with several languages."""
        return self.source, self.target


class TrainingCorpus(NamedTuple):
    """One file of sentence pairs or two text files, with the number of times per epoch and the tag of its sources."""

    paths: tuple[Path, ...]
    weight: float = 1.0
    tag: str | None = None
    is_mixed: bool = False  # general text of `data.mix`, which is not held out


def list_corpora(settings: DataSettings) -> list[TrainingCorpus]:
    """Return the training corpora in order, at least one; each is one file of sentence pairs or two text files."""
    groups = group_paths([Path(name) for name in settings.train or ()])
    if not groups:
        raise UserError("nothing to train on: name one file that holds pairs, or two text files, source first")
    weights, tags = settings.weights or (1.0,) * len(groups), settings.tags or (None,) * len(groups)
    for name, values in (("data.weights", weights), ("data.tags", tags)):
        if len(values) != len(groups):
            raise UserError(f"{name} has {len(values)} values for {len(groups)} corpora; give one for each")
    mixed = [TrainingCorpus(paths, is_mixed=True) for paths in group_paths([Path(name) for name in settings.mix or ()])]
    return [TrainingCorpus(*fields) for fields in zip(groups, weights, tags, strict=True)] + mixed


def compute_weights(corpora: Sequence[TrainingCorpus], counts: Sequence[int], mix_fraction: float) -> list[float]:
    """Return how often each corpus is used in an epoch, so that mixed corpora are `mix_fraction` of its pairs."""
    own, mixed = (
        sum(count * corpus.weight for corpus, count in zip(corpora, counts, strict=True) if corpus.is_mixed == is_mixed)
        for is_mixed in (False, True)
    )
    factor = mix_fraction / (1 - mix_fraction) * own / mixed if mixed else 1.0
    return [corpus.weight * (factor if corpus.is_mixed else 1.0) for corpus in corpora]


def group_paths(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Group paths into corpora: files of sentence pairs alone, text files in pairs (`a.tsv b.en b.de`: two corpora)."""
    groups: list[tuple[Path, ...]] = []
    remaining = iter(paths)
    for path in remaining:
        if is_bilingual_file(path):
            groups.append((path,))
            continue
        target = next(remaining, None)
        if target is None or is_bilingual_file(target):
            raise UserError(
                f"{path} holds one side only, by its name, and the other side does not follow: a corpus is one file "
                "that holds pairs or two text files, source first"
            )
        groups.append((path, target))
    return groups


def cache_data(kind: str, key: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """Return the folder that `build` writes, from the cache of prepared data if it is there.

    Each version of regard, and of the libraries that affect the content, has separate entries.
    """
    return find_or_build_cache_entry(kind, {"versions": collect_versions(), **key}, build)


def collect_versions() -> dict[str, str | None]:
    """Return the versions that affect the content of every entry, in addition to its key."""
    return {
        "regard": VERSION,
        "source": compute_source_digest(),
        "sentencepiece": sentencepiece.__version__,
        "sentencex": find_sentencex_version(),
        "unicode": unicodedata.unidata_version,
        "icu": str(find_spec("icu4py") is not None),
    }


@cache
def compute_source_digest() -> str:
    """Return the SHA-256 of the source files that read, split and encode text: any change of them changes the keys."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(path for name in ("data", "tokenizers") for path in (package / name).rglob("*.*")):
        if path.suffix in (".py", ".txt"):
            digest.update(f"{path.relative_to(package)} {compute_sha256(path)}\n".encode())
    return digest.hexdigest()


Hashes = npt.NDArray[np.uint64]


class CorpusSplit(NamedTuple):
    """Number of training pairs of each corpus, and the dev set."""

    counts: list[int]
    dev: list[Pair]
    held_out_sources: frozenset[str]  # sources that are not trained on
    fingerprints: list[list[str]]  # identify the content of the corpora


def split_corpora(settings: DataSettings, seed: int) -> CorpusSplit:
    """Count the pairs, and hold out a dev set if none is given; the result is cached by the content of the files."""
    corpora = list_corpora(settings)
    fingerprints = _fingerprint_corpora(corpora)
    key: dict[str, Any] = {"corpora": fingerprints, "languages": settings.languages}
    if not settings.dev:
        key |= {"dev_pairs": settings.dev_pairs, "seed": seed, "kept": [_is_kept(corpus) for corpus in corpora]}
    entry = cache_data("dev-split", key, lambda folder: _write_split(folder, corpora, settings, seed))
    document = json.loads((entry / "dev-split.json").read_text(encoding="utf-8"))
    if settings.dev:
        dev = read_all_pairs(settings.dev, *settings.languages)
        return CorpusSplit(document["counts"], dev, frozenset(), fingerprints)
    dev = [Pair(*pair) for pair in document["dev"]]
    return CorpusSplit(document["counts"], dev, frozenset(pair.source for pair in dev), fingerprints)


def _fingerprint_corpora(training_corpora: Sequence[TrainingCorpus]) -> list[list[str]]:
    """Return what identifies the corpora: format, languages in the file name, and SHA-256 of each file."""
    fingerprints = []
    for corpus in training_corpora:
        for path in corpus.paths:
            if not path.is_file():
                raise UserError(f"there is no file {path}")
        names = [f"{find_format_suffix(path)}:{parse_languages_from_name(path)}" for path in corpus.paths]
        fingerprints.append([f"{name}:{compute_sha256(path)}" for name, path in zip(names, corpus.paths, strict=True)])
    return fingerprints


def _write_split(folder: Path, training_corpora: Sequence[TrainingCorpus], settings: DataSettings, seed: int) -> None:
    """Read the corpora and write the counts and the dev set, which is chosen from untagged corpora if there are any."""
    hashes: list[Hashes] = []
    with make_progress_bar(transient=True) as progress:
        task = progress.add_task("reading", total=None, note="")
        for corpus in training_corpora:
            pairs = progress.track(iterate_pairs(corpus.paths, *settings.languages), task_id=task)
            hashes.append(np.fromiter((hash_source(pair, seed) for pair in pairs), dtype=np.uint64))
    if not any(corpus_hashes.any() for corpus_hashes in hashes):
        raise make_empty_corpus_error(path for corpus in training_corpora for path in corpus.paths)
    counts, dev = list(map(len, hashes)), list[Pair]()
    if not settings.dev:
        corpora = [corpus for corpus in training_corpora if not _is_kept(corpus)]
        corpora = corpora or [corpus for corpus in training_corpora if not corpus.is_mixed]
        candidates = [part for corpus, part in zip(training_corpora, hashes, strict=True) if corpus in corpora]
        dev_hashes = choose_dev_hashes(np.concatenate(candidates), settings.dev_pairs)
        held_out = frozenset(dev_hashes.tolist())
        pairs = (pair for corpus in corpora for pair in iterate_pairs(corpus.paths, *settings.languages))
        dev = [pair for pair in pairs if hash_source(pair, seed) in held_out]
        counts = [int((~np.isin(corpus_hashes, dev_hashes)).sum()) for corpus_hashes in hashes]
    document = {"counts": counts, "dev": dev}
    (folder / "dev-split.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def _is_kept(corpus: TrainingCorpus) -> bool:
    """Return whether no dev set is held out of a corpus if there are others."""
    return corpus.is_mixed or corpus.tag is not None


def hash_source(pair: Pair, seed: int) -> int:
    """Return a hash of the pair's source, which depends on the seed; 0 if a side is empty."""
    if not pair.source.strip() or not pair.target.strip():
        return 0
    digest = hashlib.blake2b(pair.source.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little") | 1


def choose_dev_hashes(hashes: Hashes, dev_pairs: int) -> Hashes:
    """Choose the sources to hold out, in the order of their hashes, at most a tenth of the pairs.

    All pairs of a source are held out together. If the pairs of no source fit into a tenth, the source with the fewest
    pairs is held out.
    """
    sources, counts = np.unique(hashes[hashes > 0], return_counts=True)
    if len(sources) < 2:
        raise UserError(f"{len(sources)} distinct source sentence is too little to train and validate on; give --dev")
    remaining = min(dev_pairs, max(1, int(counts.sum()) // 10))
    dev_hashes = []
    for source, count in zip(sources, counts, strict=True):
        if count <= remaining:
            dev_hashes.append(source)
            remaining -= int(count)
        if not remaining:
            break
    return np.array(dev_hashes or [sources[counts.argmin()]], dtype=np.uint64)
