"""Beam search on the GPU: eligibility of a model, and the loop over chunks of steps.

Shapes are rounded up, so that many searches share a workspace; a workspace that is used for the second time is
captured as CUDA graphs. When most sentences are done, or targets outgrow a workspace, the others move to one that
fits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.console import log_message
from regard.fast.cuda_graphs.buckets import round_up
from regard.fast.cuda_graphs.cache import GraphReplayer
from regard.fast.cuda_graphs.pool import StaticBuffers
from regard.fast.decoding.device.luong import LuongWeights, is_supported_luong
from regard.fast.decoding.device.ops import TORCH_OPS, DecodingOps
from regard.fast.decoding.device.state import BeamState, WorkspaceSize
from regard.fast.decoding.device.transformer import TransformerWeights, is_supported_transformer
from regard.fast.decoding.search_trace import (
    CHUNK_STEPS,
    MAX_TARGET_LENGTH,
    IntArray,
    SearchRequest,
    SearchTrace,
    find_best_hypotheses,
)
from regard.fast.eligibility import ModelFingerprint, compute_dtype, has_hooks_or_overrides, is_unsharded
from regard.fast.selftest import load_triton
from regard.models.base import AlignmentHead, Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.models.vaswani2017 import TransformerDecoder

MAX_BEAM = 16  # a program holds the candidates of a sentence
MAX_SOURCE_LENGTH = 1024  # a program holds the scores of all positions
MAX_HEAD_SIZE = 128  # a program holds a head
MAX_OUT_OF_MEMORY = 3  # searches that may run out of memory before it is given up
IS_TRAINING = attrgetter("training")
DecoderWeights = TransformerWeights | LuongWeights  # both with the same attributes


def is_supported(model: Seq2Seq) -> bool:
    """Return whether the device search supports this model."""
    return is_supported_transformer(model) or is_supported_luong(model)


class DeviceBeamSearch:
    """Searches on the GPU; returns None if the reference search has to be used."""

    def __init__(self) -> None:
        self.searchers: dict[torch.dtype, DeviceSearcher] = {}
        self.fingerprint: ModelFingerprint | None = None  # of the model of the searchers
        self.is_known = False  # whether it is supported
        self.attempts_left = MAX_OUT_OF_MEMORY
        self.ops: DecodingOps | None = None  # chosen at the first search
        self.lock = Lock()  # all threads would write to the same addresses

    def __reduce__(self) -> tuple[type[DeviceBeamSearch], tuple[()]]:
        """Copies of a model start without workspaces and graphs, which belong to its weights."""
        return DeviceBeamSearch, ()

    def __call__(
        self, model: Seq2Seq, source: Tensor, lengths: Tensor, request: SearchRequest
    ) -> list[list[Hypothesis]] | None:
        """Return the `n_best` hypotheses of each source (B, S), best first, or None."""
        ready = self.attempts_left and source.is_cuda and _is_request_supported(model, source, request)
        if not ready:
            return None
        ops = self.ops = self.ops or load_ops()
        try:
            with self.lock, torch.cuda.device(source.device):
                searcher = self.searcher(model, ops)
                return None if searcher is None else searcher(source, lengths, request)
        except ArithmeticError:  # NaN weights, an error of every search
            raise
        except torch.OutOfMemoryError:
            failure, fallback = "out of memory", "the reference search"
            self.attempts_left -= 1  # a later search may need less
        except Exception as error:  # Triton raises many kinds of errors
            failure = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            fallback = "the reference search" if ops is TORCH_OPS else "PyTorch operations"
            self.attempts_left, self.ops = self.attempts_left * (ops is not TORCH_OPS), TORCH_OPS
        with self.lock:  # not while another thread searches
            self.release()
        torch.cuda.empty_cache()
        log_message(f"device search: decoding continues with {fallback}, more slowly: {failure}")
        return None

    def release(self) -> None:
        """Free everything that is kept between searches."""
        self.searchers.clear()

    def searcher(self, model: Seq2Seq, ops: DecodingOps) -> DeviceSearcher | None:
        """Return the searcher for the current dtype, or None for a modified model."""
        if self.fingerprint is None or not self.fingerprint.matches(model):
            self.release()
            self.fingerprint, weights = ModelFingerprint(model), list(model.parameters())
            is_fp32 = all(weight.dtype == torch.float32 and not weight.is_inference() for weight in weights)
            self.is_known = is_unsharded(weights) and is_fp32 and is_supported(model)
        modules = self.fingerprint.modules
        if not self.is_known or any(map(IS_TRAINING, modules)) or has_hooks_or_overrides(*modules):
            return None
        dtype = compute_dtype(self.fingerprint.weights[0])
        if dtype not in self.searchers:
            self.searchers[dtype] = make_searcher(model, dtype, ops)
        return self.searchers[dtype]


def make_searcher(model: Seq2Seq, dtype: torch.dtype, ops: DecodingOps) -> DeviceSearcher:
    """Return a searcher for a supported model."""
    weights = TransformerWeights if is_supported_transformer(model) else LuongWeights
    with torch.inference_mode():
        return DeviceSearcher(weights(model, dtype, ops), ops)


def _is_request_supported(model: Seq2Seq, source: Tensor, request: SearchRequest) -> bool:
    """Return whether dtype, beam, lengths and the heads of a Transformer are within the limits of the kernels."""
    attention = model.decoder.decoder_layers()[0].attention if isinstance(model.decoder, TransformerDecoder) else None
    return (
        compute_dtype(next(model.parameters())) in (torch.float32, torch.bfloat16)
        and request.beam <= MAX_BEAM
        and max(request.max_lengths) <= MAX_TARGET_LENGTH
        and source.shape[1] <= MAX_SOURCE_LENGTH
        and min(request.source_lengths) > 0
        and (attention is None or attention.size // attention.heads <= MAX_HEAD_SIZE)
    )


def load_ops() -> DecodingOps:
    """Return the Triton operations, or without Triton, which is logged once, those of PyTorch."""
    kernels = load_triton("regard.fast.decoding.device.ops_triton", "device search")
    ops: DecodingOps = TORCH_OPS if kernels is None else kernels.TRITON_OPS
    return ops


MAX_WORKSPACES = 64  # per model
MAX_GRAPHS_PER_WORKSPACE = 16  # of a chunk of steps, and of the encoder for a number of tokens
MIN_CAPACITY = 32  # of targets; sources are rounded to multiples of it


class SearchWorkspace:
    """Buffers for a search of one size: its state, the states of the decoder, and a chunk of steps."""

    def __init__(
        self, weights: DecoderWeights, size: WorkspaceSize, attention: bool, buffers: StaticBuffers, ops: DecodingOps
    ) -> None:
        self.weights, self.size, self.ops = weights, size, ops
        self.replay = GraphReplayer(buffers.pool, MAX_GRAPHS_PER_WORKSPACE)
        self.state = BeamState(buffers, weights.output, size, attention)
        self.decoder_step = weights.make_step(size, buffers)
        self.host_copy = AsyncHostCopy(self.state.trace)

    def start(self, source: Tensor, lengths: Tensor, count: int, request: SearchRequest) -> None:
        """Upload the request and compute the states before the first token."""
        self.state.upload_request(request)

        def play(name: Hashable, work: Callable[[], None]) -> None:
            def reset_and_start() -> None:
                self.state.reset()
                work()

            self.replay(name, reset_and_start)

        self.decoder_step.start(source, lengths, count, play)

    def advance(self) -> None:
        """Take a chunk of steps."""
        self.replay("steps", self._run_chunk)

    def _run_chunk(self) -> None:
        """Take the steps of a chunk, without synchronization."""
        state, ops = self.state, self.ops
        for number in range(CHUNK_STEPS):
            h = self.decoder_step.step(state, number)
            ops.beam_update(state, ops.output_topk(h, self.weights.output, state, number), number)
        state.steps_done.add_(CHUNK_STEPS)
        state.trace[-len(state.done) :].copy_(state.done)


class DeviceSearcher:
    """Searches with one model in one dtype."""

    def __init__(self, weights: DecoderWeights, ops: DecodingOps) -> None:
        self.weights, self.ops = weights, ops
        self.buffers = StaticBuffers()
        self.workspaces: dict[tuple[WorkspaceSize, AlignmentHead | None], SearchWorkspace] = {}
        self.buffers.pool.is_enabled = weights.output.is_cuda
        self.refresh = GraphReplayer(self.buffers.pool, MAX_GRAPHS_PER_WORKSPACE)

    @torch.inference_mode()
    def __call__(self, source: Tensor, lengths: Tensor, request: SearchRequest) -> list[list[Hypothesis]]:
        """Return the `n_best` hypotheses of each source (B, S), best first."""
        casts = self.weights.casts
        self.refresh(len(casts.derived), casts.refresh)
        with torch.autocast(source.device.type, enabled=False):
            return find_best_hypotheses(self.run(source, lengths, request), request)

    def run(self, source: Tensor, lengths: Tensor, request: SearchRequest) -> SearchTrace:
        """Run all steps of a search and return its trace."""
        source_length, expected_lengths = source.shape[1], np.minimum(request.source_lengths, request.max_lengths)
        trace = SearchTrace(len(lengths), request.beam)
        sentence_ids, steps_done, is_ahead = np.arange(len(lengths)), 0, False
        workspace = self._workspace(
            self._workspace_size(len(sentence_ids), request.beam, source_length, CHUNK_STEPS), request.attention
        )
        workspace.start(source, lengths, sum(request.source_lengths), request)
        while True:
            if not is_ahead:
                workspace.advance()
            steps_done += CHUNK_STEPS
            workspace.host_copy.start()
            is_ahead = self.can_run_ahead(
                workspace, int(((expected_lengths > steps_done) & (trace.done == 0))[sentence_ids].sum()), steps_done
            )
            if is_ahead:
                workspace.advance()
            raw_trace, attention = workspace.host_copy.wait(), workspace.state.attention
            count, size, weights = len(sentence_ids), workspace.size.sentences, None
            trace.done[sentence_ids] = raw_trace[-size:][:count]
            steps = raw_trace[:-size].reshape(CHUNK_STEPS, 3, size, request.beam)[:, :, :count]
            log_probs, parents, tokens = np.array(steps.swapaxes(0, 1))  # a copy: the next chunk overwrites the buffer
            if attention is not None:
                rows = attention.cpu().numpy().reshape(CHUNK_STEPS, size, request.beam, -1)
                weights = np.array(rows[:, :count, :, :source_length])
            trace.add_steps(sentence_ids, (log_probs.view(np.float32), parents, tokens), weights)
            still_open = np.flatnonzero(trace.done[sentence_ids] == 0)
            if not len(still_open):
                return trace
            if not is_ahead:
                workspace, sentence_ids = self._next_workspace(workspace, sentence_ids, still_open, steps_done, request)

    def can_run_ahead(self, workspace: SearchWorkspace, sentences: int, steps_done: int) -> bool:
        """Return whether the workspace also fits the next chunk, so that it can start before this one is read.

        Which sentences end in this chunk is not known yet. As many are expected to continue as have sources longer
        than their targets so far; if the guess is wrong, one chunk is computed in vain.
        """
        fits = not self.weights.has_kv_cache or steps_done + CHUNK_STEPS <= workspace.size.capacity
        return workspace.state.attention is None and fits and 2 * round_up(sentences) > workspace.size.sentences

    def _next_workspace(
        self,
        workspace: SearchWorkspace,
        sentence_ids: IntArray,
        still_open: IntArray,
        steps_done: int,
        request: SearchRequest,
    ) -> tuple[SearchWorkspace, IntArray]:
        """Return the workspace for the next chunk, and the ids of its sentences."""
        new_size = self._workspace_size(len(still_open), request.beam, workspace.size.source, steps_done + CHUNK_STEPS)
        if 2 * new_size.sentences <= workspace.size.sentences:
            moved = still_open
        elif new_size.capacity > workspace.size.capacity:
            moved, new_size = np.arange(len(sentence_ids)), new_size._replace(sentences=workspace.size.sentences)
        else:
            return workspace, sentence_ids
        moved_ids = torch.from_numpy(moved).to(workspace.state.rows.device)
        states, state = workspace.decoder_step.copy_states(moved_ids, steps_done), workspace.state
        target = self._workspace(new_size, request.attention)
        target.state.copy_sentences(state, moved_ids)
        target.decoder_step.restore_states(states)
        return target, sentence_ids[moved]

    def _workspace_size(self, sentences: int, width: int, source: int, target: int) -> WorkspaceSize:
        """Round up the shapes of a search."""
        capacity = max(MIN_CAPACITY, 1 << (target - 1).bit_length()) if self.weights.has_kv_cache else 0
        return WorkspaceSize(round_up(sentences), width, -(-source // MIN_CAPACITY) * MIN_CAPACITY, capacity)

    def _workspace(self, size: WorkspaceSize, attention: bool) -> SearchWorkspace:
        """Return the workspace of this size; all of them share memory, and one is used at a time."""
        key = size, self.weights.decoder.alignment_head if attention else None
        workspace = self.workspaces.pop(key, None)
        if workspace is None:
            if len(self.workspaces) >= MAX_WORKSPACES:
                self.workspaces.pop(next(iter(self.workspaces)))  # the least recently used
            workspace = SearchWorkspace(self.weights, size, attention, self.buffers, self.ops)
        self.workspaces[key] = workspace
        return workspace


class AsyncHostCopy:
    """Copy of a device tensor to the host, asynchronous to later work of the device."""

    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.target = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
        self.event = torch.cuda.Event() if source.is_cuda else None  # type: ignore[no-untyped-call]

    def start(self) -> None:
        """Enqueue the copy behind the work so far."""
        self.target.copy_(self.source, non_blocking=True)
        if self.event is not None:
            self.event.record()

    def wait(self) -> npt.NDArray[Any]:
        """Wait for the copy and return it; the next `start` overwrites it."""
        if self.event is not None:
            self.event.synchronize()
        return self.target.numpy()
