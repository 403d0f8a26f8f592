"""Beam search without constraints or coverage penalty, on the device or with NumPy: the results of `regard.search`.

A step of a small model takes less time than twenty calls of PyTorch, so the search with NumPy handles all sentences
at once and follows the backpointers only when all are done. The request, the trace of a search and the backtrace are
shared with the device search and the int8 search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.errors import make_nan_error
from regard.fast.decoding.topk import topk
from regard.models.hypothesis import Floats, Hypothesis, SearchOptions
from regard.special_tokens import BOS, EOS, PAD

CHUNK_STEPS = 8  # steps per chunk; even, because steps alternate between two buffers
MAX_TARGET_LENGTH = 4096  # tokens of a target


class SearchRequest(NamedTuple):
    """Options of a search, for all of its sentences."""

    beam: int
    n_best: int
    min_length: int
    max_lengths: Sequence[int]  # per sentence, EOS included
    length_divisors: Sequence[float]  # of log p(y), for each |y| from 0 to the largest limit
    attention: bool
    source_lengths: Sequence[int]  # per sentence


Ints = npt.NDArray[np.int32]


class AttentionChunk(NamedTuple):
    """Attention of the rows of some sentences in consecutive steps."""

    sentence_index: npt.NDArray[np.int64]  # of each sentence in `weights`
    weights: Floats  # (steps, A, W, S)


@dataclass
class SearchTrace:
    """Choices of each step, for each sentence and row; rows are numbered within their sentence.

    It grows by chunks of T steps.
    """

    sentences: int
    width: int
    source: int
    log_probs: list[Any] = field(default_factory=list)  # per chunk: (T, A, W)
    parents: list[Any] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    attention: list[AttentionChunk] = field(default_factory=list)
    done: Ints = field(init=False)  # (A,), the last step of each sentence

    def __post_init__(self) -> None:
        self.done = np.zeros(self.sentences, np.int32)

    def add_chunk(self, raw_trace: Ints, attention: Floats | None, sentence_ids: npt.NDArray[np.int64]) -> None:
        """Add a chunk of the device search for the sentences with these ids; the others are done."""
        W, count = self.width, len(sentence_ids)
        size = (len(raw_trace)) // (CHUNK_STEPS * 3 * W + 1)
        steps = raw_trace[:-size].reshape(CHUNK_STEPS, 3, size, W)[:, :, :count]
        all_steps = np.array(steps.transpose(1, 0, 2, 3))  # a copy: the next chunk overwrites the buffer
        if count < self.sentences:
            active_steps, all_steps = all_steps, np.zeros((3, CHUNK_STEPS, self.sentences, W), np.int32)
            all_steps[:, :, sentence_ids] = active_steps
        log_probs, parents, tokens = all_steps
        self.log_probs.append(log_probs.view(np.float32))
        self.parents.append(parents)
        self.tokens.append(tokens)
        self.done[sentence_ids] = raw_trace[-size:][:count]
        if attention is not None:
            self.add_attention(
                np.array(attention.reshape(CHUNK_STEPS, -1, W, attention.shape[-1])[:, :count, :, : self.source]),
                sentence_ids,
            )

    def add_attention(self, weights: Floats, sentence_ids: npt.NDArray[np.int64]) -> None:
        """Add attention (T, A, W, S) of the sentences with these ids."""
        sentence_index = np.zeros(self.sentences, np.int64)
        sentence_index[sentence_ids] = np.arange(len(sentence_ids))
        self.attention.append(AttentionChunk(sentence_index, weights))


def find_best_hypotheses(trace: SearchTrace, request: SearchRequest) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each sentence, best first; truncated ones only if none ended."""
    log_probs, tokens = np.concatenate(trace.log_probs), np.concatenate(trace.tokens)
    steps = np.arange(1, len(tokens) + 1)[:, None, None]
    searched = steps <= trace.done[:, None]
    is_nan = np.isnan(log_probs) & searched
    if is_nan.any():
        raise make_nan_error(int(is_nan.nonzero()[0].min()) + 1)
    is_open = searched & (log_probs > -np.inf)
    ended = is_open & (tokens == EOS)
    has_none = ~ended.any((0, 2))
    is_truncated = is_open & has_none[:, None] & (steps == np.array(request.max_lengths)[:, None])
    end_points = _select_best(np.stack((ended | is_truncated).nonzero(), 1), log_probs, request)
    return _backtrace(trace, end_points, log_probs, tokens, request)


