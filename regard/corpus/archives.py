"""Files out of archives, by names of our own: nothing that an archive says decides where a byte is written."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from regard.errors import UserError

_CHUNK_BYTES = 1 << 20
_MIN_SIZE_LIMIT, _MAX_COMPRESSION_RATIO = 100 << 20, 100  # text shrinks to a fifth or a tenth, never to a hundredth

LineTransform = Callable[[Iterator[bytes]], Iterator[bytes]]
_MemberOpener = Callable[[], Any]


def unpack_members(
    archive: Path, outputs: Mapping[str, tuple[Path, LineTransform]], max_bytes: int | None = None
) -> None:
    """Writes members to the paths that they are wanted at, each through its edit; `most` bytes altogether at most."""
    limit = _SizeLimit(
        archive,
        max_bytes if max_bytes is not None else max(_MIN_SIZE_LIMIT, _MAX_COMPRESSION_RATIO * archive.stat().st_size),
    )
    with _open_members(archive) as found:
        for name, (path, edit) in outputs.items():
            if name not in found:
                raise UserError(f"{archive} holds no file {name}; it has {', '.join(sorted(found)) or 'none'}")
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.part")
            try:
                with found[name]() as member, beside.open("wb") as file:
                    file.writelines(edit(limit.iterate_limited_lines(member)))
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)


class _SizeLimit:
    """How many bytes an archive may become; a few that are packed well fill any disk."""

    def __init__(self, archive: Path, max_bytes: int) -> None:
        self._archive, self._max_bytes, self._num_bytes = archive, max_bytes, 0

    def iterate_limited_lines(self, file: IO[bytes]) -> Iterator[bytes]:
        """The lines of a file, as long as there are not too many."""
        while line := file.readline(_CHUNK_BYTES):
            self._num_bytes += len(line)
            if self._num_bytes > self._max_bytes:
                raise UserError(
                    f"{self._archive} unpacks to more than {self._max_bytes:,} bytes, more than text can; it is not trusted"
                )
            yield line


@contextmanager
def _open_members(archive: Path) -> Iterator[dict[str, _MemberOpener]]:
    """The plain files in an archive, by their names without folders, each to be opened; a .gz file has one.

    Links and devices are none. An archive with a name that leads out of its folder is refused as a whole.
    """
    try:
        if archive.name.endswith((".tgz", ".tar.gz", ".tar")):
            with tarfile.open(archive) as tar:
                entries = tar.getmembers()
                _check_member_names(archive, [entry.name for entry in entries])
                yield {_strip_folders(one.name): partial(tar.extractfile, one) for one in entries if one.isfile()}
        elif archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as file:
                infos = file.infolist()
                _check_member_names(archive, [info.filename for info in infos])
                yield {_strip_folders(info.filename): partial(file.open, info) for info in infos if not info.is_dir()}
        else:
            yield {archive.name.removesuffix(".gz"): partial(gzip.open, archive)}
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{archive} is damaged, it cannot be unpacked: {error}") from error
    except (NotImplementedError, RuntimeError) as error:  # an unknown kind of zip, or one with a password
        raise UserError(f"{archive} cannot be unpacked: {error}") from error


def _check_member_names(archive: Path, names: list[str]) -> None:
    """Refuses an archive that was made to write elsewhere."""
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or name[1:2] == ":":
            raise UserError(f"{archive} holds {name!r}, which leads out of its folder; nothing of it was unpacked")


def _strip_folders(name: str) -> str:
    """A member's name without its folders."""
    return PurePosixPath(name).name
