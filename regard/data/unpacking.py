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

CHUNK = 1 << 20
LEAST_LIMIT, RATIO = 100 << 20, 100  # text shrinks to a fifth or a tenth, never to a hundredth

Edit = Callable[[Iterator[bytes]], Iterator[bytes]]
Opener = Callable[[], Any]


def unpack(archive: Path, wanted: Mapping[str, tuple[Path, Edit]], most: int | None = None) -> None:
    """Writes members to the paths that they are wanted at, each through its edit; `most` bytes altogether at most."""
    limit = Limit(archive, most if most is not None else max(LEAST_LIMIT, RATIO * archive.stat().st_size))
    with members(archive) as found:
        for name, (path, edit) in wanted.items():
            if name not in found:
                raise UserError(f"{archive} holds no file {name}; it has {', '.join(sorted(found)) or 'none'}")
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.part")
            try:
                with found[name]() as member, beside.open("wb") as file:
                    file.writelines(edit(limit.lines(member)))
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)


class Limit:
    """How many bytes an archive may become; a few that are packed well fill any disk."""

    def __init__(self, archive: Path, most: int) -> None:
        self._archive, self._most, self._passed = archive, most, 0

    def lines(self, file: IO[bytes]) -> Iterator[bytes]:
        """The lines of a file, as long as there are not too many."""
        while line := file.readline(CHUNK):
            self._passed += len(line)
            if self._passed > self._most:
                raise UserError(
                    f"{self._archive} unpacks to more than {self._most:,} bytes, more than text can; it is not trusted"
                )
            yield line


@contextmanager
def members(archive: Path) -> Iterator[dict[str, Opener]]:
    """The plain files in an archive, by their names without folders, each to be opened; a .gz file has one.

    Links and devices are none. An archive with a name that leads out of its folder is refused as a whole.
    """
    try:
        if archive.name.endswith((".tgz", ".tar.gz", ".tar")):
            with tarfile.open(archive) as tar:
                entries = tar.getmembers()
                check(archive, [entry.name for entry in entries])
                yield {base(one.name): partial(tar.extractfile, one) for one in entries if one.isfile()}
        elif archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as file:
                infos = file.infolist()
                check(archive, [info.filename for info in infos])
                yield {base(info.filename): partial(file.open, info) for info in infos if not info.is_dir()}
        else:
            yield {archive.name.removesuffix(".gz"): partial(gzip.open, archive)}
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{archive} is damaged, it cannot be unpacked: {error}") from error
    except (NotImplementedError, RuntimeError) as error:  # an unknown kind of zip, or one with a password
        raise UserError(f"{archive} cannot be unpacked: {error}") from error


def check(archive: Path, names: list[str]) -> None:
    """Refuses an archive that was made to write elsewhere."""
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or name[1:2] == ":":
            raise UserError(f"{archive} holds {name!r}, which leads out of its folder; nothing of it was unpacked")


def base(name: str) -> str:
    """A member's name without its folders."""
    return PurePosixPath(name).name
