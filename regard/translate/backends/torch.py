"""Beam search and sampling over models that decode step by step: PyTorch, int8 kernels and ONNX Runtime.

A CPU decodes several batches in parallel, one thread per batch: the matrix products of a batch are small and gain
little from a second thread, so a second batch in parallel takes hardly longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.dataset import Indices
from regard.data.loader import split_by_tokens
from regard.search import Hypothesis, sample, search, search_restricted
from regard.search.ensemble import SearchModel
from regard.special_tokens import EOS, PAD
from regard.translate.options import CompiledOptions
from regard.translate.segmentation import EncodedSegment
from regard.translate.shortlist import Shortlist

T = TypeVar("T")
R = TypeVar("R")
BATCH_TOKENS = 4000
GPU_BATCH_TOKENS = 64_000  # a step takes as long on a GPU for a few rows as for hundreds


class TorchBackend:
    """Searches in batches of similar length, several at a time on a CPU; a `Backend`.

    A shortlist restricts the output vocabulary of beam search.
    """

    def __init__(
        self,
        models: Sequence[SearchModel],
        device: torch.device,
        reason: str = "PyTorch",
        shortlist: Shortlist | None = None,
    ) -> None:
        self.models = models
        self.device = device
        self.reason = reason
        self.shortlist = shortlist

    def search(self, segments: Sequence[EncodedSegment], compiled: CompiledOptions) -> list[list[Hypothesis]]:
        """See `Backend`."""
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
