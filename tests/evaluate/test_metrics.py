"""Scores of translations and alignments: AER, gold files, symmetrization, and BLEU, chrF and TER by sacreBLEU."""

from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from regard.data.readers.text import Link, format_pharaoh
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import (
    GoldAlignment,
    aer,
    compute_alignment_score,
    grow_diag_final_and,
    read_gold_alignments,
)
from regard.evaluate.translation_metrics import bleu, bleu_by_length, chrf, compare_systems, ter

SIZE = 4
link_sets = st.frozensets(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=6)
corpora = st.lists(st.tuples(link_sets, link_sets, link_sets), min_size=1, max_size=5)
PAIR = ("the old house", "das alte Haus")


def count_aer_cell_by_cell(rows: list[tuple[AbstractSet[Link], AbstractSet[Link], AbstractSet[Link]]]) -> float:
    """Compute AER over every cell of every alignment matrix; the possible links include the sure ones."""
    found_sure = found_possible = found_all = sure_all = 0
    for found, sure, possible in rows:
        for source in range(SIZE):
            for target in range(SIZE):
                link = (source, target)
                found_all += link in found
                sure_all += link in sure
                found_sure += link in found and link in sure
                found_possible += link in found and (link in possible or link in sure)
    if found_all + sure_all == 0:
        return 0.0
    return 1 - (found_sure + found_possible) / (found_all + sure_all)


def write_gold(folder: Path, text: str) -> Path:
    path = folder / "test.align"
    path.write_text(text, encoding="utf-8")
    return path


def error_of_gold(path: Path, pairs: list[tuple[str, str]]) -> str:
    with pytest.raises(UserError) as caught:
        read_gold_alignments(path, pairs)
    return str(caught.value)


def test_aer_of_a_small_example_computed_by_hand() -> None:
    sure: list[set[Link]] = [{(0, 0), (1, 1)}]
    possible: list[set[Link]] = [{(0, 0), (1, 1), (1, 2)}]
    assert aer(sure, sure, possible) == 0
    assert aer([{(0, 0), (1, 1), (1, 2)}], sure, possible) == 0, "a possible link is not an error"
    assert aer([{(2, 2)}], sure, possible) == 1
    assert aer([set()], sure, possible) == 1
    # A = {0-0, 1-2, 2-2}: |A∩S| = 1, |A∩P| = 2, |A| = 3, |S| = 2
    assert aer([{(0, 0), (1, 2), (2, 2)}], sure, possible) == pytest.approx(1 - 3 / 5)


def test_aer_is_counted_over_the_corpus_not_averaged_over_sentences() -> None:
    found: list[set[Link]] = [{(0, 0)}, {(0, 1), (1, 1), (2, 1)}]
    sure: list[set[Link]] = [{(0, 0)}, {(0, 0)}]
    # |A∩S| + |A∩P| is 1+1 and 0+0, |A| + |S| is 1+1 and 3+1
    assert aer(found, sure, sure) == pytest.approx(1 - 2 / 6)


def test_aer_counts_a_sure_link_as_possible_too() -> None:
    assert aer([{(0, 0)}], [{(0, 0)}], [set()]) == 0


def test_aer_without_links_is_zero() -> None:
    assert aer([], [], []) == 0
    assert aer([set()], [set()], [set()]) == 0


@given(corpora)
def test_aer_equals_its_definition(rows: list[tuple[AbstractSet[Link], AbstractSet[Link], AbstractSet[Link]]]) -> None:
    found, sure, possible = zip(*rows, strict=True)
    value = aer(found, sure, possible)
    assert value == pytest.approx(count_aer_cell_by_cell(rows))
    assert 0 <= value <= 1
    assert aer(sure, sure, possible) == 0


def test_aer_of_lists_of_unequal_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer"):
        aer([set()], [set(), set()], [set(), set()])


def test_gold_file_with_sure_and_possible_links_is_read(tmp_path: Path) -> None:
    path = write_gold(tmp_path, "0-0 1?1 2-2 1p2\n\n2-0\n")
    assert read_gold_alignments(path, [PAIR] * 3) == [
        GoldAlignment(frozenset({(0, 0), (2, 2)}), frozenset({(0, 0), (1, 1), (2, 2), (1, 2)})),
        GoldAlignment(frozenset(), frozenset()),
        GoldAlignment(frozenset({(2, 0)}), frozenset({(2, 0)})),
    ]


@pytest.mark.parametrize("link", ["0", "0-", "-1", "0-1-2", "0:1", "a-b", "0--1", "0.0-1", "0-1,", "0 - 1"])
def test_malformed_gold_link_is_reported_with_file_and_line(link: str, tmp_path: Path) -> None:
    path = write_gold(tmp_path, f"0-0\n1-1 {link}\n")
    assert error_of_gold(path, [PAIR, PAIR]).startswith(f"{path}:2: {link.split()[0]!r} is not a link")


