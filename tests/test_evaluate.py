"""AER against its definition, gold files, and sacreBLEU's own figures."""

from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.evaluate import (
    Gold,
    Link,
    aer,
    alignment_score,
    bleu,
    by_length,
    chrf,
    compare,
    grow_diag_final_and,
    pharaoh,
    read_gold,
    ter,
)

SIZE = 4
link_sets = st.frozensets(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=6)
corpora = st.lists(st.tuples(link_sets, link_sets, link_sets), min_size=1, max_size=5)
PAIR = ("the old house", "das alte Haus")


def cell_by_cell(rows: list[tuple[AbstractSet[Link], AbstractSet[Link], AbstractSet[Link]]]) -> float:
    """The definition, walked over every cell of every matrix; P holds S."""
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


def gold_file(folder: Path, text: str) -> Path:
    path = folder / "test.align"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(path: Path, pairs: list[tuple[str, str]]) -> str:
    with pytest.raises(UserError) as caught:
        read_gold(path, pairs)
    return str(caught.value)


def test_aer_by_hand() -> None:
    sure: list[set[Link]] = [{(0, 0), (1, 1)}]
    possible: list[set[Link]] = [{(0, 0), (1, 1), (1, 2)}]
    assert aer(sure, sure, possible) == 0
    assert aer([{(0, 0), (1, 1), (1, 2)}], sure, possible) == 0, "a possible link does no harm"
    assert aer([{(2, 2)}], sure, possible) == 1
    assert aer([set()], sure, possible) == 1
    # A = {0-0, 1-2, 2-2}: |A∩S| = 1, |A∩P| = 2, |A| = 3, |S| = 2
    assert aer([{(0, 0), (1, 2), (2, 2)}], sure, possible) == pytest.approx(1 - 3 / 5)


def test_aer_is_of_the_corpus_not_a_mean_of_sentences() -> None:
    found: list[set[Link]] = [{(0, 0)}, {(0, 1), (1, 1), (2, 1)}]
    sure: list[set[Link]] = [{(0, 0)}, {(0, 0)}]
    # hits 1+1 and 0, links 1+1 and 3+1
    assert aer(found, sure, sure) == pytest.approx(1 - 2 / 6)


def test_a_sure_link_is_possible_even_where_the_gold_does_not_say_so() -> None:
    assert aer([{(0, 0)}], [{(0, 0)}], [set()]) == 0


def test_aer_of_nothing() -> None:
    assert aer([], [], []) == 0
    assert aer([set()], [set()], [set()]) == 0


@given(corpora)
def test_aer_is_the_definition(rows: list[tuple[AbstractSet[Link], AbstractSet[Link], AbstractSet[Link]]]) -> None:
    found, sure, possible = zip(*rows, strict=True)
    value = aer(found, sure, possible)
    assert value == pytest.approx(cell_by_cell(rows))
    assert 0 <= value <= 1
    assert aer(sure, sure, possible) == 0


def test_aer_of_unequal_lists_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer"):
        aer([set()], [set(), set()], [set(), set()])


def test_gold_files(tmp_path: Path) -> None:
    path = gold_file(tmp_path, "0-0 1?1 2-2 1p2\n\n2-0\n")
    assert read_gold(path, [PAIR] * 3) == [
        Gold(frozenset({(0, 0), (2, 2)}), frozenset({(0, 0), (1, 1), (2, 2), (1, 2)})),
        Gold(frozenset(), frozenset()),
        Gold(frozenset({(2, 0)}), frozenset({(2, 0)})),
    ]


@pytest.mark.parametrize("link", ["0", "0-", "-1", "0-1-2", "0:1", "a-b", "0--1", "0.0-1", "0-1,", "0 - 1"])
def test_what_is_no_link_is_named_by_file_and_line(link: str, tmp_path: Path) -> None:
    path = gold_file(tmp_path, f"0-0\n1-1 {link}\n")
    assert complaint(path, [PAIR, PAIR]).startswith(f"{path}:2: {link.split()[0]!r} is not a link")


