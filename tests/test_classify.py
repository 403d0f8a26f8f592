"""Labels for texts: what is read, how it is trained on, and what comes out."""

from __future__ import annotations

import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.commands import Command
from support.corpora import compress_zstd

import regard as package
from regard.config import parse
from regard.data.order import Order, Place
from regard.errors import UserError
from regard.evaluate import Confusion
from regard.recipes import read as recipe_of
from regard.report import write_outcome
from regard.runs import Run, checkpoint
from regard.tasks import task_of
from regard.tasks.classification import embedded
from regard.tasks.classification.classifier import load
from regard.tasks.classification.embedded import BAD, GOOD
from regard.tasks.classification.files import Example, read
from regard.tasks.classification.preparation import prepared, spread, survey
from regard.tasks.classification.settings import ClassificationSettings
from regard.tasks.classification.texts import Encoding, Texts
from regard.text import Labels, Subwords, VocabularySettings, Words
from regard.training import train

NAMES = ["lin2017", "yang2016"]
QUICK: dict[str, Any] = {
    "model.size": 6,
    "model.attention": 5,
    "text.vocabulary": 200,
    "training.steps": 6,
    "training.epochs": None,
    "training.batch_tokens": 300,
    "training.learning_rate": 0.01,
    "training.validate_every": 3,
    "training.checkpoint_every": 3,
    "training.log_every": 1,
    "training.tensorboard": False,
}
SMALL: dict[str, dict[str, Any]] = {
    "lin2017": {**QUICK, "model.hops": 4, "model.mlp": 8},
    "yang2016": QUICK,
}
ROWS = [
    ("good", "A fine day. We liked it."),
    ("bad", "It rained. We did not like it."),
    ("good", "All was well."),
    ("bad", "Nothing worked, and nobody came."),
]


def settings(**values: Any) -> ClassificationSettings:
    return ClassificationSettings(**values)


def texts_in(path: Path, **values: Any) -> list[tuple[str, str]]:
    return [(one.label, one.text) for one in read([path], settings(**values))]


def complaint(path: Path, **values: Any) -> str:
    with pytest.raises(UserError) as error:
        texts_in(path, **values)
    assert "\n" not in str(error.value)
    return str(error.value)


