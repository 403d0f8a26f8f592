"""Parquet: sentence pairs as tables, read in batches of rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from regard.data.languages import LanguageRequest, choose_columns
from regard.data.readers.text import DECOMPRESSORS, Pair, format_path, open_decompressed
from regard.errors import UserError, to_single_line

_ROWS_PER_BATCH = 1024
_BUFFER_BYTES = 1 << 20  # of a column read at once: a row group may be larger than memory


def read_parquet(path: Path, request: LanguageRequest) -> Iterator[Pair]:
    """Yield the pairs: columns `source` and `target`, or two language codes, also inside a struct `translation`."""
    import pyarrow

    with _open_table(path) as file:
        names = _choose_columns(file.schema_arrow, request, path)
        for batch in file.iter_batches(_ROWS_PER_BATCH, columns=names, use_threads=False):
            table = pyarrow.Table.from_batches([batch]).flatten()
            for source, target in zip(*(table.column(name).to_pylist() for name in names), strict=True):
                yield Pair(source or "", target or "")


@contextmanager
def _open_table(path: Path) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    with _open_seekable(path) as file:
        try:
            yield parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = to_single_line(error)
            raise UserError(f"{format_path(path)} is damaged or not a Parquet file: {reason}") from error


@contextmanager
def _open_seekable(path: Path) -> Iterator[IO[bytes]]:
    """Yield the file, or a copy on disk of a compressed file or a pipe: Parquet is read from its end."""
    with open_decompressed(path) as file:
        if path.is_file() and path.suffix.lower() not in DECOMPRESSORS:
            yield file
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            yield copy


def _choose_columns(schema: Any, request: LanguageRequest, path: Path) -> list[str]:
    """Return the Parquet paths of source and target: two columns, or two fields of a struct."""
    from pyarrow import types

    names, prefix = [field.name for field in schema if _is_text_type(field.type)], ""
    has_struct = "translation" in schema.names and types.is_struct(schema.field("translation").type)
    if has_struct and not {"source", "target"} <= set(names):
        fields, prefix = schema.field("translation").type, "translation."
        names = [field.name for field in fields if _is_text_type(field.type)]
    chosen = choose_columns(names, request, format_path(path))
    if chosen is None:
        columns = to_single_line(", ".join(schema.names)) or "(none)"
        raise UserError(
            f"{format_path(path)} has the columns {columns}; pairs are in `source` and `target`, in two columns named "
            f"by language codes, or in a struct `translation` of these"
        )
    return [prefix + name for name in chosen]


def _is_text_type(dtype: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(dtype):
        dtype = dtype.value_type
    return bool(types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype))