@pytest.mark.parametrize(("link", "shown"), [("3-0", "3-0"), ("0-3", "0-3"), ("0?9", "0-9")])
def test_a_link_past_the_sentence_is_named_by_file_and_line(link: str, shown: str, tmp_path: Path) -> None:
    path = gold_file(tmp_path, f"0-0\n2-2\n1-1 {link}\n")
    said = complaint(path, [PAIR] * 3)
    assert said.startswith(f"{path}:3: link {shown} runs past the sentences, which have 3 and 3 words")


@pytest.mark.parametrize(("lines", "pairs"), [(1, 2), (2, 1), (0, 1)])
def test_a_gold_file_has_a_line_a_pair(lines: int, pairs: int, tmp_path: Path) -> None:
    path = gold_file(tmp_path, "0-0\n" * lines)
    assert complaint(path, [PAIR] * pairs).startswith(f"{path} has {lines} lines for {pairs} pairs")


def test_a_gold_file_that_is_not_there(tmp_path: Path) -> None:
    assert complaint(tmp_path / "gone", [PAIR]) == f"there is no file {tmp_path / 'gone'}"


def test_pharaoh_is_in_order() -> None:
    assert pharaoh({(10, 0), (2, 1), (2, 0)}) == "2-0 2-1 10-0"
    assert pharaoh([]) == ""


@given(rows=st.lists(link_sets, min_size=1, max_size=4))
def test_pharaoh_comes_back(rows: list[frozenset[Link]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = gold_file(tmp_path_factory.getbasetemp(), "".join(pharaoh(links) + "\n" for links in rows))
    gold = read_gold(path, [(" a" * SIZE, " b" * SIZE)] * len(rows))
    assert [links.sure for links in gold] == [links.possible for links in gold] == rows


HYPOTHESES = ["the old house is small .", "a tree stands in the garden", "", "it's 5% more, isn't it?"]
REFERENCES = ["the old house was small .", "a tree stands in the yard", "hello", "it is 5% more, isn't it?"]


def test_bleu_is_sacrebleus() -> None:
    found = bleu(HYPOTHESES, REFERENCES)
    assert found.value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], force=True).score
    assert 0 < found.value < 100
    assert found.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_chrf_is_sacrebleus() -> None:
    found = chrf(HYPOTHESES, REFERENCES)
    assert found.value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 0 < found.value < 100
    assert found.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


words = st.lists(st.sampled_from(["a", "b", "c", ".", "the"]), max_size=8).map(" ".join)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=5))
def test_scores_are_sacrebleus_on_any_text(rows: list[tuple[str, str]]) -> None:
    hypotheses, references = [row[0] for row in rows], [row[1] for row in rows]
    assert bleu(hypotheses, references).value == sacrebleu.corpus_bleu(hypotheses, [references], force=True).score
    assert chrf(hypotheses, references).value == sacrebleu.corpus_chrf(hypotheses, [references]).score


def test_a_perfect_translation_scores_100() -> None:
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert chrf(REFERENCES, REFERENCES).value == pytest.approx(100)


