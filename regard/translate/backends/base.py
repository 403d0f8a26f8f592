"""What decodes: PyTorch, in bytes by kernels of our own; or onnxruntime or CTranslate2, with what is made of a run once
and kept beside it."""

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
from typing import TYPE_CHECKING, Any, NamedTuple

import portalocker
import torch

from regard.console import log_message
from regard.errors import UserError
from regard.fast.octets import way as octets
from regard.fast.switch import wanted
from regard.models import Seq2Seq
from regard.runs import Run
from regard.tokenizers import Tokenizers
from regard.version import VERSION

if TYPE_CHECKING:
    from regard.translate.shortlist import Shortlist

AUTO, TORCH, ONNX, CTRANSLATE2 = ENGINES = ("auto", "torch", "onnx", "ctranslate2")
FP32, INT8 = PRECISIONS = ("fp32", "int8")
SHORTLIST = "shortlist"
MANIFEST_FILE = "made-of.json"
EXPORT_VERSION = 3  # of what is kept for engines: goes up where a folder of before is of no use any more


def check_engine_options(engine: str, precision: str | None, shortlist: bool = False) -> None:
    """Refuses what there is not."""
    if engine not in ENGINES:
        raise UserError(f"the engine is one of {', '.join(ENGINES)}, not {engine!r}")
    if precision not in (None, *PRECISIONS):
        raise UserError(f"the precision is {' or '.join(PRECISIONS)}, not {precision!r}")
    if shortlist and engine == CTRANSLATE2:
        raise UserError(f"a {SHORTLIST} goes with {TORCH} and {ONNX}; that of {CTRANSLATE2} is exported with its model")


class LoadedRun(NamedTuple):
    """A run with what was loaded of it."""

    run: Run
    model: Seq2Seq
    tokenizers: Tokenizers

    @property
    def device(self) -> str:
        """What its model is on."""
        return next(self.model.parameters()).device.type

    def get_export_folder(self, engine: str, precision: str) -> Path:
        """Where what an engine needs is kept."""
        return self.run.folder / "engines" / f"{engine}-{precision}"

    def find_export(self, engine: str, precision: str | None) -> Path | None:
        """What is kept for an engine and can be used: in bytes, if nothing is said and both are there."""
        folders = [self.get_export_folder(engine, one) for one in ([precision] if precision else (INT8, FP32))]
        return next(
            (folder for folder in folders if is_export_complete(folder) and self.is_current_export(folder)), None
        )

    def is_current_export(self, folder: Path) -> bool:
        """Whether what a folder holds was made of this very model."""
        return bool(read_manifest(folder).get("of") == self.compute_fingerprint())

    def compute_fingerprint(self) -> dict[str, Any]:
        """Tells this model, as it is set up, from any other."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            found.update(f"{name} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().float().contiguous().numpy().data)
        for side in self.tokenizers:
            found.update("\0".join(side.convert_ids_to_tokens(range(side.vocab_size))).encode("utf-8", "surrogatepass"))
        # From which step an alignment takes its look is decided outside of any engine.
        section = {key: value for key, value in self.run.read_config()["model"].items() if key != "align_after"}
        if section.get("align_layer") == "auto":
            layer, head, _ = self.model.decoder.alignment_head
            section |= {"align_layer": layer, "align_head": head}
        return {"regard": VERSION, "form": EXPORT_VERSION, "weights": found.hexdigest(), "model": section}


def choose_decoding_model(engine: str, precision: str | None, loaded: LoadedRun) -> Any:
    """A run's model in the hands of an engine: something to search with, as with the model itself.

    `auto` takes graphs that `regard export` has made beside the run, and PyTorch where there are none, where a GPU is
    at hand, or where REGARD_FAST is 0. Where bytes are asked for, it takes kernels of our own before graphs, if they
    are for this processor and model. CTranslate2 has a search of its own: see `runtime` and `at_hand`.
    """
    if engine == TORCH and precision == INT8:
        return make_int8_model(loaded)
    if engine == ONNX:
        return load_onnx_model(
            loaded, loaded.find_export(ONNX, precision) or export_onnx(loaded, precision or FP32, reuse=True)
        )
    if engine == AUTO and loaded.device == "cpu" and wanted():
        return choose_auto_model(precision, loaded)
    if engine == AUTO and precision == INT8:
        log_message(
            f"decoding in {FP32}: {INT8} is for the CPU"
            if loaded.device != "cpu"
            else f"decoding in {FP32}: REGARD_FAST is 0"
        )
    return loaded.model


def make_int8_model(loaded: LoadedRun) -> Any:
    """The model whose products are counted in bytes, by kernels of our own; UserError says why that cannot be."""
    check_on_cpu(loaded, f"{TORCH} in {INT8}")
    why = octets.lacking(loaded.model)
    if why is not None:
        other = f"regard export {loaded.run.folder} --precision {INT8}"
        raise UserError(f"{TORCH} does not decode {loaded.run.folder} in {INT8}: {why}; instead: {other}")
    return octets.in_bytes(loaded.model)


def find_ctranslate2_backend(precision: str | None, loaded: LoadedRun) -> Any:
    """CTranslate2 with a run's model, where `regard export` has made that and it can be used; else None."""
    if loaded.device != "cpu" or not wanted() or find_spec("ctranslate2") is None:
        return None
    folder = loaded.find_export(CTRANSLATE2, precision)
    if folder is None or (precision == INT8 and octets.lacking(loaded.model) is None):  # kernels are faster
        return None
    log_message(f"decoding by {folder}")
    return load_ctranslate2_backend(folder)


