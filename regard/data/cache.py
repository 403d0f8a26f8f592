"""What is computed once and kept: named by what it was made of, checked before it is used, made again if it is damaged.

Nothing in here is needed for good: the whole folder may be deleted at any time.
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


def find_or_build_entry(
    kind: str, key: Mapping[str, Any], build: Callable[[Path], None], folder: Path | None = None
) -> Path:
    """The folder of what `build` writes for this key; built where it is not there, or not whole.

    Another version of regard, or of a library that decides over the content, has entries of its own.
    Several processes may ask for the same: one builds, the others wait.
    """
    home = folder or find_cache_folder()
    name = f"{kind}-{hashlib.sha256(json.dumps([collect_versions(), key], sort_keys=True).encode()).hexdigest()[:24]}"
    place = home / name
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / f".{name}.lock").open("a")
    except OSError as error:
        raise UserError(
            f"{home} cannot be written to ({error.strerror}); REGARD_CACHE can name another folder"
        ) from error
    with lock:
        portalocker.lock(lock, portalocker.LOCK_EX)
        damage = find_damage(place)
        if damage is None:
            return place
        if place.exists():
            log_message(f"{place} is damaged ({damage}); it is made again")
            shutil.rmtree(place)
        beside = home / f".{name}.part"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            build(beside)
            _write_manifest(beside)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        beside.rename(place)
    return place


def collect_versions() -> dict[str, str | None]:
    """Return what decides over the content of every entry, besides its key."""
    return {
        "regard": VERSION,
        "source": compute_source_digest(),
        "sentencepiece": sentencepiece.__version__,
        "sentencex": find_sentencex_version(),
        "unicode": unicodedata.unidata_version,
    }


@cache
def compute_source_digest() -> str:
    """Return the SHA-256 of the source files that read, split and encode text, so that no change can be forgotten."""
    package = Path(__file__).parent.parent
    found = hashlib.sha256()
    for path in sorted(path for name in ("data", "tokenizers") for path in (package / name).rglob("*.py")):
        found.update(f"{path.relative_to(package)} {compute_sha256(path)}\n".encode())
    return found.hexdigest()


def _write_manifest(folder: Path) -> None:
    """Writes down what is in a folder, and waits until it is on the disk."""
    files = {
        str(path.relative_to(folder)): compute_sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    for path in (*(folder / name for name in files), folder / MANIFEST, folder):
        fsync_path(path)


def find_damage(folder: Path) -> str | None:
    """Why an entry cannot be used, if it cannot."""
    try:
        files = dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"its {MANIFEST} cannot be read"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or compute_sha256(path) != expected:
            return f"{name} is not what it was"
    return None