def _select_best(end_points: npt.NDArray[np.int64], log_probs: Floats, request: SearchRequest) -> npt.NDArray[np.int64]:
    """Select the best ends of each sentence from (step, sentence, row) (n, 3); among equals the first."""
    step, sentence, _ = end_points.T
    scores = log_probs[tuple(end_points.T)].astype(np.float64) / np.array(request.length_divisors)[step + 1]
    order = np.lexsort((-scores, sentence))
    end_points = end_points[order]
    first = np.searchsorted(end_points[:, 1], end_points[:, 1])  # index of the first end of the same sentence
    return end_points[np.arange(len(end_points)) - first < request.n_best]


def _backtrace(
    trace: SearchTrace, end_points: npt.NDArray[np.int64], log_probs: Floats, tokens: Ints, request: SearchRequest
) -> list[list[Hypothesis]]:
    """Follow backpointers from the end of each hypothesis to its beginning, for all at once."""
    steps, rows = len(tokens), trace.sentences * trace.width
    token_paths, row_paths = _trace_tokens(trace, end_points, tokens.reshape(steps, rows))
    sentence, ends = end_points[:, 1].tolist(), (end_points[:, 0] + 1).tolist()
    token_lists = token_paths.T.tolist()
    for path, end in zip(token_lists, ends, strict=True):
        del path[end:]
    attention = _trace_attention(trace, row_paths, sentence, ends, request.source_lengths)
    final_log_probs = log_probs[tuple(end_points.T)].astype(np.float64)
    scores = final_log_probs / np.array(request.length_divisors)[ends]
    hypotheses: list[list[Hypothesis]] = [[] for _ in range(trace.sentences)]
    for sentence_id, hypothesis in zip(
        sentence, map(Hypothesis, token_lists, final_log_probs.tolist(), scores.tolist(), attention), strict=True
    ):
        hypotheses[sentence_id].append(hypothesis)
    return hypotheses


def _trace_attention(
    trace: SearchTrace, row_paths: npt.NDArray[np.int64], sentence: list[int], ends: list[int], lengths: Sequence[int]
) -> Sequence[Floats | None]:
    """Return the attention of each hypothesis, (tokens, source length), or None."""
    if not trace.attention:
        return [None] * len(sentence)
    paths = zip(sentence, ends, row_paths.T, strict=True)
    return [
        _attention_along_path(trace, sentence_id, row_path[:end] - sentence_id * trace.width, lengths[sentence_id])
        for sentence_id, end, row_path in paths
    ]


def _attention_along_path(trace: SearchTrace, sentence: int, row_path: npt.NDArray[np.int64], length: int) -> Floats:
    """Return the attention of the rows of a path, one per step."""
    parts, start = [], 0
    for sentence_index, weights in trace.attention:
        rows = row_path[start : start + len(weights)]
        if not len(rows):
            break
        parts.append(weights[np.arange(len(rows)), sentence_index[sentence], rows, :length])
        start += len(weights)
    return np.concatenate(parts)


def _trace_tokens(
    trace: SearchTrace, end_points: npt.NDArray[np.int64], tokens: Ints
) -> tuple[Ints, npt.NDArray[np.int64]]:
    """Return the tokens of each hypothesis (steps, n), and the rows that chose them."""
    step, sentence, row = end_points.T
    first_row = sentence * trace.width
    if trace.width == 1:  # a single row extends itself
        return tokens[:, sentence], np.broadcast_to(sentence, (len(tokens), len(end_points)))
    parents = np.concatenate(trace.parents).reshape(tokens.shape)
    current_row = first_row + row
    token_paths, row_paths = (
        np.zeros((len(tokens), len(end_points)), np.int32),
        np.zeros((len(tokens), len(end_points)), np.int64),
    )
    for t in range(int(step.max(initial=-1)), -1, -1):
        token_paths[t] = tokens[t].take(current_row)
        current_row = np.where(t <= step, first_row + parents[t].take(current_row), current_row)
        row_paths[t] = current_row
    return token_paths, row_paths


