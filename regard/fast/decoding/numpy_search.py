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

CHUNK = 8  # steps; an even number, since what a step writes is not where it reads, but where the next one does
LONGEST = 4096  # tokens that a target may have


class Wish(NamedTuple):
    """What is asked of a search, the same for all of its sentences."""

    beam: int
    n_best: int
    min_length: int
    limits: Sequence[int]  # of each sentence: tokens that a target may have, EOS included
    penalties: Sequence[float]  # what log p(y) is divided by, for each |y| from 0 to the largest limit
    attention: bool
    sources: Sequence[int]  # of each sentence: words that it has


Ints = npt.NDArray[np.int32]


class Looks(NamedTuple):
    """Where the rows of some sentences looked, at some steps after each other."""

    place: npt.NDArray[np.int64]  # of each sentence among them
    seen: Floats  # steps,A,W,S


@dataclass
class Record:
    """Of each step t, sentence a and row w what was chosen; rows are numbered within their sentence.

    What is added at once is a chunk of T steps.
    """

    sentences: int
    width: int
    source: int
    log_probs: list[Any] = field(default_factory=list)  # of a chunk each: T,A,W
    parents: list[Any] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    looks: list[Looks] = field(default_factory=list)
    done: Ints = field(init=False)  # A; the step with which each was done

    def __post_init__(self) -> None:
        self.done = np.zeros(self.sentences, np.int32)

    def add(self, slab: Ints, looks: Floats | None, who: npt.NDArray[np.int64]) -> None:
        """One chunk, of the sentences with these numbers; of the others, which are done, nothing more is known."""
        W, count = self.width, len(who)
        size = (len(slab)) // (CHUNK * 3 * W + 1)
        steps = slab[:-size].reshape(CHUNK, 3, size, W)[:, :, :count]
        whole = np.array(steps.transpose(1, 0, 2, 3))  # the next chunk may write to the same memory
        if count < self.sentences:
            some, whole = whole, np.zeros((3, CHUNK, self.sentences, W), np.int32)
            whole[:, :, who] = some
        log_probs, parents, tokens = whole
        self.log_probs.append(log_probs.view(np.float32))
        self.parents.append(parents)
        self.tokens.append(tokens)
        self.done[who] = slab[-size:][:count]
        if looks is not None:
            self.looked(np.array(looks.reshape(CHUNK, -1, W, looks.shape[-1])[:, :count, :, : self.source]), who)

    def looked(self, seen: Floats, who: npt.NDArray[np.int64]) -> None:
        """What the rows of these sentences alone looked at, T,A,W,S: of long ones there may be few."""
        place = np.zeros(self.sentences, np.int64)
        place[who] = np.arange(len(who))
        self.looks.append(Looks(place, seen))


def found(record: Record, wish: Wish) -> list[list[Hypothesis]]:
    """The `n_best` targets of each sentence, the best first; those that were cut off only where none ended."""
    log_probs, tokens = np.concatenate(record.log_probs), np.concatenate(record.tokens)
    steps = np.arange(1, len(tokens) + 1)[:, None, None]
    searched = steps <= record.done[:, None]
    strange = np.isnan(log_probs) & searched
    if strange.any():
        raise make_nan_error(int(strange.nonzero()[0].min()) + 1)
    real = searched & (log_probs > -np.inf)
    ended = real & (tokens == EOS)
    none = ~ended.any((0, 2))
    cut = real & none[:, None] & (steps == np.array(wish.limits)[:, None])
    at = chosen(np.stack((ended | cut).nonzero(), 1), log_probs, wish)
    return walked(record, at, log_probs, tokens, wish)


def chosen(at: npt.NDArray[np.int64], log_probs: Floats, wish: Wish) -> npt.NDArray[np.int64]:
    """Of hypotheses, by step, sentence and row n,3, the best of each sentence; among equals the first that ended."""
    step, sentence, _ = at.T
    scores = log_probs[tuple(at.T)].astype(np.float64) / np.array(wish.penalties)[step + 1]
    order = np.lexsort((-scores, sentence))
    at = at[order]
    first = np.searchsorted(at[:, 1], at[:, 1])  # where each one's sentence begins
    return at[np.arange(len(at)) - first < wish.n_best]


def walked(
    record: Record, at: npt.NDArray[np.int64], log_probs: Floats, tokens: Ints, wish: Wish
) -> list[list[Hypothesis]]:
    """From each one's end back to its beginning, all of them at once."""
    steps, rows = len(tokens), record.sentences * record.width
    words, ways = paths(record, at, tokens.reshape(steps, rows))
    sentence, ends = at[:, 1].tolist(), (at[:, 0] + 1).tolist()
    written = words.T.tolist()
    for path, end in zip(written, ends, strict=True):
        del path[end:]
    seen = looked(record, ways, sentence, ends, wish.sources)
    chances = log_probs[tuple(at.T)].astype(np.float64)
    scores = chances / np.array(wish.penalties)[ends]
    made: list[list[Hypothesis]] = [[] for _ in range(record.sentences)]
    for number, one in zip(sentence, map(Hypothesis, written, chances.tolist(), scores.tolist(), seen), strict=True):
        made[number].append(one)
    return made


def looked(
    record: Record, ways: npt.NDArray[np.int64], sentence: list[int], ends: list[int], lengths: Sequence[int]
) -> Sequence[Floats | None]:
    """What each hypothesis looked at, tokens × source length."""
    if not record.looks:
        return [None] * len(sentence)
    each = zip(sentence, ends, ways.T, strict=True)
    return [along(record, number, way[:end] - number * record.width, lengths[number]) for number, end, way in each]


def along(record: Record, sentence: int, way: npt.NDArray[np.int64], length: int) -> Floats:
    """What the rows of a way, one at each step, looked at."""
    found, first = [], 0
    for place, seen in record.looks:
        rows = way[first : first + len(seen)]
        if not len(rows):
            break
        found.append(seen[np.arange(len(rows)), place[sentence], rows, :length])
        first += len(seen)
    return np.concatenate(found)


def paths(record: Record, at: npt.NDArray[np.int64], written: Ints) -> tuple[Ints, npt.NDArray[np.int64]]:
    """Of each hypothesis the tokens steps,n, and the rows that looked for them."""
    step, sentence, row = at.T
    first = sentence * record.width
    if record.width == 1:  # who has no rivals stays where it is
        return written[:, sentence], np.broadcast_to(sentence, (len(written), len(at)))
    parents = np.concatenate(record.parents).reshape(written.shape)
    here = first + row
    words, ways = np.zeros((len(written), len(at)), np.int32), np.zeros((len(written), len(at)), np.int64)
    for t in range(int(step.max(initial=-1)), -1, -1):
        words[t] = written[t].take(here)
        here = np.where(t <= step, first + parents[t].take(here), here)
        ways[t] = here
    return words, ways


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
    request = Wish(options.beam, options.n_best, options.min_length, limits, penalties, options.attention, sizes)
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
        """Return log-probabilities, parents and tokens (A, W) of the best continuations, as many as have not ended."""
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
def beam_search_numpy(models: SteppedModels, source: Tensor, lengths: Tensor, request: Wish) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each source (B, S), best first."""
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
    """Append one step of the sentences with these numbers to the record."""

    def scatter_to_all(part: Any) -> Any:
        """Fill the rows of done sentences with zeros."""
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
