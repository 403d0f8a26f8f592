"""`regard data inspect` and `regard data clean`: rules, statistics, writing, and the commands."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import re
import statistics
import subprocess
import sys
import unicodedata
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from support.commands import Command, environment, regard_command

from regard.corpus import filters
from regard.corpus.filters import FilterPipeline, TextHashSet, count_words, hash_text, peek_pairs
from regard.corpus.statistics import (
    CorpusStatistics,
    ReservoirSample,
    find_quantile,
    make_length_histogram,
    summarize_distribution,
)
from regard.corpus.writers import open_pair_writer
from regard.data.languages import find_main_script, find_script
from regard.data.readers.dispatch import iterate_pairs
from regard.data.readers.text import Pair
from regard.data.split import DataSettings
from regard.errors import UserError
from regard.tasks import translation
from regard.training import train

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
GOOD_PAIR = Pair("The old teacher reads a book .", "Die alte Lehrerin liest ein Buch .")

# for each rule: pairs that it drops, and similar pairs that it keeps
RULE_EXAMPLES: dict[str, tuple[list[Pair], list[Pair]]] = {
    "empty": ([Pair("", "x"), Pair("x", " \u3000\t"), Pair("", "")], [Pair("x", "y")]),
    "broken": (
        [Pair("a\x00b", "c"), Pair("a", "sch\ufffdn"), Pair("a\x85", "b"), Pair("a", "\x1bb")],
        [Pair("a\tb", "c"), Pair("a\nb", "naïve"), Pair("a\u00a0b", "c\u2028d")],
    ),
    "short": ([Pair("one", "eins zwei"), Pair("one two", "")], [Pair("one two", "eins zwei drei")]),
    "long": ([Pair("w " * 11, "w"), Pair("w", "w " * 11)], [Pair("w " * 10, "w " * 10)]),
    "ratio": ([Pair("w", "w " * 6), Pair("w " * 24, "w " * 10)], [Pair("w", "w " * 5), Pair("w " * 10, "w " * 23)]),
    "copied": ([Pair("New York", "new  york"), Pair("STRASSE", "straße")], [Pair("New York", "Neu York")]),
    "letters": (
        [Pair("12.5 % (3)", "zwölf"), Pair("a b c", "1 2 3 a")],
        [Pair("no. 5", "Nr. 5 a"), Pair("नमस्ते", "สวัสดี")],
    ),
    "script": (
        [Pair("привет, мир", "x"), Pair("x", "hello"), Pair("αβγ ab", "x")],
        [Pair("hello мир", "привет world"), Pair("123 …", "5"), Pair("naïve café", "Ёлка")],
    ),
    "duplicate": ([GOOD_PAIR], []),
    "same-source": ([Pair(GOOD_PAIR.source, "etwas anderes")], [Pair("Another one .", GOOD_PAIR.target)]),
}


def make_rule(name: str) -> filters.PairFilter:
    """Return the rule with the limits that `RULE_EXAMPLES` are written for."""
    special: dict[str, filters.PairFilter] = {
        "short": filters.make_filter("short", min_words=2),
        "long": filters.make_filter("long", max_words=10),
        "ratio": filters.make_filter("ratio", max_ratio=2),
        "script": filters.make_filter("script", source="latin", target="cyrillic"),
        "same-source": filters.make_filter("same-source"),
    }
    rule = special.get(name) or next(rule for rule in filters.make_default_filters((None, None)) if rule.name == name)
    if name in ("duplicate", "same-source"):
        assert not rule.rejects(GOOD_PAIR)
    return rule


@pytest.mark.parametrize("name", RULE_EXAMPLES)
def test_rule_drops_its_examples_and_keeps_others(name: str) -> None:
    rule = make_rule(name)
    dropped, kept = RULE_EXAMPLES[name]
    assert rule.name == name
    assert [pair for pair in dropped if not rule.rejects(pair)] == []
    assert [pair for pair in kept if rule.rejects(pair)] == []


def test_every_rule_has_examples() -> None:
    assert set(RULE_EXAMPLES) == {rule.name for rule in filters.make_default_filters((None, None), unique_source=True)}


def test_dropped_pair_is_counted_for_the_first_rule_only() -> None:
    sieve = FilterPipeline(filters.make_default_filters(("latin", "latin")))
    corpus = [
        GOOD_PAIR,
        Pair("", ""),
        GOOD_PAIR,
        Pair("a", "a"),
        Pair("a", "a"),
        Pair("привет", "hi"),
        Pair("1", "2"),
        Pair("\x00", ""),
    ]
    assert [sieve.accepts(pair) for pair in corpus] == [True, *[False] * 7]
    counts = {"empty": 2, "duplicate": 1, "copied": 2, "script": 1, "letters": 1}
    assert {name: count for name, count in sieve.num_rejected.items() if count} == counts
    assert sieve.to_dict()["read"] == 8
    assert sieve.to_dict()["kept"] == 1


def test_pair_dropped_by_another_rule_does_not_count_as_seen() -> None:
    sieve = FilterPipeline([filters.make_filter("long", max_words=1), filters.make_filter("same-source")])
    assert [sieve.accepts(pair) for pair in (Pair("a", "b b"), Pair("a", "c"), Pair("a", "d"))] == [False, True, False]


def test_rules_are_switched_off_by_name() -> None:
    left = filters.exclude_filters(filters.make_default_filters((None, None)), ["copied", "script"])
    assert {"copied", "script"} & {rule.name for rule in left} == set()
    assert len(left) == 7
    with pytest.raises(UserError, match="there is no rule 'ratios'; did you mean 'ratio'"):
        filters.exclude_filters(left, ["ratios"])


@given(source=TEXTS, target=TEXTS)
def test_rules_accept_any_text(source: str, target: str) -> None:
    pair = Pair(source, target)
    for rule in filters.make_default_filters(("latin", "cjk"), unique_source=True):
        assert rule.rejects(pair) in (True, False)


@given(TEXTS)
def test_fraction_of_letters_equals_unicode_categories(text: str) -> None:
    ink = [character for character in text if not character.isspace()]
    letters = [c for c in ink if unicodedata.category(c)[0] in "LM"]
    ambiguous = [c for c in ink if unicodedata.category(c) in ("Nl", "No")]  # ², Ⅷ: \\w of Python matches them
    if ink and not ambiguous:
        assert filters.compute_letter_fraction(text) == pytest.approx(len(letters) / len(ink))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("  ", 0),
        ("a small house", 3),
        ("naïve café", 2),
        ("我喜欢 Python 语言。", 4),
        ("日本語のテキスト", 4),
        ("「はい」、と。", 2),
        ("สวัสดีครับ", 3),
        ("안녕하세요 세계", 2),
    ],
)
def test_words_are_counted_in_any_script(text: str, count: int) -> None:
    assert count_words(text) == count


@pytest.mark.parametrize(
    "name", ["Latin", "Greek", "Cyrillic", "Hebrew", "Arabic", "Devanagari", "Thai", "Hangul", "Tamil"]
)
def test_scripts_agree_with_the_regex_module(name: str) -> None:
    pattern = regex.compile(rf"[\p{{L}}&&\p{{Script={name}}}]", regex.V1)
    letters = [chr(code) for code in range(0x3000) if pattern.match(chr(code))]
    assert letters
    wrong = [letter for letter in letters if find_script(letter) not in (name.lower(), None)]
    assert [unicodedata.name(letter) for letter in wrong] == []
    others = [
        chr(code) for code in range(0x3000) if find_script(chr(code)) == name.lower() and chr(code) not in letters
    ]
    assert [letter for letter in others if not regex.match(r"\p{Script=Common}", letter)] == []


@pytest.mark.parametrize(
    ("source", "target", "script"),
    [
        (
            "The teacher of our school in Bonn reads an old newspaper every morning before breakfast.",
            "私たちのボンの学校の先生は、毎朝、朝食の前に古い新聞を読んでいます。",
            "cjk",
        ),
        ("Thank you very much for helping me.", "手伝ってくださって、本当にありがとうございました。", "cjk"),
        ("Hello!", "こんにちは、お元気ですか。", "cjk"),
        ("My name is Christopher.", "我叫Christopher。", "cjk"),
        ("Open %(name)s in Firefox.", "在 Firefox 中打开 %(name)s。", "cjk"),
        ("Field of type: %(field_type)s", "حقل نوع: %(field_type)s", "arabic"),
        ("I love cats and dogs.", "ฉันรักแมวและสุนัข", "thai"),
    ],
)
def test_clean_pairs_of_distant_scripts_are_kept(source: str, target: str, script: str) -> None:
    for pair, scripts in ((Pair(source, target), ("latin", script)), (Pair(target, source), (script, "latin"))):
        rules = FilterPipeline(filters.make_default_filters(scripts))
        assert rules.accepts(pair), rules.num_rejected


@pytest.mark.parametrize(
    ("target", "rule"),
    [("Firefox", "script"), ("打 please click here to open it now", "script"), ("打开。" * 20, "ratio")],
)
def test_wrong_translations_into_chinese_are_left_out(target: str, rule: str) -> None:
    rules = FilterPipeline(filters.make_default_filters(("latin", "cjk")))
    assert not rules.accepts(Pair("Open it in Firefox.", target))
    assert rules.num_rejected[rule] == 1


def test_main_script_of_a_text_is_found() -> None:
    assert find_main_script(Counter("日本語のテキスト・ﾃｷｽﾄ")) == "cjk"
    assert find_main_script(Counter("Tekstъ на двух")) is None
    assert find_main_script(Counter("12 …")) is None
    assert find_main_script(Counter("ASCII и ещё")) is None


def test_main_scripts_of_a_corpus_are_found() -> None:
    corpus = [Pair("hello", "привет")] * 9 + [Pair("γειά", "hello")]
    assert filters.find_main_scripts(corpus) == ("latin", "cyrillic")
    first, everything = peek_pairs(corpus)
    assert first == list(everything) == corpus


@given(st.lists(st.integers(1, 2**64 - 1)))
def test_seen_keys_behave_like_a_set(keys: list[int]) -> None:
    seen, reference = TextHashSet(), set[int]()
    for number in keys + keys:
        assert seen.add_hash(number) == (number not in reference)
        reference.add(number)
    assert len(seen) == len(reference)


def test_seen_table_grows_within_its_memory_bound() -> None:
    seen = TextHashSet()
    assert all(seen.add_text(str(number)) for number in range(20_000))
    assert not any(seen.add_text(str(number)) for number in range(20_000))
    assert len(seen) == 20_000
    assert len(seen._slots) * 8 <= 16 * 20_000 * 1.1 * 1.5


def test_keys_are_stable_and_separate_their_parts() -> None:
    assert hash_text("ab", "c") != hash_text("a", "bc") != hash_text("abc")
    assert hash_text("a") == hash_text("a")
    assert 0 < hash_text("") < 2**64


@given(st.lists(st.integers(0, 50), min_size=1))
def test_summary_statistics_equal_brute_force(values: list[int]) -> None:
    counted = Counter[float](values)
    found = summarize_distribution(counted)
    assert found["mean"] == pytest.approx(statistics.fmean(values))
    assert found["median"] == statistics.median_low(values)
    assert (found["min"], found["max"]) == (min(values), max(values))
    p95 = found["p95"]
    assert sum(value <= p95 for value in values) >= 0.95 * len(values) > sum(value < p95 for value in values)
    assert sum(make_length_histogram(counted).values()) == len(values)
    assert find_quantile(counted, 0.05) <= found["median"] <= p95


def test_sample_is_uniform_and_without_repetition() -> None:
    drawn = Counter[int]()
    for seed in range(2000):
        sample = ReservoirSample(3, seed)
        for number in range(10):
            sample.add_pair(Pair(str(number), ""))
        drawn.update(number for number, _ in sample.pairs)
        assert len(sample.pairs) == len(set(sample.pairs)) == 3
    assert all(450 < drawn[number] < 750 for number in range(1, 11)), drawn


CORPUS = [
    GOOD_PAIR,
    GOOD_PAIR,
    Pair(GOOD_PAIR.source, "Noch eine ."),
    Pair("", "leer"),
    Pair("привет", "hallo ihr"),
    Pair("a b c", "d e f"),
]


def test_inspection_report_counts_pairs_words_and_scripts() -> None:
    inspection = CorpusStatistics(filters.make_default_filters(("latin", "latin")), num_samples=10)
    for pair in CORPUS:
        inspection.add_pair(pair)
    report = inspection.to_dict()
    assert (report["pairs"], report["duplicates"], report["duplicate_sources"]) == (6, 1, 2)
    assert (report["source"]["empty"], report["target"]["empty"]) == (1, 0)
    assert report["source"]["characters"] == sum(len(pair.source) for pair in CORPUS)
    assert report["source"]["words"] == {"mean": 25 / 6, "min": 0, "p5": 0, "median": 3, "p95": 7, "max": 7}
    assert report["source"]["histogram"] == {"0": 1, "1-5": 2, "6-10": 3}
    assert report["source"]["scripts"]["cyrillic"] == pytest.approx(6 / 78)
    assert report["clean"]["dropped"]["empty"] == report["clean"]["dropped"]["duplicate"] == 1
    assert report["clean"]["dropped"]["script"] == 1
    assert report["clean"]["kept"] == 3
    assert [row["source"] for row in report["samples"]] == [pair.source for pair in CORPUS]


def test_inspection_report_without_pairs_is_empty() -> None:
    report = CorpusStatistics(filters.make_default_filters((None, None))).to_dict()
    assert (report["pairs"], report["duplicates"], report["source"]["words"], report["samples"]) == (0, 0, {}, [])


# Writing


@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), max_size=5), ending=st.sampled_from([".jsonl", ".jsonl.gz", ".jsonl.zst"])
)
def test_any_pairs_survive_writing_jsonl(
    rows: list[tuple[str, str]], ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"written{ending}"
    with open_pair_writer([path], overwrite=True) as write:
        for row in rows:
            write(Pair(*row))
    assert list(iterate_pairs([path])) == [Pair(*row) for row in rows]


@given(rows=st.lists(st.tuples(TEXTS, TEXTS), max_size=5))
def test_any_pairs_stay_one_line_each_in_tsv_and_text_files(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for outs in ([folder / "w.tsv"], [folder / "w.en", folder / "w.de"]):
        with open_pair_writer(outs, overwrite=True) as write:
            for row in rows:
                write(Pair(*row))
        found = list(iterate_pairs(outs))
        assert len(found) == len(rows)
        assert remove_white_space(found) == remove_white_space(Pair(*row) for row in rows)


def remove_white_space(corpus: Iterable[Pair]) -> list[list[str]]:
    """Return the texts without white space and byte order marks."""
    return [["".join(side.replace("\ufeff", "").split()) for side in pair] for pair in corpus]


@pytest.mark.parametrize(("ending", "opener"), [(".gz", gzip.open), (".xz", lzma.open)])
def test_compressed_output_is_reproducible(ending: str, opener: type, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        with open_pair_writer([tmp_path / folder / f"x.tsv{ending}"]) as write:
            write(GOOD_PAIR)
    with opener(tmp_path / "a" / f"x.tsv{ending}") as file:
        assert file.read().decode() == "\t".join(GOOD_PAIR) + "\n"
    assert (tmp_path / "a" / f"x.tsv{ending}").read_bytes() == (tmp_path / "b" / f"x.tsv{ending}").read_bytes()
    assert [path.name for path in (tmp_path / "a").iterdir()] == [f"x.tsv{ending}"]


def test_writing_does_not_overwrite_and_leaves_nothing_on_failure(tmp_path: Path) -> None:
    old = tmp_path / "old.tsv"
    old.write_text("old\n")
    with pytest.raises(UserError, match="already exists"), open_pair_writer([old]):
        pytest.fail("the file was opened")
    for outs in ([old], [tmp_path / "new.tsv.zst"], [tmp_path / "a.en", tmp_path / "a.de"]):
        with pytest.raises(ZeroDivisionError), open_pair_writer(outs, overwrite=True) as write:
            deque(map(write, (Pair(str(1 / number), "x") for number in (1, 0))))
    assert [path.name for path in tmp_path.iterdir()] == ["old.tsv"]
    assert old.read_text() == "old\n"


@pytest.mark.parametrize(
    "names", [[], ["a.txt"], ["a.xliff"], ["a.tsv", "b.tsv"], ["a.en", "a.en"], ["a.en", "-"]], ids=" ".join
)
def test_output_must_be_one_file_of_pairs_or_two_text_files(names: list[str], tmp_path: Path) -> None:
    outs = [Path("-") if name == "-" else tmp_path / name for name in names]
    with pytest.raises(UserError, match="--out is one file"), open_pair_writer(outs):
        pytest.fail("the file was opened")


# Commands


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    path = tmp_path / "en-de.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in CORPUS), encoding="utf-8")
    return path


def test_inspect_prints_report_as_text_and_json(regard: Command, corpus_file: Path) -> None:
    report = json.loads(regard("data", "inspect", corpus_file, "--json", "--samples", 2).stdout)
    assert report["pairs"] == 6
    assert len(report["samples"]) == 2
    printed = regard("data", "inspect", corpus_file)
    assert (printed.returncode, printed.stderr) == (0, "")
    for expected in (
        "pairs       6\n",
        "1 pairs, 2 repeated sources",
        "latin",
        "cyrillic",
        "would keep",
        "median 3",
        "█",
        GOOD_PAIR.target,
    ):
        assert expected in printed.stdout
    assert printed.stdout == regard("data", "inspect", corpus_file).stdout


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["inspect"], id="inspect", marks=pytest.mark.slow),
        pytest.param(["inspect", "--json"], id="inspect --json"),
        pytest.param(["clean", "--out", "out.tsv"], id="clean"),
    ],
)
def test_data_commands_refuse_a_corpus_without_pairs(regard: Command, tmp_path: Path, command: list[str]) -> None:
    memory = '<tmx version="1.4"><header srclang="en"/><body></body></tmx>'
    for name, content in (("x.tsv", ""), ("x.tmx", memory), ("x.en", ""), ("x.de", "")):
        (tmp_path / name).write_text(content, encoding="utf-8")
    for data, named in ((["x.tsv"], "x.tsv"), (["x.tmx"], "x.tmx"), (["x.en", "x.de"], "x.en and x.de")):
        done = regard("data", command[0], *data, *command[1:])
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"regard: {named}: no pairs in there, nothing to work with\n"
    assert regard("data", command[0], "-", *command[1:]).stderr.startswith("regard: standard input: no pairs in there")
    assert not (tmp_path / "out.tsv").exists()


def test_inspect_states_the_direction_and_units_that_lack_a_language(regard: Command, tmp_path: Path) -> None:
    sides = [f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in (("vi", "con chó"), ("en", "the dog"))]
    units = f"<tu>{''.join(sides)}</tu><tu>{sides[0]}</tu>"
    memory = f'<tmx version="1.4"><header srclang="vi"/><body>{units}</body></tmx>'
    (tmp_path / "memory.tmx").write_text(memory, encoding="utf-8")
    printed = regard("data", "inspect", "memory.tmx", "--source", "en", "--target", "vi").stdout
    assert printed.startswith(
        "direction   en → vi\npairs       1; left out, because they lack one of the languages: 1\n"
    )
    report = json.loads(regard("data", "inspect", "memory.tmx", "--json").stdout)
    assert (report["direction"], report["incomplete"]) == (["vi", "en"], 1)
    assert regard("data", "inspect", "-", input="the dog\tcon chó\n").stdout.startswith("direction   unknown")


def test_training_states_its_direction_and_what_clean_would_remove(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [*(f"the dog {number}\tcon chó {number}" for number in range(40)), "the dog\tthe dog", "a\tb", "a\tb"]
    (tmp_path / "en-vi.tsv").write_text("\n".join(pairs), encoding="utf-8")
    train_for_a_step = {"training.steps": 1, "text.vocabulary": 60, "text.kind": "word", "model.size": 8}
    train("bahdanau2015", tmp_path / "en-vi.tsv", tmp_path / "run", **train_for_a_step)  # type: ignore[arg-type]
    printed = capsys.readouterr().err
    assert "en → vi, " in printed
    assert "en-vi.tsv: regard data clean would remove 2 of 43 pairs (1 copied, 1 duplicate)\n" in printed


def test_training_checks_a_sample_of_a_large_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [f"the dog {number}\tcon chó {number}" for number in range(600)]
    copied = [f"the cat {number}\tthe cat {number}" for number in range(100)]
    (tmp_path / "en-vi.tsv").write_text("\n".join(good + copied + good[:300]), encoding="utf-8")
    monkeypatch.setattr(translation, "_MAX_CHECKED_PAIRS", 500)
    messages = []
    for _ in range(2):
        translation._log_noise(DataSettings(train=(str(tmp_path / "en-vi.tsv"),)))
        messages.append(capsys.readouterr().err)
    assert messages[0] == messages[1]
    found = re.search(
        r"remove about (\S+) % of 1,000 pairs, by a sample of (\d+) \((\S+) % copied, (\S+) % dup", messages[0]
    )
    assert found is not None
    removed, number, copied_part, repeated_part = map(float, found.groups())
    assert 400 < number < 600
    assert abs(removed - 40) < 5
    assert abs(copied_part - 10) < 4
    assert abs(repeated_part - 30) < 5


def test_units_without_a_language_are_counted_as_far_as_training_has_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = [f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in (("vi", "con chó"), ("en", "the dog"))]
    units = f"<tu>{sides[1]}</tu>" + f"<tu>{''.join(sides)}</tu>" * 1200 + f"<tu>{sides[0]}</tu>"
    (tmp_path / "x.tmx").write_text(f'<tmx version="1.4"><header srclang="vi"/><body>{units}</body></tmx>', "utf-8")
    for limit, number in ((1100, "at least 2"), (2000, "2")):
        monkeypatch.setattr(translation, "_MAX_READ_PAIRS", limit)
        translation._log_noise(DataSettings(train=(str(tmp_path / "x.tmx"),)))
        assert f"lack one of the languages: {number}\n" in capsys.readouterr().err


def test_inspect_counts_blank_lines(regard: Command) -> None:
    done = regard("data", "inspect", "-", input="\n\n")
    assert done.returncode == 0
    assert "would keep 0 and remove: empty 2" in done.stdout


def test_clean_writes_kept_pairs_and_reports_dropped_ones(regard: Command, corpus_file: Path, tmp_path: Path) -> None:
    done = regard("data", "clean", corpus_file, "--out", "out/clean.tsv.zst")
    assert (done.returncode, done.stdout) == (0, "")
    kept = [GOOD_PAIR, CORPUS[2], CORPUS[5]]
    assert list(iterate_pairs([tmp_path / "out/clean.tsv.zst"])) == kept
    assert "duplicate" in done.stderr
    assert "kept        3   50.0 %" in done.stderr
    again = regard("data", "clean", corpus_file, "--out", "out/clean.tsv.zst")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "already exists" in again.stderr
    forced = regard("data", "clean", corpus_file, "--out", "out/clean.tsv.zst", "--force", "--unique-source", "--json")
    assert json.loads(forced.stdout)["dropped"]["same-source"] == 1
    two = regard(
        "data", "clean", corpus_file, "--out", "c.en", "--out", "c.de", "--without", "script", "--without", "empty"
    )
    assert two.returncode == 0, two.stderr
    assert (tmp_path / "c.en").read_text(encoding="utf-8").count("\n") == 4


def test_clean_filters_standard_input_to_standard_output(regard: Command) -> None:
    text = "".join(f"{source}\t{target}\n" for source, target in CORPUS)
    done = regard("data", "clean", "-", "--out", "-", "--max-words", 5, "--json", input=text)
    assert done.stdout == "a b c\td e f\n"
    assert json.loads(done.stderr)["dropped"]["long"] == 3
    wrong = regard("data", "clean", "-", "--out", "-", "--target-script", "latn", input=text)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean 'latin'" in wrong.stderr
    none = regard("data", "clean", "-", "--out", "-", "--min-words", 5, "--max-words", 3, input=text)
    assert none.returncode == 2
    assert "no pair has at least 5 words and at most 3" in none.stderr
    latin = regard("data", "clean", "-", "--out", "-", "--source-script", "cyrillic", "--json", input=text)
    assert latin.stdout == "привет\thallo ihr\n"
    broken = regard("data", "clean", "-", "--out", "x.tsv", input=f"{text}no tab\n")
    assert broken.returncode == 2


def test_clean_leaves_no_output_when_its_input_is_invalid(regard: Command, tmp_path: Path) -> None:
    assert regard("data", "clean", "-", "--out", "x.tsv", input="a\tb\nc\n").returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_clean_stops_quietly_when_its_reader_closes_the_pipe(corpus_file: Path) -> None:
    corpus_file.write_text("".join(f"line number {n}\tZeile Nummer {n}\n" for n in range(100_000)), encoding="utf-8")
    process = subprocess.Popen(
        regard_command(["data", "clean", corpus_file, "--out", "-"]),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"line number 0\tZeile Nummer 0\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() != 0
    process.stderr.close()


def test_output_to_a_device_does_not_replace_it(regard: Command, corpus_file: Path) -> None:
    before = Path("/dev/null").stat()
    done = regard("data", "clean", corpus_file, "--out", "/dev/null")
    assert done.returncode == 2  # its name tells no format
    with open_pair_writer([Path("/dev/null"), corpus_file.with_name("x")]) as write:
        write(GOOD_PAIR)
    after = Path("/dev/null").stat()
    assert (before.st_ino, before.st_rdev) == (after.st_ino, after.st_rdev)


MEASURE_MEMORY = """
import resource, sys
from regard.corpus.filters import TextHashSet
seen = TextHashSet()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number in range(200_000): seen.add_text(f"{number} " + 100 * "x")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_use_of_seen_keys_is_small() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_MEMORY], env=environment(), capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 8_000  # KB; the texts alone are 20,000


def test_rules_can_be_sent_to_other_processes() -> None:
    rules = filters.make_default_filters((None, None))
    sent = pickle.loads(pickle.dumps([rule for rule in rules if rule.name != "duplicate"]))
    pair = Pair("a house", "42 % 17 !")
    assert [rule.name for rule in sent if rule.rejects(pair)] == ["letters"]
