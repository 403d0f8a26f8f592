"""Cache of prepared data: entries are named by a hash of their inputs, verified by checksums, and rebuilt if damaged.

The whole cache folder may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import portalocker
import sentencepiece

from regard.console import log_message
from regard.errors import UserError
from regard.paths import compute_sha256, find_cache_folder, fsync_path
from regard.tokenizers.sentence_splitter import find_sentencex_version
from regard.version import VERSION

MANIFEST = "manifest.json"


def find_or_build_entry(kind: str, key: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """Return the folder that `build` writes for this key; build it if it is missing or damaged.

    Each version of regard, and of the libraries that affect the content, has separate entries. If several processes
    request the same entry, one builds it and the others wait.
    """
    home = find_cache_folder()
    name = f"{kind}-{hashlib.sha256(json.dumps([collect_versions(), key], sort_keys=True).encode()).hexdigest()[:24]}"
    entry = home / name
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / f".{name}.lock").open("a")
    except OSError as error:
        raise UserError(
            f"{home} cannot be written to ({error.strerror}); set REGARD_CACHE to another folder"
        ) from error
    with lock:
        portalocker.lock(lock, portalocker.LOCK_EX)
        damage = find_damage(entry)
        if damage is None:
            return entry
        if entry.exists():
            log_message(f"{entry} is damaged ({damage}); it is rebuilt")
            shutil.rmtree(entry)
        partial_entry = home / f".{name}.part"
        shutil.rmtree(partial_entry, ignore_errors=True)
        partial_entry.mkdir()
        try:
            build(partial_entry)
            _write_manifest(partial_entry)
        except BaseException:
            shutil.rmtree(partial_entry, ignore_errors=True)
            raise
        partial_entry.rename(entry)
    return entry


def collect_versions() -> dict[str, str | None]:
    """Return the versions that affect the content of every entry, in addition to its key."""
    return {
        "regard": VERSION,
        "source": compute_source_digest(),
        "sentencepiece": sentencepiece.__version__,
        "sentencex": find_sentencex_version(),
        "unicode": unicodedata.unidata_version,
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


def _write_manifest(folder: Path) -> None:
    """Write the checksums of all files of a folder, and wait until everything is written to disk."""
    files = {
        str(path.relative_to(folder)): compute_sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    for path in (*(folder / name for name in files), folder / MANIFEST, folder):
        fsync_path(path)


def find_damage(folder: Path) -> str | None:
    """Return the reason why an entry cannot be used, or None if it can."""
    try:
        files = dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"its {MANIFEST} cannot be read"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or compute_sha256(path) != expected:
            return f"{name} does not match its checksum"
    return None
