"""Batches: tensor layout, micro-batches, ragged arrays on disk, data workers."""

import multiprocessing
import os
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from regard.data.batches import Batch, padded
from regard.data.examples import Examples
from regard.data.loader import Share, _block_signals, load, reported, requests
from regard.data.order import Order, Place
from regard.data.ragged import Indices, Ragged, RaggedWriter
from regard.errors import UserError
from regard.symbols import BOS, EOS, PAD

token_rows = st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=1, max_size=8)


def test_batch_adds_bos_eos_and_padding() -> None:
    examples = Examples(Ragged.of([[7, 8, 9], [5], []]), Ragged.of([[6], [4, 5], [9, 9, 9]]))
    batch = examples.batch(np.array([1, 0, 2]))
    assert batch.source.tolist() == [[5, EOS, PAD, PAD], [7, 8, 9, EOS], [EOS, PAD, PAD, PAD]]
    assert batch.lengths.tolist() == [2, 4, 1]
    assert batch.target_in.tolist() == [[BOS, 4, 5, PAD], [BOS, 6, PAD, PAD], [BOS, 9, 9, 9]]
    assert batch.target_out.tolist() == [[4, 5, EOS, PAD], [6, EOS, PAD, PAD], [9, 9, 9, EOS]]
    assert {tensor.dtype for tensor in batch[:4]} == {torch.int64}
    assert batch.guide is None


def test_alignment_links_become_a_guide_per_target_token() -> None:
    sentences = Ragged.of([[7, 8, 9], [5]]), Ragged.of([[6, 6], [4, 5]])
    links = Ragged.of([[0, 1, 2, 1], []])
    guide = Examples(*sentences, links).batch(np.array([1, 0])).guide
    assert guide is not None
    expected = torch.zeros(2, 3, 4)
    expected[1, 1, [0, 2]] = 0.5
    assert torch.equal(guide, expected)


@given(token_rows, st.data())
def test_batch_contains_every_token(sources: list[list[int]], data: st.DataObject) -> None:
    size = len(sources)
    targets = data.draw(st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=size, max_size=size))
    rows = data.draw(st.permutations(range(size)))
    batch = Examples(Ragged.of(sources), Ragged.of(targets)).batch(np.array(rows))
    for number, row in enumerate(rows):
        length = int(batch.lengths[number])
        assert batch.source[number, :length].tolist() == [*sources[row], EOS]
        assert set(batch.source[number, length:].tolist()) <= {PAD}
        end = len(targets[row]) + 1
        assert batch.target_in[number, :end].tolist() == [BOS, *targets[row]]
        assert batch.target_out[number, :end].tolist() == [*targets[row], EOS]
        assert set(batch.target_in[number, end:].tolist()) | set(batch.target_out[number, end:].tolist()) <= {PAD}
    assert batch.source.shape == (size, max(map(len, sources)) + 1), "padded to the longest"
    assert batch.target_in.shape == batch.target_out.shape == (size, max(map(len, targets)) + 1)


def test_batch_moves_to_a_device_as_a_whole() -> None:
    batch = Examples(Ragged.of([[5]]), Ragged.of([[6]])).batch(np.array([0]))
    moved = batch.to(torch.device("meta"))
    assert isinstance(moved, Batch)
    assert {tensor.device.type for tensor in moved[:4]} == {"meta"}
    assert {tensor.device.type for tensor in batch[:4]} == {"cpu"}


@given(st.integers(1, 9), st.integers(1, 12))
def test_micro_batches_concatenate_to_the_batch(rows: int, pieces: int) -> None:
    sentences = Ragged.of([[number + 4] * (number % 3 + 1) for number in range(rows)])
    links = Ragged.of([[0, 0]] * rows)
    batch = Examples(sentences, sentences, links).batch(np.arange(rows))
    parts = batch.pieces(pieces)
    assert len(parts) == min(rows, pieces)
    for whole, *cut in zip(batch, *parts, strict=True):
        assert whole is not None
        assert torch.equal(torch.cat([piece for piece in cut if piece is not None]), whole)
    sizes = [len(part.source) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_micro_batches_have_no_guide_if_the_batch_has_none() -> None:
    batch = Examples(Ragged.of([[5], [6]]), Ragged.of([[6], [7]])).batch(np.arange(2))
    assert [part.guide for part in batch.pieces(2)] == [None, None]


def test_padding_appends_eos() -> None:
    table, lengths = padded(Ragged.of([[4, 5], [6]]), np.array([1, 0, 1]), EOS)
    assert table.tolist() == [[6, EOS, PAD], [4, 5, EOS], [6, EOS, PAD]]
    assert lengths.tolist() == [2, 3, 2]


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=8))
def test_ragged_array_returns_its_rows(rows: list[list[int]]) -> None:
    packed = Ragged.of(iter(rows))
    assert len(packed) == len(rows)
    assert [packed[row].tolist() for row in range(len(rows))] == rows
    assert packed.lengths.tolist() == [len(row) for row in rows]
    assert [packed[row - len(rows)].tolist() for row in range(len(rows))] == rows, "negative indices"


