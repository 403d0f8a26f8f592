"""Requests that are decoded together: in a fair order, never mixed, never lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.serve.aside import Aside
from regard.serve.batching import Batcher
from regard.serve.refusal import OverloadedError

Tell = Callable[[int, str], None]
More = Callable[[], Sequence[str]]


class Model:
    """Finds the upper case of texts; notes the batches it is given, and waits at a gate before each."""

    def __init__(self, gated: bool = False) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Semaphore(0 if gated else 1 << 30)
        self.begun = threading.Semaphore(0)

    def __call__(self, texts: Sequence[str], kind: int, tell: Tell, more: More) -> None:
        self.batches.append(list(texts))
        self.begun.release()
        self.gate.acquire()
        for number in reversed(range(len(texts))):
            tell(number, texts[number].upper())


def batcher(model: Model, tokens: int = 1000, most: int = 4, room: int = 1000) -> Batcher[str, str, int]:
    return Batcher(model, len, tokens=tokens, most=most, room=room)


async def settled(model: Model) -> None:
    """Until the model has begun another batch."""
    await asyncio.to_thread(model.begun.acquire)


def test_results_come_back_in_order() -> None:
    async def go() -> None:
        ask = batcher(Model())
        found = await asyncio.gather(*(ask([f"{n}a", f"{n}b", f"{n}c"], 0) for n in range(50)))
        assert found == [[f"{n}A", f"{n}B", f"{n}C"] for n in range(50)]
        ask.close()

    asyncio.run(go())


def test_who_waits_is_decoded_together() -> None:
    model = Model(gated=True)

    async def go() -> None:
        ask = batcher(model)
        first = asyncio.create_task(ask(["a"], 0))
        await settled(model)
        others = [asyncio.create_task(ask([text], 0)) for text in "bcd"]
        await asyncio.sleep(0)
        model.gate.release(2)
        assert await first == ["A"]
        assert await asyncio.gather(*others) == [["B"], ["C"], ["D"]]
        ask.close()

    asyncio.run(go())
    assert model.batches == [["a"], ["b", "c", "d"]]


def test_a_huge_request_has_its_share_and_no_more() -> None:
    model = Model(gated=True)

    async def go() -> None:
        ask = batcher(model)
        huge = asyncio.create_task(ask([f"x{n}" for n in range(40)], 0))
        await settled(model)
        small = [asyncio.create_task(ask([text], 0)) for text in ("a", "b")]
        await asyncio.sleep(0)
        model.gate.release(2)
        await asyncio.gather(*small)
        assert not huge.done()
        model.gate.release(99)
        await huge
        ask.close()

    asyncio.run(go())
    assert sorted(model.batches[1]) == ["a", "b", "x4", "x5"]


def test_other_kinds_are_other_batches_and_none_waits_for_ever() -> None:
    model = Model(gated=True)

    async def go() -> None:
        ask = batcher(model)
        tasks = [asyncio.create_task(ask(["a"], 0))]
        await settled(model)
        tasks += [asyncio.create_task(ask([f"k{n}", f"l{n}"], n % 2)) for n in range(4)]
        await asyncio.sleep(0)
        model.gate.release(99)
        await asyncio.gather(*tasks)
        ask.close()

    asyncio.run(go())
    assert model.batches[1:] == [["k0", "k2", "l0", "l2"], ["k1", "k3", "l1", "l3"]]


def test_a_batch_has_so_many_tokens_with_its_padding() -> None:
    model = Model(gated=True)

    async def go() -> None:
        ask = batcher(model, tokens=12, most=99)
        tasks = [asyncio.create_task(ask(["a"], 0))]
        await settled(model)
        tasks += [asyncio.create_task(ask([text], 0)) for text in ("bbb", "cccc", "dddddd", "e", "f" * 50)]
        await asyncio.sleep(0)
        model.gate.release(99)
        await asyncio.gather(*tasks)
        ask.close()

    asyncio.run(go())
    assert model.batches[1:] == [["bbb", "cccc", "e"], ["dddddd"], ["f" * 50]]


def test_what_fails_fails_for_those_alone_who_asked() -> None:
    def find(texts: Sequence[str], kind: int, tell: Tell, more: More) -> None:
        for number, text in enumerate(texts):
            if text == "bad":
                raise ArithmeticError("no")
            tell(number, text.upper())

    async def go() -> None:
        ask: Batcher[str, str, int] = Batcher(find, len, tokens=1000, most=1, room=10)
        found = await asyncio.gather(ask(["a"], 0), ask(["bad", "x"], 0), ask(["b"], 0), return_exceptions=True)
        assert found[0] == ["A"]
        assert isinstance(found[1], ArithmeticError)
        assert found[2] == ["B"]
        assert await ask(["c"], 0) == ["C"]
        assert ask.count == 0
        ask.close()

    asyncio.run(go())


def test_a_result_that_never_comes_is_an_error() -> None:
    async def go() -> None:
        ask: Batcher[str, str, int] = Batcher(lambda texts, kind, tell, more: None, len, tokens=1000, most=4, room=10)
        with pytest.raises(RuntimeError, match="without one of its results"):
            await ask(["a"], 0)
        ask.close()

    asyncio.run(go())


def test_more_than_there_is_room_for_is_refused_and_what_waits_is_not_lost() -> None:
    model = Model(gated=True)

    async def go() -> None:
        ask = batcher(model, room=5)
        tasks = [asyncio.create_task(ask(["a"], 0))]
        await settled(model)
        tasks += [asyncio.create_task(ask(["b"] * 5, 0))]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="5 pieces wait, 1 more"):
            await ask(["c"], 0)
        model.gate.release(99)
        assert await asyncio.gather(*tasks) == [["A"], ["B"] * 5]
        assert await ask(["c"], 0) == ["C"]
        ask.close()

    asyncio.run(go())


def test_a_huge_request_leaves_room_for_others_and_is_not_turned_away_half_done() -> None:
    model = Model(gated=True)

    async def go() -> None:
        ask = batcher(model, most=1, room=6)
        huge = asyncio.create_task(ask([f"x{n}" for n in range(40)], 0))
        await settled(model)
        others = [asyncio.create_task(ask([text], 0)) for text in "abc"]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await ask(["d"], 0)
        model.gate.release(999)
        assert await asyncio.gather(*others) == [["A"], ["B"], ["C"]]
        assert await huge == [f"X{n}" for n in range(40)]
        ask.close()

    asyncio.run(go())


def test_who_has_gone_is_not_worked_for() -> None:
    model = Model(gated=True)

    async def go() -> None:
        ask = batcher(model)
        tasks = [asyncio.create_task(ask(["a"], 0))]
        await settled(model)
        gone = asyncio.create_task(ask(["b"] * 9, 0))
        tasks += [asyncio.create_task(ask(["c"], 0))]
        await asyncio.sleep(0)
        gone.cancel()
        model.gate.release(99)
        await asyncio.gather(*tasks)
        assert ask.count == 0
        ask.close()

    asyncio.run(go())
    assert model.batches == [["a"], ["c"]]


def test_work_aside_has_its_own_threads_and_so_much_room() -> None:
    gate = threading.Semaphore(0)

    def work(number: int) -> int:
        gate.acquire()
        return number

    async def go() -> None:
        aside = Aside(threads=1, room=2)
        tasks = [asyncio.create_task(aside(work, number)) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="3 are at work or wait already"):
            await aside(work, 3)
        gate.release(9)
        assert await asyncio.gather(*tasks) == [0, 1, 2]
        assert await aside(work, 4) == 4
        aside.close()

    asyncio.run(go())


class Rolling(Model):
    """One that takes what comes while it works: when the gate opens, the oldest piece is done and others may come."""

    def __call__(self, texts: Sequence[str], kind: int, tell: Tell, more: More) -> None:
        going, count, new = dict(enumerate(texts)), len(texts), texts
        while going:
            self.batches.append(list(new))
            self.begun.release()
            self.gate.acquire()
            number = min(going)
            tell(number, going.pop(number).upper())
            new = more()
            going.update(enumerate(new, count))
            count += len(new)


def test_who_comes_later_comes_into_a_batch_that_is_under_way() -> None:
    model = Rolling(gated=True)

    async def go() -> None:
        ask = batcher(model)
        tasks = [asyncio.create_task(ask([f"x{n}" for n in range(6)], 0))]
        await settled(model)
        tasks += [asyncio.create_task(ask([text], 0)) for text in "ab"]
        await asyncio.sleep(0)
        for _ in range(7):
            model.gate.release()
            await settled(model)
        model.gate.release()
        assert await asyncio.gather(*tasks) == [[f"X{n}" for n in range(6)], ["A"], ["B"]]
        assert ask.count == 0
        ask.close()

    asyncio.run(go())
    assert model.batches == [["x0", "x1", "x2", "x3"], ["x4"], ["a"], ["b"], ["x5"], [], [], []]


def test_nobody_comes_into_a_batch_before_those_who_do_not_fit() -> None:
    model = Rolling(gated=True)

    async def go() -> None:
        ask = batcher(model, tokens=8)
        tasks = [asyncio.create_task(ask(["a", "b"], 0))]
        await settled(model)
        tasks += [asyncio.create_task(ask([text], kind)) for text, kind in (("c" * 5, 0), ("d", 0), ("e", 1), ("f", 0))]
        await asyncio.sleep(0)
        model.gate.release(99)
        await asyncio.gather(*tasks)
        ask.close()

    asyncio.run(go())
    together = [batch for batch in model.batches if batch]
    assert together == [["a", "b"], ["c" * 5], ["d"], ["e"], ["f"]]


def test_what_fails_under_way_fails_for_who_is_in_it_and_nobody_else() -> None:
    begun, gate = threading.Semaphore(0), threading.Semaphore(0)

    def find(texts: Sequence[str], kind: int, tell: Tell, more: More) -> None:
        begun.release()
        gate.acquire()
        tell(0, texts[0].upper())
        if "bad" in more():
            raise ArithmeticError("no")

    async def go() -> None:
        ask: Batcher[str, str, int] = Batcher(find, len, tokens=1000, most=2, room=10)
        tasks = [asyncio.create_task(ask([text], 0)) for text in ("a", "bad", "b")]
        await asyncio.to_thread(begun.acquire)
        gate.release(99)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[0] == ["A"]
        assert isinstance(found[1], ArithmeticError)
        ask.close()

    asyncio.run(go())


def test_an_empty_request_is_answered() -> None:
    async def go() -> None:
        ask = batcher(Model())
        assert await ask([], 0) == []
        ask.close()

    asyncio.run(go())


@given(
    st.lists(st.tuples(st.lists(st.text(st.characters(codec="ascii"), max_size=8), max_size=6), st.integers(0, 2))),
    st.integers(1, 5),
    st.integers(1, 30),
    st.integers(1, 3),
)
def test_whatever_is_asked_everybody_gets_their_own(
    requests: list[tuple[list[str], int]], most: int, tokens: int, threads: int
) -> None:
    def find(texts: Sequence[str], kind: int, tell: Tell, more: More) -> None:
        going, count = dict(enumerate(texts)), len(texts)
        while going:
            assert len(going) <= most
            assert len(going) == 1 or max(map(len, going.values())) * len(going) <= tokens
            number = max(going, key=lambda number: hash((number, going[number])))
            tell(number, f"{going.pop(number).upper()}{kind}")
            new = more()
            going.update(enumerate(new, count))
            count += len(new)

    async def go() -> None:
        ask: Batcher[str, str, int] = Batcher(find, len, tokens=tokens, most=most, room=10_000, threads=threads)
        found = await asyncio.gather(*(ask(texts, kind) for texts, kind in requests))
        assert found == [[f"{text.upper()}{kind}" for text in texts] for texts, kind in requests]
        assert ask.count == 0
        ask.close()

    asyncio.run(go())
