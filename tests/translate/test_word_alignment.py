"""Word alignments from the attention over tokens, against plain loops."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.models.base import AlignmentHead
from regard.models.hypothesis import Floats
from regard.tokenizers.tokenizer import TokenizedWords
from regard.translate.inspection import HeadScore, count_mutual_links
from regard.translate.translation import Alignment, align_words, find_argmax_links


@st.composite
def cases(draw: st.DrawFn) -> tuple[Floats, list[int], list[int], tuple[int, int]]:
    """Draw weights (target tokens, source tokens), EOS on both sides, and the word of each token but EOS."""
    sources, targets = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    source_words = sorted(draw(st.lists(st.integers(0, sources - 1), max_size=8)))
    target_words = sorted(draw(st.lists(st.integers(0, targets - 1), max_size=8)))
    shape = (len(target_words) + 1, len(source_words) + 1)
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    weights = random.dirichlet(np.ones(shape[1]), shape[0]).astype(np.float32)
    return weights, source_words, target_words, (targets, sources)


def align_by_loops(
    attention: Floats, source_words: list[int], target_words: list[int], shape: tuple[int, int]
) -> list[list[float]]:
    """Return for each target word the mean over its tokens of their weights, summed over each source word."""
    found = []
    for target in range(shape[0]):
        rows = [row for row, word in enumerate(target_words) if word == target]
        line = []
        for source in range(shape[1]):
            columns = [column for column, word in enumerate(source_words) if word == source]
            total = sum(float(attention[row, column]) for row in rows for column in columns)
            line.append(total / len(rows) if rows else 0.0)
        found.append(line)
    return found


@given(cases())
def test_word_alignment_averages_target_tokens_and_links_the_maximum(
    case: tuple[Floats, list[int], list[int], tuple[int, int]],
) -> None:
    attention, source_words, target_words, (targets, sources) = case
    source, target = [f"s{number}" for number in range(sources)], [f"t{number}" for number in range(targets)]
    found = align_words(attention, TokenizedWords(source, source_words), TokenizedWords(target, target_words))
    assert (found.source, found.target) == (source, target)
    expected = align_by_loops(*case)
    np.testing.assert_allclose(found.soft, np.array(expected).reshape(found.soft.shape), atol=1e-6)
    linked = {target: source for source, target in found.pairs}
    assert len(linked) == len(found.pairs), "a target word has at most one link"
    assert found.pairs == sorted(found.pairs)
    for number, line in enumerate(expected):
        assert (number in linked) == (max(line) > 0)
        if number in linked:
            assert line[linked[number]] == pytest.approx(max(line), abs=1e-6)
    without_eos = align_words(
        attention[:-1], TokenizedWords(source, source_words), TokenizedWords(target, target_words)
    )
    np.testing.assert_allclose(without_eos.soft, found.soft, atol=1e-6)


def test_subwords_are_merged_and_eos_is_dropped() -> None:
    # source: "tea" "cher" "reads" EOS; target: "Leh" "rer" "liest" EOS
    attention = np.array(
        [[0.5, 0.3, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.1, 0.2, 0.7], [0.0, 0.0, 0.0, 1.0]], dtype=np.float32
    )
    found = align_words(
        attention, TokenizedWords(["teacher", "reads"], [0, 0, 1]), TokenizedWords(["Lehrer", "liest"], [0, 0, 1])
    )
    np.testing.assert_allclose(found.soft, [[0.55, 0.2], [0.1, 0.2]], atol=1e-6)
    assert found.pairs == [(0, 0), (1, 1)]


def test_a_word_without_tokens_has_no_weight_and_no_link() -> None:
    attention = np.array([[0.9, 0.1], [0.5, 0.5]], dtype=np.float32)
    found = align_words(attention, TokenizedWords(["a", "\u200b"], [0]), TokenizedWords(["x", "\u200b"], [0]))
    np.testing.assert_allclose(found.soft, [[0.9, 0.0], [0.0, 0.0]], atol=1e-6)
    assert found.pairs == [(0, 0)]


def test_a_word_that_attends_only_to_eos_has_no_link() -> None:
    attention = np.array([[0.0, 1.0], [0.3, 0.7]], dtype=np.float32)
    found = align_words(attention, TokenizedWords(["a"], [0]), TokenizedWords(["x"], [0]))
    assert found.soft.tolist() == [[0.0]]
    assert found.pairs == []


def test_links_take_the_first_maximum_and_are_sorted_by_source() -> None:
    soft = np.array([[0.0, 0.2, 0.8], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=np.float32)
    assert find_argmax_links(soft) == [(0, 1), (2, 0)]


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_an_empty_matrix_has_no_links(shape: tuple[int, int]) -> None:
    assert find_argmax_links(np.zeros(shape, dtype=np.float32)) == []


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (([], []), ([], [])),
        (([], []), (["x"], [0])),
        ((["a"], [0]), ([], [])),
        ((["a"], [0]), ([], [0])),  # tokens that make no word, such as a lone space
        (([], [0]), (["x"], [0])),
    ],
)
def test_an_empty_source_or_target_has_no_links(
    source: tuple[list[str], list[int]], target: tuple[list[str], list[int]]
) -> None:
    attention = np.full((len(target[1]) + 1, len(source[1]) + 1), 0.5, dtype=np.float32)
    found = align_words(attention, TokenizedWords(*source), TokenizedWords(*target))
    assert found.soft.shape == (len(target[0]), len(source[0]))
    assert found.pairs == []


def test_punctuation_joined_to_a_word_does_not_count_for_its_alignment() -> None:
    # source: "book" "." EOS; target: "Buch" "." EOS
    attention = np.array([[0.6, 0.3, 0.1], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=np.float32)
    source, target = TokenizedWords(["book", "."], [0, 1]), TokenizedWords(["Buch."], [0, 0], ["Buch", "."])
    found = align_words(attention, source, target)
    np.testing.assert_allclose(found.soft, [[0.6, 0.3]], atol=1e-6)
    assert found.pairs == [(0, 0)]
    alone = align_words(attention, source, TokenizedWords(["..."], [0, 0], [".", "."]))
    np.testing.assert_allclose(alone.soft, [[0.3, 0.65]], atol=1e-6)


@pytest.mark.parametrize("mark", ["", "▁", "␣", "‿"])
@pytest.mark.parametrize(
    ("source", "target", "without", "expected"),
    [
        # Words of their own: the sink is not linked to words, and stays linked to punctuation.
        ((["book", "."], [0, 1]), (["Buch", "."], [0, 1]), [(1, 0), (1, 1)], [(0, 0), (1, 1)]),
        ((["本", "。"], [0, 1]), (["book", "!"], [0, 1]), [(1, 0), (1, 1)], [(0, 0), (1, 1)]),
        ((["book", ")"], [0, 1]), (["Buch", ")"], [0, 1]), [(1, 0), (1, 1)], [(1, 0), (1, 1)]),  # no terminal mark
        # Joined to the last word.
        ((["old", "book."], [0, 1, 1]), (["altes", "..."], [0, 1]), [(1, 0), (1, 1)], [(0, 0), (1, 1)]),
    ],
)
def test_words_are_not_linked_to_an_attention_sink(
    mark: str,
    source: tuple[list[str], list[int]],
    target: tuple[list[str], list[int]],
    without: list[tuple[int, int]],
    expected: list[tuple[int, int]],
) -> None:
    tokens = {"book.": ["▁book", "."]}
    pieces = [piece for word in source[0] for piece in tokens.get(word, [f"{mark}{word}"])]
    rest = len(pieces) - 2
    attention = np.array([[0.3, *[0.1] * rest, 0.6 - 0.1 * rest, 0.1]] * 2 + [[*[0.0] * len(pieces), 1.0]], np.float32)
    both = TokenizedWords(*source, pieces), TokenizedWords(*target, target[0])
    plain, found = align_words(attention, *both), align_words(attention, *both, has_attention_sink=True)
    assert plain.pairs == without
    assert found.pairs == expected
    np.testing.assert_array_equal(found.soft, plain.soft)


def test_strongest_of_several_links_of_a_target_word_counts() -> None:
    soft = np.array([[0.9, 0.1], [0.2, 0.7]], dtype=np.float32)
    alignment = Alignment(["a", "b"], ["x", "y"], soft, [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert alignment.links_by_target() == {0: 0, 1: 1}


def test_a_word_with_attention_to_punctuation_alone_has_no_link() -> None:
    attention = np.array([[0.0, 0.9, 0.1], [0.0, 0.0, 1.0]], dtype=np.float32)
    both = TokenizedWords(["book", "."], [0, 1], ["book", "."]), TokenizedWords(["Buch"], [0], ["Buch"])
    assert align_words(attention, *both).pairs == [(1, 0)]
    assert align_words(attention, *both, has_attention_sink=True).pairs == []


def test_a_respelled_word_that_becomes_several_keeps_its_links() -> None:
    attention = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]], dtype=np.float32)
    found = align_words(attention, TokenizedWords(["a", "b"], [0, 1]), TokenizedWords(["<unk>", "y"], [0, 1]))
    other = found.replace_target_words(["große Welt", "y"], "große Welt y")
    assert other.target == ["große", "Welt", "y"]
    assert other.pairs == [(0, 0), (0, 1), (1, 2)]
    np.testing.assert_allclose(other.soft, [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]])


@pytest.mark.parametrize(
    ("soft", "count"),
    [
        ([[0.9, 0.1], [0.2, 0.8]], 2),
        ([[0.9, 0.1], [0.8, 0.2]], 1),  # the first target word attends more to the same source word
        ([[0.0, 0.0], [0.0, 0.0]], 0),
        ([[0.5], [0.7], [0.6]], 1),
        (np.zeros((0, 3)), 0),
    ],
)
def test_mutual_links_are_counted(soft: Any, count: int) -> None:
    assert count_mutual_links(np.array(soft, dtype=np.float32)) == count


def test_a_single_head_aligns_only_if_it_is_clearly_better_than_the_mean() -> None:
    mean, single = AlignmentHead(1, None), AlignmentHead(1, 2)
    for fraction, better in ((0.50, mean), (0.62, mean), (0.66, single)):
        scores = HeadScore(single, fraction, None), HeadScore(mean, 0.6, None)
        assert min(scores, key=lambda score: score.cost).alignment_head == better
    assert HeadScore(single, 0.5, 0.1).cost < HeadScore(mean, 0.6, 0.11).cost, "gold alignments decide"