SteppedModels = Any  # a `regard.search.ensemble.Ensemble`
IntArray = npt.NDArray[np.int64]
RealArray = npt.NDArray[Any]  # in the precision that log-probabilities have


@torch.inference_mode()
def search_fast(
    models: SteppedModels,
    source: Tensor,
    lengths: Tensor,
    options: SearchOptions,
    length_divisor: Callable[[int], float],
) -> list[list[Hypothesis]] | None:
    """Use the search that the model has for its device, else NumPy on a CPU; return None if neither can search."""
    sizes = lengths.tolist()
    limits = options.max_lengths(sizes)
    penalties = [1.0, *map(length_divisor, range(1, max(limits) + 1))]
    request = SearchRequest(
        options.beam, options.n_best, options.min_length, limits, penalties, options.attention, sizes
    )
    device_search = getattr(models.models[0], "device_search", None)
    hypotheses: list[list[Hypothesis]] | None = None
    if device_search is not None and len(models.models) == 1:
        with models.eval_mode():
            hypotheses = device_search(models.models[0], source, lengths, request)
    if hypotheses is None and source.device.type == "cpu":
        hypotheses = beam_search_numpy(models, source, lengths, request)
    return hypotheses


class ActiveSentences:
    """The A sentences that are not done, with W rows each."""

    def __init__(self, request: SearchRequest) -> None:
        sentences, width = len(request.max_lengths), request.beam
        self.request, self.length_penalties = request, np.array(request.length_divisors)
        self.sentence_ids: IntArray = np.arange(sentences)
        self.max_lengths: IntArray = np.array(request.max_lengths)
        self.beam_log_probs: RealArray = np.full((sentences, width), -np.inf, np.float32)
        self.beam_log_probs[:, 0] = 0.0
        self.num_completed: IntArray = np.zeros(sentences, np.int64)
        self.completed_scores = np.full((sentences, width), -np.inf)  # of those that have ended

    def select_candidates(self, values: RealArray, tokens: IntArray) -> tuple[RealArray, IntArray, IntArray]:
        """Return log-probabilities, parents and tokens (A, W) of the best continuations, as many as have not ended.

        `values` are the log-probabilities of some tokens (A·W, n) of each row.
        """
        A, W = self.beam_log_probs.shape
        candidate_log_probs = (self.beam_log_probs[..., None] + values.reshape(A, W, -1)).reshape(A, -1)
        if candidate_log_probs.shape[1] == 1:
            return candidate_log_probs, np.zeros((A, 1), np.int64), tokens
        candidate_log_probs, indices = (part.numpy() for part in torch.from_numpy(candidate_log_probs).topk(W, -1))
        if self.num_completed.any():
            candidate_log_probs[np.arange(W) >= W - self.num_completed[:, None]] = -np.inf
        return candidate_log_probs, indices // tokens.shape[1], np.take_along_axis(tokens.reshape(A, -1), indices, 1)

    def record_completed(self, candidate_log_probs: RealArray, tokens: IntArray, step: int) -> npt.NDArray[np.bool_]:
        """Score the hypotheses that end with this step; return which sentences (A,) are done."""
        is_open = (candidate_log_probs > -np.inf) & (tokens != EOS)
        for sentence, row in zip(*((candidate_log_probs > -np.inf) & (tokens == EOS)).nonzero(), strict=True):
            self.completed_scores[sentence, self.num_completed[sentence]] = (
                float(candidate_log_probs[sentence, row]) / self.length_penalties[step]
            )
            self.num_completed[sentence] += 1
        best = np.where(is_open, candidate_log_probs, -np.inf).max(1).astype(np.float64)
        done: npt.NDArray[np.bool_] = (best == -np.inf) | (step >= self.max_lengths)
        enough = self.num_completed >= self.request.n_best
        if enough.any():
            upper_bound = np.maximum(best / self.length_penalties[1], best / self.length_penalties[self.max_lengths])
            worst = -np.sort(-self.completed_scores, 1)[:, self.request.n_best - 1]
            done |= enough & (worst >= upper_bound)
        self.beam_log_probs = np.where(is_open, candidate_log_probs, -np.inf)
        return done

    def keep_sentences(self, remaining: IntArray) -> None:
        """Keep the sentences with these indices."""
        self.sentence_ids, self.max_lengths, self.num_completed = (
            self.sentence_ids[remaining],
            self.max_lengths[remaining],
            self.num_completed[remaining],
        )
        self.beam_log_probs, self.completed_scores = self.beam_log_probs[remaining], self.completed_scores[remaining]


