"""Batch order: contents and sequence of batches, as a function of seed, epoch and position."""

from itertools import islice

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.dataset import DatasetPart
from regard.data.loader import SamplerPosition, TokenBatchSampler, iterate_batch_requests, split_by_tokens

Sizes = npt.NDArray[np.int64]
lengths = st.lists(st.integers(1, 40), min_size=1, max_size=80).map(lambda sizes: np.array(sizes, dtype=np.int64))


def batches_of_epoch(order: TokenBatchSampler, epoch: int) -> list[list[int]]:
    return [batch.tolist() for pool in range(order.count_pools(epoch)) for batch in order.pool_batches(epoch, pool)]


def rows_of_epoch(order: TokenBatchSampler, epoch: int) -> list[int]:
    return [row for batch in batches_of_epoch(order, epoch) for row in batch]


@given(lengths, st.integers(1, 120), st.integers(1, 4), st.integers(0, 9), st.integers(0, 9))
def test_each_pair_comes_once_per_epoch_in_batches_within_the_limit(
    sizes: Sizes, batch_tokens: int, pool: int, seed: int, epoch: int
) -> None:
    batches = batches_of_epoch(TokenBatchSampler(sizes, batch_tokens, pool, seed), epoch)
    assert sorted(row for batch in batches for row in batch) == list(range(len(sizes)))
    for batch in batches:
        assert batch
        assert len(batch) == 1 or len(batch) * max(int(sizes[row]) for row in batch) <= batch_tokens


@given(lengths, st.integers(1, 120), st.integers(1, 4), st.integers(0, 9), st.integers(0, 9))
def test_order_depends_only_on_its_arguments(sizes: Sizes, batch_tokens: int, pool: int, seed: int, epoch: int) -> None:
    given_sizes = sizes.copy()
    np.random.seed(seed)
    first = batches_of_epoch(TokenBatchSampler(sizes, batch_tokens, pool, seed), epoch)
    np.random.seed(seed + 1)
    again = TokenBatchSampler(sizes, batch_tokens, pool, seed)
    batches_of_epoch(again, epoch + 1)
    assert batches_of_epoch(again, epoch) == first
    assert (sizes == given_sizes).all()


@given(lengths, st.integers(1, 60), st.integers(1, 3), st.integers(0, 40))
def test_order_resumes_from_any_position(sizes: Sizes, batch_tokens: int, pool: int, stop: int) -> None:
    whole = list(islice(TokenBatchSampler(sizes, batch_tokens, pool, 1).iterate_batches(SamplerPosition()), stop + 20))
    position = whole[stop - 1][1] if stop else SamplerPosition()
    rest = list(islice(TokenBatchSampler(sizes, batch_tokens, pool, 1).iterate_batches(position), 20))
    assert [(batch.tolist(), behind) for batch, behind in rest] == [
        (batch.tolist(), behind) for batch, behind in whole[stop:]
    ]


@given(lengths, st.integers(1, 60), st.integers(1, 4))
def test_update_takes_consecutive_batches(sizes: Sizes, batch_tokens: int, batches: int) -> None:
    single = islice(TokenBatchSampler(sizes, batch_tokens, 2, 1).iterate_batches(SamplerPosition()), 5 * batches)
    sampler = TokenBatchSampler(sizes, batch_tokens, 2, 1)
    grouped = islice(iterate_batch_requests(sampler, SamplerPosition(), batches, 0, 1), 5)
    flat = [batch.tolist() for request in grouped for batch in request.rows]
    assert flat == [batch.tolist() for batch, _ in single]


@given(lengths, st.integers(1, 60))
def test_epoch_is_the_fraction_of_pairs_used(sizes: Sizes, batch_tokens: int) -> None:
    order = TokenBatchSampler(sizes, batch_tokens, 1, 1)
    count = len(batches_of_epoch(order, 0))
    found = [
        order.compute_epochs(position) for _, position in islice(order.iterate_batches(SamplerPosition()), 3 * count)
    ]
    assert found == sorted(found)
    assert found[count - 1] == 1.0
    assert all(epochs < 1 for epochs in found[: count - 1])


def test_order_differs_between_seeds_and_epochs() -> None:
    sizes = np.arange(1, 201, dtype=np.int64) % 17 + 1
    orders = [batches_of_epoch(TokenBatchSampler(sizes, 60, 3, seed), epoch) for seed in (1, 2) for epoch in (0, 1, 2)]
    assert all(orders[a] != orders[b] for a in range(6) for b in range(a))


def test_seed_and_epoch_are_independent() -> None:
    sizes = np.ones(100, dtype=np.int64)
    assert batches_of_epoch(TokenBatchSampler(sizes, 10, 1, 1), 2) != batches_of_epoch(
        TokenBatchSampler(sizes, 10, 1, 2), 1
    )


def test_pair_longer_than_the_limit_is_a_batch_of_its_own() -> None:
    batches = batches_of_epoch(TokenBatchSampler(np.array([3, 50, 3, 60, 3]), 10, 100, 1), 0)
    assert [1] in batches
    assert [3] in batches
    assert sorted(map(len, batches)) == [1, 1, 3]


