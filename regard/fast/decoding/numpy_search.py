"""Beam search without constraints or coverage penalty, on the device or with NumPy: the results of `regard.search`.

A step of a small model takes less time than twenty calls of PyTorch, so the search with NumPy handles all sentences
at once and follows the backpointers only when all are done. The request, the trace of a search and the backtrace are
shared with the device search and the int8 search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
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


Ints = npt.NDArray[np.signedinteger[Any]]
IntArray = npt.NDArray[np.int64]
RealArray = npt.NDArray[Any]  # in the precision that log-probabilities have


class SearchTrace:
    """Choices of each step, for each sentence and row; rows are numbered within their sentence."""

    def __init__(self, sentences: int, width: int) -> None:
        self.sentences, self.width = sentences, width
        self.chunks: list[Sequence[RealArray]] = []  # log-probabilities, parents and tokens (T, A, W)
        # Index of each sentence in the weights, and the weights (T, A, W, S).
        self.attention: list[tuple[IntArray, Floats]] = []
        self.done: Ints = np.zeros(sentences, np.int32)  # the last step of each sentence

    def add_steps(self, sentence_ids: IntArray, steps: Sequence[RealArray], attention: Floats | None) -> None:
        """Add T steps of the sentences with these ids; the others are done.

        Args:
            steps: log-probabilities, parents and tokens (T, A, W).
            attention: (T, A, W, S) or None.
        """
        if len(sentence_ids) < self.sentences:
            active, steps = steps, [np.zeros((len(part), self.sentences, self.width), part.dtype) for part in steps]
            for target, part in zip(steps, active, strict=True):
                target[:, sentence_ids] = part
        self.chunks.append(steps)
        if attention is not None:
            sentence_index = np.zeros(self.sentences, np.int64)
            sentence_index[sentence_ids] = np.arange(len(sentence_ids))
            self.attention.append((sentence_index, attention))


def find_best_hypotheses(trace: SearchTrace, request: SearchRequest) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each sentence, best first; truncated ones only if none ended."""
    log_probs, parents, tokens = map(np.concatenate, zip(*trace.chunks, strict=True))
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
    token_paths, row_paths = _trace_tokens(end_points, parents, tokens)
    final_log_probs = log_probs[tuple(end_points.T)].astype(np.float64)
    # Lists and maps: for hundreds of sentences, a Python loop with slices and divisions takes as long as decoder steps.
    sentences, ends, token_lists = end_points[:, 1].tolist(), (end_points[:, 0] + 1).tolist(), token_paths.T.tolist()
    for token_list, end in zip(token_lists, ends, strict=True):
        del token_list[end:]
    scores = final_log_probs / np.array(request.length_divisors)[ends]
    attention: Iterable[Floats | None] = repeat(None)
    if trace.attention:
        paths = zip(sentences, ends, row_paths.T, strict=True)
        attention = [
            _attention_along_path(trace, sentence, row_path[:end], request.source_lengths[sentence])
            for sentence, end, row_path in paths
        ]
    hypotheses: list[list[Hypothesis]] = [[] for _ in range(trace.sentences)]
    best = map(Hypothesis, token_lists, final_log_probs.tolist(), scores.tolist(), attention)
    for sentence, hypothesis in zip(sentences, best, strict=True):
        hypotheses[sentence].append(hypothesis)
    return hypotheses


def _select_best(end_points: IntArray, log_probs: Floats, request: SearchRequest) -> IntArray:
    """Select the best ends of each sentence from (step, sentence, row) (n, 3); among equals the first."""
    step, sentence, _ = end_points.T
    scores = log_probs[tuple(end_points.T)].astype(np.float64) / np.array(request.length_divisors)[step + 1]
    order = np.lexsort((-scores, sentence))
    end_points = end_points[order]
    first = np.searchsorted(end_points[:, 1], end_points[:, 1])  # index of the first end of the same sentence
    return end_points[np.arange(len(end_points)) - first < request.n_best]


def _attention_along_path(trace: SearchTrace, sentence: int, row_path: IntArray, length: int) -> Floats:
    """Return the attention of the rows of a path, one per step."""
    parts, start = [], 0
    for sentence_index, weights in trace.attention:
        rows = row_path[start : start + len(weights)]
        if not len(rows):
            break
        parts.append(weights[np.arange(len(rows)), sentence_index[sentence], rows, :length])
        start += len(weights)
    return np.concatenate(parts)


