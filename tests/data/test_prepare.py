"""Data preparation: dev split, filters, tags, alignment links, cache, BPE dropout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.combinations import each_value
from support.commands import environment

from regard.config import parse_settings
from regard.data import prepare, split
from regard.data.dataset import RaggedArray
from regard.data.prepare import (
    PairEncoder,
    PreparedCorpus,
    RawPair,
    compute_tokenizer_fingerprint,
    encode_in_parallel,
    find_max_sentences,
    load_or_train_tokenizers,
    prepare_training_pairs,
)
from regard.data.readers.text import Pair
from regard.data.split import DataSettings, TrainingCorpus, choose_dev_hashes, hash_source, list_corpora, split_corpora
from regard.errors import UserError
from regard.paths import find_cache_damage, find_cache_folder, find_or_build_cache_entry
from regard.special_tokens import UNK
from regard.tokenizers.segmentation import find_sentencex_version
from regard.tokenizers.sentencepiece import BpeMerges, SentencePieceTokenizer
from regard.tokenizers.tokenizer import TextSettings, Tokenizers
from regard.tokenizers.words import WordTokenizer

words = st.sampled_from(["", " ", "a", "b", "c", "d", "e", "f"])
PAIRS = [Pair(f"the house number {number}" + " !" * (number % 3), f"das Haus Nummer {number}") for number in range(40)]
WORDS = TextSettings(kind="word", vocabulary=100)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_tsv(path: Path, pairs: Sequence[Pair]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return path


def make_settings(*paths: Path, **more: Any) -> DataSettings:
    return DataSettings(train=tuple(map(str, paths)), **more)


def prepare_data(data: DataSettings, text: TextSettings = WORDS) -> tuple[PreparedCorpus, Tokenizers]:
    found = split_corpora(data, 1)
    tokenizers = load_or_train_tokenizers(data, text, found)
    return prepare_training_pairs(data, text, tokenizers, found), tokenizers


def to_lists(rows: RaggedArray) -> list[list[int]]:
    return [list(map(int, rows[row])) for row in range(len(rows))]


def choose_dev_sources(corpus: Sequence[Pair], wanted: int, seed: int) -> set[str]:
    numbers = np.array([hash_source(pair, seed) for pair in corpus], dtype=np.uint64)
    held = set(choose_dev_hashes(numbers, wanted).tolist())
    return {pair.source for pair in corpus if hash_source(pair, seed) in held}


@given(st.lists(st.builds(Pair, words, words), max_size=60), st.integers(1, 8), st.integers(0, 5))
def test_dev_split_takes_all_pairs_of_a_source_and_leaves_some(corpus: list[Pair], wanted: int, seed: int) -> None:
    whole = [pair for pair in corpus if pair.source.strip() and pair.target.strip()]
    if len({pair.source for pair in whole}) < 2:
        with pytest.raises(UserError, match="too little to train and validate on"):
            choose_dev_sources(corpus, wanted, seed)
        return
    held = choose_dev_sources(corpus, wanted, seed)
    dev = [pair for pair in whole if pair.source in held]
    assert dev
    assert len(dev) < len(whole)
    assert len(dev) <= max(1, min(wanted, len(whole) // 10)) or len(held) == 1


def test_dev_split_is_a_tenth_and_depends_on_the_seed(tmp_path: Path) -> None:
    corpus = write_tsv(tmp_path / "a.tsv", [Pair(f"s{number}", f"t{number}") for number in range(200)])
    found = [split_corpora(make_settings(corpus), seed) for seed in (1, 2)]
    assert [len(each.dev) for each in found] == [20, 20]
    assert found[0].dev != found[1].dev
    assert found[0].counts == [180]
    assert len(split_corpora(make_settings(corpus, dev_pairs=7), 1).dev) == 7


def test_dev_split_avoids_a_source_with_most_of_the_corpus(tmp_path: Path) -> None:
    corpus = write_tsv(tmp_path / "a.tsv", [*(Pair("often", str(number)) for number in range(99)), Pair("once", "x")])
    for seed in range(5):
        assert split_corpora(make_settings(corpus), seed).dev == [Pair("once", "x")]


def test_dev_pairs_are_removed_from_every_training_corpus(tmp_path: Path) -> None:
    first, second = write_tsv(tmp_path / "a.tsv", PAIRS), write_tsv(tmp_path / "b.tsv", PAIRS[::-1])
    data = make_settings(first, second, tags=(None, "bt"))
    found = split_corpora(data, 1)
    assert len(found.dev) == 4, "chosen from the corpus without a tag"
    made, tokenizers = prepare_data(data)
    trained = {tokenizers.target.decode(row) for row in to_lists(made.dataset.target)}
    assert not trained & {pair.target for pair in found.dev}
    assert [part.num_examples for part in made.dataset.parts] == [36, 36]


def test_empty_and_too_long_pairs_are_counted() -> None:
    made = WordTokenizer.train(["a b c d"], 20)
    corpus = [
        Pair("a b", "c"),
        Pair("", "a"),
        Pair("a", " "),
        Pair("a b c", "a"),
        Pair("a", "a b c"),
        Pair("d", "zz d"),
    ]
    found = PairEncoder(Tokenizers(made, made), max_length=2)([RawPair(pair) for pair in corpus])
    assert found.left_out == {"empty": 2, "too long": 2}
    assert to_lists(found.source) == [made.encode("a b"), made.encode("d")]
    assert to_lists(found.target) == [made.encode("c"), [1, *made.encode("d")]]


def test_word_links_of_all_scripts_count_words_between_spaces() -> None:
    made, pair = WordTokenizer.train(["a b", "東京は 家"], 20), Pair("a b", "東京は 家")
    links = PairEncoder(Tokenizers(made, made), 99)([RawPair(pair, None, frozenset({(0, 0), (1, 1)}))]).links[0]
    *first, last = range(len(made.encode(pair.target)))
    assert len(first) > 1, "the first word has several tokens"
    assert links.reshape(-1, 2).tolist() == [*([0, token] for token in first), [1, last]]


def test_word_links_become_token_links() -> None:
    made = SentencePieceTokenizer.train(["abcabc abc xyz xyxy z"] * 20, 40, "bpe", byte_fallback=False)
    pair = Pair("abc xyz", "xyxy abcabc")
    source, target = (made.encode_with_word_ids(text)[1] for text in pair)
    wanted = {(left, right) for left, s in enumerate(source) for right, t in enumerate(target) if (s, t) == (0, 1)}
    found = PairEncoder(Tokenizers(made, made), 99)([RawPair(pair, None, frozenset({(0, 1)}))]).links[0].reshape(-1, 2)
    assert {tuple(link) for link in found.tolist()} == wanted
    tagged = WordTokenizer.train(["a b"], 20, tags=["bt"])
    linked = PairEncoder(Tokenizers(tagged, tagged), 99)([RawPair(Pair("a b", "b a"), "bt", frozenset({(0, 1)}))]).links
    assert to_lists(linked) == [[1, 1]], "the tag precedes the first word"


def test_corpus_tag_is_an_id_that_text_cannot_produce(tmp_path: Path) -> None:
    odd = [*PAIRS, Pair("<bt> a house", "ein Haus")]
    first, second = write_tsv(tmp_path / "a.tsv", odd), write_tsv(tmp_path / "b.tsv", odd)
    for text in (WORDS, TextSettings(vocabulary=300), TextSettings(vocabulary=300, shared=False)):
        made, tokenizers = prepare_data(make_settings(first, second, dev=(str(first),), tags=(None, "bt")), text)
        tag = tokenizers.source.find_tag_id("bt")
        rows = to_lists(made.dataset.source)
        assert not any(tag in row for row in rows[:41])
        assert all(row[0] == tag and tag not in row[1:] for row in rows[41:])
        assert [row[1:] for row in rows[41:]] == rows[:41]
        assert tokenizers.source.decode(rows[-1]) == tokenizers.source.decode(rows[-1][1:])
        with pytest.raises(UserError, match=r"no tag 'other'.*bt"):
            tokenizers.source.find_tag_id("other")
    with pytest.raises(UserError, match="trained without tags"):
        prepare_data(make_settings(first))[1].source.find_tag_id("bt")


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["a.tsv"], [("a.tsv",)]),
        (["a.en", "a.de"], [("a.en", "a.de")]),
        (["a.tsv", "b.en", "b.de", "c.jsonl.gz"], [("a.tsv",), ("b.en", "b.de"), ("c.jsonl.gz",)]),
    ],
    ids=str,
)
def test_files_are_grouped_into_corpora_by_name(names: list[str], groups: list[tuple[str, ...]]) -> None:
    found = list_corpora(DataSettings(train=tuple(names)))
    assert found == [TrainingCorpus(tuple(map(Path, group))) for group in groups]


@pytest.mark.parametrize("names", [["a.en"], ["a.en", "b.tsv"], ["a.tsv", "b.en"], ["a.en", "a.de", "b.en"]], ids=str)
def test_missing_side_of_a_corpus_is_a_user_error(names: list[str]) -> None:
    with pytest.raises(UserError, match=r"\.en holds one side only"):
        list_corpora(DataSettings(train=tuple(names)))


def test_weights_and_tags_need_one_value_per_corpus() -> None:
    with pytest.raises(UserError, match=r"data\.weights has 2 values for 1 corpora"):
        list_corpora(DataSettings(train=("a.tsv",), weights=(1.0, 2.0)))
    found = list_corpora(DataSettings(train=("a.tsv", "b.tsv"), weights=(1.0, 0.5), tags=(None, "bt")))
    assert [(corpus.weight, corpus.tag) for corpus in found] == [(1.0, None), (0.5, "bt")]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"dev_pairs": 0}, "dev_pairs must be at least 1"),
        ({"sentences": 0}, "sentences must be at least 1"),
        ({"workers": -1}, "workers must be at least 0"),
        ({"timeout": 0}, "timeout must be at least 1"),
        ({"weights": (-1.0,)}, "not negative"),
        ({"weights": (0.0,)}, "one is above 0"),
        ({"tags": ("<bt>",)}, "a tag is a word"),
    ],
    ids=str,
)
def test_invalid_data_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_settings(DataSettings, values, "data")


def test_parallel_encoding_equals_sequential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SentencePieceTokenizer.train([side for pair in PAIRS for side in pair], 120, "bpe", byte_fallback=False)
    encoder = PairEncoder(Tokenizers(made, made), 24)
    raw = [RawPair(Pair(pair.source * (number % 3), pair.target)) for number, pair in enumerate(PAIRS * 9)]
    whole = encoder(raw)
    monkeypatch.setattr(prepare, "PAIRS_PER_CHUNK", 7)
    parts = list(encode_in_parallel(iter(raw), encoder, num_processes=2))
    assert len(parts) > 40
    assert [row for part in parts for row in to_lists(part.source)] == to_lists(whole.source)
    assert [row for part in parts for row in to_lists(part.target)] == to_lists(whole.target)
    assert sum(part.left_out["empty"] for part in parts) == whole.left_out["empty"] == 120
    assert sum(part.left_out["too long"] for part in parts) == whole.left_out["too long"]


class KilledEncoder(PairEncoder):
    """Kills its process at a batch of two; the first batch, of three, is encoded in the parent process."""

    def __call__(self, raw: Sequence[RawPair]) -> Any:
        if len(raw) == 2:
            os.kill(os.getpid(), 9)
        return super().__call__(raw)


def test_killed_encoding_process_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = WordTokenizer.train(["a"], 9)
    monkeypatch.setattr(prepare, "PAIRS_PER_CHUNK", 3)
    with pytest.raises(UserError, match="was killed"):
        list(
            encode_in_parallel([RawPair(Pair("a", "a"))] * 5, KilledEncoder(Tokenizers(made, made), 9), num_processes=1)
        )


def test_prepared_data_is_reused_after_the_corpus_moved(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_tsv(tmp_path / "a.tsv", PAIRS)
    first, _ = prepare_data(make_settings(corpus))

    def fail(*arguments: object, **more: object) -> None:
        raise AssertionError("prepared a second time")

    monkeypatch.setattr(prepare, "_write_encoded_pairs", fail)
    monkeypatch.setattr(prepare, "_train_tokenizers", fail)
    moved = write_tsv(tmp_path / "moved.tsv", PAIRS)
    second, _ = prepare_data(make_settings(moved))
    assert second.dataset.fingerprint == first.dataset.fingerprint
    assert to_lists(second.dataset.source) == to_lists(first.dataset.source)
    assert second[1:] == first[1:]


@pytest.mark.parametrize(
    "change",
    [
        {"max_length": 5},
        {"dev_pairs": 2},
        {"tags": ("bt",)},
        {"dev": ("a.tsv",)},
    ],
    ids=str,
)
def test_other_settings_are_prepared_again(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = write_tsv(Path("a.tsv"), PAIRS)
    first, _ = prepare_data(make_settings(corpus))
    second, _ = prepare_data(make_settings(corpus, **change))
    assert first.dataset.fingerprint != second.dataset.fingerprint


def test_changed_text_is_prepared_again(tmp_path: Path) -> None:
    corpus = write_tsv(tmp_path / "a.tsv", PAIRS)
    first, _ = prepare_data(make_settings(corpus))
    write_tsv(corpus, [Pair(pair.source + " again", pair.target) for pair in PAIRS])
    second, _ = prepare_data(make_settings(corpus))
    assert first.dataset.fingerprint != second.dataset.fingerprint
    assert (
        first.dataset.fingerprint
        == prepare_data(make_settings(write_tsv(tmp_path / "b.tsv", PAIRS)))[0].dataset.fingerprint
    )


@pytest.mark.parametrize("name", ["regard", "source", "sentencepiece", "sentencex", "unicode"])
def test_other_version_of_code_or_library_is_prepared_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_settings(write_tsv(tmp_path / "a.tsv", PAIRS))
    prepare_data(data)
    built: list[Path] = []

    def record(build: Callable[..., None], folder: Path, *more: Any) -> None:
        built.append(folder)
        build(folder, *more)

    for function in ("_train_tokenizers", "_write_encoded_pairs"):
        monkeypatch.setattr(prepare, function, partial(record, getattr(prepare, function)))
    prepare_data(data)
    assert built == []
    assert name in split.collect_versions()
    other = {**split.collect_versions(), name: "other"}
    monkeypatch.setattr(split, "collect_versions", lambda: other)
    prepare_data(data)
    assert len(built) == 2


@pytest.mark.parametrize("name", ["data/readers/tmx_xliff.py", "data/iso_639.txt", "tokenizers/words.py"])
def test_cache_depends_on_the_source_of_readers_and_tokenizers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "regard" / name
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(split, "__file__", str(tmp_path / "regard" / "data" / "split.py"))
    found = []
    for content in ("a = 1\n", "a = 2\n", "a = 1\n"):
        path.write_text(content, encoding="utf-8")
        found.append(split.compute_source_digest.__wrapped__())
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("installed", [(True, False), (False, True)], ids=["removed", "added"])
def test_sentences_are_counted_only_with_sentencex_whatever_the_cache_holds(
    installed: tuple[bool, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(find_sentencex_version.cache_clear)
    lines = [Pair(f"The house is old. It has {number} doors.", f"Das Haus {number}") for number in range(40)]
    data = make_settings(write_tsv(tmp_path / "a.tsv", lines), source="en")
    for has_sentencex in installed:
        with monkeypatch.context() as changed:
            if not has_sentencex:
                changed.setitem(sys.modules, "sentencex", None)
            find_sentencex_version.cache_clear()
            assert prepare_data(data)[0].max_sentences == (2 if has_sentencex else None)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [({1: 90, 2: 10}, 2), ({1: 91, 2: 9}, 1), ({1: 50, 2: 35, 3: 9, 7: 6}, 3), ({2: 4, 3: 96}, 3), ({}, None)],
)
def test_two_sentences_are_translated_at_once_if_a_tenth_of_the_training_lines_have_two(
    sources: dict[int, int], expected: int | None
) -> None:
    assert find_max_sentences(Counter(sources)) == expected


def test_vocabularies_of_two_versions_have_different_fingerprints() -> None:
    new = WordTokenizer.train(["a b"], 9)
    assert compute_tokenizer_fingerprint(new) == compute_tokenizer_fingerprint(WordTokenizer(new.vocabulary))
    assert compute_tokenizer_fingerprint(new) != compute_tokenizer_fingerprint(WordTokenizer(new.vocabulary, version=1))
    assert compute_tokenizer_fingerprint(new) != compute_tokenizer_fingerprint(
        WordTokenizer(new.vocabulary, lowercase=True)
    )


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flip": flip_byte,
    "truncate": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "remove": lambda path: path.unlink(),
}


@pytest.mark.parametrize(
    ("name", "damage"),
    each_value(["source.numbers", "target.offsets", "known.json", "manifest.json"], list(DAMAGE)),
)
def test_damaged_cache_entry_is_rebuilt(
    name: str, damage: str, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_tsv(tmp_path / "a.tsv", PAIRS)
    first, _ = prepare_data(make_settings(corpus, max_length=6))
    rows = to_lists(first.dataset.source)
    (entry,) = own_cache.glob("pairs-*")
    DAMAGE[damage](entry / name)
    second, _ = prepare_data(make_settings(corpus, max_length=6))
    assert to_lists(second.dataset.source) == rows
    assert find_cache_damage(entry) is None
    warned = "it is rebuilt" in capsys.readouterr().err
    assert warned or (name, damage) == ("manifest.json", "truncate"), "without its final newline it is still JSON"


def test_failed_build_leaves_no_cache_entry(own_cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "partial").write_text("partial")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        find_or_build_cache_entry("some", {"a": 1}, build)
    assert [path.name for path in own_cache.iterdir() if not path.name.endswith(".lock")] == []
    found = find_or_build_cache_entry("some", {"a": 1}, lambda folder: (folder / "whole").touch())
    assert (found / "whole").exists()


def test_concurrent_processes_build_a_cache_entry_once(tmp_path: Path, own_cache: Path) -> None:
    code = (
        "import os, pathlib\n"
        "from regard.paths import find_or_build_cache_entry\n"
        "def build(folder):\n"
        "    (folder / 'who').write_text(str(os.getpid()))\n"
        "print((find_or_build_cache_entry('some', {'a': 1}, build) / 'who').read_text())"
    )
    env = {**environment(), "REGARD_CACHE": str(own_cache)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert len({process.communicate()[0] for process in started}) == 1


def test_cache_folder_without_write_access_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="set REGARD_CACHE to another folder"):
        find_or_build_cache_entry("some", {}, lambda folder: None)


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert find_cache_folder() == Path("/x/regard")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert find_cache_folder() == Path("/home/me/.cache/regard")


def test_no_pairs_left_to_train_on_is_a_user_error(tmp_path: Path) -> None:
    corpus = write_tsv(tmp_path / "a.tsv", PAIRS)
    with pytest.raises(UserError, match=r"0 have an empty side, 36 are longer than data\.max_length=1"):
        prepare_data(make_settings(corpus, max_length=1))
    other = write_tsv(tmp_path / "b.tsv", [Pair(f"long long long {n}", "x x x x x") for n in range(20)])
    data = make_settings(corpus, other, weights=(0.0, 1.0), max_length=4)
    with pytest.raises(UserError, match="leave out all"):
        prepare_data(data)


def test_bpe_dropout_depends_on_the_seed(tmp_path: Path) -> None:
    corpus = write_tsv(tmp_path / "a.tsv", PAIRS)
    plain, _ = prepare_data(make_settings(corpus), TextSettings(vocabulary=300))
    noisy, tokenizers = prepare_data(make_settings(corpus), TextSettings(vocabulary=300, dropout=0.3))
    assert plain.dataset.fingerprint == noisy.dataset.fingerprint, "dropout does not change the prepared data"
    rows = np.arange(len(plain.dataset))
    usual = plain.dataset.make_batch(rows)
    first, again, other = (noisy.dataset.make_batch(rows, seed) for seed in (7, 7, 8))
    assert all(left.equal(right) for left, right in zip(list(first)[:4], list(again)[:4], strict=True))
    assert first.source.shape != other.source.shape or not first.source.equal(other.source)
    assert int(first.lengths.sum()) > 1.1 * int(usual.lengths.sum()), "fewer merges give more tokens"
    for number, ids in enumerate(first.source.tolist()):
        assert tokenizers.source.decode(ids) == tokenizers.source.decode(usual.source[number].tolist())
    kept = Counter(first.source.flatten().tolist()) & Counter(usual.source.flatten().tolist())
    assert kept


RESAMPLE_COMMAND = """
import sys
from pathlib import Path
from regard.text import SentencePieceTokenizer
made = SentencePieceTokenizer.load(Path(sys.argv[1]))
print(made.apply_bpe_dropout([made.encode(text) for text in sys.argv[2:]], 0.4, 7))
"""


def test_bpe_dropout_is_the_same_in_another_process(tmp_path: Path) -> None:
    texts = [side for pair in PAIRS for side in pair]
    made = SentencePieceTokenizer.train(texts, 120, "bpe", byte_fallback=False)
    made.save(tmp_path / "model")
    here = made.apply_bpe_dropout([made.encode(text) for text in texts], 0.4, 7)
    for hashes in ("1", "2"):
        command = [sys.executable, "-c", RESAMPLE_COMMAND, str(tmp_path / "model"), *texts]
        own = {**environment(), "PYTHONHASHSEED": hashes}
        there = subprocess.run(command, env=own, capture_output=True, text=True, check=True).stdout
        assert there == f"{here}\n"


BPE = SentencePieceTokenizer.train([side for pair in PAIRS for side in pair], 400, "bpe")


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=5))
def test_bpe_dropout_of_zero_changes_nothing(texts: list[str]) -> None:
    given = [BPE.encode(text) for text in texts]
    assert BPE.apply_bpe_dropout(given, 0.0, 1) == given
    for ids, other in zip(given, BPE.apply_bpe_dropout(given, 0.5, 1), strict=True):
        assert BPE.decode(other) == BPE.decode(ids)
        assert len(other) >= len(ids)


def test_bpe_dropout_drops_merges_with_its_probability() -> None:
    merges = BpeMerges({"ab": -1.0}, ["a", "b", "ab"])
    random = Random(1)
    kept = sum(merges.segment_with_dropout(["a", "b"], 0.3, random) == ["ab"] for _ in range(10_000))
    assert kept / 10_000 == pytest.approx(0.7, abs=0.02)
    assert merges.segment_with_dropout(["a", "b", "a", "b"], 0.0, random) == ["ab", "ab"]
    first = BpeMerges({"ab": -1.0, "bc": 0.0, "abc": -2.0}, ["a", "b", "c", "ab", "bc", "abc"])
    assert first.segment_with_dropout(list("abcx"), 0.0, random) == ["abc", "x"]


def test_bpe_dropout_keeps_tags_and_unknown_tokens() -> None:
    made = SentencePieceTokenizer.train(["abcabc abc"] * 20, 40, "bpe", byte_fallback=False, tags=["bt"])
    tag = made.find_tag_id("bt")
    known, unknown = [tag, *made.encode("abcabc")], made.encode("abc ü")
    found = made.apply_bpe_dropout([known, unknown, []], 0.9, 1)
    assert found[0][0] == tag
    assert len(found[0]) > len(known)
    assert found[1].count(UNK) == 1
    assert made.decode(found[1]) == made.decode(unknown)
    assert found[2] == []


def test_empty_or_missing_corpus_is_a_user_error(tmp_path: Path) -> None:
    corpus = write_tsv(tmp_path / "a.tsv", [Pair("", "")])
    with pytest.raises(UserError, match="no pairs in there"):
        split_corpora(make_settings(corpus), 1)
    with pytest.raises(UserError, match="nothing to train on"):
        split_corpora(DataSettings(), 1)
    with pytest.raises(UserError, match="there is no file"):
        split_corpora(make_settings(tmp_path / "none.tsv"), 1)


def test_cache_manifest_lists_every_file(tmp_path: Path, own_cache: Path) -> None:
    prepare_data(make_settings(write_tsv(tmp_path / "a.tsv", PAIRS), max_length=6))
    (entry,) = own_cache.glob("pairs-*")
    named = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))["files"]
    assert set(named) == {path.name for path in entry.iterdir()} - {"manifest.json"}
