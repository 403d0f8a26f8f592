"""From text to encoded pairs: what is held out, left out, tagged, kept and made again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import environment

from regard.data import cache, encoding, preparation
from regard.data.corpus import Pair
from regard.data.encoding import Encoder, Raw, encoded
from regard.data.preparation import Prepared, prepare, vocabularies
from regard.data.ragged import Ragged
from regard.data.settings import Corpus, DataSettings, corpora
from regard.data.survey import chosen, hashed, survey
from regard.errors import UserError
from regard.folders import cache_folder
from regard.symbols import UNK
from regard.text import Subwords, TextSettings, Tokenizers, Words
from regard.text.merges import Merges

words = st.sampled_from(["", " ", "a", "b", "c", "d", "e", "f"])
PAIRS = [Pair(f"the house number {number}" + " !" * (number % 3), f"das Haus Nummer {number}") for number in range(40)]
WORDS = TextSettings(kind="word", vocabulary=100)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tsv(path: Path, pairs: Sequence[Pair]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return path


def settings(*paths: Path, **more: Any) -> DataSettings:
    return DataSettings(train=tuple(map(str, paths)), **more)


def prepared(data: DataSettings, text: TextSettings = WORDS) -> tuple[Prepared, Tokenizers]:
    found = survey(data, 1)
    tokenizers = vocabularies(data, text, found)
    return prepare(data, text, tokenizers, found), tokenizers


def listed(rows: Ragged) -> list[list[int]]:
    return [list(map(int, rows[row])) for row in range(len(rows))]


def held_out(corpus: Sequence[Pair], wanted: int, seed: int) -> set[str]:
    numbers = np.array([hashed(pair, seed) for pair in corpus], dtype=np.uint64)
    held = set(chosen(numbers, wanted).tolist())
    return {pair.source for pair in corpus if hashed(pair, seed) in held}


@given(st.lists(st.builds(Pair, words, words), max_size=60), st.integers(1, 8), st.integers(0, 5))
def test_sources_are_held_out_whole_and_some_are_left(corpus: list[Pair], wanted: int, seed: int) -> None:
    whole = [pair for pair in corpus if pair.source.strip() and pair.target.strip()]
    if len({pair.source for pair in whole}) < 2:
        with pytest.raises(UserError, match="too little to train and validate on"):
            held_out(corpus, wanted, seed)
        return
    held = held_out(corpus, wanted, seed)
    dev = [pair for pair in whole if pair.source in held]
    assert dev
    assert len(dev) < len(whole)
    assert len(dev) <= max(1, min(wanted, len(whole) // 10)) or len(held) == 1


def test_held_out_pairs_are_a_tenth_and_depend_on_the_seed(tmp_path: Path) -> None:
    corpus = tsv(tmp_path / "a.tsv", [Pair(f"s{number}", f"t{number}") for number in range(200)])
    found = [survey(settings(corpus), seed) for seed in (1, 2)]
    assert [len(each.dev) for each in found] == [20, 20]
    assert found[0].dev != found[1].dev
    assert found[0].counts == [180]
    assert len(survey(settings(corpus, dev_pairs=7), 1).dev) == 7


def test_a_source_with_most_of_the_corpus_is_not_held_out(tmp_path: Path) -> None:
    corpus = tsv(tmp_path / "a.tsv", [*(Pair("often", str(number)) for number in range(99)), Pair("once", "x")])
    for seed in range(5):
        assert survey(settings(corpus), seed).dev == [Pair("once", "x")]


def test_what_is_held_out_is_not_trained_on_also_where_another_corpus_has_it(tmp_path: Path) -> None:
    first, second = tsv(tmp_path / "a.tsv", PAIRS), tsv(tmp_path / "b.tsv", PAIRS[::-1])
    data = settings(first, second, tags=(None, "bt"))
    found = survey(data, 1)
    assert len(found.dev) == 4, "of the corpus that is not tagged"
    made, tokenizers = prepared(data)
    trained = {tokenizers.target.decode(row) for row in listed(made.examples.target)}
    assert not trained & {pair.target for pair in found.dev}
    assert [part.pairs for part in made.examples.parts] == [36, 36]


def test_what_is_left_out_is_counted() -> None:
    made = Words.learn(["a b c d"], 20)
    corpus = [
        Pair("a b", "c"),
        Pair("", "a"),
        Pair("a", " "),
        Pair("a b c", "a"),
        Pair("a", "a b c"),
        Pair("d", "zz d"),
    ]
    found = Encoder(Tokenizers(made, made), max_length=2)([Raw(pair) for pair in corpus])
    assert (found.empty, found.too_long) == (2, 2)
    assert listed(found.source) == [made.encode("a b"), made.encode("d")]
    assert listed(found.target) == [made.encode("c"), [1, *made.encode("d")]]


def test_links_of_words_become_links_of_tokens() -> None:
    made = Subwords.learn(["abcabc abc xyz xyxy z"] * 20, 40, "bpe", byte_fallback=False)
    pair = Pair("abc xyz", "xyxy abcabc")
    source, target = (made.split(text)[1] for text in pair)
    wanted = {(left, right) for left, s in enumerate(source) for right, t in enumerate(target) if (s, t) == (0, 1)}
    found = Encoder(Tokenizers(made, made), 99)([Raw(pair, None, frozenset({(0, 1)}))]).links[0].reshape(-1, 2)
    assert {tuple(link) for link in found.tolist()} == wanted
    tagged = Words.learn(["a b"], 20, tags=["bt"])
    linked = Encoder(Tokenizers(tagged, tagged), 99)([Raw(Pair("a b", "b a"), "bt", frozenset({(0, 1)}))]).links
    assert listed(linked) == [[1, 1]], "the tag stands before the first word"


def test_a_tag_is_an_id_that_no_text_has(tmp_path: Path) -> None:
    odd = [*PAIRS, Pair("<bt> a house", "ein Haus")]
    first, second = tsv(tmp_path / "a.tsv", odd), tsv(tmp_path / "b.tsv", odd)
    for text in (WORDS, TextSettings(vocabulary=300), TextSettings(vocabulary=300, shared=False)):
        made, tokenizers = prepared(settings(first, second, dev=(str(first),), tags=(None, "bt")), text)
        tag = tokenizers.source.tag("bt")
        rows = listed(made.examples.source)
        assert not any(tag in row for row in rows[:41])
        assert all(row[0] == tag and tag not in row[1:] for row in rows[41:])
        assert [row[1:] for row in rows[41:]] == rows[:41]
        assert tokenizers.source.decode(rows[-1]) == tokenizers.source.decode(rows[-1][1:])
        with pytest.raises(UserError, match=r"no tag 'other'.*bt"):
            tokenizers.source.tag("other")
    with pytest.raises(UserError, match="trained without tags"):
        prepared(settings(first))[1].source.tag("bt")


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["a.tsv"], [("a.tsv",)]),
        (["a.en", "a.de"], [("a.en", "a.de")]),
        (["a.tsv", "b.en", "b.de", "c.jsonl.gz"], [("a.tsv",), ("b.en", "b.de"), ("c.jsonl.gz",)]),
    ],
)
def test_files_are_corpora_by_their_names(names: list[str], groups: list[tuple[str, ...]]) -> None:
    found = corpora(DataSettings(train=tuple(names)))
    assert found == [Corpus(tuple(map(Path, group))) for group in groups]


@pytest.mark.parametrize("names", [["a.en"], ["a.en", "b.tsv"], ["a.tsv", "b.en"], ["a.en", "a.de", "b.en"]])
def test_a_side_without_the_other_is_named(names: list[str]) -> None:
    with pytest.raises(UserError, match=r"\.en holds one side only"):
        corpora(DataSettings(train=tuple(names)))


def test_weights_and_tags_are_one_for_each_corpus() -> None:
    with pytest.raises(UserError, match=r"data\.weights has 2 values for 1 corpora"):
        corpora(DataSettings(train=("a.tsv",), weights=(1.0, 2.0)))
    found = corpora(DataSettings(train=("a.tsv", "b.tsv"), weights=(1.0, 0.5), tags=(None, "bt")))
    assert [(corpus.weight, corpus.tag) for corpus in found] == [(1.0, None), (0.5, "bt")]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_length": 0}, "at least 1"),
        ({"dev_pairs": 0}, "at least 1"),
        ({"workers": -1}, "not negative"),
        ({"timeout": 0}, "at least 1"),
        ({"weights": (-1.0,)}, "not negative"),
        ({"weights": (0.0,)}, "one is above 0"),
        ({"tags": ("<bt>",)}, "a tag is a word"),
    ],
)
def test_data_settings_are_checked(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DataSettings(**values)


def test_all_cores_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Subwords.learn([side for pair in PAIRS for side in pair], 120, "bpe", byte_fallback=False)
    encoder = Encoder(Tokenizers(made, made), 24)
    raw = [Raw(Pair(pair.source * (number % 3), pair.target)) for number, pair in enumerate(PAIRS * 9)]
    whole = encoder(raw)
    monkeypatch.setattr(encoding, "AT_ONCE", 7)
    parts = list(encoded(iter(raw), encoder, cores=2))
    assert len(parts) > 40
    assert [row for part in parts for row in listed(part.source)] == listed(whole.source)
    assert [row for part in parts for row in listed(part.target)] == listed(whole.target)
    assert sum(part.empty for part in parts) == whole.empty == 120
    assert sum(part.too_long for part in parts) == whole.too_long


class Fatal(Encoder):
    """One that its process does not outlive, but for the first lot, which is encoded at home."""

    def __call__(self, raw: Sequence[Raw]) -> Any:
        if len(raw) == 2:
            os.kill(os.getpid(), 9)
        return super().__call__(raw)


def test_a_process_that_is_killed_while_it_encodes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Words.learn(["a"], 9)
    monkeypatch.setattr(encoding, "AT_ONCE", 3)
    with pytest.raises(UserError, match="ended from outside"):
        list(encoded([Raw(Pair("a", "a"))] * 5, Fatal(Tokenizers(made, made), 9), cores=1))


def test_what_was_prepared_is_found_again(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tsv(tmp_path / "a.tsv", PAIRS)
    first, _ = prepared(settings(corpus))

    def again(*arguments: object, **more: object) -> None:
        raise AssertionError("prepared a second time")

    monkeypatch.setattr(preparation, "write", again)
    monkeypatch.setattr(preparation, "learn", again)
    moved = tsv(tmp_path / "moved.tsv", PAIRS)
    second, _ = prepared(settings(moved))
    assert second.examples.fingerprint == first.examples.fingerprint
    assert listed(second.examples.source) == listed(first.examples.source)
    assert second[1:] == first[1:]


@pytest.mark.parametrize(
    "change",
    [
        {"max_length": 5},
        {"dev_pairs": 2},
        {"tags": ("bt",)},
        {"dev": ("a.tsv",)},
    ],
)
def test_other_settings_are_prepared_anew(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = tsv(Path("a.tsv"), PAIRS)
    first, _ = prepared(settings(corpus))
    second, _ = prepared(settings(corpus, **change))
    assert first.examples.fingerprint != second.examples.fingerprint


def test_other_text_is_prepared_anew(tmp_path: Path) -> None:
    corpus = tsv(tmp_path / "a.tsv", PAIRS)
    first, _ = prepared(settings(corpus))
    tsv(corpus, [Pair(pair.source + " again", pair.target) for pair in PAIRS])
    second, _ = prepared(settings(corpus))
    assert first.examples.fingerprint != second.examples.fingerprint
    assert first.examples.fingerprint == prepared(settings(tsv(tmp_path / "b.tsv", PAIRS)))[0].examples.fingerprint


def damage_bytes(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flip": damage_bytes,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "remove": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", ["source.numbers", "target.offsets", "known.json", "manifest.json"])
def test_a_damaged_cache_is_made_again(
    name: str, how: str, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tsv(tmp_path / "a.tsv", PAIRS)
    first, _ = prepared(settings(corpus, max_length=6))
    rows = listed(first.examples.source)
    (entry,) = own_cache.glob("pairs-*")
    DAMAGE[how](entry / name)
    second, _ = prepared(settings(corpus, max_length=6))
    assert listed(second.examples.source) == rows
    assert cache.damaged(entry) is None
    told = "made again" in capsys.readouterr().err
    assert told or (name, how) == ("manifest.json", "cut"), "whose last byte is a line feed, which JSON can do without"


def test_a_build_that_fails_leaves_nothing(own_cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        cache.entry("some", {"a": 1}, build)
    assert [path.name for path in own_cache.iterdir() if not path.name.endswith(".lock")] == []
    found = cache.entry("some", {"a": 1}, lambda folder: (folder / "whole").touch())
    assert (found / "whole").exists()


def test_several_processes_prepare_once(tmp_path: Path, own_cache: Path) -> None:
    code = (
        "import os, pathlib\n"
        "from regard.data import cache\n"
        "def build(folder):\n"
        "    (folder / 'who').write_text(str(os.getpid()))\n"
        "print((cache.entry('some', {'a': 1}, build) / 'who').read_text())"
    )
    env = {**environment(), "REGARD_CACHE": str(own_cache)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert len({process.communicate()[0] for process in started}) == 1


def test_a_cache_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="REGARD_CACHE can name another folder"):
        cache.entry("some", {}, lambda folder: None)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/regard")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/regard")


def test_nothing_is_left_to_train_on(tmp_path: Path) -> None:
    corpus = tsv(tmp_path / "a.tsv", PAIRS)
    with pytest.raises(UserError, match=r"0 have an empty side, 36 are longer than data\.max_length=1"):
        prepared(settings(corpus, max_length=1))
    other = tsv(tmp_path / "b.tsv", [Pair(f"long long long {n}", "x x x x x") for n in range(20)])
    data = settings(corpus, other, weights=(0.0, 1.0), max_length=4)
    with pytest.raises(UserError, match="leave out all"):
        prepared(data)


def test_merges_are_left_out_as_the_seed_has_it(tmp_path: Path) -> None:
    corpus = tsv(tmp_path / "a.tsv", PAIRS)
    plain, _ = prepared(settings(corpus), TextSettings(vocabulary=300))
    noisy, tokenizers = prepared(settings(corpus), TextSettings(vocabulary=300, dropout=0.3))
    assert plain.examples.fingerprint == noisy.examples.fingerprint, "which is of training, not of what is prepared"
    rows = np.arange(len(plain.examples))
    usual = plain.examples.batch(rows)
    first, again, other = (noisy.examples.batch(rows, seed) for seed in (7, 7, 8))
    assert all(left.equal(right) for left, right in zip(first[:4], again[:4], strict=True))
    assert first.source.shape != other.source.shape or not first.source.equal(other.source)
    assert int(first.lengths.sum()) > 1.1 * int(usual.lengths.sum()), "less is merged"
    for number, ids in enumerate(first.source.tolist()):
        assert tokenizers.source.decode(ids) == tokenizers.source.decode(usual.source[number].tolist())
    kept = Counter(first.source.flatten().tolist()) & Counter(usual.source.flatten().tolist())
    assert kept


CUT = """
import sys
from pathlib import Path
from regard.text import Subwords
made = Subwords.load(Path(sys.argv[1]))
print(made.resample([made.encode(text) for text in sys.argv[2:]], 0.4, 7))
"""


def test_another_process_cuts_the_same_way(tmp_path: Path) -> None:
    texts = [side for pair in PAIRS for side in pair]
    made = Subwords.learn(texts, 120, "bpe", byte_fallback=False)
    made.save(tmp_path / "model")
    here = made.resample([made.encode(text) for text in texts], 0.4, 7)
    for hashes in ("1", "2"):
        command = [sys.executable, "-c", CUT, str(tmp_path / "model"), *texts]
        own = {**environment(), "PYTHONHASHSEED": hashes}
        there = subprocess.run(command, env=own, capture_output=True, text=True, check=True).stdout
        assert there == f"{here}\n"


BPE = Subwords.learn([side for pair in PAIRS for side in pair], 400, "bpe")


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=5))
def test_where_nothing_is_left_out_words_are_cut_as_ever(texts: list[str]) -> None:
    given = [BPE.encode(text) for text in texts]
    assert BPE.resample(given, 0.0, 1) == given
    for ids, other in zip(given, BPE.resample(given, 0.5, 1), strict=True):
        assert BPE.decode(other) == BPE.decode(ids)
        assert len(other) >= len(ids)


def test_a_merge_is_left_out_as_often_as_dropout_says() -> None:
    merges = Merges({"ab": -1.0}, {"a": 0, "b": 1, "ab": 2})
    random = Random(1)
    kept = sum(merges.cut(["a", "b"], 0.3, random) == ["ab"] for _ in range(10_000))
    assert kept / 10_000 == pytest.approx(0.7, abs=0.02)
    assert merges.cut(["a", "b", "a", "b"], 0.0, random) == ["ab", "ab"]
    first = Merges({"ab": -1.0, "bc": 0.0, "abc": -2.0}, {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5})
    assert first.cut(list("abcx"), 0.0, random) == ["abc", "x"]


def test_a_tag_and_unknown_pieces_survive_dropout() -> None:
    made = Subwords.learn(["abcabc abc"] * 20, 40, "bpe", byte_fallback=False, tags=["bt"])
    tag = made.tag("bt")
    known, unknown = [tag, *made.encode("abcabc")], made.encode("abc ü")
    found = made.resample([known, unknown, []], 0.9, 1)
    assert found[0][0] == tag
    assert len(found[0]) > len(known)
    assert found[1].count(UNK) == 1
    assert made.decode(found[1]) == made.decode(unknown)
    assert found[2] == []


def test_a_survey_of_nothing(tmp_path: Path) -> None:
    corpus = tsv(tmp_path / "a.tsv", [Pair("", "")])
    with pytest.raises(UserError, match="no pairs in there"):
        survey(settings(corpus), 1)
    with pytest.raises(UserError, match="nothing to train on"):
        survey(DataSettings(), 1)
    with pytest.raises(UserError, match="there is no file"):
        survey(settings(tmp_path / "none.tsv"), 1)


def test_a_manifest_names_every_file(tmp_path: Path, own_cache: Path) -> None:
    prepared(settings(tsv(tmp_path / "a.tsv", PAIRS), max_length=6))
    (entry,) = own_cache.glob("pairs-*")
    named = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))["files"]
    assert set(named) == {path.name for path in entry.iterdir()} - {"manifest.json"}


def test_a_run_that_goes_on_finds_what_was_prepared_for_its_longest_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tsv(tmp_path / "a.tsv", PAIRS)
    first, _ = prepared(settings(corpus))
    monkeypatch.setattr(preparation, "write", lambda *_, **__: pytest.fail("prepared a second time"))
    second, _ = prepared(settings(corpus, max_length=first.longest))
    assert second.examples.fingerprint == first.examples.fingerprint
