"""Ragged arrays: rows of different lengths stored contiguously in one file, which is memory-mapped."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]


class RaggedArray:
    """Rows of integers of different lengths; `ragged[i]` is a view of row i."""

    def __init__(self, values: Integers, offsets: Indices, mmaps: Sequence[mmap.mmap] = ()) -> None:
        self.values = values
        self.offsets = offsets  # start of each row, and the end of the last one
        self.mmaps = mmaps

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
        return cls(numbers, offsets, [*first, *second])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Integers:
        row = range(len(self))[index]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Indices:
        """Number of values in each row."""
        return np.diff(self.offsets)

    def release_pages(self) -> None:
        """Release the mapped pages that were touched, which would otherwise count as this process's memory."""
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