@pytest.mark.parametrize(("link", "shown"), [("3-0", "3-0"), ("0-3", "0-3"), ("0?9", "0-9")])
def test_gold_link_outside_the_sentence_is_reported_with_file_and_line(link: str, shown: str, tmp_path: Path) -> None:
    path = write_gold(tmp_path, f"0-0\n2-2\n1-1 {link}\n")
    message = error_of_gold(path, [PAIR] * 3)
    assert message.startswith(f"{path}:3: link {shown} runs past the sentences, which have 3 and 3 words")


@pytest.mark.parametrize(("lines", "pairs"), [(1, 2), (2, 1), (0, 1)])
def test_gold_file_needs_one_line_per_pair(lines: int, pairs: int, tmp_path: Path) -> None:
    path = write_gold(tmp_path, "0-0\n" * lines)
    assert error_of_gold(path, [PAIR] * pairs).startswith(f"{path} has {lines} lines for {pairs} pairs")


def test_missing_gold_file_is_reported(tmp_path: Path) -> None:
    assert error_of_gold(tmp_path / "gone", [PAIR]) == f"there is no file {tmp_path / 'gone'}"


def test_pharaoh_links_are_sorted_numerically() -> None:
    assert format_pharaoh({(10, 0), (2, 1), (2, 0)}) == "2-0 2-1 10-0"
    assert format_pharaoh([]) == ""


@given(rows=st.lists(link_sets, min_size=1, max_size=4))
def test_pharaoh_links_survive_writing_and_reading(
    rows: list[frozenset[Link]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_gold(tmp_path_factory.getbasetemp(), "".join(format_pharaoh(links) + "\n" for links in rows))
    gold = read_gold_alignments(path, [(" a" * SIZE, " b" * SIZE)] * len(rows))
    assert [links.sure for links in gold] == [links.possible for links in gold] == rows


HYPOTHESES = ["the old house is small .", "a tree stands in the garden", "", "it's 5% more, isn't it?"]
REFERENCES = ["the old house was small .", "a tree stands in the yard", "hello", "it is 5% more, isn't it?"]


def test_bleu_equals_sacrebleu() -> None:
    found = bleu(HYPOTHESES, REFERENCES)
    assert found.value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], force=True).score
    assert 0 < found.value < 100
    assert found.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_chrf_equals_sacrebleu() -> None:
    found = chrf(HYPOTHESES, REFERENCES)
    assert found.value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 0 < found.value < 100
    assert found.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


words = st.lists(st.sampled_from(["a", "b", "c", ".", "the"]), max_size=8).map(" ".join)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=5))
def test_bleu_and_chrf_equal_sacrebleu_on_random_text(rows: list[tuple[str, str]]) -> None:
    hypotheses, references = [row[0] for row in rows], [row[1] for row in rows]
    assert bleu(hypotheses, references).value == sacrebleu.corpus_bleu(hypotheses, [references], force=True).score
    assert chrf(hypotheses, references).value == sacrebleu.corpus_chrf(hypotheses, [references]).score


def test_perfect_translation_scores_100() -> None:
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert chrf(REFERENCES, REFERENCES).value == pytest.approx(100)


