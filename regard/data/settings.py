"""Data settings (the `data` section of a recipe), and the corpora that they name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regard.config import Count, NonNegativeInt
from regard.data.readers.dispatch import is_bilingual_file
from regard.errors import UserError


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


def list_corpora(settings: DataSettings) -> list[TrainingCorpus]:
    """Return the training corpora in order, each one file of sentence pairs or two text files."""
    groups = group_paths([Path(name) for name in settings.train or ()])
    weights, tags = settings.weights or (1.0,) * len(groups), settings.tags or (None,) * len(groups)
    for name, values in (("data.weights", weights), ("data.tags", tags)):
        if len(values) != len(groups):
            raise UserError(f"{name} has {len(values)} values for {len(groups)} corpora; give one for each")
    return [TrainingCorpus(*fields) for fields in zip(groups, weights, tags, strict=True)]


def group_paths(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Group paths into corpora: files of sentence pairs alone, text files in pairs (`a.tsv b.en b.de`: two corpora)."""
    groups: list[tuple[Path, ...]] = []
    source: Path | None = None
    for path in paths:
        if is_bilingual_file(path):
            if source is not None:
                break
            groups.append((path,))
        elif source is None:
            source = path
        else:
            groups.append((source, path))
            source = None
    if source is not None:
        raise UserError(
            f"{source} holds one side only, by its name, and the other side does not follow: a corpus is one file "
            "that holds pairs or two text files, source first"
        )
    return groups
