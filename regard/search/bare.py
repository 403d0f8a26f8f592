"""A search on a CPU where nothing is asked for but the best: what a `Frontier` finds, with NumPy between two steps.

A step of a small model takes less time than twenty calls of PyTorch. So sentences are not looked at one by one, what
was chosen is written down for all of them at once, and the way back is walked when all are done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.errors import make_nan_error
from regard.fast.decoding.board import Wish
from regard.fast.decoding.harvest import Record, found
from regard.fast.topk import topk
from regard.models.hypothesis import Hypothesis
from regard.search.ensemble import Ensemble
from regard.special_tokens import BOS, EOS, PAD

IntArray = npt.NDArray[np.int64]
RealArray = npt.NDArray[Any]  # in the precision that log-probabilities have


class ActiveSentences:
    """The A sentences that are not done, with W rows each."""

    def __init__(self, request: Wish) -> None:
        sentences, width = len(request.limits), request.beam
        self.request, self.length_penalties = request, np.array(request.penalties)
        self.sentence_ids: IntArray = np.arange(sentences)
        self.max_lengths: IntArray = np.array(request.limits)
        self.beam_log_probs: RealArray = np.full((sentences, width), -np.inf, np.float32)
        self.beam_log_probs[:, 0] = 0.0
        self.num_completed: IntArray = np.zeros(sentences, np.int64)
        self.completed_scores = np.full((sentences, width), -np.inf)  # of those that have ended

    def select_candidates(self, log_probs: Tensor, step: int) -> tuple[RealArray, IntArray, IntArray]:
        """The best extensions of each sentence, as many as have not ended: log-probabilities, parents, tokens A,W."""
        A, W = self.beam_log_probs.shape
        values, tokens = _masked_topk(log_probs, W, step < self.request.min_length)
        candidate_log_probs = (self.beam_log_probs[..., None] + values.reshape(A, W, -1)).reshape(A, -1)
        if W == 1:
            return candidate_log_probs, np.zeros((A, 1), np.int64), tokens
        candidate_log_probs, indices = (part.numpy() for part in torch.from_numpy(candidate_log_probs).topk(W, -1))
        if self.num_completed.any():
            candidate_log_probs[np.arange(W) >= W - self.num_completed[:, None]] = -np.inf
        return candidate_log_probs, indices // tokens.shape[1], np.take_along_axis(tokens.reshape(A, -1), indices, 1)

    def record_completed(self, candidate_log_probs: RealArray, tokens: IntArray, step: int) -> npt.NDArray[np.bool_]:
        """What ends with this step; the sentences A that are done with it."""
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
        """The sentences in these places."""
        self.sentence_ids, self.max_lengths, self.num_completed = (
            self.sentence_ids[remaining],
            self.max_lengths[remaining],
            self.num_completed[remaining],
        )
        self.beam_log_probs, self.completed_scores = self.beam_log_probs[remaining], self.completed_scores[remaining]


def _masked_topk(log_probs: Tensor, count: int, forbid_eos: bool) -> tuple[RealArray, IntArray]:
    """The likeliest tokens of each row R,V that may follow, and their log-probabilities R,count."""
    kind = torch.promote_types(log_probs.dtype, torch.float32)  # NumPy has no bf16
    # A decoder may have given out what it still needs, or the same numbers to several threads.
    allowed = log_probs.to(kind, copy=True, memory_format=torch.contiguous_format)
    for token in (PAD, BOS, EOS) if forbid_eos else (PAD, BOS):
        allowed[:, token] = -torch.inf
    values, tokens = topk(allowed, min(count, allowed.shape[1]))
    return values.numpy(), tokens.numpy()


@torch.inference_mode()
def beam_search_numpy(models: Ensemble, source: Tensor, lengths: Tensor, request: Wish) -> list[list[Hypothesis]]:
    """The `n_best` targets of each source B,S, the best first."""
    width = request.beam
    record, active, step = Record(len(lengths), width, source.shape[1]), ActiveSentences(request), 0
    rows = torch.arange(len(lengths)).repeat_interleave(width)
    with models.eval_mode():
        states, newest = models.expand_beams(models.start(source, lengths), width, rows), torch.full_like(rows, BOS)
        while True:
            log_probs, states, attention = models.step(states, newest, source.shape[1] if request.attention else None)
            step += 1
            candidate_log_probs, parents, tokens = active.select_candidates(log_probs, step)
            if np.isnan(candidate_log_probs).any():
                raise make_nan_error(step)
            record_step(record, active.sentence_ids, (candidate_log_probs, parents, tokens), attention)
            done = active.record_completed(candidate_log_probs, tokens, step)
            record.done[active.sentence_ids[done]] = step
            if done.all():
                break
            states, newest = _advance_states(models, states, active, done, parents, tokens)
    return found(record, request)


def record_step(
    record: Record, sentence_ids: IntArray, selected: tuple[Any, Any, Any], attention: Tensor | None
) -> None:
    """What happened to the sentences with these numbers, as a chunk of one step."""

    def scatter_to_all(part: Any) -> Any:
        """Zeros for the others, which are done."""
        if len(part) == record.sentences:
            return part[None]
        every = np.zeros((1, record.sentences, *part.shape[1:]), part.dtype)
        every[0, sentence_ids] = part
        return every

    for kept, part in zip((record.log_probs, record.parents, record.tokens), selected, strict=True):
        kept.append(scatter_to_all(part))
    if attention is not None:
        record.looked(attention.float().numpy().reshape(1, len(sentence_ids), record.width, -1), sentence_ids)


def _advance_states(
    models: Ensemble,
    states: list[Any],
    active: ActiveSentences,
    done: npt.NDArray[np.bool_],
    parents: IntArray,
    tokens: IntArray,
) -> tuple[list[Any], Tensor]:
    """The states of the rows that go on, and their newest tokens."""
    A, W = tokens.shape
    rows = parents + W * np.arange(A)[:, None]
    if not done.any():
        # A row that is alone in its sentence extends itself.
        moved = models.reorder_beams(states, torch.from_numpy(rows.reshape(-1))) if W > 1 else states
        return moved, torch.from_numpy(tokens.flatten())  # a copy: what was chosen is written down
    remaining = np.flatnonzero(~done)
    active.keep_sentences(remaining)
    kept = models.keep_rows(states, torch.from_numpy(rows[remaining].reshape(-1)), torch.from_numpy(remaining))
    return kept, torch.from_numpy(tokens[remaining].flatten())
