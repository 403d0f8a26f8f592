"""Parquet tables, read some rows at a time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from regard.data.files import COMPRESSED, in_a_line, name_of, reading
from regard.data.pair import Pair
from regard.data.sides import Wish, choose, codes_among, nearest_code
from regard.errors import UserError

ROWS = 1024
BUFFER = 1 << 20  # bytes of a column that are read at once: a row group may be larger than memory


class Columns(NamedTuple):
    """Where source and target are: two columns, or two fields of one column `inside`."""

    source: str
    target: str
    inside: str | None = None

    def path(self, side: str) -> str:
        """A side's name as Parquet has it."""
        return side if self.inside is None else f"{self.inside}.{side}"


def read(path: Path, wish: Wish) -> Iterator[Pair]:
    """Columns `source` and `target`, or two called by their languages' codes, or a struct `translation` of such."""
    with table(path) as file:
        columns = choice(file.schema_arrow, wish, path)
        names = [columns.path(side) for side in (columns.source, columns.target)]
        for batch in file.iter_batches(ROWS, columns=names, use_threads=False):
            sides = (texts(batch, side, columns) for side in (columns.source, columns.target))
            yield from map(Pair, *sides)


def languages(path: Path, wish: Wish) -> tuple[str, str] | None:
    """The names of the two columns, where they are languages."""
    with table(path) as file:
        columns = choice(file.schema_arrow, wish, path)
    return None if columns == Columns("source", "target") else (columns.source, columns.target)


@contextmanager
def table(path: Path) -> Iterator[Any]:
    """The open table."""
    import pyarrow
    from pyarrow import parquet

    with seekable(path) as file:
        try:
            yield parquet.ParquetFile(file, buffer_size=BUFFER, pre_buffer=False)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            said = in_a_line(error)
            raise UserError(f"{name_of(path)} is damaged or not a Parquet file: {said}") from error


@contextmanager
def seekable(path: Path) -> Iterator[IO[bytes]]:
    """The file, or a copy on disk of what can be read only once: a table is read from its end."""
    with reading(path) as file:
        if path.is_file() and path.suffix.lower() not in COMPRESSED:
            yield file
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            yield copy


def choice(schema: Any, wish: Wish, path: Path) -> Columns:
    """The columns of source and target."""
    from pyarrow import types

    names = [field.name for field in schema if is_text(field.type)]
    if {"source", "target"} <= set(names):
        wish.meet_no_names(name_of(path))
        return Columns("source", "target")
    inside = None
    if "translation" in schema.names and types.is_struct(schema.field("translation").type):
        inside = "translation"
        names = [field.name for field in schema.field(inside).type if is_text(field.type)]
    codes = codes_among(names, wish)
    if len(codes) < 2:
        there = in_a_line(", ".join(schema.names)) or "(none)"
        raise UserError(
            f"{name_of(path)} has the columns {there}; pairs are in `source` and `target`, in two columns called by "
            f"their languages' codes, or in a `translation` of such"
        )
    sides = choose(codes, wish, name_of(path))
    return Columns(nearest_code(codes, sides.source) or "", nearest_code(codes, sides.target) or "", inside)


def is_text(kind: Any) -> bool:
    """Whether a column holds text."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def texts(batch: Any, side: str, columns: Columns) -> list[str]:
    """A side of some rows; what is missing is empty."""
    from pyarrow import compute

    found = batch.column(side) if columns.inside is None else batch.column(columns.inside)
    if columns.inside is not None:
        found = compute.struct_field(found, [side])
    return [text or "" for text in found.to_pylist()]
