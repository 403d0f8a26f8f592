"""The cache of prepared data, and file helpers: SHA-256, fsync, atomic writes, locks, packaged YAML, JSON.

Entries of the cache are named by a hash of their inputs, verified by checksums, and rebuilt if damaged. The whole cache
folder may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import yaml

from regard.console import log_message
from regard.errors import UserError

CACHE_MANIFEST = "manifest.json"


def find_cache_folder() -> Path:
    """Return `REGARD_CACHE`, or `regard` in the user's cache folder."""
    folder = os.environ.get("REGARD_CACHE")
    return Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_path(path: Path) -> None:
    """Wait until a file or folder is written to disk; folders are left to Windows, which cannot open them."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)  # Windows syncs no other files
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_package_yaml(package: str, name: str) -> Any:
    """Return the content of a YAML file that belongs to a package."""
    from importlib import resources  # slow to import

    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # the one in C is ten times as fast


def write_atomically(path: Path, text: str) -> None:
    """Write a text file that has, whenever the process may be killed, either its old or its new content."""
    partial_file = path.with_name(f".{path.name}.part")
    partial_file.write_text(text, encoding="utf-8")
    fsync_path(partial_file)
    partial_file.replace(path)
    fsync_path(path.parent)


@contextmanager
def create_file_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` at the end, or removed after an error."""
    partial_file = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial_file
        partial_file.replace(path)
    except BaseException:
        partial_file.unlink(missing_ok=True)
        raise


@contextmanager
def create_folder_atomically(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that is renamed to `folder` at the end, or removed after an error."""
    partial_folder = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir(parents=True)
    try:
        yield partial_folder
        partial_folder.rename(folder)
    except BaseException:
        shutil.rmtree(partial_folder, ignore_errors=True)
        raise


def lock_file(file: IO[Any], busy_message: str) -> None:
    """Lock an open file until it is closed or the process ends; raise UserError(busy_message) if it is locked."""
    import portalocker  # slow to import, and most commands lock nothing

    try:
        portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
    except portalocker.AlreadyLocked as error:
        file.close()
        raise UserError(busy_message) from error


def wait_for_lock(file: IO[Any]) -> None:
    """Lock an open file until it is closed or the process ends; wait while another process holds the lock."""
    import portalocker

    while True:
        with suppress(portalocker.AlreadyLocked):  # Windows gives up after ten seconds
            portalocker.lock(file, portalocker.LOCK_EX)
            return


def format_json(value: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON, with null for NaN and infinities, which JSON cannot express.

    >>> format_json({"loss": float("nan"), "epoch": 0.5})
    '{"loss": null, "epoch": 0.5}'
    """
    dump = partial(json.dumps, ensure_ascii=False, allow_nan=False, indent=indent, default=default)
    try:
        return dump(value)
    except ValueError:
        return dump(_replace_non_finite(value))


def parse_json_object(content: bytes) -> dict[str, Any]:
    """Return a JSON object in UTF-8; an empty dict if the content is not one."""
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty dict if there is none."""
    try:
        return parse_json_object(path.read_bytes())
    except OSError:
        return {}


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def find_or_build_cache_entry(kind: str, key: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """Return the folder that `build` writes for this key; build it if it is missing or damaged.

    If several processes request the same entry, one builds it and the others wait.
    """
    home = find_cache_folder()
    name = f"{kind}-{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]}"
    entry = home / name
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / f".{name}.lock").open("a")
    except OSError as error:
        raise UserError(
            f"{home} cannot be written to ({error.strerror}); set REGARD_CACHE to another folder"
        ) from error
    with lock:
        wait_for_lock(lock)
        damage = find_cache_damage(entry)
        if damage is None:
            return entry
        if entry.exists():
            log_message(f"{entry} is damaged ({damage}); it is rebuilt")
            shutil.rmtree(entry)
        with create_folder_atomically(entry) as partial_entry:
            build(partial_entry)
            _write_cache_manifest(partial_entry)
    return entry


def _write_cache_manifest(folder: Path) -> None:
    """Write the checksums of all files of a folder, and wait until everything is written to disk."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {path.relative_to(folder).as_posix(): compute_sha256(path) for path in paths}
    (folder / CACHE_MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    for path in (*paths, folder / CACHE_MANIFEST, folder):
        fsync_path(path)


def find_cache_damage(folder: Path) -> str | None:
    """Return the reason why an entry of the cache cannot be used, or None if it can."""
    files = read_json_object(folder / CACHE_MANIFEST).get("files")
    if not isinstance(files, dict):
        return f"its {CACHE_MANIFEST} cannot be read"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or compute_sha256(path) != expected:
            return f"{name} does not match its checksum"
    return None
