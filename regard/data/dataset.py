"""Datasets of token ids: memory-mapped rows of different lengths, and their padding and collation into batches."""

from __future__ import annotations

import hashlib
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.special_tokens import BOS, EOS, PAD
from regard.tokenizers.tokenizer import Tokenizer

Integers = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]


@dataclass(eq=False, repr=False)
class RaggedArray:
    """Rows of integers of different lengths; `ragged[i]` is a view of row i."""

    FILES: ClassVar = ("kind", "numbers", "offsets")  # suffixes of the files that hold it
    values: Integers
    offsets: Indices  # start of each row, and the end of the last one
    mmaps: Sequence[mmap.mmap] = ()
    location: tuple[Path, str] | None = None  # folder and name of mapped files

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle mapped rows as the location of their files: spawned data workers map them again."""
        return (type(self).load, self.location) if self.location else (type(self), (self.values, self.offsets))

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int] | Integers]) -> RaggedArray:
        """Pack rows that are in memory."""
        arrays = [np.asarray(row, dtype=np.int32).ravel() for row in rows]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in arrays], out=offsets[1:])
        return cls(np.concatenate([np.zeros(0, dtype=np.int32), *arrays]), offsets)

    @classmethod
    def load(cls, folder: Path, name: str) -> RaggedArray:
        """Memory-map the files that a `RaggedArrayWriter` wrote; nothing is read until it is accessed."""
        kind = (folder / f"{name}.kind").read_text(encoding="ascii")
        numbers, first = _map_file(folder / f"{name}.numbers", np.dtype(kind))
        offsets, second = _map_file(folder / f"{name}.offsets", np.dtype("<i8"))
        return cls(numbers, offsets, [*first, *second], (folder, name))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Integers:
        row = range(len(self))[index]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Indices:
        """Number of values in each row."""
        return np.diff(self.offsets)

    def apply_bpe_dropout(self, rows: Indices, tokenizer: Tokenizer, dropout: float, seed: int) -> RaggedArray:
        """Return the sentences at `rows`, segmented again with BPE dropout."""
        sentences = [self[row].tolist() for row in rows.tolist()]
        return RaggedArray.from_rows(tokenizer.apply_bpe_dropout(sentences, dropout, seed))

    def release_pages(self) -> None:
        """Release the mapped pages that were touched, which would otherwise count as this process's memory."""
        if not hasattr(mmap, "MADV_DONTNEED"):  # on Windows
            return
        for pages in self.mmaps:
            pages.madvise(mmap.MADV_DONTNEED)


class RaggedArrayWriter:
    """Write rows to disk chunk by chunk."""

    def __init__(self, folder: Path, name: str, max_value: int) -> None:
        """Open the files; values up to `max_value` below 65536 are stored in two bytes each, others in four."""
        self.dtype = np.dtype("<u2" if max_value < 1 << 16 else "<i4")
        (folder / f"{name}.kind").write_text(self.dtype.str, encoding="ascii")
        self.values_file: BinaryIO = (folder / f"{name}.numbers").open("wb")
        self.offsets_file: BinaryIO = (folder / f"{name}.offsets").open("wb")
        self.offsets_file.write(np.zeros(1, dtype="<i8").tobytes())
        self.num_values = 0

    def write(self, rows: RaggedArray) -> None:
        """Append rows."""
        self.values_file.write(rows.values.astype(self.dtype).tobytes())
        self.offsets_file.write((rows.offsets[1:] + self.num_values).astype("<i8").tobytes())
        self.num_values += int(rows.offsets[-1])

    def close(self) -> None:
        """Flush and close the files."""
        self.values_file.close()
        self.offsets_file.close()