def test_ragged_row_is_a_view() -> None:
    packed = Ragged.of([[4, 5], [6, 7, 8]])
    assert np.shares_memory(packed[1], packed.numbers)
    packed.numbers[2] = 99
    assert packed[1].tolist() == [99, 7, 8]
    assert packed.numbers.dtype == np.int32


@pytest.mark.parametrize("index", [2, 7, -3])
def test_ragged_index_out_of_range_raises(index: int) -> None:
    with pytest.raises(IndexError):
        Ragged.of([[4], [5]])[index]


def test_size_of_a_pair_is_its_longer_side_with_eos() -> None:
    examples = Examples(Ragged.of([[4], [4, 5, 6], []]), Ragged.of([[4, 5], [4], []]))
    assert examples.sizes.tolist() == [3, 4, 1]


@pytest.mark.parametrize("largest", [99, 70_000])
def test_ragged_array_is_memory_mapped_from_a_file(largest: int, tmp_path: Path) -> None:
    rows = [[4, 5, largest], [], [6], [7, 8]]
    writer = RaggedWriter(tmp_path, "some", largest + 1)
    writer.write(Ragged.of(rows[:2]))
    writer.write(Ragged.of([]))
    writer.write(Ragged.of(rows[2:]))
    writer.close()
    loaded = Ragged.load(tmp_path, "some")
    assert [loaded[row].tolist() for row in range(4)] == rows
    assert loaded.numbers.dtype.itemsize == (2 if largest == 99 else 4)
    loaded.release()
    assert [loaded[row].tolist() for row in range(4)] == rows, "still there after the pages are released"
    with pytest.raises(ValueError, match="read-only"):
        loaded.numbers[0] = 1


def test_empty_ragged_file_loads(tmp_path: Path) -> None:
    RaggedWriter(tmp_path, "none", 9).close()
    assert len(Ragged.load(tmp_path, "none")) == 0


def test_fingerprints_differ_between_examples() -> None:
    rows = [Ragged.of([[4, 5], [6]]), Ragged.of([[4], [5, 6]]), Ragged.of([[4, 5], [7]])]
    prints = {Examples(left, right).fingerprint for left in rows for right in rows}
    assert len(prints) == 9


def load_shares(workers: int, count: int = 12) -> list[Share]:
    rows = [[4 + number % 9] * (number % 7 + 1) for number in range(200)]
    examples = Examples(Ragged.of(rows), Ragged.of(rows))
    wanted = requests(Order(examples.sizes, 60, 4, 1), Place(), 2, 0, 1)
    return list(islice(load(examples, wanted, workers), count))


def test_data_workers_do_not_change_the_batches() -> None:
    for alone, ahead in zip(load_shares(0), load_shares(2), strict=True):
        assert alone.place == ahead.place
        for left, right in zip(alone.batches, ahead.batches, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(list(left)[:4], list(right)[:4], strict=True))


def test_closing_before_the_first_batch_ends_the_data_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = DataLoader.__iter__, list[Any]()  # the list refers to the workers' iterator, as a traceback may

    def start_and_keep(loader: DataLoader[Any]) -> Any:
        started.append(start(loader))
        return started[-1]

    monkeypatch.setattr(DataLoader, "__iter__", start_and_keep)
    examples = Examples(Ragged.of([[5], [6]]), Ragged.of([[6], [7]]))
    shares = load(examples, requests(Order(examples.sizes, 60, 4, 1), Place(), 1, 0, 1), workers=1)
    assert len(multiprocessing.active_children()) == 1
    shares.close()
    assert multiprocessing.active_children() == []


class KilledExamples(Examples):
    """Examples whose data worker is killed."""

    def batch(self, rows: Indices, seed: int = 0) -> Batch:
        os.kill(os.getpid(), 9)
        raise AssertionError


class BlockedExamples(Examples):
    """Examples whose data worker blocks forever."""

    def batch(self, rows: Indices, seed: int = 0) -> Batch:
        read, _ = os.pipe()
        os.read(read, 1)
        raise AssertionError


@pytest.mark.parametrize(
    ("kind", "timeout", "message"),
    [(KilledExamples, 600, "exited unexpectedly|killed"), (BlockedExamples, 1, "timed out after 1 s")],
)
def test_killed_or_blocked_data_worker_is_a_user_error(
    kind: type[Examples], timeout: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # seconds until workers are killed
    examples = kind(Ragged.of([[5], [6]]), Ragged.of([[6], [7]]))
    wanted = requests(Order(examples.sizes, 60, 4, 1), Place(), 1, 0, 1)
    with pytest.raises(UserError, match=message) as error, reported():
        next(load(examples, wanted, workers=1, timeout=timeout))
    assert "data.workers" in str(error.value)
    for worker in multiprocessing.active_children():  # killed, but on a busy machine perhaps not gone yet
        worker.join(60)
        assert worker.exitcode == -signal.SIGKILL


def test_spawned_data_workers_end_on_sigterm_but_not_on_ctrl_c_or_hangup() -> None:
    before = signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        _block_signals(0)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGINT, signal.SIGHUP}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_data_workers_start_where_signals_cannot_be_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with monkeypatch.context() as patch:
        patch.delattr(signal, "pthread_sigmask")  # as on Windows
        _block_signals(0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
