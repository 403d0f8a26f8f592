"""The choice between decoding backends, and their base class `TorchBackend`.

`TorchBackend` runs beam search and sampling over models with a decoder step, by PyTorch, int8 kernels or ONNX Runtime.
A CPU decodes several batches in parallel, one thread per batch: the matrix products of a batch are small and gain
little from a second thread, so a second batch in parallel takes hardly longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, filterfalse
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.console import log_message
from regard.data.dataset import Indices
from regard.data.loader import split_by_tokens
from regard.errors import UserError
from regard.fast.decoding import int8
from regard.fast.eligibility import fast_paths_enabled
from regard.search import Hypothesis, sample, search, search_restricted
from regard.search.ensemble import SearchModel
from regard.special_tokens import EOS, PAD
from regard.translate.backends import AUTO, CTRANSLATE2, FP32, INT8, ONNX, TORCH, check_engine_options, exports
from regard.translate.backends.exports import LoadedRun
from regard.translate.options import CompiledOptions
from regard.translate.shortlist import Shortlist
from regard.translate.translation import EncodedSegment


def choose_backend(
    engine: str, precision: str | None, runs: Sequence[LoadedRun], shortlist: bool = False
) -> TorchBackend:
    """Return the backend for an engine; its `reason` says why, and is logged if `auto` has found something faster.

    `auto` uses an export of the run for CTranslate2 or ONNX Runtime if there is one, and PyTorch otherwise, on a GPU,
    or if REGARD_FAST is 0. For int8 it prefers the int8 kernels to an export if they support this processor and model.
    CTranslate2 decodes one model without a shortlist, and leaves constrained segments to PyTorch.
    """
    check_engine_options(engine, precision, shortlist)
    if engine == CTRANSLATE2 and len(runs) > 1:
        raise UserError(f"the engine {engine} runs one model at a time, not an ensemble of {len(runs)}")
    device, first = next(runs[0].model.parameters()).device, runs[0]
    if len(runs) == 1 and not shortlist and (export := _find_ctranslate2_export(engine, precision, first)):
        from regard.translate.backends.ctranslate2 import CTranslate2Backend, load_ctranslate2_model

        reason = "CTranslate2, as requested" if engine == CTRANSLATE2 else _log_choice(f"decoding with {export}")
        return CTranslate2Backend([first.model], device, reason, ctranslate2=load_ctranslate2_model(export))
    allowed = exports.load_shortlist(runs) if shortlist else None
    chosen = [_choose_model(engine, precision, run, allowed is not None) for run in runs]
    reasons = dict.fromkeys(reason for _, reason in chosen)
    return TorchBackend([model for model, _ in chosen], device, "; ".join(reasons), allowed)


def _find_ctranslate2_export(engine: str, precision: str | None, run: LoadedRun) -> Path | None:
    """Return a run's export for CTranslate2, which is written if CTranslate2 is requested.

    With the engine `auto` return None if there is no export or the int8 kernels are faster.
    """
    if engine == CTRANSLATE2:
        exports.check_on_cpu(run, CTRANSLATE2)
        exports.check_installed("ctranslate2")
        return run.find_export(CTRANSLATE2, precision) or exports.export_ctranslate2(run, precision or FP32, reuse=True)
    if engine != AUTO or not _may_have_export(run) or not exports.is_installed("ctranslate2"):
        return None
    has_int8_kernels = precision == INT8 and int8.find_int8_obstacle(run.model) is None
    return None if has_int8_kernels else run.find_export(CTRANSLATE2, precision)


def _may_have_export(run: LoadedRun) -> bool:
    """Return whether `auto` tries exports: on a CPU, unless REGARD_FAST is 0."""
    return (run.run.folder / "engines").exists() and run.device == "cpu" and fast_paths_enabled()


def _choose_model(engine: str, precision: str | None, run: LoadedRun, has_shortlist: bool) -> tuple[SearchModel, str]:
    """Return the model that decodes, which has the interface of `Seq2Seq`, and the reason."""
    if engine == TORCH and precision == INT8:
        exports.check_on_cpu(run, f"{TORCH} in {INT8}")
        if (why := int8.find_int8_obstacle(run.model)) is not None:
            folder, command = run.run.folder, f"regard export {run.run.folder} --precision {INT8}"
            raise UserError(f"{TORCH} does not decode {folder} in {INT8}: {why}; instead run: {command}")
        return int8.quantize_model(run.model), "int8 kernels, as requested"
    if engine == ONNX:
        export = run.find_export(ONNX, precision) or exports.export_onnx(run, precision or FP32, reuse=True)
        return _load_onnx_model(run, export, has_shortlist), "ONNX Runtime, as requested"
    if engine != AUTO:
        return run.model, "PyTorch, as requested"
    if precision is None and not _may_have_export(run):
        return run.model, f"PyTorch: {run.run.folder} has no export that can be used here"
    if run.device == "cpu" and fast_paths_enabled():
        return _choose_fastest(precision, run, has_shortlist)
    reason = f"decoding in {FP32}: " + ("REGARD_FAST is 0" if run.device == "cpu" else f"{INT8} is for the CPU")
    return run.model, _log_choice(reason) if precision == INT8 else "PyTorch: exports are for the CPU"


def _choose_fastest(precision: str | None, run: LoadedRun, has_shortlist: bool) -> tuple[SearchModel, str]:
    """Return the int8 kernels if int8 is requested and they run, else a usable ONNX export, else PyTorch."""
    folder, unsupported = run.run.folder, int8.find_int8_obstacle(run.model) if precision == INT8 else ""
    if unsupported is None:
        return int8.quantize_model(run.model), _log_choice(f"decoding {folder} in {INT8}")
    export = run.find_export(ONNX, precision)
    if export is None and precision is not None:
        without = f" (no int8 kernels: {unsupported})" if unsupported else ""
        raise UserError(
            f"{folder} has no {precision} export of its model; run: regard export {folder} "
            f"--precision {precision}{without}"
        )
    if export is None:
        for old in filter(Path.exists, (run.get_export_folder(ONNX, other) for other in (FP32, INT8))):
            log_message(f"{old} is not used: it is outdated or damaged; export it again")
        return run.model, f"PyTorch: {folder} has no export that can be used"
    if missing := next(filterfalse(exports.is_installed, _list_onnx_packages(has_shortlist)), None):
        why = f"{export} is not used: {missing} is not installed (pip install 'regard[export]')"
        return run.model, _log_choice(why)
    _log_choice(f"decoding with {export}")
    return _load_onnx_model(run, export, has_shortlist), f"decoding with {export}"


def _log_choice(reason: str) -> str:
    log_message(reason)
    return reason


def _list_onnx_packages(has_shortlist: bool) -> list[str]:
    """Return the packages that decode with an ONNX export; a shortlist changes its graph."""
    return ["onnxruntime", *(["onnx", "onnxscript"] if has_shortlist else [])]


def _load_onnx_model(loaded: LoadedRun, folder: Path, has_shortlist: bool) -> SearchModel:
    """Load an export with ONNX Runtime."""
    exports.check_on_cpu(loaded, ONNX)
    exports.check_installed(*_list_onnx_packages(has_shortlist))
    from regard.export.onnx_engine import OnnxModel

    try:
        return OnnxModel(loaded.model, folder)
    except Exception as error:  # onnxruntime's errors have no common base class
        raise exports.make_load_error(folder, error) from error


T = TypeVar("T")
R = TypeVar("R")
BATCH_TOKENS = 4000
GPU_BATCH_TOKENS = 64_000  # a step takes as long on a GPU for a few rows as for hundreds


@dataclass(eq=False, repr=False)
class TorchBackend:
    """Searches targets, in batches of similar length, several at a time on a CPU; made by `choose_backend`."""

    models: Sequence[SearchModel]  # decode step by step, for continuous batching and options that `search` lacks
    device: torch.device
    reason: str = "PyTorch"  # a sentence for the user: which implementation decodes, and why
    shortlist: Shortlist | None = None  # restricts the output vocabulary of beam search

    def search(self, segments: Sequence[EncodedSegment], compiled: CompiledOptions) -> list[list[Hypothesis]]:
        """Return the hypotheses of each segment, best first; all segments have words."""
        options = compiled.options
        tokens = GPU_BATCH_TOKENS if self.device.type == "cuda" else BATCH_TOKENS
        batches = split_segments(segments, max(1, tokens // (options.n_best if options.sample else options.beam)))
        workers = self.count_parallel_batches(len(batches), compiled)
        models = self.models if workers < 2 else [getattr(model, "single", model) for model in self.models]

        def search_rows(rows: Indices) -> list[list[Hypothesis]]:
            return self.search_batch(models, [segments[row] for row in rows], compiled)

        found = map(search_rows, batches) if workers < 2 else map_in_threads(search_rows, batches, workers)
        return restore_order(batches, found)

    def count_parallel_batches(self, batches: int, compiled: CompiledOptions) -> int:
        """Return the number of batches to decode in parallel: more than 1 on a CPU without sampling or dropout."""
        one_at_a_time = self.device.type != "cpu" or compiled.options.sample
        if batches < 2 or one_at_a_time or any(getattr(model, "training", False) for model in self.models):
            return 1
        return choose_worker_count(batches)

    def search_batch(
        self, models: Sequence[SearchModel], segments: Sequence[EncodedSegment], compiled: CompiledOptions
    ) -> list[list[Hypothesis]]:
        """Search the targets of one batch."""
        options, search_options = compiled.options, compiled.search_options
        source, lengths = make_batch([segment.ids for segment in segments], self.device, compiled.domain_ids)
        if options.sample:
            drawing = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "seed")}
            return sample(models, source, lengths, search_options, samples=options.n_best, **drawing)
        run_search: Callable[..., list[list[Hypothesis]]] = search
        if self.shortlist is not None and not compiled.constraints:
            run_search = partial(search_restricted, self.shortlist.find_allowed_targets(source.flatten().tolist()))
        prefix, force = [segment.prefix_ids for segment in segments], [segment.forced_phrases for segment in segments]
        return run_search(models, source, lengths, search_options, prefix=prefix, force=force)


def make_batch(
    ids: Sequence[Sequence[int]], device: torch.device, domain_ids: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Return padded sources (B, S), with the domain tag before and EOS behind, and their lengths (B,)."""
    rows = [torch.tensor([*domain_ids, *row, EOS]) for row in ids]
    lengths = torch.tensor([len(row) for row in rows])
    return pad_sequence(rows, True, PAD).to(device), lengths.to(device)


