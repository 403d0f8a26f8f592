"""Beam search on the GPU: eligibility of a model, and the loop over chunks of steps.

Shapes are rounded up, so that many searches share a workspace; a workspace that is used for the second time is
captured as CUDA graphs. When most sentences are done, or targets outgrow a workspace, the others move to one that
fits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from operator import attrgetter
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regard.console import log_message
from regard.fast.cuda_graphs.buckets import rounded
from regard.fast.cuda_graphs.cache import Player
from regard.fast.cuda_graphs.pool import Places, Recorder
from regard.fast.decoding.device import luong, transformer
from regard.fast.decoding.device.ops import Parts
from regard.fast.decoding.device.state import Board, Size, Weights, begin, follow, laid, tell
from regard.fast.decoding.numpy_search import CHUNK, LONGEST, Record, Wish, found
from regard.fast.eligibility import Outline, heard, precision
from regard.models.base import AlignmentHead, Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.models.vaswani2017 import TransformerDecoder

FIRST = 256  # sentences that go the readable way: compiling kernels takes seconds, and is to pay off
WIDEST = 16  # beam; a program has a sentence's candidates at hand
SOURCE = 1024  # positions; a program has the scores of all of them at hand
HEAD = 128  # numbers of a head
CHANCES = 3  # times that memory may not suffice
TRAINING = attrgetter("training")


def covers(model: Seq2Seq) -> bool:
    """Whether the model is one of those that are known here."""
    return transformer.covers(model) or luong.covers(model)


class Shortcut:
    """Searches on the device; where that cannot be, it says so by giving nothing."""

    def __init__(self) -> None:
        self.finders: dict[torch.dtype, Finder] = {}
        self.outline: Outline | None = None  # of the model that they were made of
        self.known = False  # whether that is one of those
        self.sentences = 0
        self.chances = CHANCES
        self.lock = Lock()  # searches of several threads would write to the same addresses

    def __reduce__(self) -> tuple[type[Shortcut], tuple[()]]:
        """A copy begins anew: what is recorded is of one model's weights, where these are."""
        return Shortcut, ()

    def __call__(self, model: Seq2Seq, source: Tensor, lengths: Tensor, wish: Wish) -> list[list[Hypothesis]] | None:
        """The `n_best` targets of each source B,S, the best first; None where the readable way has to find them."""
        self.sentences += len(source)
        ready = self.chances and source.is_cuda and self.sentences >= FIRST and takes(model, source, wish)
        fused = parts() if ready else None
        if fused is None:
            return None
        try:
            with self.lock, torch.cuda.device(source.device):
                finder = self.finder(model, fused)
                return None if finder is None else finder(source, lengths, wish)
        except ArithmeticError:  # weights are damaged, whatever the way
            raise
        except torch.OutOfMemoryError:
            failed, self.chances = "out of memory", self.chances - 1  # other sentences may need less
        except Exception as error:  # Triton has many ways to fail, and its own errors
            failed, self.chances = " ".join(f"{type(error).__name__}: {error}".split())[:200], 0
        self.release()
        torch.cuda.empty_cache()
        log_message(f"decoding goes on without kernels of its own, and more slowly: {failed}")
        return None

    def release(self) -> None:
        """Gives back all that is kept from one search to the next."""
        self.finders.clear()

    def finder(self, model: Seq2Seq, fused: Parts) -> Finder | None:
        """The one for the precision that is asked for now; none where somebody has changed what the model does."""
        if self.outline is None or not self.outline.fits(model):
            self.release()
            self.outline, self.known = Outline(model), whole(model.parameters()) and covers(model)
        if not self.known or not plain(self.outline.modules):
            return None
        kind = precision(self.outline.weights[0])
        if kind not in self.finders:
            self.finders[kind] = made(model, kind, fused)
        return self.finders[kind]


def plain(modules: Sequence[nn.Module]) -> bool:
    """Whether modules do what their classes say: nobody listens in, and nothing is dropped at random."""
    return not any(map(TRAINING, modules)) and not heard(*modules)


