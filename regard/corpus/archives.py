"""Archive extraction (tar, zip, gzip) with a size limit; members are written only to paths that the caller chooses."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from regard.errors import UserError

_CHUNK_BYTES = 1 << 20
_MIN_SIZE_LIMIT, _MAX_COMPRESSION_RATIO = 100 << 20, 100  # text compresses to a fifth or a tenth, never to a hundredth

LineTransform = Callable[[Iterator[bytes]], Iterator[bytes]]
_MemberOpener = Callable[[], Any]


def unpack_members(
    archive: Path, outputs: Mapping[str, tuple[Path, LineTransform]], max_bytes: int | None = None
) -> None:
    """Write members of an archive to the given paths, each through its line transform, at most `max_bytes` in all."""
    if max_bytes is None:
        max_bytes = max(_MIN_SIZE_LIMIT, _MAX_COMPRESSION_RATIO * archive.stat().st_size)
    num_bytes = 0

    def iterate_limited_lines(file: IO[bytes]) -> Iterator[bytes]:
        """Yield lines; a decompression bomb ends in a UserError."""
        nonlocal num_bytes
        while line := file.readline(_CHUNK_BYTES):
            num_bytes += len(line)
            if num_bytes > max_bytes:
                raise UserError(
                    f"{archive} unpacks to more than {max_bytes:,} bytes, more than text can; it is not trusted"
                )
            yield line

    with _open_members(archive) as openers:
        for name, (path, transform) in outputs.items():
            if name not in openers:
                raise UserError(f"{archive} holds no file {name}; it has {', '.join(sorted(openers)) or 'none'}")
            path.parent.mkdir(parents=True, exist_ok=True)
            partial_path = path.with_name(f".{path.name}.part")
            try:
                with openers[name]() as member, partial_path.open("wb") as file:
                    file.writelines(transform(iterate_limited_lines(member)))
                partial_path.replace(path)
            finally:
                partial_path.unlink(missing_ok=True)


@contextmanager
def _open_members(archive: Path) -> Iterator[dict[str, _MemberOpener]]:
    """Yield functions that open the regular files of an archive, by name without folders; a .gz file has one.

    Links and devices are ignored. An archive with a path that leads out of its folder is refused as a whole.
    """
    try:
        if archive.name.endswith((".tgz", ".tar.gz", ".tar")):
            with tarfile.open(archive) as tar:
                members = tar.getmembers()
                files = {entry.name: partial(tar.extractfile, entry) for entry in members if entry.isfile()}
                yield _index_by_file_name(archive, [entry.name for entry in members], files)
        elif archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as file:
                opened = {info.filename: partial(file.open, info) for info in file.infolist() if not info.is_dir()}
                yield _index_by_file_name(archive, file.namelist(), opened)
        else:
            yield {archive.name.removesuffix(".gz"): partial(gzip.open, archive)}
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{archive} is damaged, it cannot be unpacked: {error}") from error
    except (NotImplementedError, RuntimeError) as error:  # an unsupported zip method, or a password
        raise UserError(f"{archive} cannot be unpacked: {error}") from error


def _index_by_file_name(
    archive: Path, names: Sequence[str], openers: Mapping[str, _MemberOpener]
) -> dict[str, _MemberOpener]:
    """Return the openers by name without folders; raise a UserError if a path in `names` leads out of the folder."""
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or name[1:2] == ":":
            raise UserError(f"{archive} holds {name!r}, which leads out of its folder; nothing of it was unpacked")
    return {PurePosixPath(name).name: opener for name, opener in openers.items()}
