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

from regard.data.dataset import Indices, ParallelDataset, RaggedArray, RaggedArrayWriter, Seq2SeqBatch, pad_with_end_id
from regard.data.loader import (
    BatchLoader,
    SamplerPosition,
    TokenBatchSampler,
    UpdateBatches,
    _block_stop_signals,
    iterate_batch_requests,
    report_worker_errors,
)
from regard.errors import UserError
from regard.special_tokens import BOS, EOS, PAD

token_rows = st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=1, max_size=8)


def test_batch_adds_bos_eos_and_padding() -> None:
    examples = ParallelDataset(
        RaggedArray.from_rows([[7, 8, 9], [5], []]), RaggedArray.from_rows([[6], [4, 5], [9, 9, 9]])
    )
    batch = examples.make_batch(np.array([1, 0, 2]))
    assert batch.source.tolist() == [[5, EOS, PAD, PAD], [7, 8, 9, EOS], [EOS, PAD, PAD, PAD]]
    assert batch.lengths.tolist() == [2, 4, 1]
    assert batch.target_in.tolist() == [[BOS, 4, 5, PAD], [BOS, 6, PAD, PAD], [BOS, 9, 9, 9]]
    assert batch.target_out.tolist() == [[4, 5, EOS, PAD], [6, EOS, PAD, PAD], [9, 9, 9, EOS]]
    assert {tensor.dtype for tensor in list(batch)[:4]} == {torch.int64}
    assert batch.guide is None


def test_alignment_links_become_a_guide_per_target_token() -> None:
    sentences = RaggedArray.from_rows([[7, 8, 9], [5]]), RaggedArray.from_rows([[6, 6], [4, 5]])
    links = RaggedArray.from_rows([[0, 1, 2, 1], []])
    guide = ParallelDataset(*sentences, links).make_batch(np.array([1, 0])).guide
    assert guide is not None
    expected = torch.zeros(2, 3, 4)
    expected[1, 1, [0, 2]] = 0.5
    assert torch.equal(guide, expected)


@given(token_rows, st.data())
def test_batch_contains_every_token(sources: list[list[int]], data: st.DataObject) -> None:
    size = len(sources)
    targets = data.draw(st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=size, max_size=size))
    rows = data.draw(st.permutations(range(size)))
    batch = ParallelDataset(RaggedArray.from_rows(sources), RaggedArray.from_rows(targets)).make_batch(np.array(rows))
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
    batch = ParallelDataset(RaggedArray.from_rows([[5]]), RaggedArray.from_rows([[6]])).make_batch(np.array([0]))
    moved = batch.to(torch.device("meta"))
    assert isinstance(moved, Seq2SeqBatch)
    assert {tensor.device.type for tensor in list(moved)[:4]} == {"meta"}
    assert {tensor.device.type for tensor in list(batch)[:4]} == {"cpu"}


@given(st.integers(1, 9), st.integers(1, 12))
def test_micro_batches_concatenate_to_the_batch(rows: int, pieces: int) -> None:
    sentences = RaggedArray.from_rows([[number + 4] * (number % 3 + 1) for number in range(rows)])
    links = RaggedArray.from_rows([[0, 0]] * rows)
    batch = ParallelDataset(sentences, sentences, links).make_batch(np.arange(rows))
    parts = batch.split_into(pieces)
    assert len(parts) == min(rows, pieces)
    for whole, *cut in zip(batch, *parts, strict=True):
        assert whole is not None
        assert torch.equal(torch.cat([piece for piece in cut if piece is not None]), whole)
    sizes = [len(part.source) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_micro_batches_have_no_guide_if_the_batch_has_none() -> None:
    batch = ParallelDataset(RaggedArray.from_rows([[5], [6]]), RaggedArray.from_rows([[6], [7]])).make_batch(
        np.arange(2)
    )
    assert [part.guide for part in batch.split_into(2)] == [None, None]


def test_padding_appends_eos() -> None:
    table, lengths = pad_with_end_id(RaggedArray.from_rows([[4, 5], [6]]), np.array([1, 0, 1]), EOS)
    assert table.tolist() == [[6, EOS, PAD], [4, 5, EOS], [6, EOS, PAD]]
    assert lengths.tolist() == [2, 3, 2]


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=8))
def test_ragged_array_returns_its_rows(rows: list[list[int]]) -> None:
    packed = RaggedArray.from_rows(iter(rows))
    assert len(packed) == len(rows)
    assert [packed[row].tolist() for row in range(len(rows))] == rows
    assert packed.lengths.tolist() == [len(row) for row in rows]
    assert [packed[row - len(rows)].tolist() for row in range(len(rows))] == rows, "negative indices"


def test_ragged_row_is_a_view() -> None:
    packed = RaggedArray.from_rows([[4, 5], [6, 7, 8]])
    assert np.shares_memory(packed[1], packed.values)
    packed.values[2] = 99
    assert packed[1].tolist() == [99, 7, 8]
    assert packed.values.dtype == np.int32


@pytest.mark.parametrize("index", [2, 7, -3])
def test_ragged_index_out_of_range_raises(index: int) -> None:
    with pytest.raises(IndexError):
        RaggedArray.from_rows([[4], [5]])[index]