def _map_file(path: Path, dtype: np.dtype[Any]) -> tuple[Integers, list[mmap.mmap]]:
    """Return a file as an array, and its memory map; an empty file has none."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return np.zeros(0, dtype=dtype), []
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(pages, dtype=dtype), [pages]


@dataclass(frozen=True)
class Batch:
    """Tensors of B examples, in the order of the arguments of the model's loss; an optional one may be None."""

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, field.name) for field in fields(self))

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the batch with a function applied to each tensor."""
        return type(self)(*(None if tensor is None else function(tensor) for tensor in self))

    def to(self, device: torch.device) -> Self:
        """Return the batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory, as PyTorch's data loader asks for it."""
        return self._map(Tensor.pin_memory)

    @property
    def num_rows(self) -> int:
        """Number of examples, B."""
        return len(next(iter(self)))

    @property
    def num_targets(self) -> int:
        """Number of items that the loss is averaged over: tokens, sentences or documents; by default examples."""
        return self.num_rows

    @property
    def num_tokens(self) -> int:
        """Number of tokens without padding, for measuring training speed."""
        raise NotImplementedError

    def split_into(self, count: int) -> list[Self]:
        """Split into `count` micro-batches, or into one for each example if there are fewer examples."""
        return [self._map(itemgetter(rows)) for rows in make_even_slices(self.num_rows, count)]


@dataclass(frozen=True)
class SequenceBatch(Batch):
    """B right-padded sequences."""

    source: Tensor  # (B, S), ids or features
    lengths: Tensor  # (B,)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, or time steps, without padding, for measuring training speed."""
        return int(self.lengths.sum())


@dataclass(frozen=True)
class Seq2SeqBatch(SequenceBatch):
    """B right-padded sentence pairs; sources end with EOS."""

    target_in: Tensor  # (B, T), begins with BOS
    target_out: Tensor  # (B, T), ends with EOS
    guide: Tensor | None = None  # (B, T, S), target attention weights for guided alignment; None without alignments

    @property
    def num_targets(self) -> int:
        """Number of target tokens without padding, over which the loss is averaged."""
        return int((self.target_out != PAD).sum())

    @property
    def num_tokens(self) -> int:
        """Number of tokens for measuring training speed: target tokens without padding."""
        return self.num_targets


def make_even_slices(num_rows: int, count: int) -> list[slice]:
    """Return `count` slices of nearly equal length over the rows, or one for each row if there are fewer rows."""
    ends = np.linspace(0, num_rows, min(count, num_rows) + 1).astype(int)
    return [slice(start, end) for start, end in pairwise(ends)]


def collate(source: RaggedArray, target: RaggedArray, rows: Indices, links: RaggedArray | None = None) -> Seq2SeqBatch:
    """Build the batch of the pairs at `rows`, with a guide for the attention if token links are given."""
    ids, lengths = pad_with_end_id(source, rows, EOS)
    target_in, target_out = pad_and_shift_targets(target, rows)
    guide = None if links is None else torch.from_numpy(_make_guide(links, rows, target_out.shape[1], ids.shape[1]))
    source_in, counts, before, after = map(torch.from_numpy, (ids, lengths, target_in, target_out))
    return Seq2SeqBatch(source_in, counts, before, after, guide)


def pad_and_shift_targets(target: RaggedArray, rows: Indices) -> tuple[Integers, Integers]:
    """Return decoder inputs, which begin with BOS, and expected outputs, which end with EOS, both (B, T)."""
    target_out, _ = pad_with_end_id(target, rows, EOS)
    target_in = np.roll(target_out, 1, axis=1)
    target_in[target_in == EOS] = PAD
    target_in[:, 0] = BOS
    return target_in, target_out


def pad_with_end_id(sentences: RaggedArray, rows: Indices, end_id: int) -> tuple[Integers, Integers]:
    """Return right-padded sentences with `end_id` appended, (B, S), and their lengths, (B,)."""
    padded, lengths = pad_rows(sentences, rows, extra_columns=1)
    padded[np.arange(len(rows)), lengths] = end_id
    return padded, np.asarray(lengths + 1)


def pad_rows(
    ragged: RaggedArray, rows: Indices, fill_value: int = PAD, extra_columns: int = 0
) -> tuple[Integers, Integers]:
    """Return rows right-padded with `fill_value`, (B, S), and their lengths, (B,).

    S is the length of the longest row plus `extra_columns`.
    """
    starts, lengths = ragged.offsets[rows], ragged.offsets[rows + 1] - ragged.offsets[rows]
    columns = np.arange(int(lengths.max()) + extra_columns)
    padded = np.full((len(rows), len(columns)), fill_value, dtype=np.int64)
    is_value = columns < lengths[:, None]
    padded[is_value] = ragged.values[(starts[:, None] + columns)[is_value]]
    return padded, lengths