def made(model: Seq2Seq, kind: torch.dtype, parts: Parts) -> Finder:
    """A finder for a model that is known here."""
    weights = transformer.TransformerWeights if transformer.covers(model) else luong.LuongWeights
    with torch.inference_mode():
        return Finder(weights(model, kind, parts), parts)


def whole(weights: Iterable[Tensor]) -> bool:
    """Whether weights are all here, in fp32, and can tell whether they were written to."""
    return all(
        type(weight) is nn.Parameter and weight.dtype == torch.float32 and not weight.is_inference()
        for weight in weights
    )


def takes(model: Seq2Seq, source: Tensor, wish: Wish) -> bool:
    """Whether it is counted as the kernels do, and nothing is larger than they have at hand."""
    return (
        precision(next(model.parameters())) in (torch.float32, torch.bfloat16)
        and wish.beam <= WIDEST
        and max(wish.limits) <= LONGEST
        and source.shape[1] <= SOURCE
        and min(wish.sources) > 0
        and head_size(model) <= HEAD
    )


def head_size(model: Seq2Seq) -> int:
    """Numbers of a Transformer's heads; other decoders have none."""
    decoder = model.decoder
    if not isinstance(decoder, TransformerDecoder):
        return 0
    attention = decoder.decoder_layers()[0].attention
    return attention.size // attention.heads


@cache
def parts() -> Parts | None:
    """Those of Triton's kernels; where there is no Triton, that is said once."""
    try:
        from regard.fast.decoding.device import ops_triton as fused
    except ImportError as error:
        log_message(f"decoding goes without kernels of its own: {error}")
        return None
    return fused.FUSED


Numbers = npt.NDArray[np.int64]
MAX_WORKSPACES = 64  # rooms, of one model
RECORDINGS = 16  # in one room: of a chunk of steps, and of reading so many words
SHORTEST = 32  # positions of targets, and of sources by the number, that a room has


class Room:
    """A search of one size: the board, the decoder's states, and a chunk of steps over them."""

    def __init__(self, weights: Weights, size: Size, board: Board, places: Places, parts: Parts, play: Player) -> None:
        self.weights, self.size, self.board, self.parts, self.play = weights, size, board, parts, play
        self.stepper = weights.stepper(size, places)
        self.reading = Reading(board.slab)

    def begin(self, source: Tensor, lengths: Tensor, count: int, wish: Wish) -> None:
        """Before the first step."""
        tell(self.board, wish)

        def play(name: Hashable, work: Callable[[], None]) -> None:
            self.play(name, lambda: self.begun(work))

        self.stepper.begin(source, lengths, count, play)

    def begun(self, work: Callable[[], None]) -> None:
        """What a decoder does before the first step, and the search with it: one recording has both."""
        begin(self.board)
        work()

    def advance(self) -> None:
        """A chunk."""
        self.play("steps", self.chunk)

    def chunk(self) -> None:
        """Its steps, one after the other, without a look at what they give."""
        board, parts = self.board, self.parts
        for number in range(CHUNK):
            h = self.stepper.step(board, number)
            parts.choose(board, parts.weigh(h, self.weights.output, board, number), number)
        board.taken.add_(CHUNK)
        board.slab[-len(board.done) :].copy_(board.done)


