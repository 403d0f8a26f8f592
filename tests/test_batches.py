"""Batches: what is in them, in which order, and how the tensors are laid out."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches import Batch, collate, cuts, order, padded
from regard.data.sentences import Examples, Sentences
from regard.symbols import BOS, EOS, PAD

Sizes = npt.NDArray[np.int64]
some_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=80).map(lambda sizes: np.array(sizes, dtype=np.int64))
token_rows = st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=1, max_size=8)


def as_lists(batches: list[npt.NDArray[np.int64]]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@given(some_sizes, st.integers(1, 120), st.integers(1, 4), st.integers(0, 9), st.integers(0, 9))
def test_each_pair_comes_once_an_epoch_and_batches_keep_the_limit(
    sizes: Sizes, batch_tokens: int, pool: int, seed: int, epoch: int
) -> None:
    batches = as_lists(order(sizes, batch_tokens, pool, seed, epoch))
    assert sorted(row for batch in batches for row in batch) == list(range(len(sizes)))
    for batch in batches:
        assert batch
        assert len(batch) == 1 or len(batch) * max(int(sizes[row]) for row in batch) <= batch_tokens


@given(some_sizes, st.integers(1, 120), st.integers(1, 4), st.integers(0, 9), st.integers(0, 9))
def test_the_order_is_a_pure_function(sizes: Sizes, batch_tokens: int, pool: int, seed: int, epoch: int) -> None:
    given_sizes = sizes.copy()
    np.random.seed(seed)
    first = as_lists(order(sizes, batch_tokens, pool, seed, epoch))
    np.random.seed(seed + 1)
    order(sizes, batch_tokens, pool, seed + 1, epoch)
    assert as_lists(order(sizes, batch_tokens, pool, seed, epoch)) == first
    assert (sizes == given_sizes).all()


def test_seeds_and_epochs_give_other_orders() -> None:
    sizes = np.arange(1, 201, dtype=np.int64) % 17 + 1
    orders = [as_lists(order(sizes, 60, 3, seed, epoch)) for seed in (1, 2) for epoch in (0, 1, 2)]
    assert all(orders[a] != orders[b] for a in range(6) for b in range(a))


def test_seed_and_epoch_are_not_added_up() -> None:
    sizes = np.ones(100, dtype=np.int64)
    assert as_lists(order(sizes, 10, 1, 1, 2)) != as_lists(order(sizes, 10, 1, 2, 1))


def test_a_sentence_longer_than_the_limit_stands_alone() -> None:
    sizes = np.array([3, 50, 3, 60, 3], dtype=np.int64)
    batches = as_lists(order(sizes, 10, 100, 1, 0))
    assert [1] in batches
    assert [3] in batches
    assert sorted(map(len, batches)) == [1, 1, 3]


def test_a_pool_is_sorted_so_that_little_is_padding() -> None:
    sizes = np.random.default_rng(0).integers(1, 50, 2000)
    batches = order(sizes, 500, 100, 1, 0)
    padded_tokens = sum(len(batch) * int(sizes[batch].max()) for batch in batches)
    assert padded_tokens < 1.1 * int(sizes.sum())
    longest = [int(sizes[batch].max()) for batch in batches]
    assert longest != sorted(longest), "and the batches are shuffled again"


def test_a_pool_holds_so_many_batches_and_no_more() -> None:
    sizes = np.array([9, 1] * 50, dtype=np.int64)  # 5 on average, so a pool of one batch of 10 tokens is two pairs
    assert max(map(len, order(sizes, 10, 1, 1, 0))) == 2
    assert max(map(len, order(sizes, 10, 100, 1, 0))) == 10


@given(some_sizes, st.integers(1, 120))
def test_cuts_are_greedy_and_keep_the_order(sizes: Sizes, batch_tokens: int) -> None:
    rows = np.argsort(sizes, kind="stable")
    found = as_lists(cuts(rows, sizes, batch_tokens))
    expected: list[list[int]] = []
    for row in rows.tolist():  # a plain loop: put it into the last batch if it still fits there
        fits = expected and (len(expected[-1]) + 1) * int(sizes[row]) <= batch_tokens
        if fits:
            expected[-1].append(row)
        else:
            expected.append([row])
    assert found == expected


def test_cuts_of_nothing() -> None:
    assert cuts(np.array([], dtype=np.int64), np.array([], dtype=np.int64), 10) == []


def test_collate_places_the_special_ids() -> None:
    examples = Examples(Sentences.of([[7, 8, 9], [5], []]), Sentences.of([[6], [4, 5], [9, 9, 9]]))
    batch = collate(examples, np.array([1, 0, 2]))
    assert batch.source.tolist() == [[5, EOS, PAD, PAD], [7, 8, 9, EOS], [EOS, PAD, PAD, PAD]]
    assert batch.lengths.tolist() == [2, 4, 1]
    assert batch.target_in.tolist() == [[BOS, 4, 5, PAD], [BOS, 6, PAD, PAD], [BOS, 9, 9, 9]]
    assert batch.target_out.tolist() == [[4, 5, EOS, PAD], [6, EOS, PAD, PAD], [9, 9, 9, EOS]]
    assert {tensor.dtype for tensor in batch[:4]} == {torch.int64}
    assert batch.guide is None


def test_links_become_a_guide_for_each_target_token() -> None:
    sentences = Sentences.of([[7, 8, 9], [5]]), Sentences.of([[6, 6], [4, 5]])
    links = [np.array([[0, 1], [2, 1]], dtype=np.int32), np.zeros((0, 2), dtype=np.int32)]
    guide = collate(Examples(*sentences, links), np.array([1, 0])).guide
    assert guide is not None
    expected = torch.zeros(2, 3, 4)
    expected[1, 1, [0, 2]] = 0.5
    assert torch.equal(guide, expected)


@given(token_rows, st.data())
def test_collate_loses_nothing(sources: list[list[int]], data: st.DataObject) -> None:
    size = len(sources)
    targets = data.draw(st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=size, max_size=size))
    rows = data.draw(st.permutations(range(size)))
    batch = collate(Examples(Sentences.of(sources), Sentences.of(targets)), np.array(rows))
    for number, row in enumerate(rows):
        length = int(batch.lengths[number])
        assert batch.source[number, :length].tolist() == [*sources[row], EOS]
        assert set(batch.source[number, length:].tolist()) <= {PAD}
        end = len(targets[row]) + 1
        assert batch.target_in[number, :end].tolist() == [BOS, *targets[row]]
        assert batch.target_out[number, :end].tolist() == [*targets[row], EOS]
        assert set(batch.target_in[number, end:].tolist()) | set(batch.target_out[number, end:].tolist()) <= {PAD}
    assert batch.source.shape == (size, max(map(len, sources)) + 1), "no wider than the longest"
    assert batch.target_in.shape == batch.target_out.shape == (size, max(map(len, targets)) + 1)


def test_a_batch_moves_as_a_whole() -> None:
    batch = collate(Examples(Sentences.of([[5]]), Sentences.of([[6]])), np.array([0]))
    moved = batch.to(torch.device("meta"))
    assert isinstance(moved, Batch)
    assert {tensor.device.type for tensor in moved[:4]} == {"meta"}
    assert {tensor.device.type for tensor in batch[:4]} == {"cpu"}


def test_padded_without_additions() -> None:
    table, lengths = padded(Sentences.of([[4, 5], [6]]), np.array([1, 0, 1]), before=(), after=())
    assert table.tolist() == [[6, PAD], [4, 5], [6, PAD]]
    assert lengths.tolist() == [1, 2, 1]


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=8))
def test_sentences_come_back(rows: list[list[int]]) -> None:
    packed = Sentences.of(iter(rows))
    assert len(packed) == len(rows)
    assert [packed[row].tolist() for row in range(len(rows))] == rows
    assert packed.lengths.tolist() == [len(row) for row in rows]
    assert [packed[row - len(rows)].tolist() for row in range(len(rows))] == rows, "from the end too"


def test_a_sentence_is_a_view() -> None:
    packed = Sentences.of([[4, 5], [6, 7, 8]])
    assert np.shares_memory(packed[1], packed.ids)
    packed.ids[2] = 99
    assert packed[1].tolist() == [99, 7, 8]
    assert packed.ids.dtype == np.int32


@pytest.mark.parametrize("index", [2, 7, -3])
def test_a_sentence_that_is_not_there(index: int) -> None:
    with pytest.raises(IndexError):
        Sentences.of([[4], [5]])[index]


def test_a_pair_takes_the_longer_side_and_its_eos() -> None:
    examples = Examples(Sentences.of([[4], [4, 5, 6], []]), Sentences.of([[4, 5], [4], []]))
    assert examples.sizes.tolist() == [3, 4, 1]