def choose_auto_model(precision: str | None, loaded: LoadedRun) -> Any:
    """The graphs that are there, if they can be used; where bytes are asked for, kernels before them."""
    why = octets.lacking(loaded.model) if precision == INT8 else None
    if precision == INT8 and why is None:
        log_message(f"decoding {loaded.run.folder} in {INT8}")
        return octets.in_bytes(loaded.model)
    folder = loaded.find_export(ONNX, precision)
    if folder is None and precision is not None:
        made = f"regard export {loaded.run.folder} --precision {precision}"
        without = "" if why is None else f" (without: {why})"
        raise UserError(f"{loaded.run.folder} has no graphs in {precision} of its model: {made}{without}")
    if folder is None:
        for old in filter(Path.exists, (loaded.get_export_folder(ONNX, one) for one in PRECISIONS)):
            log_message(f"{old} is not of this model as it is now, or is damaged, and is not used: export it again")
        return loaded.model
    if find_spec("onnxruntime") is None:
        log_message(f"{folder} is not used: onnxruntime is not installed (pip install 'regard[export]')")
        return loaded.model
    log_message(f"decoding by {folder}")
    return load_onnx_model(loaded, folder)


def load_onnx_model(loaded: LoadedRun, folder: Path) -> Any:
    """A model in onnxruntime's hands."""
    check_on_cpu(loaded, ONNX)
    check_installed("onnxruntime")
    from regard.fast.onnx_runtime import OnnxModel

    try:
        return OnnxModel(loaded.model, folder)
    except Exception as error:  # onnxruntime has no common kind of its own
        raise make_load_error(folder, error) from error


def make_ctranslate2_backend(precision: str | None, loaded: LoadedRun) -> Any:
    """CTranslate2 with a run's model, which searches by itself."""
    check_on_cpu(loaded, CTRANSLATE2)
    check_installed("ctranslate2")
    return load_ctranslate2_backend(
        loaded.find_export(CTRANSLATE2, precision) or export_ctranslate2(loaded, precision or FP32, reuse=True)
    )


def load_ctranslate2_backend(folder: Path) -> Any:
    """CTranslate2 with the model in a folder."""
    from regard.translate.backends.ctranslate2 import CTranslate2Backend

    try:
        return CTranslate2Backend(folder, workers=torch.get_num_threads())
    except (RuntimeError, OSError, ValueError) as error:
        raise make_load_error(folder, error) from error


def make_load_error(folder: Path, error: Exception) -> UserError:
    """Return the error for an export that does not load, with the engine's own reason."""
    reason = f"{type(error).__name__}: {textwrap.shorten(str(error), 300)}"
    if isinstance(error, MemoryError) or re.search("memory|alloc", str(error), re.IGNORECASE):
        return UserError(f"there is not enough memory to load {folder} ({reason})")
    return UserError(f"{folder} cannot be loaded ({reason}); if it is damaged, delete it and export again")


def check_on_cpu(loaded: LoadedRun, engine: str) -> None:
    """Refuses an engine that has nothing to do with where the model is."""
    if loaded.device != "cpu":
        raise UserError(f"the engine {engine} runs on the CPU; on this machine's GPU {TORCH} is the faster one")


def export_onnx(loaded: LoadedRun, precision: str, out: Path | None = None, reuse: bool = False) -> Path:
    """A folder with a model's graphs; `reuse`: they may be another process's, which made them meanwhile."""
    check_installed("onnx", "onnxscript", "onnxruntime")
    from regard.fast.graphs import export

    folder = out or loaded.get_export_folder(ONNX, precision)
    return write_export(loaded, folder, lambda to: export(loaded.model, to, precision == INT8), reuse)