class Finder:
    """Searches with one model in one precision."""

    def __init__(self, weights: Weights, parts: Parts) -> None:
        self.weights, self.parts = weights, parts
        self.places = Places()
        self.rooms: dict[tuple[Size, AlignmentHead | None], Room] = {}
        self.recorder = Recorder("decoding")
        self.renewal = self.player(RECORDINGS)

    @torch.inference_mode()
    def __call__(self, source: Tensor, lengths: Tensor, wish: Wish) -> list[list[Hypothesis]]:
        """The `n_best` targets of each source B,S, the best first."""
        copies = self.weights.copies
        self.renewal(len(copies.made), copies.renew)
        with torch.autocast(source.device.type, enabled=False):
            return found(self.searched(source, lengths, wish), wish)

    def player(self, most: int) -> Player:
        """One that records so much at the most."""
        return Player(self.recorder, self.weights.output.is_cuda, most)

    def searched(self, source: Tensor, lengths: Tensor, wish: Wish) -> Record:
        """All steps that it takes."""
        longest, expected = source.shape[1], np.minimum(wish.sources, wish.limits)
        record = Record(len(lengths), wish.beam, longest)
        who, taken, ahead = np.arange(len(lengths)), 0, False
        room = self.room(self.sized(len(who), wish.beam, longest, CHUNK), wish.attention)
        room.begin(source, lengths, sum(wish.sources), wish)
        while True:
            if not ahead:
                room.advance()
            taken += CHUNK
            room.reading.begin()
            ahead = self.goes_on(room, int(((expected > taken) & (record.done == 0))[who].sum()), taken)
            if ahead:
                room.advance()
            looks = room.board.looks
            record.add(room.reading.end(), None if looks is None else looks.cpu().numpy(), who)
            going = np.flatnonzero(record.done[who] == 0)
            if not len(going):
                return record
            if not ahead:
                room, who = self.settled(room, who, going, taken, wish)

    def goes_on(self, room: Room, sentences: int, taken: int) -> bool:
        """Whether a room will do for the next chunk, too, so that it can begin before anybody has read this one.

        Nobody knows yet which sentences this chunk has ended. Of those that went on before it as many are expected to
        go on as have sources of more words than were written; where the guess is wrong, a chunk is taken for nothing.
        """
        fits = not self.weights.grows or taken + CHUNK <= room.size.capacity
        return room.board.looks is None and fits and 2 * rounded(sentences) > room.size.sentences

    def settled(self, room: Room, who: Numbers, going: Numbers, taken: int, wish: Wish) -> tuple[Room, Numbers]:
        """The room for the next chunk, and who is in it."""
        then = self.sized(len(going), wish.beam, room.size.source, taken + CHUNK)
        if 2 * then.sentences <= room.size.sentences:
            return self.moved(room, then, going, taken, wish), who[going]
        if then.capacity > room.size.capacity:
            then = then._replace(sentences=room.size.sentences)
            return self.moved(room, then, np.arange(len(who)), taken, wish), who
        return room, who

    def sized(self, sentences: int, width: int, source: int, target: int) -> Size:
        """A little more than is asked for, so that many searches are alike."""
        capacity = max(SHORTEST, 1 << (target - 1).bit_length()) if self.weights.grows else 0
        return Size(rounded(sentences), width, -(-source // SHORTEST) * SHORTEST, capacity)

    def room(self, size: Size, attention: bool) -> Room:
        """The room of this size; all of them share their memory, and one is used at a time."""
        key = size, self.weights.decoder.alignment_head if attention else None
        room = self.rooms.pop(key, None)
        if room is None:
            if len(self.rooms) >= MAX_WORKSPACES:
                self.rooms.pop(next(iter(self.rooms)))  # the one that nobody has come to for the longest time
            like = self.weights.output
            board = laid(self.places, like, size.sentences, size.width, size.source, attention)
            room = Room(self.weights, size, board, self.places, self.parts, self.player(RECORDINGS))
        self.rooms[key] = room
        return room

    def moved(self, room: Room, size: Size, going: Numbers, taken: int, wish: Wish) -> Room:
        """Another room, with the sentences that go on."""
        kept = torch.from_numpy(going).to(room.board.rows.device)
        left, board = room.stepper.leave(kept, taken), room.board
        other = self.room(size, wish.attention)
        follow(other.board, board, kept)
        other.stepper.follow(left)
        return other


class Reading:
    """A tensor as it was when `begin` was called, whatever is written to it after that."""

    def __init__(self, there: Tensor) -> None:
        self.there = there
        self.here = torch.empty(there.shape, dtype=there.dtype, pin_memory=there.is_cuda)
        self.came = torch.cuda.Event() if there.is_cuda else None  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Asks for it, behind all that the card was asked for before."""
        self.here.copy_(self.there, non_blocking=True)
        if self.came is not None:
            self.came.record()

    def end(self) -> npt.NDArray[Any]:
        """Waits until it is here; the next `begin` writes to the same place."""
        if self.came is not None:
            self.came.synchronize()
        return self.here.numpy()