def _trace_tokens(end_points: IntArray, parents: Ints, tokens: Ints) -> tuple[Ints, IntArray]:
    """Follow backpointers (T, A, W) from the end of each hypothesis to its beginning, for all at once.

    Returns:
        the tokens of each hypothesis (T, n), and the rows that chose them.
    """
    step, sentence, row = end_points.T
    steps, _, width = tokens.shape
    if width == 1:  # a single row extends itself
        return tokens[:, sentence, 0], np.zeros((steps, len(row)), np.int64)
    token_paths, row_paths = np.zeros((steps, len(row)), np.int32), np.zeros((steps, len(row)), np.int64)
    for t in range(int(step.max(initial=-1)), -1, -1):
        token_paths[t] = tokens[t, sentence, row]
        row = np.where(t <= step, parents[t, sentence, row], row)
        row_paths[t] = row
    return token_paths, row_paths


SteppedModels = Any  # a `regard.search.ensemble.Ensemble`


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
    length_divisors = [1.0, *map(length_divisor, range(1, max(limits) + 1))]
    request = SearchRequest(
        options.beam, options.n_best, options.min_length, limits, length_divisors, options.attention, sizes
    )
    acceleration = getattr(models.models[0], "acceleration", None)
    hypotheses: list[list[Hypothesis]] | None = None
    if len(models.models) == 1 and acceleration is not None and acceleration.search is not None:
        with models.eval_mode():
            hypotheses = acceleration.search(models.models[0], source, lengths, request)
    if hypotheses is None and source.device.type == "cpu":
        hypotheses = beam_search_numpy(models, source, lengths, request)
    return hypotheses


class ActiveSentences:
    """The A sentences that are not done, with W rows each."""

    def __init__(self, request: SearchRequest) -> None:
        sentences, width = len(request.max_lengths), request.beam
        self.request, self.length_divisors = request, np.array(request.length_divisors)
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
                float(candidate_log_probs[sentence, row]) / self.length_divisors[step]
            )
            self.num_completed[sentence] += 1
        best = np.where(is_open, candidate_log_probs, -np.inf).max(1).astype(np.float64)
        done: npt.NDArray[np.bool_] = (best == -np.inf) | (step >= self.max_lengths)
        enough = self.num_completed >= self.request.n_best
        if enough.any():
            upper_bound = np.maximum(best / self.length_divisors[1], best / self.length_divisors[self.max_lengths])
            worst = -np.sort(-self.completed_scores, 1)[:, self.request.n_best - 1]
            done |= enough & (worst >= upper_bound)
        self.beam_log_probs = np.where(is_open, candidate_log_probs, -np.inf)
        return done

    def keep_sentences(self, remaining: IntArray) -> None:
        """Keep the sentences with these indices."""
        self.sentence_ids, self.max_lengths = self.sentence_ids[remaining], self.max_lengths[remaining]
        self.num_completed = self.num_completed[remaining]
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
    trace, active, step = SearchTrace(len(lengths), width), ActiveSentences(request), 0
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
            chosen = [part[None] for part in (candidate_log_probs, parents, tokens)]
            weights = None if attention is None else attention.float().numpy().reshape(1, len(tokens), width, -1)
            trace.add_steps(active.sentence_ids, chosen, weights)
            done = active.record_completed(candidate_log_probs, tokens, step)
            trace.done[active.sentence_ids[done]] = step
            extended = parents + width * np.arange(len(parents))[:, None]
            if done.all():
                return find_best_hypotheses(trace, request)
            if done.any():
                remaining = np.flatnonzero(~done)
                active.keep_sentences(remaining)
                tokens, extended = tokens[remaining], extended[remaining]
                states = models.keep_rows(states, torch.from_numpy(extended.reshape(-1)), torch.from_numpy(remaining))
            elif width > 1:  # the only row of a sentence extends itself
                states = models.reorder_beams(states, torch.from_numpy(extended.reshape(-1)))
            newest = torch.from_numpy(tokens.flatten())  # a copy, because the trace keeps `tokens`