def export_ctranslate2(
    loaded: LoadedRun,
    precision: str,
    out: Path | None = None,
    shortlist: Shortlist | None = None,
    reuse: bool = False,
) -> Path:
    """A folder with a Transformer as CTranslate2 reads it, with a shortlist of target tokens if there is one.

    `reuse`: it may be another process's, which made it meanwhile.
    """
    check_installed("ctranslate2")
    from regard.fast.ctranslate2 import VMAP, export, spelt

    source, target = (side.convert_ids_to_tokens(range(side.vocab_size)) for side in loaded.tokenizers)
    quantization = INT8 if precision == INT8 else None

    def write_model(to: Path) -> None:
        export(loaded.model, source, target, to, quantization)
        if shortlist is not None:
            (to / VMAP).write_text(shortlist.format_vmap(spelt(source), spelt(target)), encoding="utf-8")

    return write_export(loaded, out or loaded.get_export_folder(CTRANSLATE2, precision), write_model, reuse)


def export_shortlist(loaded: LoadedRun, shortlist: Shortlist, out: Path | None = None) -> Path:
    """A folder with a shortlist of target tokens."""
    return write_export(loaded, out or loaded.run.folder / "engines" / SHORTLIST, shortlist.save)


def load_shortlist(loaded_runs: Sequence[LoadedRun]) -> Shortlist | None:
    """The shortlist of the first of some runs, for all of them; nothing, and a word why, where none is of use."""
    from regard.translate.shortlist import read_shortlist

    first, stubborn = loaded_runs[0], [one for one in loaded_runs if not one.model.decoder.vocabulary_layers()]
    if first.device != "cpu" or stubborn:
        why = f"the model of {stubborn[0].run.folder} writes all words or none" if stubborn else "it is for the CPU"
        log_message(f"no {SHORTLIST} is used: {why}")
        return None
    folder, again = first.run.folder / "engines" / SHORTLIST, f"regard export {first.run.folder} --to {SHORTLIST}"
    if not folder.exists():
        raise UserError(f"{first.run.folder} has no {SHORTLIST} of target tokens: {again}")
    if not is_export_complete(folder) or not first.is_current_export(folder):
        raise UserError(f"{folder} is not of this model as it is now, or is damaged: {again}")
    try:
        found = read_shortlist(folder, first.tokenizers.target.vocab_size)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}): {again}") from error
    log_message(f"decoding by {folder}")
    return found


def write_export(loaded: LoadedRun, folder: Path, write_files: Callable[[Path], None], reuse: bool = False) -> Path:
    """A folder with what is made of a model, in the place of what it held; it is there as a whole or not at all.

    `reuse`: where another process has made it of this model meanwhile, that is used.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    inside = folder.parent == loaded.run.folder / "engines"
    with lock_exports(folder) if inside else nullcontext():
        if reuse and is_export_complete(folder) and loaded.is_current_export(folder):
            return folder
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside:
            made = Path(beside) / folder.name
            write_files(made)
            files = {path.name: path.stat().st_size for path in made.iterdir()}
            known = {"of": loaded.compute_fingerprint(), "files": files}
            (made / MANIFEST_FILE).write_text(json.dumps(known, ensure_ascii=False) + "\n", encoding="utf-8")
            before = Path(beside) / "before"
            if inside and folder.exists():  # it is renamed, not deleted, so that there is no time at which half is left
                folder.rename(before)
            try:
                made.rename(folder)
            except OSError as error:
                if before.exists():
                    before.rename(folder)
                raise UserError(f"{folder} cannot be written: {error.strerror}") from error
    log_message(f"{folder}: made in {time.perf_counter() - began:.0f} s")
    return folder


@contextmanager
def lock_exports(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder that exports of a run are in; wait while another process holds it."""
    with (folder.parent / ".lock").open("a") as lock:
        try:
            portalocker.lock(lock, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.AlreadyLocked:
            log_message(f"{folder}: waiting for another process that exports this run")
            portalocker.lock(lock, portalocker.LOCK_EX)
        except portalocker.LockException as error:
            log_message(
                f"{folder}: another process may export this run at the same time, for there are no locks here: {error}"
            )
        yield


def check_installed(*names: str) -> None:
    """Refuses where something is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise UserError(f"{name} is not installed: pip install 'regard[export]'")


def is_export_complete(folder: Path) -> bool:
    """Whether a folder's files are as long as they were made."""
    files = read_manifest(folder).get("files")
    try:
        return isinstance(files, dict) and all((folder / name).stat().st_size == size for name, size in files.items())
    except OSError:
        return False


def read_manifest(folder: Path) -> dict[str, Any]:
    """What is written of what a folder holds; nothing where that cannot be read."""
    try:
        known = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