def _make_guide(links: RaggedArray, rows: Indices, target_length: int, source_length: int) -> Integers:
    """Return (B, T, S): the uniform distribution over each target token's linked source tokens; zeros if unlinked."""
    weights = np.zeros((len(rows), target_length, source_length), dtype=np.float32)
    for index, row in enumerate(rows):
        pairs = links[int(row)].reshape(-1, 2)
        weights[index, pairs[:, 1], pairs[:, 0]] = 1
    weights /= np.maximum(weights.sum(2, keepdims=True), 1)
    return weights


class DatasetPart(NamedTuple):
    """Number of consecutive examples of one corpus, and how often each occurs in an epoch."""

    num_examples: int
    weight: float = 1.0


class TrainingDataset(ABC):
    """Encoded examples for the training loop; a derived class sets `sizes` and `fingerprint`."""

    parts: Sequence[DatasetPart] = ()
    left_out: Mapping[str, int] = MappingProxyType({})  # number of examples that are not in the dataset, by reason
    sizes: npt.NDArray[np.int32]  # tokens of each example in a batch
    fingerprint: str  # identifies the content
    read_all_texts: Callable[[], RaggedArray] | None = None  # token ids of all texts, to learn word vectors from

    def __len__(self) -> int:
        return len(self.sizes)

    @abstractmethod
    def make_batch(self, rows: Indices, seed: int = 0) -> Any:
        """Return the examples at `rows` as a batch; `seed` determines random augmentation."""

    def release_memory(self) -> None:  # noqa: B027 - a default, not abstract
        """Release memory that can be read again from disk; by default all data stay in memory."""


@dataclass(eq=False, repr=False)
class ParallelDataset(TrainingDataset):
    """Source and target sentences as token ids; the pairs of one corpus after another form its parts."""

    source: RaggedArray
    target: RaggedArray
    links: RaggedArray | None = None  # the alignment of each pair: source token, target token, and so on
    parts: Sequence[DatasetPart] = ()
    tokenizers: Sequence[Tokenizer] = ()  # of both sides, for BPE dropout
    dropout: float = 0.0
    fingerprint: str = ""  # if it is known, the ids need not be read to compute it

    def __post_init__(self) -> None:
        arrays = [self.source, self.target, *([self.links] if self.links else [])]
        self.fingerprint = self.fingerprint or hash_arrays(*arrays)
        self.sizes = _compute_sizes(self.source, self.target)
        self.release_memory()

    def make_batch(self, rows: Indices, seed: int = 0) -> Seq2SeqBatch:
        """Return the pairs at `rows` as a batch; `seed` determines BPE dropout, which segments both sides anew."""
        if not self.dropout:
            return collate(self.source, self.target, rows, self.links)
        source_tokenizer, target_tokenizer = self.tokenizers
        source = self.source.apply_bpe_dropout(rows, source_tokenizer, self.dropout, seed)
        target = self.target.apply_bpe_dropout(rows, target_tokenizer, self.dropout, seed ^ 1)
        return collate(source, target, np.arange(len(rows)))

    def release_memory(self) -> None:
        """Release the memory-mapped pages that were read so far."""
        for part in (self.source, self.target, self.links):
            if part is not None:
                part.release_pages()


def _compute_sizes(source: RaggedArray, target: RaggedArray, chunk_size: int = 1 << 20) -> npt.NDArray[np.int32]:
    """Return the tokens that each pair takes in a batch: the length of the longer side with EOS."""
    sizes = np.empty(len(source), dtype=np.int32)
    for start in range(0, len(source), chunk_size):
        rows = slice(start, start + chunk_size + 1)
        sizes[start : start + chunk_size] = np.maximum(np.diff(source.offsets[rows]), np.diff(target.offsets[rows])) + 1
    return sizes


def hash_arrays(*parts: RaggedArray | npt.NDArray[Any]) -> str:
    """Return a SHA-256 that identifies the content of a dataset."""
    digest = hashlib.sha256()
    for part in parts:
        arrays = (np.asarray(part.values, np.int32), part.offsets) if isinstance(part, RaggedArray) else (part,)
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
