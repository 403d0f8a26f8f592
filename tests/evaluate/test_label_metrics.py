"""Chunks of tagged sentences and their F1, against the enumeration of all spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.evaluate.label_metrics import are_chunk_labels, count_chunks, find_chunks, sum_chunk_counts

LABELS = ("O", "B-NP", "I-NP", "B-VP", "I-VP", "B-A-B", "I-A-B")
sentences = st.lists(st.sampled_from(LABELS), max_size=7)
parallel_labels = st.integers(0, 7).flatmap(
    lambda size: st.tuples(*[st.lists(st.sampled_from(LABELS), min_size=size, max_size=size)] * 2)
)


def starts_chunk(labels: list[str], index: int) -> bool:
    """Return startOfChunk of conlleval: the pairs of tags that it lists, or a change of the type."""
    before, here = (labels[index - 1] if index else "O"), labels[index]
    pairs = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}
    kinds = [label.split("-", 1)[1] if "-" in label else "" for label in (before, here)]
    return (before[0], here[0]) in pairs or (here != "O" and kinds[0] != kinds[1])


def ends_chunk(labels: list[str], index: int) -> bool:
    """Return endOfChunk of conlleval between a word and the next one."""
    here, after = labels[index], (labels[index + 1] if index + 1 < len(labels) else "O")
    pairs = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}
    kinds = [label.split("-", 1)[1] if "-" in label else "" for label in (here, after)]
    return (here[0], after[0]) in pairs or (here != "O" and kinds[0] != kinds[1])


def enumerate_chunks(labels: list[str]) -> set[tuple[str, int, int]]:
    """Return the spans that start and end a chunk and contain no other start or end."""
    return {
        (labels[start].split("-", 1)[1], start, end)
        for start in range(len(labels))
        for end in range(start + 1, len(labels) + 1)
        if labels[start] != "O"
        and starts_chunk(labels, start)
        and ends_chunk(labels, end - 1)
        and not any(starts_chunk(labels, index) for index in range(start + 1, end))
        and not any(ends_chunk(labels, index) for index in range(start, end - 1))
    }


@given(sentences)
def test_chunks_are_those_of_conlleval(labels: list[str]) -> None:
    found = find_chunks(labels)
    assert {tuple(chunk) for chunk in found} == enumerate_chunks(labels)
    assert found == sorted(found, key=lambda chunk: chunk.start)


@given(st.lists(parallel_labels, max_size=4))
def test_precision_recall_and_f1_count_equal_chunks(pairs: list[tuple[list[str], list[str]]]) -> None:
    gold, found = [left for left, _ in pairs], [right for _, right in pairs]
    counted = count_chunks(gold, found)
    gold_chunks = {(number, *span) for number, labels in enumerate(gold) for span in enumerate_chunks(labels)}
    found_chunks = {(number, *span) for number, labels in enumerate(found) for span in enumerate_chunks(labels)}
    whole = sum_chunk_counts(counted.values())
    assert whole == (len(gold_chunks), len(found_chunks), len(gold_chunks & found_chunks))
    assert list(counted) == sorted({span[1] for span in gold_chunks | found_chunks})
    for kind, counts in counted.items():
        own = [
            {span for span in side if span[1] == kind}
            for side in (gold_chunks, found_chunks, gold_chunks & found_chunks)
        ]
        assert counts == tuple(map(len, own))
    precision = len(gold_chunks & found_chunks) / len(found_chunks) if found_chunks else 0.0
    recall = len(gold_chunks & found_chunks) / len(gold_chunks) if gold_chunks else 0.0
    assert whole.precision == pytest.approx(100 * precision)
    assert whole.recall == pytest.approx(100 * recall)
    mean = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert whole.f1 == pytest.approx(100 * mean)


def test_a_chunk_may_start_with_b_or_i() -> None:
    first = find_chunks(["I-NP", "I-NP", "B-NP", "O", "I-VP"])
    second = find_chunks(["B-NP", "I-NP", "B-NP", "O", "B-VP"])
    assert first == second == [("NP", 0, 2), ("NP", 2, 3), ("VP", 4, 5)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["O", "B-NP", "I-NP"], True),
        (["I-X"], True),
        (["O"], False),
        ([], False),
        (["NOUN", "VERB"], False),
        (["B-NP", "E-NP"], False),
        (["B", "I", "O"], False),
        (["B-", "O"], False),
    ],
)
def test_label_sets_of_chunks_are_recognised(labels: list[str], expected: bool) -> None:
    assert are_chunk_labels(labels) is expected