@pytest.mark.parametrize(
    ("hypotheses", "references"), [(["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], []), ([], ["a"])]
)
def test_each_hypothesis_needs_a_reference(hypotheses: list[str], references: list[str]) -> None:
    for score in (bleu, chrf):
        with pytest.raises(ValueError, match=f"{len(hypotheses)} hypotheses for {len(references)} references"):
            score(hypotheses, references)


def test_precision_is_of_the_possible_and_recall_of_the_sure() -> None:
    score = alignment_score([{(0, 0), (1, 2), (2, 2)}], [{(0, 0), (1, 1)}], [{(0, 0), (1, 1), (1, 2)}])
    assert score.precision == pytest.approx(2 / 3)
    assert score.recall == pytest.approx(1 / 2)
    assert alignment_score([set()], [set()], [set()]) == (0.0, 1.0, 1.0)


def test_gold_in_naacls_form(tmp_path: Path) -> None:
    path = gold_file(tmp_path, "0001 1 1 S\n1 2 3 P\n\n0003 3 1\n3 1 2 S 0.9\n")
    assert read_gold(path, [PAIR] * 3) == [
        Gold(frozenset({(0, 0)}), frozenset({(0, 0), (1, 2)})),
        Gold(frozenset(), frozenset()),
        Gold(frozenset({(2, 0), (0, 1)}), frozenset({(2, 0), (0, 1)})),
    ]
    assert read_gold(gold_file(tmp_path, "1 0 2 S\n"), [PAIR], first=0)[0].sure == {(0, 2)}
    assert "1 x 1 S" in complaint(gold_file(tmp_path, "1 1 1 S\n1 x 1 S\n"), [PAIR])
    assert complaint(gold_file(tmp_path, "1 1 1 S\n4 1 1 S\n"), [PAIR]).startswith(
        f"{tmp_path / 'test.align'}:2: there is no pair 4"
    )


def test_links_may_count_from_one(tmp_path: Path) -> None:
    path = gold_file(tmp_path, "1-1 3-2\n")
    assert read_gold(path, [PAIR], first=1)[0].sure == {(0, 0), (2, 1)}
    with pytest.raises(UserError, match=r"link 0-1 runs past .* \(links count from 1\)"):
        read_gold(gold_file(tmp_path, "0-1\n"), [PAIR], first=1)


def test_growing_along_the_diagonal() -> None:
    forward = {(0, 0), (1, 1), (2, 1), (4, 4)}
    backward = {(0, 0), (1, 1), (1, 2), (5, 3)}
    # both have 0-0 and 1-1; their neighbours 2-1 and 1-2 each bring in a free word; 4-4 and 5-3 link two free words
    assert grow_diag_final_and(forward, backward) == {(0, 0), (1, 1), (2, 1), (1, 2), (4, 4), (5, 3)}
    # 0-2 is no neighbour, and its source word is taken: left out
    assert grow_diag_final_and({(0, 0), (0, 2)}, {(0, 0)}) == {(0, 0)}


def koehn(e2f: AbstractSet[Link], f2e: AbstractSet[Link], size: int) -> set[Link]:
    """The published pseudo-code, cell by cell; e is the target, f the source."""
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
def test_growing_is_koehns(forward: AbstractSet[Link], backward: AbstractSet[Link]) -> None:
    assert grow_diag_final_and(forward, backward) == koehn(forward, backward, SIZE)


@given(link_sets, link_sets)
def test_symmetrised_links_lie_between_intersection_and_union(
    forward: AbstractSet[Link], backward: AbstractSet[Link]
) -> None:
    links = grow_diag_final_and(forward, backward)
    assert forward & backward <= links <= forward | backward
    assert grow_diag_final_and(forward, forward) == forward
    for source, target in (forward | backward) - links:  # what was left out links no two free words
        assert any(left == source or right == target for left, right in links)


def test_ter_is_sacrebleus() -> None:
    found = ter(HYPOTHESES, REFERENCES)
    assert found.value == sacrebleu.TER(normalized=True).corpus_score(HYPOTHESES, [REFERENCES]).score
    assert ter(REFERENCES, REFERENCES).value == 0


def test_bleu_by_the_length_of_the_source() -> None:
    sources = ["a b", "a " * 10, "a " * 11, "a " * 51]
    groups = by_length(sources, HYPOTHESES, REFERENCES)
    assert [(group.words, group.pairs) for group in groups] == [("1–10", 2), ("11–20", 1), ("over 50", 1)]
    assert groups[0].bleu == bleu(HYPOTHESES[:2], REFERENCES[:2]).value


def test_systems_side_by_side() -> None:
    references = [f"the {word} house is number {number}" for number in range(60) for word in ("old", "new")]
    worse = [line.replace("house", "tree") if number % 2 else line for number, line in enumerate(references)]
    first, same, other = compare({"good": references, "same": list(references), "bad": worse}, references)
    assert same.p == 1
    assert (first.name, first.p) == ("good", None)
    assert first.value == pytest.approx(100)
    assert other.p is not None
    assert other.p < 0.05
    assert other.value == bleu(worse, references).value
    with pytest.raises(ValueError, match="at least two systems, not 1"):
        compare({"good": references}, references)


def test_letters_may_count_for_nothing() -> None:
    shouted = [line.upper() for line in REFERENCES]
    assert bleu(shouted, REFERENCES).value < 50
    found = bleu(shouted, REFERENCES, lowercase=True)
    assert found.value == pytest.approx(100)
    assert "case:lc" in found.signature
    assert chrf(shouted, REFERENCES, lowercase=True).value == pytest.approx(100)
