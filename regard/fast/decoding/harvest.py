"""What a search has found, read on the host from what happened at each step on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.errors import make_nan_error
from regard.fast.decoding.board import CHUNK, Wish
from regard.models.hypothesis import Floats, Hypothesis
from regard.special_tokens import EOS

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