@pytest.mark.parametrize(
    ("hypotheses", "references"), [(["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], []), ([], ["a"])]
)
def test_each_hypothesis_needs_a_reference(hypotheses: list[str], references: list[str]) -> None:
    for score in (bleu, chrf):
        with pytest.raises(ValueError, match=f"{len(hypotheses)} hypotheses for {len(references)} references"):
            score(hypotheses, references)


def test_alignment_precision_uses_possible_links_recall_uses_sure_links() -> None:
    score = compute_alignment_score(
        [{(0, 0), (1, 2), (2, 2)}], [GoldAlignment(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (1, 2)}))]
    )
    assert score.precision == pytest.approx(2 / 3)
    assert score.recall == pytest.approx(1 / 2)
    assert compute_alignment_score([set()], [GoldAlignment(frozenset(), frozenset())]) == (0.0, 1.0, 1.0)


def test_gold_file_in_naacl_format_is_read(tmp_path: Path) -> None:
    path = write_gold(tmp_path, "0001 1 1 S\n1 2 3 P\n\n0003 3 1\n3 1 2 S 0.9\n")
    assert read_gold_alignments(path, [PAIR] * 3) == [
        GoldAlignment(frozenset({(0, 0)}), frozenset({(0, 0), (1, 2)})),
        GoldAlignment(frozenset(), frozenset()),
        GoldAlignment(frozenset({(2, 0), (0, 1)}), frozenset({(2, 0), (0, 1)})),
    ]
    assert read_gold_alignments(write_gold(tmp_path, "1 0 2 S\n"), [PAIR], first_index=0)[0].sure == {(0, 2)}
    assert "1 x 1 S" in error_of_gold(write_gold(tmp_path, "1 1 1 S\n1 x 1 S\n"), [PAIR])
    assert error_of_gold(write_gold(tmp_path, "1 1 1 S\n4 1 1 S\n"), [PAIR]).startswith(
        f"{tmp_path / 'test.align'}:2: there is no pair 4"
    )


def test_gold_links_can_be_counted_from_one(tmp_path: Path) -> None:
    path = write_gold(tmp_path, "1-1 3-2\n")
    assert read_gold_alignments(path, [PAIR], first_index=1)[0].sure == {(0, 0), (2, 1)}
    with pytest.raises(UserError, match=r"link 0-1 runs past .* \(links count from 1\)"):
        read_gold_alignments(write_gold(tmp_path, "0-1\n"), [PAIR], first_index=1)


def test_links_past_a_text_without_spaces_ask_for_the_segmented_one(tmp_path: Path) -> None:
    pair, path = ("the old house", "古い家"), write_gold(tmp_path, "0-0 1-7\n")
    with pytest.raises(UserError, match="must be the segmented one, with --presegmented"):
        read_gold_alignments(path, [pair])


def test_grow_diag_final_and_of_a_small_example() -> None:
    forward = {(0, 0), (1, 1), (2, 1), (4, 4)}
    backward = {(0, 0), (1, 1), (1, 2), (5, 3)}
    # 0-0 and 1-1 are in both; their neighbours 2-1 and 1-2 each align a new word; 4-4 and 5-3 link two unaligned words
    assert grow_diag_final_and(forward, backward) == {(0, 0), (1, 1), (2, 1), (1, 2), (4, 4), (5, 3)}
    # 0-2 is no neighbour, and its source word is aligned already
    assert grow_diag_final_and({(0, 0), (0, 2)}, {(0, 0)}) == {(0, 0)}


def grow_by_published_pseudocode(e2f: AbstractSet[Link], f2e: AbstractSet[Link], size: int) -> set[Link]:
    """Follow the published pseudo-code (Koehn) cell by cell; e is the target, f the source."""
    union, alignment = e2f | f2e, set(e2f & f2e)

    def aligned_e(e: int) -> bool:
        return any(right == e for _, right in alignment)

    def aligned_f(f: int) -> bool:
        return any(left == f for left, _ in alignment)

    added = True
    while added:
        added = False
        for e in range(size):
            for f in range(size):
                if (f, e) not in alignment:
                    continue
                for down, across in ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)):
                    new = f + across, e + down
                    if (not aligned_e(new[1]) or not aligned_f(new[0])) and new in union and new not in alignment:
                        alignment.add(new)
                        added = True
    for some in (e2f, f2e):
        for e in range(size):
            for f in range(size):
                if not aligned_e(e) and not aligned_f(f) and (f, e) in some:
                    alignment.add((f, e))
    return alignment


@given(link_sets, link_sets)
def test_grow_diag_final_and_equals_the_published_pseudocode(
    forward: AbstractSet[Link], backward: AbstractSet[Link]
) -> None:
    assert grow_diag_final_and(forward, backward) == grow_by_published_pseudocode(forward, backward, SIZE)


@given(link_sets, link_sets)
def test_symmetrized_links_lie_between_intersection_and_union(
    forward: AbstractSet[Link], backward: AbstractSet[Link]
) -> None:
    links = grow_diag_final_and(forward, backward)
    assert forward & backward <= links <= forward | backward
    assert grow_diag_final_and(forward, forward) == forward
    for source, target in (forward | backward) - links:  # every link left out has an aligned word
        assert any(left == source or right == target for left, right in links)


def test_ter_equals_sacrebleu() -> None:
    found = ter(HYPOTHESES, REFERENCES)
    assert found.value == sacrebleu.TER(normalized=True).corpus_score(HYPOTHESES, [REFERENCES]).score
    assert ter(REFERENCES, REFERENCES).value == 0


def test_bleu_is_grouped_by_source_length() -> None:
    sources = ["a b", "a " * 10, "a " * 11, "a " * 51]
    groups = bleu_by_length(sources, HYPOTHESES, REFERENCES)
    assert [(group.words, group.pairs) for group in groups] == [("1–10", 2), ("11–20", 1), ("over 50", 1)]
    assert groups[0].bleu == bleu(HYPOTHESES[:2], REFERENCES[:2]).value


def test_compared_systems_have_bootstrap_p_values_against_the_first() -> None:
    references = [f"the {word} house is number {number}" for number in range(60) for word in ("old", "new")]
    worse = [line.replace("house", "tree") if number % 2 else line for number, line in enumerate(references)]
    first, same, other = compare_systems({"good": references, "same": list(references), "bad": worse}, references)
    assert same.p_value == 1
    assert (first.name, first.p_value) == ("good", None)
    assert first.value == pytest.approx(100)
    assert other.p_value is not None
    assert other.p_value < 0.05
    assert other.value == bleu(worse, references).value
    with pytest.raises(ValueError, match="at least two systems, not 1"):
        compare_systems({"good": references}, references)


def test_lowercase_scores_ignore_case() -> None:
    shouted = [line.upper() for line in REFERENCES]
    assert bleu(shouted, REFERENCES).value < 50
    found = bleu(shouted, REFERENCES, lowercase=True)
    assert found.value == pytest.approx(100)
    assert "case:lc" in found.signature
    assert chrf(shouted, REFERENCES, lowercase=True).value == pytest.approx(100)