def test_size_of_a_pair_is_its_longer_side_with_eos() -> None:
    examples = ParallelDataset(RaggedArray.from_rows([[4], [4, 5, 6], []]), RaggedArray.from_rows([[4, 5], [4], []]))
    assert examples.sizes.tolist() == [3, 4, 1]


@pytest.mark.parametrize("largest", [99, 70_000])
def test_ragged_array_is_memory_mapped_from_a_file(largest: int, tmp_path: Path) -> None:
    rows = [[4, 5, largest], [], [6], [7, 8]]
    writer = RaggedArrayWriter(tmp_path, "some", largest + 1)
    writer.write(RaggedArray.from_rows(rows[:2]))
    writer.write(RaggedArray.from_rows([]))
    writer.write(RaggedArray.from_rows(rows[2:]))
    writer.close()
    loaded = RaggedArray.load(tmp_path, "some")
    assert [loaded[row].tolist() for row in range(4)] == rows
    assert loaded.values.dtype.itemsize == (2 if largest == 99 else 4)
    loaded.release_pages()
    assert [loaded[row].tolist() for row in range(4)] == rows, "still there after the pages are released"
    with pytest.raises(ValueError, match="read-only"):
        loaded.values[0] = 1


def test_empty_ragged_file_loads(tmp_path: Path) -> None:
    RaggedArrayWriter(tmp_path, "none", 9).close()
    assert len(RaggedArray.load(tmp_path, "none")) == 0


def test_fingerprints_differ_between_examples() -> None:
    rows = [
        RaggedArray.from_rows([[4, 5], [6]]),
        RaggedArray.from_rows([[4], [5, 6]]),
        RaggedArray.from_rows([[4, 5], [7]]),
    ]
    prints = {ParallelDataset(left, right).fingerprint for left in rows for right in rows}
    assert len(prints) == 9


def load_shares(workers: int, count: int = 12) -> list[UpdateBatches]:
    rows = [[4 + number % 9] * (number % 7 + 1) for number in range(200)]
    examples = ParallelDataset(RaggedArray.from_rows(rows), RaggedArray.from_rows(rows))
    wanted = iterate_batch_requests(TokenBatchSampler(examples.sizes, 60, 4, 1), SamplerPosition(), 2, 0, 1)
    return list(islice(BatchLoader(examples, wanted, workers), count))


def test_data_workers_do_not_change_the_batches() -> None:
    for alone, ahead in zip(load_shares(0), load_shares(2), strict=True):
        assert alone.position == ahead.position
        for left, right in zip(alone.batches, ahead.batches, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(list(left)[:4], list(right)[:4], strict=True))


def test_closing_before_the_first_batch_ends_the_data_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = DataLoader.__iter__, list[Any]()  # the list refers to the workers' iterator, as a traceback may

    def start_and_keep(loader: DataLoader[Any]) -> Any:
        started.append(start(loader))
        return started[-1]

    monkeypatch.setattr(DataLoader, "__iter__", start_and_keep)
    examples = ParallelDataset(RaggedArray.from_rows([[5], [6]]), RaggedArray.from_rows([[6], [7]]))
    shares = BatchLoader(
        examples,
        iterate_batch_requests(TokenBatchSampler(examples.sizes, 60, 4, 1), SamplerPosition(), 1, 0, 1),
        workers=1,
    )
    assert len(multiprocessing.active_children()) == 1
    shares.close()
    assert multiprocessing.active_children() == []


class KilledExamples(ParallelDataset):
    """Examples whose data worker is killed."""

    def make_batch(self, rows: Indices, seed: int = 0) -> Seq2SeqBatch:
        os.kill(os.getpid(), 9)
        raise AssertionError


class BlockedExamples(ParallelDataset):
    """Examples whose data worker blocks forever."""

    def make_batch(self, rows: Indices, seed: int = 0) -> Seq2SeqBatch:
        read, _ = os.pipe()
        os.read(read, 1)
        raise AssertionError


@pytest.mark.parametrize(
    ("kind", "timeout", "message"),
    [(KilledExamples, 600, "exited unexpectedly|killed"), (BlockedExamples, 1, "timed out after 1 s")],
)
def test_killed_or_blocked_data_worker_is_a_user_error(
    kind: type[ParallelDataset], timeout: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # seconds until workers are killed
    examples = kind(RaggedArray.from_rows([[5], [6]]), RaggedArray.from_rows([[6], [7]]))
    wanted = iterate_batch_requests(TokenBatchSampler(examples.sizes, 60, 4, 1), SamplerPosition(), 1, 0, 1)
    with pytest.raises(UserError, match=message) as error, report_worker_errors():
        next(BatchLoader(examples, wanted, workers=1, timeout=timeout))
    assert "data.workers" in str(error.value)
    for worker in multiprocessing.active_children():  # killed, but on a busy machine perhaps not gone yet
        worker.join(60)
        assert worker.exitcode == -signal.SIGKILL


def test_data_workers_inherit_blocked_stop_signals() -> None:
    before = signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        with _block_stop_signals():
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_data_workers_start_where_signals_cannot_be_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with monkeypatch.context() as patch:
        patch.delattr(signal, "pthread_sigmask")  # as on Windows
        with _block_stop_signals():
            pass
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
