"""Request, trace and backtrace of the searches that models have for their device: on a GPU, or greedily in int8.

They take several steps without the host, which follows the backpointers when all sentences are done.
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
from regard.models.hypothesis import Floats, Hypothesis, SearchOptions
from regard.special_tokens import EOS

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


@torch.inference_mode()
def search_fast(
    models: Any, source: Tensor, lengths: Tensor, options: SearchOptions, length_divisor: Callable[[int], float]
) -> list[list[Hypothesis]] | None:
    """Use the search that a model has for its device; return None if it has none, and for several models.

    `models` is a `regard.search.ensemble.Ensemble`.
    """
    model, *others = models.models
    acceleration = getattr(model, "acceleration", None)
    if others or acceleration is None or acceleration.search is None:
        return None
    sizes = lengths.tolist()
    limits = options.max_lengths(sizes)
    length_divisors = [1.0, *map(length_divisor, range(1, max(limits) + 1))]
    request = SearchRequest(
        options.beam, options.n_best, options.min_length, limits, length_divisors, options.attention, sizes
    )
    with models.eval_mode():
        hypotheses: list[list[Hypothesis]] | None = acceleration.search(model, source, lengths, request)
    return hypotheses
