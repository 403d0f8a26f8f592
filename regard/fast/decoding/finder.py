"""A search on the device from its sources to what was found, a chunk of steps at a time.

Shapes are rounded up, so that many searches share a room; a room that is come to for the second time is recorded as a
CUDA graph. Where most sentences are done, or targets outgrow a room, the others move to one that fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.fast.decoding.board import CHUNK, Board, Wish, begin, follow, laid, tell
from regard.fast.decoding.harvest import Record, found
from regard.fast.decoding.parts import Parts
from regard.fast.decoding.reading import Reading
from regard.fast.decoding.stepper import Size, Weights
from regard.fast.recording import Places, Recorder, rounded
from regard.models.base import AlignmentHead
from regard.models.hypothesis import Hypothesis

Numbers = npt.NDArray[np.int64]
MOST = 64  # rooms, of one model
RECORDINGS = 16  # in one room: of a chunk of steps, and of reading so many words
SHORTEST = 32  # positions of targets, and of sources by the number, that a room has


class Player:
    """Does work by name: a recording of it is made the second time, and played back from the third on."""

    def __init__(self, recorder: Recorder, on_card: bool, most: int) -> None:
        self.recorder, self.on_card, self.most = recorder, on_card, most
        self.visits: Counter[Hashable] = Counter()
        self.replays: dict[Hashable, Callable[[], None]] = {}

    def __call__(self, name: Hashable, work: Callable[[], None]) -> None:
        """The work that this name stands for, over the same memory each time."""
        self.visits[name] += 1
        if name in self.replays:
            self.replays[name]()
        elif self.on_card and self.visits[name] == 2 and len(self.replays) < self.most:
            replay = self.recorder.record(work)
            if replay is not None:
                self.replays[name] = replay
        else:
            work()


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
            if len(self.rooms) >= MOST:
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
