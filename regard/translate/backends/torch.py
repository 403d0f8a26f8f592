"""Beam search and sampling over models that decode step by step: PyTorch, int8 kernels and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.indexed_dataset import Indices
from regard.data.sampler import split_by_tokens
from regard.errors import UserError
from regard.search import Hypothesis, SearchModel, UnsatisfiableConstraintError, sample, search, search_restricted
from regard.special_tokens import EOS, PAD
from regard.translate.backends.threads import choose_worker_count, map_in_threads
from regard.translate.options import CompiledOptions
from regard.translate.segmentation import EncodedSegment
from regard.translate.shortlist import Shortlist

T = TypeVar("T")
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
        try:
            return run_search(models, source, lengths, search_options, prefix=prefix, force=force)
        except UnsatisfiableConstraintError as error:
            raise UserError(str(error)) from error


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
