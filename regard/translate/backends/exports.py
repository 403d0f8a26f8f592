"""Exports of a run to ONNX and CTranslate2, and its shortlist, kept in its `engines` folder.

Each export has a manifest with the sizes of its files and a fingerprint of the model that it was made from, so that
an incomplete or outdated one is not used.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import portalocker

from regard.console import log_message
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.paths import read_json_object, wait_for_lock
from regard.runs import Run
from regard.tokenizers.tokenizer import Tokenizers
from regard.translate.backends import CTRANSLATE2, FP32, INT8, ONNX, SHORTLIST, TORCH
from regard.translate.shortlist import Shortlist, read_shortlist
from regard.version import VERSION

MANIFEST_FILE = "made-of.json"
EXPORT_VERSION = 3  # format of exports; increase it when older exports cannot be used any more


class LoadedRun(NamedTuple):
    """A run with its loaded model and tokenizers."""

    run: Run
    model: Seq2Seq
    tokenizers: Tokenizers

    @property
    def device(self) -> str:
        """Type of the device that the model is on."""
        return next(self.model.parameters()).device.type

    def get_export_folder(self, engine: str, precision: str) -> Path:
        """Return the folder of a run's export for an engine and precision."""
        return self.run.folder / "engines" / f"{engine}-{precision}"

    def find_export(self, engine: str, precision: str | None) -> Path | None:
        """Return the folder of a usable export; without a precision int8 comes before fp32. None if there is none."""
        folders = [self.get_export_folder(engine, each) for each in ([precision] if precision else (INT8, FP32))]
        return next(filter(self.is_current_export, folders), None)

    def is_current_export(self, folder: Path) -> bool:
        """Return True if an export is complete and was made from exactly this model."""
        return read_manifest(folder).get("of") == self.compute_fingerprint()

    def compute_fingerprint(self) -> dict[str, Any]:
        """Return a fingerprint of weights, vocabularies and model configuration, to detect outdated exports."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().float().contiguous().numpy().data)
        for tokens in list_tokens(self.tokenizers):
            digest.update("\0".join(tokens).encode("utf-8", "surrogatepass"))
        # `align_after` is applied outside of the engines: it does not change an export.
        section = {key: value for key, value in self.run.read_config()["model"].items() if key != "align_after"}
        if section.get("align_layer") == "auto":
            layer, head, _ = self.model.decoder.alignment_head
            section |= {"align_layer": layer, "align_head": head}
        return {"regard": VERSION, "form": EXPORT_VERSION, "weights": digest.hexdigest(), "model": section}


def list_tokens(tokenizers: Tokenizers) -> list[list[str]]:
    """Return the tokens of the vocabularies of both sides."""
    return [side.convert_ids_to_tokens(range(side.vocab_size)) for side in tokenizers]


def check_on_cpu(loaded: LoadedRun, engine: str) -> None:
    """Raise UserError if the model is not on the CPU."""
    if loaded.device != "cpu":
        raise UserError(f"the engine {engine} runs on the CPU only; on this machine's GPU use {TORCH}, which is faster")


def is_installed(name: str) -> bool:
    """Return whether a package is installed."""
    return find_spec(name) is not None


def check_installed(*names: str) -> None:
    """Raise UserError if one of the packages is not installed."""
    for name in names:
        if not is_installed(name):
            raise UserError(f"{name} is not installed: pip install 'regard[export]'")


def make_load_error(folder: Path, error: Exception) -> UserError:
    """Return the error for an export that does not load, with the engine's own reason."""
    reason = f"{type(error).__name__}: {textwrap.shorten(str(error), 300)}"
    if isinstance(error, MemoryError) or re.search("memory|alloc", str(error), re.IGNORECASE):
        return UserError(f"not enough memory to load {folder} ({reason})")
    return UserError(f"{folder} cannot be loaded ({reason}); if it is damaged, delete it and export again")