def _masked_topk(log_probs: Tensor, count: int, forbid_eos: bool) -> tuple[RealArray, IntArray]:
    """Return the log-probabilities and ids (R, count) of the most probable allowed tokens of each row (R, V)."""
    dtype = torch.promote_types(log_probs.dtype, torch.float32)  # NumPy has no bf16
    # A copy: the decoder may still need its own, or share it between threads.
    allowed = log_probs.to(dtype, copy=True, memory_format=torch.contiguous_format)
    for token in (PAD, BOS, EOS) if forbid_eos else (PAD, BOS):
        allowed[:, token] = -torch.inf
    values, tokens = topk(allowed, min(count, allowed.shape[1]))
    return values.numpy(), tokens.numpy()


@torch.inference_mode()
def beam_search_numpy(
    models: SteppedModels, source: Tensor, lengths: Tensor, request: SearchRequest
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each source (B, S), best first."""
    width = request.beam
    trace, active, step = SearchTrace(len(lengths), width, source.shape[1]), ActiveSentences(request), 0
    rows = torch.arange(len(lengths)).repeat_interleave(width)
    with models.eval_mode():
        states, newest = models.expand_beams(models.start(source, lengths), width, rows), torch.full_like(rows, BOS)
        while True:
            log_probs, states, attention = models.step(states, newest, source.shape[1] if request.attention else None)
            step += 1
            candidates = _masked_topk(log_probs, width, step < request.min_length)
            candidate_log_probs, parents, tokens = active.select_candidates(*candidates)
            if np.isnan(candidate_log_probs).any():
                raise make_nan_error(step)
            record_step(trace, active.sentence_ids, (candidate_log_probs, parents, tokens), attention)
            done = active.record_completed(candidate_log_probs, tokens, step)
            trace.done[active.sentence_ids[done]] = step
            if done.all():
                break
            states, newest = _advance_states(models, states, active, done, parents, tokens)
    return find_best_hypotheses(trace, request)


def record_step(
    trace: SearchTrace, sentence_ids: IntArray, selected: tuple[Any, Any, Any], attention: Tensor | None
) -> None:
    """Append one step of the sentences with these numbers to the record."""

    def scatter_to_all(part: Any) -> Any:
        """Fill the rows of done sentences with zeros."""
        if len(part) == trace.sentences:
            return part[None]
        every = np.zeros((1, trace.sentences, *part.shape[1:]), part.dtype)
        every[0, sentence_ids] = part
        return every

    for kept, part in zip((trace.log_probs, trace.parents, trace.tokens), selected, strict=True):
        kept.append(scatter_to_all(part))
    if attention is not None:
        trace.add_attention(attention.float().numpy().reshape(1, len(sentence_ids), trace.width, -1), sentence_ids)


def _advance_states(
    models: SteppedModels,
    states: list[Any],
    active: ActiveSentences,
    done: npt.NDArray[np.bool_],
    parents: IntArray,
    tokens: IntArray,
) -> tuple[list[Any], Tensor]:
    """Return the states of the rows that continue, and their newest tokens."""
    A, W = tokens.shape
    rows = parents + W * np.arange(A)[:, None]
    if not done.any():
        # The only row of a sentence extends itself.
        moved = models.reorder_beams(states, torch.from_numpy(rows.reshape(-1))) if W > 1 else states
        return moved, torch.from_numpy(tokens.flatten())  # a copy, because the record keeps `tokens`
    remaining = np.flatnonzero(~done)
    active.keep_sentences(remaining)
    kept = models.keep_rows(states, torch.from_numpy(rows[remaining].reshape(-1)), torch.from_numpy(remaining))
    return kept, torch.from_numpy(tokens[remaining].flatten())