def test_pool_is_sorted_by_length_to_save_padding() -> None:
    sizes = np.random.default_rng(0).integers(1, 50, 2000)
    batches = batches_of_epoch(TokenBatchSampler(sizes, 500, 100, 1), 0)
    padded_tokens = sum(len(batch) * int(sizes[batch].max()) for batch in batches)
    assert padded_tokens < 1.1 * int(sizes.sum())
    longest = [int(sizes[batch].max()) for batch in batches]
    assert longest != sorted(longest), "the batches are shuffled"


def test_pool_size_bounds_the_batches_sorted_together() -> None:
    sizes = np.array([9, 1] * 50)  # 5 on average: a pool of one batch of 10 tokens is two pairs
    assert max(map(len, batches_of_epoch(TokenBatchSampler(sizes, 10, 1, 1), 0))) == 2
    assert max(map(len, batches_of_epoch(TokenBatchSampler(sizes, 10, 100, 1), 0))) == 10


def test_corpus_weight_is_how_often_its_pairs_come() -> None:
    parts = [DatasetPart(10, 3.0), DatasetPart(20, 0.25), DatasetPart(30), DatasetPart(40, 0.0)]
    order = TokenBatchSampler(np.ones(100, dtype=np.int64), 7, 2, 1, parts)
    for epoch in range(3):
        counts = np.bincount(rows_of_epoch(order, epoch), minlength=100)
        assert (counts[:10] == 3).all()
        assert counts[10:30].sum() == 5
        assert counts[10:30].max() == 1
        assert (counts[30:60] == 1).all()
        assert (counts[60:] == 0).all()
    chosen = [frozenset(row for row in rows_of_epoch(order, epoch) if 10 <= row < 30) for epoch in range(4)]
    assert len(set(chosen)) > 1, "a fractional weight chooses other pairs each epoch"


def test_curriculum_puts_long_pairs_last() -> None:
    sizes = np.random.default_rng(0).integers(1, 60, 4000)
    order = TokenBatchSampler(sizes, 300, 5, 1, curriculum_epochs=1)
    means = [
        [float(sizes[part].mean()) for part in np.array_split(np.array(rows_of_epoch(order, epoch)), 4)]
        for epoch in (0, 1)
    ]
    assert means[0] == sorted(means[0])
    assert means[0][0] < 0.6 * means[0][3]
    assert max(means[1]) < 1.1 * min(means[1]), "the second epoch has no curriculum"
    assert sorted(rows_of_epoch(order, 0)) == list(range(4000)), "every pair is included"


def test_curriculum_is_not_strictly_sorted() -> None:
    sizes = np.repeat(np.arange(1, 41), 50)
    order = TokenBatchSampler(sizes, 40, 1, 1, curriculum_epochs=2)
    first = [int(sizes[row]) for row in rows_of_epoch(order, 0)[:500]]
    assert len(set(first)) > 10


@given(lengths, st.integers(1, 120))
def test_batches_are_cut_greedily_in_order(sizes: Sizes, batch_tokens: int) -> None:
    ordered = np.argsort(sizes, kind="stable")
    found = [batch.tolist() for batch in split_by_tokens(ordered, sizes, batch_tokens)]
    expected: list[list[int]] = []
    for row in ordered.tolist():  # add the row to the last batch if it fits
        fits = expected and (len(expected[-1]) + 1) * int(sizes[row]) <= batch_tokens
        if fits:
            expected[-1].append(row)
        else:
            expected.append([row])
    assert found == expected


def test_no_rows_give_no_batches() -> None:
    assert split_by_tokens(np.array([], dtype=np.int64), np.array([], dtype=np.int64), 10) == []


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_number_of_processes_does_not_change_the_order(processes: int) -> None:
    sizes = np.random.default_rng(0).integers(1, 20, 300)
    alone = islice(iterate_batch_requests(TokenBatchSampler(sizes, 40, 2, 1), SamplerPosition(), 6, 0, 1), 8)
    each = [
        islice(
            iterate_batch_requests(
                TokenBatchSampler(sizes, 40, 2, 1), SamplerPosition(), 6 // processes, rank, processes
            ),
            8,
        )
        for rank in range(processes)
    ]
    for whole, *shares in zip(alone, *each, strict=True):
        dealt = list(zip(map(list, whole.rows), whole.seeds, strict=True))
        for rank, share in enumerate(shares):
            assert list(zip(map(list, share.rows), share.seeds, strict=True)) == dealt[rank::processes]
            assert share.position == whole.position


def test_estimated_batches_of_an_epoch_count_a_smaller_last_pool_by_its_size() -> None:
    order = TokenBatchSampler(np.full(650, 10), batch_tokens=100, batches_per_pool=50, seed=0)
    assert (order.examples_per_pool, order.count_pools(0)) == (500, 2)
    assert order.batches_per_epoch == len(batches_of_epoch(order, 0)) == 65
