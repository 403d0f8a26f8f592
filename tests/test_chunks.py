"""Chunks and their figures, against a count of every span that there could be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.evaluate import are_chunks, chunks, count_chunks, together

LABELS = ("O", "B-NP", "I-NP", "B-VP", "I-VP", "B-A-B", "I-A-B")
sentences = st.lists(st.sampled_from(LABELS), max_size=7)
both = st.integers(0, 7).flatmap(
    lambda size: st.tuples(*[st.lists(st.sampled_from(LABELS), min_size=size, max_size=size)] * 2)
)


def begins(labels: list[str], place: int) -> bool:
    """conlleval's startOfChunk, by the pairs of tags that it lists and by kinds that differ."""
    before, here = (labels[place - 1] if place else "O"), labels[place]
    pairs = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}
    kinds = [label.split("-", 1)[1] if "-" in label else "" for label in (before, here)]
    return (before[0], here[0]) in pairs or (here != "O" and kinds[0] != kinds[1])


def ends(labels: list[str], place: int) -> bool:
    """conlleval's endOfChunk, between a word and the one behind it."""
    here, behind = labels[place], (labels[place + 1] if place + 1 < len(labels) else "O")
    pairs = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}
    kinds = [label.split("-", 1)[1] if "-" in label else "" for label in (here, behind)]
    return (here[0], behind[0]) in pairs or (here != "O" and kinds[0] != kinds[1])


def every_span(labels: list[str]) -> set[tuple[str, int, int]]:
    """Of all spans those that begin, end, and neither begin nor end in between."""
    return {
        (labels[start].split("-", 1)[1], start, end)
        for start in range(len(labels))
        for end in range(start + 1, len(labels) + 1)
        if labels[start] != "O"
        and begins(labels, start)
        and ends(labels, end - 1)
        and not any(begins(labels, place) for place in range(start + 1, end))
        and not any(ends(labels, place) for place in range(start, end - 1))
    }


@given(sentences)
def test_chunks_are_the_spans_that_begin_and_end_by_the_rules(labels: list[str]) -> None:
    found = chunks(labels)
    assert {tuple(chunk) for chunk in found} == every_span(labels)
    assert found == sorted(found, key=lambda chunk: chunk.start)


@given(st.lists(both, max_size=4))
def test_figures_are_those_of_the_spans(pairs: list[tuple[list[str], list[str]]]) -> None:
    gold, found = [left for left, _ in pairs], [right for _, right in pairs]
    counted = count_chunks(gold, found)
    there = {(number, *span) for number, labels in enumerate(gold) for span in every_span(labels)}
    made = {(number, *span) for number, labels in enumerate(found) for span in every_span(labels)}
    whole = together(counted.values())
    assert whole == (len(there), len(made), len(there & made))
    assert list(counted) == sorted({span[1] for span in there | made})
    for kind, counts in counted.items():
        own = [{span for span in side if span[1] == kind} for side in (there, made, there & made)]
        assert counts == tuple(map(len, own))
    precision = len(there & made) / len(made) if made else 0.0
    recall = len(there & made) / len(there) if there else 0.0
    assert whole.precision == pytest.approx(100 * precision)
    assert whole.recall == pytest.approx(100 * recall)
    mean = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert whole.f1 == pytest.approx(100 * mean)


def test_both_ways_to_begin_a_chunk_are_read() -> None:
    first = chunks(["I-NP", "I-NP", "B-NP", "O", "I-VP"])
    second = chunks(["B-NP", "I-NP", "B-NP", "O", "B-VP"])
    assert first == second == [("NP", 0, 2), ("NP", 2, 3), ("VP", 4, 5)]


@pytest.mark.parametrize(
    ("labels", "are"),
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
def test_labels_that_mark_chunks_are_known(labels: list[str], are: bool) -> None:
    assert are_chunks(labels) is are