def write_export(loaded: LoadedRun, folder: Path, write_files: Callable[[Path], None], reuse: bool = False) -> Path:
    """Write an export atomically, replacing what the folder held.

    `reuse`: keep an export of this model that another process has written meanwhile.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    inside = folder.parent == loaded.run.folder / "engines"
    with lock_exports(folder) if inside else nullcontext():
        if reuse and loaded.is_current_export(folder):
            return folder
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
            new = Path(temporary) / folder.name
            write_files(new)
            files = {path.name: path.stat().st_size for path in new.iterdir()}
            manifest = {"of": loaded.compute_fingerprint(), "files": files}
            (new / MANIFEST_FILE).write_text(json.dumps(manifest, ensure_ascii=False) + "\n", encoding="utf-8")
            before = Path(temporary) / "before"
            if inside and folder.exists():  # renamed, not deleted, so that a half-deleted folder never exists
                folder.rename(before)
            try:
                new.rename(folder)
            except OSError as error:
                if before.exists():
                    before.rename(folder)
                raise UserError(f"{folder} cannot be written: {error.strerror}") from error
    log_message(f"{folder}: exported in {time.perf_counter() - began:.0f} s")
    return folder


@contextmanager
def lock_exports(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder that exports of a run are in; wait while another process holds it."""
    with (folder.parent / ".lock").open("a") as lock:
        try:
            portalocker.lock(lock, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.AlreadyLocked:
            log_message(f"{folder}: waiting for another process that exports this run")
            wait_for_lock(lock)
        except portalocker.LockException as error:
            log_message(
                f"{folder}: this file system has no locks, so do not export this run twice at the same time: {error}"
            )
        yield


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an export; an empty dict unless all files are complete, with the sizes in the manifest."""
    manifest = read_json_object(folder / MANIFEST_FILE)
    try:
        is_complete = all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
    except (OSError, LookupError, AttributeError):
        return {}
    return manifest if is_complete else {}


def export_onnx(loaded: LoadedRun, precision: str, out: Path | None = None, reuse: bool = False) -> Path:
    """Export a model to ONNX; with `reuse`, keep an export that another process has written meanwhile."""
    check_installed("onnx", "onnxscript", "onnxruntime")
    from regard.export.onnx import export

    folder = out or loaded.get_export_folder(ONNX, precision)
    return write_export(loaded, folder, lambda to: export(loaded.model, to, precision == INT8), reuse)


def export_ctranslate2(
    loaded: LoadedRun, precision: str, out: Path | None = None, shortlist: Shortlist | None = None, reuse: bool = False
) -> Path:
    """Export a Transformer for CTranslate2, optionally with a shortlist of target tokens.

    `reuse`: keep an export that another process has written meanwhile.
    """
    check_installed("ctranslate2")
    from regard.export.ctranslate2 import VMAP, export, token_names

    source, target = list_tokens(loaded.tokenizers)
    quantization = INT8 if precision == INT8 else None

    def write_model(to: Path) -> None:
        export(loaded.model, source, target, to, quantization)
        if shortlist is not None:
            (to / VMAP).write_text(shortlist.format_vmap(token_names(source), token_names(target)), encoding="utf-8")

    return write_export(loaded, out or loaded.get_export_folder(CTRANSLATE2, precision), write_model, reuse)


def export_shortlist(loaded: LoadedRun, shortlist: Shortlist, out: Path | None = None) -> Path:
    """Write a shortlist of target tokens to a folder."""
    return write_export(loaded, out or loaded.run.folder / "engines" / SHORTLIST, shortlist.save)


def load_shortlist(loaded_runs: Sequence[LoadedRun]) -> Shortlist | None:
    """Load the first run's shortlist for all runs; log the reason and return None if it cannot be used."""
    first = loaded_runs[0]
    unsupported = [loaded for loaded in loaded_runs if not loaded.model.decoder.vocabulary_layers()]
    if first.device != "cpu" or unsupported:
        why = f"the model of {unsupported[0].run.folder} does not support one" if unsupported else "it is for the CPU"
        log_message(f"decoding without a {SHORTLIST}: {why}")
        return None
    folder, command = first.run.folder / "engines" / SHORTLIST, f"regard export {first.run.folder} --to {SHORTLIST}"
    if not folder.exists():
        raise UserError(f"{first.run.folder} has no {SHORTLIST} of target tokens; run: {command}")
    if not first.is_current_export(folder):
        raise UserError(f"{folder} is outdated or damaged; run: {command}")
    try:
        shortlist = read_shortlist(folder, first.tokenizers.target.vocab_size)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}); run: {command}") from error
    log_message(f"decoding with {folder}")
    return shortlist
