"""Pairs of sentences as ids, many at a time, on all cores."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import NamedTuple

from regard.data.corpus import Pair
from regard.data.links import Link
from regard.data.ragged import Ragged
from regard.errors import UserError
from regard.text import Tokenizers
from regard.text.sentences import sentences, sentencex_version

AT_ONCE = 5000  # pairs that a worker takes at a time


class Raw(NamedTuple):
    """A pair as it was read."""

    pair: Pair
    tag: str | None = None
    links: AbstractSet[Link] | None = None


class Encoded(NamedTuple):
    """Pairs as ids, and how many were left out for what."""

    source: Ragged
    target: Ragged
    links: Ragged
    empty: int
    too_long: int
    sentences: Counter[int]  # how many sources have so many; empty without sentencex


class Encoder:
    """Encodes pairs; those with an empty side or one of more than `max_length` ids are left out and counted."""

    def __init__(self, tokenizers: Tokenizers, max_length: int, language: str | None = None) -> None:
        self.tokenizers = tokenizers
        self.max_length = max_length
        self.language = language  # of the sources

    def __call__(self, raw: Sequence[Raw]) -> Encoded:
        """Some pairs."""
        sources, targets, linked, empty, too_long, counted = [], [], [], 0, 0, Counter[int]()
        for pair, tag, links in raw:
            source, target = self.tokenizers.source.encode(pair.source), self.tokenizers.target.encode(pair.target)
            if not source or not target:
                empty += 1
                continue
            source = source if tag is None else [self.tokenizers.source.tag(tag), *source]
            if max(len(source), len(target)) > self.max_length:
                too_long += 1
                continue
            if sentencex_version() is not None:
                counted[len(sentences(pair.source, self.language))] += 1
            sources.append(source)
            targets.append(target)
            linked.append([] if links is None else self.token_links(pair, links, tag is not None))
        return Encoded(Ragged.of(sources), Ragged.of(targets), Ragged.of(linked), empty, too_long, counted)

    def token_links(self, pair: Pair, links: AbstractSet[Link], tagged: bool) -> list[int]:
        """Links of words as links of all their tokens: source token, target token, and so on."""
        of_source, of_target = (tokenizer.split(text)[1] for tokenizer, text in zip(self.tokenizers, pair, strict=True))
        return [
            token
            for left, source in enumerate(of_source)
            for right, target in enumerate(of_target)
            if (source, target) in links
            for token in (left + tagged, right)
        ]


def encoded(raw: Iterable[Raw], encoder: Encoder, cores: int | None = None) -> Iterator[Encoded]:
    """All pairs, some at a time and in order; few are encoded here, many on all cores."""
    chunks = chunked(iter(raw))
    first = next(chunks, None)
    if first is None:
        return
    yield encoder(first)
    second = next(chunks, None)
    if second is None:
        return
    workers = cores or (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)
    try:
        with ProcessPoolExecutor(workers, context(), initializer=become, initargs=(encoder,)) as pool:
            yield from windowed(pool, second, chunks, 2 * workers)
    except BrokenProcessPool as error:
        raise UserError("a process that encoded text was ended from outside, perhaps for want of memory") from error


def windowed(pool: ProcessPoolExecutor, first: list[Raw], rest: Iterator[list[Raw]], window: int) -> Iterator[Encoded]:
    """Results in order, with no more than `window` chunks on their way."""
    waiting: deque[Future[Encoded]] = deque([pool.submit(work, first)])
    for chunk in rest:
        waiting.append(pool.submit(work, chunk))
        if len(waiting) > window:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def chunked(raw: Iterator[Raw]) -> Iterator[list[Raw]]:
    """Lists of `AT_ONCE`."""
    while chunk := list(islice(raw, AT_ONCE)):
        yield chunk


def context() -> multiprocessing.context.BaseContext:
    """Forked where that is safe: a spawned worker would run the user's own script again."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else None)


worker: list[Encoder] = []  # of a worker process, the one that it works with


def become(encoder: Encoder) -> None:
    """Makes a process a worker."""
    worker[:] = [encoder]


def work(raw: Sequence[Raw]) -> Encoded:
    """What a worker does."""
    return worker[0](raw)