def written(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def tsv(rows: list[tuple[str, str]]) -> str:
    return "".join(f"{label}\t{text}\n" for label, text in rows)


def jsonl(rows: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for label, text in rows)


def folders(root: Path, rows: list[tuple[str, str]]) -> Path:
    for number, (label, text) in enumerate(rows):
        written(root / label / f"{number}.txt", text + "\n")
    return root


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first lines of the embedded data."""
    whole, small = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("small")
    embedded(whole)
    for name, count in (("train", 60), ("dev", 20), ("test", 20)):
        lines = (whole / f"{name}.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        (small / f"{name}.tsv").write_text("".join(lines[:count]), encoding="utf-8")
    return small


@pytest.fixture(scope="module", params=NAMES)
def run(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "run"
    return train(request.param, corpus / "train.tsv", out, dev=corpus / "dev.tsv", **SMALL[request.param])


# Labels


def test_labels_stand_in_order_and_come_back(tmp_path: Path) -> None:
    labels = Labels(["b", "a", "é x", "a"])
    assert (labels.names, labels.size, labels.id("b"), labels.name(2)) == (["a", "b", "é x"], 3, 1, "é x")
    labels.save(tmp_path / "labels")
    assert (tmp_path / "labels").read_bytes() == "a\nb\né x\n".encode()
    assert Labels.load(tmp_path / "labels").names == labels.names
    with pytest.raises(UserError, match="there is no label 'c'; there are a, b, é x"):
        labels.id("c")


@pytest.mark.parametrize("name", ["", " a", "a\tb", "a\nb", "a\u2028b"])
def test_a_label_is_one_line(name: str) -> None:
    with pytest.raises(UserError, match="a label is one line of text without tabs"):
        Labels(["a", name])


@given(st.binary(max_size=30))
def test_whatever_is_in_a_file_of_labels_is_read_or_refused(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.mktemp("labels") / "labels"
    path.write_bytes(content)
    try:
        labels = Labels.load(path)
    except UserError:
        return
    labels.save(path)
    assert path.read_bytes() == content


# Files


def test_every_form_holds_the_same_texts(tmp_path: Path) -> None:
    wanted = Counter(ROWS)
    assert texts_in(written(tmp_path / "a.tsv", tsv(ROWS))) == ROWS
    assert texts_in(written(tmp_path / "a.jsonl", jsonl(ROWS))) == ROWS
    assert Counter(texts_in(folders(tmp_path / "a", ROWS))) == wanted
    for ending, pack in ((".gz", gzip.compress), (".xz", lzma.compress), (".zst", compress_zstd)):
        (tmp_path / f"a.tsv{ending}").write_bytes(pack(tsv(ROWS).encode()))
        assert texts_in(tmp_path / f"a.tsv{ending}") == ROWS
        packed = tmp_path / f"b{ending}"
        written(packed / "good" / "1.txt", "plain")
        (packed / "bad").mkdir()
        (packed / "bad" / f"2.txt{ending}").write_bytes(pack(b"packed"))
        assert texts_in(packed) == [("good", "plain"), ("bad", "packed")]


def test_several_files_are_read_one_behind_the_other(tmp_path: Path) -> None:
    paths = [written(tmp_path / "a.tsv", tsv(ROWS[:2])), written(tmp_path / "b.jsonl", jsonl(ROWS[2:]))]
    assert [(one.label, one.text) for one in read(paths, settings())] == ROWS
    assert [one.where for one in read(paths, settings())][1:3] == [f"{paths[0]}:2", f"{paths[1]}:1"]


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("good\tx\t7\n\nbad\ty\t8\n", {}),
        ("label\ttext\ngood\tx\nbad\ty\n", {}),
        ("Label\tText\ngood\tx\nbad\ty\n", {}),
        ("any\tthing\ngood\tx\nbad\ty\n", {"header": True}),
        ("id\tsentence\tlabel\n1\tx\tgood\n2\ty\tbad\n", {"text": "sentence"}),
        ("id\tsentence\tstars\n1\tx\tgood\n2\ty\tbad\n", {"text": "sentence", "label": "stars"}),
        ("1\tx\tgood\n2\ty\tbad\n", {"text": 2, "label": 3}),
        ("a\tb\tc\n1\tx\tgood\n2\ty\tbad\n", {"text": 2, "label": "c"}),
        ("\ufeffgood\tx\r\n bad \ty\r\n", {}),
    ],
)
def test_columns_are_where_one_says(content: str, values: dict[str, Any], tmp_path: Path) -> None:
    assert texts_in(written(tmp_path / "a.tsv", content), **values) == [("good", "x"), ("bad", "y")]


def test_a_first_line_that_is_said_to_be_no_header_is_a_text(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "label\ttext\n")
    assert texts_in(path, header=False) == [("label", "text")]


def test_json_may_have_other_names_and_numbers_for_labels(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"review": "x", "stars": 5}\n\n{"review": "y", "stars": true, "more": 1}\n')
    assert texts_in(path, text="review", label="stars") == [("5", "x"), ("true", "y")]
    halves = written(tmp_path / "b.jsonl", '{"text": "x", "label": 4.5}\n')
    assert texts_in(halves) == [("4.5", "x")]


def test_files_of_a_folder_come_in_turn_from_every_label(tmp_path: Path) -> None:
    for label in ("neg", "pos"):
        for number in (1, 2):
            written(tmp_path / "train" / label / f"{number}.txt", f"{label} {number}\nand more")
    written(tmp_path / "train" / "urls.txt", "nothing to read")
    (tmp_path / "train" / "empty").mkdir()
    found = [label for label, _ in texts_in(tmp_path / "train")]
    assert found == ["neg", "pos", "neg", "pos"]
    assert texts_in(tmp_path / "train" / "pos") == [("pos", "pos 1\nand more"), ("pos", "pos 2\nand more")]


@pytest.mark.parametrize(
    ("name", "content", "values", "said"),
    [
        (
            "a.tsv",
            "good\tx\nbad\n",
            {},
            "a.tsv:2: the text is in column 2 (data.text), and with tabs between there is 1: 'bad'",
        ),
        ("a.tsv", "good\tx\n\ty\n", {}, "a.tsv:2: there is no label (data.label)"),
        ("a.tsv", "a\tb\nx\ty\n", {"label": "lable"}, "a.tsv:1: there is no column 'lable'; there are a, b"),
        ("a.tsv", "text\tb\nx\ty\n", {"label": 1, "text": "text"}, "label and text are both in column 1"),
        ("a.tsv", "good\tx\n", {"label": 4}, "a.tsv:1: there is no label in 4 (data.label)"),
        ("a.jsonl", '{"text": "x"}\n', {}, "a.jsonl:1: there is no label (data.label)"),
        ("a.jsonl", '{"review": "x"}\n', {}, "(data.text, data.label), not {'review': 'x'}"),
        ("a.jsonl", '{"text": "x", "label": NaN}\n', {}, "(data.text, data.label), not {'label': nan, 'text': 'x'}"),
        ("a.jsonl", '{"text": "x", "label": [1]}\n', {}, "(data.text, data.label), not {'label': [1], 'text': 'x'}"),
        ("a.jsonl", '{"text": "x", "label": "a\\nb"}\n', {}, "a.jsonl:1: a label is one line"),
        ("a.jsonl", '{"text": "\\ud800", "label": "a"}\n', {}, "a.jsonl:1: half a character"),
        ("a.jsonl", "[1]\n", {}, 'a.jsonl:1: a line is {"text": "…", "label": "…"} (data.text, data.label), not [1]'),
        ("a.jsonl", "{\n", {}, "a.jsonl:1: not JSON"),
        ("a.jsonl", "{}\n", {"label": 2}, "have names and no column 2"),
        ("a.csv", "good,x\n", {}, "a.csv is neither a folder nor of a kind that holds texts with labels"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    name: str, content: str, values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in complaint(written(tmp_path / name, content), **values)


def test_what_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path / "gone.tsv") == f"there is no file {tmp_path / 'gone.tsv'}"
    assert complaint(tmp_path / "gone") == f"there is no file and no folder {tmp_path / 'gone'}"
    assert "holds no texts" in complaint(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").write_bytes(b"fine\n\xff\n")
    assert (
        complaint(tmp_path) == f"{tmp_path / 'a' / '1.txt'}:2: not UTF-8 (byte 1 of the line); convert the file first"
    )


@given(
    st.sampled_from([".tsv", ".jsonl", ".tsv.gz", ".jsonl.xz", ".tsv.zst"]),
    st.one_of(
        st.binary(max_size=60),
        st.text(alphabet='ab\t\n\r{}":,\\u ', max_size=60).map(str.encode),
        st.lists(st.fixed_dictionaries({"text": st.text(), "label": st.one_of(st.text(), st.integers())})).map(
            lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode()
        ),
    ),
    st.booleans(),
    st.sampled_from([{}, {"header": True}, {"label": "a"}, {"label": 2, "text": 1}]),
)
def test_whatever_is_in_a_file_is_read_or_refused(
    tmp_path_factory: Any, ending: str, content: bytes, packed: bool, values: dict[str, Any]
) -> None:
    packers: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": compress_zstd}
    pack = packers.get(Path(ending).suffix, bytes)
    path = tmp_path_factory.mktemp("fuzz") / f"a{ending}"
    path.write_bytes(pack(content) if packed else content)
    try:
        found = list(read([path], settings(**values)))
    except UserError:
        return
    assert all(one.label and one.text.encode() is not None for one in found)


# Texts


def encoding(by_sentence: bool, max_length: int = 50, max_sentences: int = 50) -> Encoding:
    words = Words.learn([text for _, text in ROWS], 100)
    return Encoding(words, by_sentence, "en", max_length, max_sentences)


def texts(by_sentence: bool, **values: Any) -> Texts:
    how = encoding(by_sentence, **values)
    return Texts([how(text) for _, text in ROWS], [1, 0, 1, 0], how)


def test_a_batch_of_texts_is_padded_to_the_longest() -> None:
    source = texts(False)
    batch = source.batch(np.array([0, 2]))
    assert batch.ids.shape == (2, 8)
    assert batch.lengths.tolist() == [8, 4]
    assert batch.labels.tolist() == [1, 1]
    assert source.encoding.tokenizer.pieces(batch.ids[1].tolist()) == ["All", "was", "well", "."] + ["<pad>"] * 4
    assert (batch.rows, batch.targets, batch.tokens) == (2, 2, 12)
    assert source.sizes.tolist() == [8, 9, 4, 7]


def test_a_batch_of_sentences_is_padded_on_both_levels() -> None:
    source = texts(True)
    batch = source.batch(np.array([2, 1]))
    assert batch.ids.shape == (2, 2, 6)
    assert batch.lengths.tolist() == [[4, 0], [3, 6]]
    assert not batch.ids[0, 1].any()
    assert source.sizes.tolist() == [2 * 4, 2 * 6, 4, 7]
    halves = batch.pieces(5)
    assert [half.rows for half in halves] == [1, 1]
    assert torch.equal(torch.cat([half.ids for half in halves]), batch.ids)


def test_what_is_too_long_is_cut_not_left_out() -> None:
    short = texts(True, max_length=2, max_sentences=1)
    pieces = [short.encoding.tokenizer.pieces(ids) for row in range(4) for ids in short.document(row)]
    assert pieces == [["A", "fine"], ["It", "rained"], ["All", "was"], ["Nothing", "worked"]]
    assert [len(texts(False, max_length=3, max_sentences=1).document(row)[0]) for row in range(4)] == [3] * 4


def test_content_alone_makes_the_fingerprint() -> None:
    assert texts(False).fingerprint == texts(False).fingerprint
    assert texts(False).fingerprint != texts(True).fingerprint
    how = encoding(False)
    assert Texts([how(text) for _, text in ROWS], [1, 0, 1, 1], how).fingerprint != texts(False).fingerprint


def test_bpe_dropout_cuts_words_otherwise_as_the_seed_has_it() -> None:
    lines = [text for _, text in ROWS] * 20
    pieces = Subwords.learn(lines, 60, "bpe", False)
    for by_sentence in (False, True):
        how = Encoding(pieces, by_sentence, "en", 100, 5)
        documents = [how(text) for _, text in ROWS]
        noisy, plain = (Texts(documents, [0, 1, 0, 1], how, dropout) for dropout in (0.5, 0.0))
        rows = np.arange(4)
        first, again, other = (noisy.batch(rows, seed) for seed in (1, 1, 2))
        assert torch.equal(first.ids, again.ids)
        assert first.tokens != other.tokens or not torch.equal(first.ids, other.ids)
        assert first.tokens > plain.batch(rows, 1).tokens
        flat = [" ".join(pieces.decode(ids) for ids in document) for document in documents]
        read_again = first.ids.flatten(1).tolist()
        assert [pieces.decode(ids) for ids in read_again] == flat
        short = Texts(documents, [0] * 4, how._replace(max_length=3), 0.5)
        assert short.batch(rows, 1).ids.shape[-1] == 3


def test_batches_are_of_one_size() -> None:
    source = texts(False)
    order = Order(source.sizes, 16, 10, 1)
    for rows, _ in (pair for pair, _ in zip(order.after(Place()), range(8), strict=False)):
        assert len(rows) * source.sizes[rows].max() <= 16


# What is held out


def many(path: Path, count: int = 60) -> Path:
    return written(path, "".join(f"{'ab'[number % 2]}\ttext number {number}\n" for number in range(count)))


def test_texts_are_held_out_by_content_and_seed_not_by_order(tmp_path: Path) -> None:
    path = many(tmp_path / "a.tsv")
    turned = written(tmp_path / "b.tsv", "".join(reversed(path.read_text().splitlines(keepends=True))))
    dev = {one.text for one in survey(settings(train=(str(path),)), 1).dev}
    assert dev == {one.text for one in survey(settings(train=(str(turned),)), 1).dev}
    assert dev != {one.text for one in survey(settings(train=(str(path),)), 2).dev}
    assert len(dev) == 6
    assert len(survey(settings(train=(str(path),), dev_pairs=3), 1).dev) == 3
    found = survey(settings(train=(str(path),)), 1)
    assert not {one.text for one in found.train} & dev
    assert len(found.train) == 54


def test_the_same_text_is_never_on_both_sides(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", many(tmp_path / "b.tsv", 30).read_text() * 2 + "a\t \n")
    found = survey(settings(train=(str(path),)), 1)
    assert not {one.text for one in found.train} & {one.text for one in found.dev}
    assert found.empty == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "no texts in there"), ("a\t \n", "no texts in there"), ("a\tx\nb\tx\n", "all texts are one, too little")],
)
def test_too_little_is_refused(content: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        survey(settings(train=(str(written(tmp_path / "a.tsv", content)),)), 1)
    with pytest.raises(UserError, match="nothing to train on"):
        survey(settings(), 1)


def test_those_that_are_measured_are_spread_over_all() -> None:
    examples = [Example(str(number), "a", "") for number in range(10)]
    assert [one.text for one in spread(examples, 4)] == ["0", "2", "5", "7"]
    assert spread(examples, 10) == spread(examples, 99) == examples


# Runs


def job(name: str, path: Path, tmp_path: Path, **changes: Any) -> Any:
    from regard.recipes import override

    recipe = override(recipe_of(name), {**SMALL[name], "data.train": [str(path)], **changes})
    return prepared(Run(tmp_path / "run"), recipe, False)


def test_a_job_says_what_was_cut_and_left_out(tmp_path: Path) -> None:
    rows = [*ROWS, ("good", " "), *[("bad", f"text {number}.") for number in range(6)]]
    path = written(tmp_path / "a.tsv", tsv(rows))
    dev = [str(written(tmp_path / "dev.tsv", tsv(ROWS)))]
    flat = job("lin2017", path, tmp_path, **{"data.max_length": 5, "data.dev": dev})
    assert flat.about.startswith("10 texts (3 texts cut at 5 tokens, 1 empty ones left out), 4 dev texts, vocabulary ")
    assert flat.about.endswith("2 labels (bad 8, good 2)")
    nested = job("yang2016", path, tmp_path, **{"data.max_length": 5, "data.max_sentences": 1, "data.dev": dev})
    assert "2 sentences cut at 5 tokens, 2 texts cut at 1 sentences" in nested.about
    assert flat.sizes == (flat.source.encoding.tokenizer.size, 2)


def test_the_language_says_where_sentences_end(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", tsv([("a", "Am 3. Mai kam er. Gut."), *ROWS]))
    dev = [str(written(tmp_path / "dev.tsv", tsv(ROWS)))]
    counts = [
        len(job("yang2016", path, tmp_path, **{"data.language": code, "data.dev": dev}).source.document(0))
        for code in ("de", "en")
    ]
    assert counts == [2, 3]


def test_text_keys_change_what_they_say(tmp_path: Path) -> None:
    path = many(tmp_path / "a.tsv")
    upper = written(tmp_path / "b.tsv", path.read_text().replace("text", "TEXT"))
    kinds = {
        kind: type(
            job("lin2017", path, tmp_path, **{"text.kind": kind, "text.vocabulary": 40}).source.encoding.tokenizer
        )
        for kind in ("word", "char", "bpe", "unigram")
        if kind in ("word", "char")
    }
    assert kinds == {"word": Words, "char": Subwords}
    lower = job("lin2017", upper, tmp_path).source.encoding.tokenizer
    kept = job("lin2017", upper, tmp_path, **{"text.lowercase": False}).source.encoding.tokenizer
    assert lower.pieces([4]) == ["number"] or "text" in lower.pieces(range(lower.size))
    assert "TEXT" in kept.pieces(range(kept.size))
    assert job("lin2017", path, tmp_path, **{"text.vocabulary": 10}).sizes[0] == 10
    changes = {"text.kind": "bpe", "text.vocabulary": 300, "text.dropout": 0.1}
    assert job("lin2017", path, tmp_path, **changes).source.dropout == 0.1
    smaller = {"text.kind": "bpe", "text.vocabulary": 60, "text.byte_fallback": False}
    assert job("lin2017", path, tmp_path, **smaller).sizes[0] <= 60


def test_the_dev_set_is_measured_as_far_as_one_says(tmp_path: Path) -> None:
    path = many(tmp_path / "a.tsv")
    made = job("lin2017", path, tmp_path, **{"data.dev": [str(path)], "training.validate_pairs": 7})
    assert len(made.validate.texts) == 7


def test_a_single_label_is_nothing_to_choose_from(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", tsv([("a", text) for _, text in ROWS]))
    with pytest.raises(UserError, match="every text has the label 'a': there is nothing to choose from"):
        job("lin2017", path, tmp_path)


def test_a_label_that_only_the_dev_set_has_is_named_with_its_place(tmp_path: Path) -> None:
    dev = written(tmp_path / "dev.tsv", "good\tx\nfine\ty\n")
    with pytest.raises(UserError, match=r"dev.tsv:2: there is no label 'fine'; there are bad, good"):
        train("lin2017", written(tmp_path / "a.tsv", tsv(ROWS)), tmp_path / "run", dev=dev, **SMALL["lin2017"])


def test_a_model_that_does_not_classify_is_refused(tmp_path: Path) -> None:
    recipe = recipe_of("luong2015-global") | {"task": "classify", "text": {}, "data": recipe_of("lin2017")["data"]}
    with pytest.raises(UserError, match="a model of the kind 'luong' does not classify"):
        train(recipe, many(tmp_path / "a.tsv"), tmp_path / "run")


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(name: str, corpus: Path, tmp_path: Path) -> None:
    data, dev = corpus / "train.tsv", corpus / "dev.tsv"
    whole = train(name, data, tmp_path / "whole", dev=dev, **{**SMALL[name], "model.dropout": 0.3})
    half: dict[str, Any] = {**SMALL[name], "model.dropout": 0.3, "training.steps": 3}
    train(name, data, tmp_path / "half", dev=dev, **half)
    more: dict[str, Any] = {"training.steps": 6}
    resumed = train(name, None, tmp_path / "half", resume=True, **more)
    for file in (checkpoint.MODEL, checkpoint.OPTIMIZER):
        one, other = ((run.checkpoint_folder(6) / file).read_bytes() for run in (whole, resumed))
        assert one == other
    first, second = ([row for row in run.metrics() if row["kind"] == "dev"] for run in (whole, resumed))
    assert first == second


def test_a_run_does_not_go_on_with_other_texts(corpus: Path, tmp_path: Path) -> None:
    data = written(tmp_path / "a.tsv", (corpus / "train.tsv").read_text())
    train("lin2017", data, tmp_path / "run", dev=corpus / "dev.tsv", **{**SMALL["lin2017"], "training.steps": 3})
    written(data, data.read_text().replace("rained", "snowed", 1))
    with pytest.raises(UserError, match="the training data is not what"):
        train("lin2017", None, tmp_path / "run", resume=True)


def test_predictions_come_in_order_and_depend_on_nothing_around_them(run: Run) -> None:
    classifier = load(run.folder)
    asked = ["I found the lake lovely.", "", "It rained. " * 30, "I did not find the tower boring at all. We left."]
    made = classifier.predict(asked)
    for text, together in zip(asked, made, strict=True):
        alone = classifier.predict([text])[0]
        assert alone.label == together.label
        assert alone.probabilities == pytest.approx(together.probabilities, abs=1e-5)
    assert classifier.predict([]) == []
    for prediction in made:
        assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert prediction.probability == max(prediction.probabilities.values())
        assert prediction.line() == f"{prediction.label}\t{prediction.probability:.4f}"
        document = json.loads(json.dumps(prediction.document()))
        assert document["probabilities"].keys() == {"liked", "disliked", "undecided"}


def test_looks_show_every_word_with_its_weight(run: Run) -> None:
    prediction = load(run.folder).predict(["I found the lake lovely. We left."])[0]
    document, lines = prediction.document(), prediction.looks()
    if run.config()["recipe"] == "lin2017":
        weights = np.array(document["weights"])
        assert weights.shape == (4, 9)
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
        assert lines[0].label == "mean"
        assert len(lines) == 4
        np.testing.assert_allclose(lines[0].weights, weights.mean(0), atol=1e-6)
        tops = [max(line.weights) for line in lines[1:]]
        assert tops == sorted(weights.max(1), reverse=True)[:3]
        assert all(line.words == document["tokens"] for line in lines)
    else:
        assert [len(sentence) for sentence in document["tokens"]] == [6, 3]
        assert [line.weight for line in lines] == document["sentence_weights"]
        assert sum(document["sentence_weights"]) == pytest.approx(1, abs=1e-5)
        for line, sentence, weights in zip(lines, document["tokens"], document["weights"], strict=True):
            assert line.words == sentence
            assert line.weights == weights
            assert sum(weights) == pytest.approx(1, abs=1e-5)
    assert max(line.shade(max(line.weights)) for line in lines) == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_what_only_pools_looks_nowhere(name: str, corpus: Path, tmp_path: Path) -> None:
    changes = {**SMALL[name], "model.pooling": "max", "training.steps": 2}
    pooled = package.train(name, corpus / "train.tsv", tmp_path / "run", dev=corpus / "dev.tsv", **changes)
    made = load(pooled.folder).predict(["We left. It rained."])[0]
    assert made.looks() == []
    assert made.document()["weights"] is None
    assert made.document()["tokens"]
    assert "does not look anywhere" in (pooled.folder / "report.html").read_text(encoding="utf-8")


def test_figures_are_those_of_the_predictions(run: Run, corpus: Path) -> None:
    classifier = load(run.folder)
    rows = [line.split("\t")[:2] for line in (corpus / "test.tsv").read_text(encoding="utf-8").splitlines()]
    made = [one.label for one in classifier.predict([text for _, text in rows])]
    right = [label for label, _ in rows]
    figures = classifier.evaluate([corpus / "test.tsv"])
    assert figures["texts"] == len(rows)
    assert figures["accuracy"] == 100 * np.mean([one == other for one, other in zip(right, made, strict=True)])
    for (one, other), count in Counter(zip(right, made, strict=True)).items():
        assert figures["confusion"][one][other] == count
    assert sum(row["texts"] for row in figures["labels"].values()) == len(rows)
    assert sum(count for row in figures["confusion"].values() for count in row.values()) == len(rows)


def test_a_label_that_was_never_learnt_is_named_with_its_place(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "liked\tx\nlike\ty\n")
    with pytest.raises(UserError) as error:
        load(run.folder).evaluate([path])
    assert str(error.value) == f"{path}:2: there is no label 'like'; did you mean 'liked'?"
    with pytest.raises(UserError, match="no texts in there"):
        load(run.folder).evaluate([written(tmp_path / "b.tsv", "\n")])


def test_a_run_starts_from_another_with_its_labels(run: Run, tmp_path: Path) -> None:
    some = written(tmp_path / "a.tsv", "".join(f"liked\tmore of it, {number}\n" for number in range(20)))
    start: dict[str, Any] = {"training.init_from": str(run.folder), "training.steps": 2}
    tuned = train(None, some, tmp_path / "tuned", **start)
    assert load(tuned.folder).labels.names == ["disliked", "liked", "undecided"]
    odd = written(tmp_path / "b.tsv", "".join(f"odd\tmore of it, {number}\n" for number in range(20)))
    with pytest.raises(UserError, match="there is no label 'odd'"):
        train(None, odd, tmp_path / "other", **start)


def test_the_report_shows_words_on_their_shades(run: Run) -> None:
    page = write_outcome(run).read_text(encoding="utf-8")
    assert page.count("<p class=looked>") >= 5
    assert "Dev accuracy" in page
    assert "Dev macro-F1" in page
    assert page.count("--w:1.000") >= 5
    assert sorted(path.name for path in (run.folder / "samples").glob("*.png"))[0] == "attention-1.png"


def test_a_run_without_its_labels_says_so(corpus: Path, tmp_path: Path) -> None:
    made = train("lin2017", corpus / "train.tsv", tmp_path / "run", **{**SMALL["lin2017"], "training.steps": 1})
    labels = made.folder / "tokenizer" / "labels.txt"
    labels.write_text("liked\ndisliked\n", encoding="utf-8")
    with pytest.raises(UserError, match="does not hold labels"):
        load(made.folder)
    labels.unlink()
    with pytest.raises(UserError, match="the run has no labels"):
        load(made.folder)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_written_out_and_parses(name: str) -> None:
    recipe = recipe_of(name)
    assert recipe["task"] == "classify"
    for section, cls in (("data", ClassificationSettings), ("text", VocabularySettings)):
        parse(cls, recipe[section], section)
    beyond = {"language", "max_sentences"} if name == "lin2017" else set()
    assert set(recipe["data"]) == {*ClassificationSettings.__dataclass_fields__} - beyond
    assert set(recipe["text"]) == {*VocabularySettings.__dataclass_fields__}
    assert set(recipe["training"]) == set(recipe_of("bahdanau2015")["training"])
    assert task_of(recipe).data is ClassificationSettings


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"label": 0}, "data: label is a column's number, from 1, or its name, not 0"),
        ({"text": -2}, "not -2"),
        ({"label": 2, "text": 2}, "label and text are two columns, not both 2"),
        ({"max_length": 0}, "max_length is at least 1, not 0"),
        ({"max_sentences": 0}, "max_sentences is at least 1, not 0"),
        ({"lable": 1}, "unknown key data.lable; did you mean 'label'?"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        parse(ClassificationSettings, values, "data")
    assert said in str(error.value)


# Figures


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_figures_against_counting(pairs: list[tuple[int, int]]) -> None:
    right, chosen = [one for one, _ in pairs], [other for _, other in pairs]
    confusion = Confusion.of(right, chosen)
    f1s = []
    for label in sorted({*right, *chosen}):
        hits = sum(pair == (label, label) for pair in pairs)
        precision = hits / chosen.count(label) if label in chosen else 0.0
        recall = hits / right.count(label) if label in right else 0.0
        f1s.append(2 * precision * recall / (precision + recall) if hits else 0.0)
        figures = confusion.figures(label)
        assert figures == pytest.approx((right.count(label), 100 * precision, 100 * recall, 100 * f1s[-1]))
    assert confusion.macro_f1 == pytest.approx(100 * sum(f1s) / len(f1s))
    assert confusion.accuracy == pytest.approx(100 * sum(one == other for one, other in pairs) / len(pairs))
    assert {(one, other): count for one, row in confusion.rows.items() for other, count in row.items()} == Counter(
        pairs
    )


# Embedded data


def test_embedded_texts_are_the_seeds_and_no_text_comes_twice(tmp_path: Path) -> None:
    first, again, other = (embedded(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first.train[0].read_bytes() == again.train[0].read_bytes()
    assert first.train[0].read_bytes() != other.train[0].read_bytes()
    every = [text for paths in first[:3] for _, text in texts_in(paths[0])]
    assert len(set(every)) == len(every) == 3900


def test_the_label_hangs_on_one_sentence_alone(tmp_path: Path) -> None:
    made = embedded(tmp_path)
    rows = [line.split("\t") for line in made.test[0].read_text(encoding="utf-8").splitlines()]
    assert Counter(label for label, _, _ in rows).keys() == {"liked", "disliked", "undecided"}
    for label, text, telling in rows:
        assert text.count(telling) == 1
        words = telling.rstrip(".").split()
        if label == "undecided":
            assert "whether" in words or "asked" in words
        else:
            praised, denied = bool({*words} & {*GOOD}), "not" in words
            assert bool({*words} & {*BAD}) != praised
            assert (label == "liked") == (praised != denied)


# The command line


def test_files_like_those_of_training_are_predicted_by_their_texts(run: Run, tmp_path: Path) -> None:
    classifier = load(run.folder)
    for name, content in (
        ("a.tsv", "liked\tIt rained.\tmore\n\tWe left.\n"),
        ("a.jsonl", '{"text": "It rained.", "label": "odd"}\n{"text": "We left."}\n'),
        ("a.txt", "It rained.\nWe left.\n"),
    ):
        assert list(classifier.inputs(written(tmp_path / name, content))) == ["It rained.", "We left."]
    folders(tmp_path / "folder", [("liked", "It rained.")])
    assert list(classifier.inputs(tmp_path / "folder")) == ["It rained."]
    assert list(classifier.read(["liked\tIt rained."])) == ["liked\tIt rained."]


def test_one_text_is_not_taken_for_many(run: Run) -> None:
    with pytest.raises(TypeError, match=r"predict takes a list of texts, not one: predict\(\[text\]\)"):
        load(run.folder).predict("It rained.")
    with pytest.raises(UserError, match="what is classified is text, not 5"):
        load(run.folder).predict([5])  # type: ignore[list-item]


def test_texts_that_were_taken_for_labels_are_noticed(tmp_path: Path) -> None:
    rows = [(f"A visit, number {number}.", "liked" if number % 2 else "disliked") for number in range(40)]
    path = written(tmp_path / "a.tsv", tsv(rows))
    with pytest.raises(UserError, match=r"40 texts have 40 labels, such as 'A visit, number 0\.'; data\.label and"):
        job("lin2017", path, tmp_path)
    assert job("lin2017", path, tmp_path, **{"data.label": 2, "data.text": 1}).sizes[1] == 2


def test_a_folder_is_trained_on_predicted_and_evaluated(regard: Command, tmp_path: Path, corpus: Path) -> None:
    for split in ("train", "test"):
        rows = [line.split("\t") for line in (corpus / f"{split}.tsv").read_text(encoding="utf-8").splitlines()]
        folders(tmp_path / split, [(label, text) for label, text, _ in rows])
    changes = [f"{key}={'null' if value is None else value}" for key, value in SMALL["yang2016"].items()]
    done = regard("train", "--dev", tmp_path / "test", tmp_path / "train", "--recipe", "yang2016", *changes)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "train-yang2016"
    assert done.stderr.splitlines()[-1] == "classify with: regard predict runs/train-yang2016 FILE"
    assert (folder / "report.html").is_file()
    said = regard("predict", folder, input="I found the lake lovely.\n\nIt rained.\n")
    lines = [line.split("\t") for line in said.stdout.splitlines()]
    assert len(lines) == 3
    assert all(label in ("liked", "disliked", "undecided") and 0 < float(chance) <= 1 for label, chance in lines)
    told = [
        json.loads(line)
        for line in regard("predict", folder, "--json", input="It rained. We left.\n").stdout.splitlines()
    ]
    assert [len(one["weights"]) for one in told] == [2]
    figures = json.loads(regard("evaluate", folder, tmp_path / "test", "--json").stdout)
    assert figures["texts"] == 20
    plain = regard("evaluate", folder, tmp_path / "test").stdout
    assert f"accuracy     {figures['accuracy']:.2f}" in plain
    piped = regard("evaluate", folder, "-", "--json", input=(corpus / "test.tsv").read_bytes())
    assert json.loads(piped.stdout)["accuracy"] == figures["accuracy"]
    assert "accuracy" in regard("runs", tmp_path / "runs").stdout
    wrong = regard("evaluate", folder, "-", input="odd\tx\n")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "standard input:1: there is no label 'odd'" in wrong.stderr
    assert "does not translate" in regard("translate", folder, input="x\n").stderr