def split_segments(segments: Sequence[EncodedSegment], max_tokens: int) -> list[Indices]:
    """Return batches of segments of similar length, the longest first, so that the last batch to finish is short."""
    return split_by_length([len(segment.ids) + 1 for segment in segments], max_tokens)[::-1]


def split_by_length(sizes: Sequence[int], max_tokens: int) -> list[Indices]:
    """Return batches of indices of similar size, the shortest first; with padding a batch has at most `max_tokens`."""
    array = np.array(sizes, dtype=np.int64)
    return split_by_tokens(np.argsort(array, kind="stable"), array, max_tokens)


def restore_order(batches: Sequence[Indices], found: Iterable[Sequence[T]]) -> list[T]:
    """Return the results of all batches in the order of their indices."""
    pairs = zip(np.concatenate(batches).tolist(), chain.from_iterable(found), strict=True) if batches else ()
    by_row = dict(pairs)
    return [by_row[row] for row in range(len(by_row))]


def choose_worker_count(batches: int) -> int:
    """Return the number of parallel batches: PyTorch's thread count, or 1 outside of the main thread.

    A caller that uses threads of its own has divided the cores among them already.
    """
    return min(batches, torch.get_num_threads()) if threading.current_thread() is threading.main_thread() else 1


def map_in_threads(work: Callable[[T], R], items: Sequence[T], workers: int) -> list[R]:
    """Apply `work` to each item in a pool of `workers` threads; return the results in order."""
    if workers < 2:
        return list(map(work, items))
    failed = list[BaseException]()
    pool = ThreadPoolExecutor(workers, "batch")

    def run_unless_failed(item: T) -> R:
        if failed:
            raise CancelledError
        try:
            return work(item)
        except BaseException as error:
            failed.append(error)
            raise

    try:
        _limit_workers_to_one_thread(pool, workers)
        return list(pool.map(run_unless_failed, items))
    except CancelledError:
        raise failed[0] from None  # the first error, which may be that of a later item
    finally:
        pool.shutdown(cancel_futures=True)


def _limit_workers_to_one_thread(pool: ThreadPoolExecutor, workers: int) -> None:
    """Start the workers of a pool, each with one thread for PyTorch's operators.

    `torch.set_num_threads` sets the number of the calling thread, and the one that every other thread takes over when
    it first uses PyTorch. The latter is restored before any work begins, so that other threads of the program are not
    left with one thread.
    """
    before = torch.get_num_threads()
    started = threading.Barrier(workers + 1)

    def set_one_thread() -> None:
        torch.get_num_threads()  # takes over the common number now rather than later, which would undo the next line
        torch.set_num_threads(1)
        started.wait()

    try:
        for _ in range(workers):  # each task waits for the others, so that each runs in a different worker
            pool.submit(set_one_thread)
        started.wait()
    finally:
        started.abort()  # releases workers that still wait after an error
        torch.set_num_threads(before)
