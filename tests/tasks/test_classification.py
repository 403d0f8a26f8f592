"""Text classification: files with labels, batches, training, predictions and metrics."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tasks
from support.combinations import slow_after
from support.commands import Command
from support.corpora import PACKED
from support.files import write_file
from support.tasks import SIX_STEPS, error_message, prepare_job

import regard as package
from regard.config import parse_settings
from regard.data.classification import (
    ClassificationDataset,
    ClassificationSettings,
    ClassificationVocabulary,
    LabelledText,
    TextEncoder,
    read_labelled_texts,
)
from regard.data.loader import SamplerPosition, TokenBatchSampler
from regard.errors import UserError
from regard.evaluate.label_metrics import ConfusionMatrix
from regard.models.registry import MODELS
from regard.recipes.recipe import read_recipe as recipe_of
from regard.report.html import write_report
from regard.runs import Run
from regard.synthetic.corpora import (
    NEGATIVE_ADJECTIVES,
    POSITIVE_ADJECTIVES,
    write_classification_corpus,
)
from regard.tasks import get_task
from regard.tasks.base import Split
from regard.tasks.classification import ClassificationTask, subsample_evenly
from regard.tokenizers.sentencepiece import SentencePieceTokenizer
from regard.tokenizers.tokenizer import VocabularySettings
from regard.tokenizers.words import LabelVocabulary, WordTokenizer
from regard.training import train

NAMES = ["lin2017", "yang2016"]
QUICK: dict[str, Any] = {
    **SIX_STEPS,
    "model.size": 6,
    "model.attention": 5,
    "model.dropout": 0.3,
    "text.vocabulary": 200,
    "training.batch_tokens": 300,
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


def split_texts(settings: ClassificationSettings, seed: int) -> Split[LabelledText]:
    return ClassificationTask().split(settings, seed)


def read_rows(path: Path, **settings: Any) -> list[tuple[str, str]]:
    """Return (label, text) of each example."""
    return [(one.label, one.text) for one in read_labelled_texts([path], ClassificationSettings(**settings))]


def tsv(rows: list[tuple[str, str]]) -> str:
    return "".join(f"{label}\t{text}\n" for label, text in rows)


def jsonl(rows: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for label, text in rows)


def write_folders(root: Path, rows: list[tuple[str, str]]) -> Path:
    """Write a folder for each label, with a file for each text."""
    for number, (label, text) in enumerate(rows):
        write_file(root / label / f"{number}.txt", text + "\n")
    return root


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the first lines of the synthetic corpus; read-only."""
    whole, small = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("small")
    write_classification_corpus(whole)
    for name, count in (("train", 60), ("dev", 20), ("test", 20)):
        lines = (whole / f"{name}.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        write_file(small / f"{name}.tsv", "".join(lines[:count]))
    return small


each_recipe = pytest.mark.parametrize("run", NAMES, indirect=True)
first_or_slow = pytest.mark.parametrize("run", slow_after(1, NAMES), indirect=True)


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train a recipe for 6 updates, without a report."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return train(request.param, corpus / "train.tsv", out, dev=corpus / "dev.tsv", **SMALL[request.param])


# Labels


def test_labels_are_sorted_and_round_trip(tmp_path: Path) -> None:
    labels = LabelVocabulary(["b", "a", "é x", "a"])
    assert (labels.names, labels.find_id("b")) == (["a", "b", "é x"], 1)
    labels.save(tmp_path / "labels")
    assert (tmp_path / "labels").read_bytes() == "a\nb\né x\n".encode()
    assert LabelVocabulary.load(tmp_path / "labels").names == labels.names
    with pytest.raises(UserError, match="there is no label 'c'; there are a, b, é x"):
        labels.find_id("c")


@pytest.mark.parametrize("name", ["", " a", "a\tb", "a\nb", "a\u2028b"])
def test_labels_of_several_lines_or_with_tabs_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="a label is one line of text without tabs"):
        LabelVocabulary(["a", name])


@given(st.binary(max_size=30))
def test_arbitrary_label_file_round_trips_or_is_refused(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.mktemp("labels") / "labels"
    path.write_bytes(content)
    try:
        labels = LabelVocabulary.load(path)
    except UserError:
        return
    labels.save(path)
    assert path.read_bytes() == content


# Files


def test_tsv_jsonl_folders_and_compressed_files_hold_the_same_texts(tmp_path: Path) -> None:
    assert read_rows(write_file(tmp_path / "a.jsonl", jsonl(ROWS))) == ROWS
    assert Counter(read_rows(write_folders(tmp_path / "a", ROWS))) == Counter(ROWS)
    for ending, compress in PACKED.items():
        assert read_rows(write_file(tmp_path / f"a.tsv{ending}", compress(tsv(ROWS).encode()))) == ROWS
        folder = tmp_path / f"b{ending}"
        write_file(folder / "good" / "1.txt", "plain")
        write_file(folder / "bad" / f"2.txt{ending}", compress(b"packed"))
        assert read_rows(folder) == [("good", "plain"), ("bad", "packed")]


def test_several_files_are_read_in_order_with_line_numbers(tmp_path: Path) -> None:
    paths = [write_file(tmp_path / "a.tsv", tsv(ROWS[:2])), write_file(tmp_path / "b.jsonl", jsonl(ROWS[2:]))]
    examples = list(read_labelled_texts(paths, ClassificationSettings()))
    assert [(one.label, one.text) for one in examples] == ROWS
    assert [one.where for one in examples][1:3] == [f"{paths[0]}:2", f"{paths[1]}:1"]


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
def test_label_and_text_columns_are_found_by_header_name_or_number(
    content: str, values: dict[str, Any], tmp_path: Path
) -> None:
    assert read_rows(write_file(tmp_path / "a.tsv", content), **values) == [("good", "x"), ("bad", "y")]


def test_header_false_reads_the_first_line_as_a_text(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", "label\ttext\n")
    assert read_rows(path, header=False) == [("label", "text")]


def test_json_keys_are_configurable_and_labels_may_be_numbers(tmp_path: Path) -> None:
    content = '{"review": "x", "stars": 5}\n\n{"review": "y", "stars": true, "more": 1}\n'
    path = write_file(tmp_path / "a.jsonl", content)
    assert read_rows(path, text="review", label="stars") == [("5", "x"), ("true", "y")]
    assert read_rows(write_file(tmp_path / "b.jsonl", '{"text": "x", "label": 4.5}\n')) == [("4.5", "x")]


def test_folders_are_read_alternating_between_labels(tmp_path: Path) -> None:
    for label in ("neg", "pos"):
        for number in (1, 2):
            write_file(tmp_path / "train" / label / f"{number}.txt", f"{label} {number}\nand more")
    write_file(tmp_path / "train" / "urls.txt", "nothing to read")
    (tmp_path / "train" / "empty").mkdir()
    assert [label for label, _ in read_rows(tmp_path / "train")] == ["neg", "pos", "neg", "pos"]
    assert read_rows(tmp_path / "train" / "pos") == [("pos", "pos 1\nand more"), ("pos", "pos 2\nand more")]


@pytest.mark.parametrize(
    ("name", "content", "values", "message"),
    [
        (
            "a.tsv",
            "good\tx\nbad\n",
            {},
            "a.tsv:2: the text is expected in column 2 (data.text), but the line has 1 tab-separated column: 'bad'",
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
        ("a.jsonl", '{"text": "\\ud800", "label": "a"}\n', {}, "a.jsonl:1: '\\ud800' has half a character"),
        ("a.jsonl", "[1]\n", {}, 'a.jsonl:1: expected {"text": "…", "label": "…"} (data.text, data.label), not [1]'),
        ("a.jsonl", "{\n", {}, "a.jsonl:1: not JSON"),
        ("a.jsonl", "{}\n", {"label": 2}, "JSON objects have keys, not column 2"),
        ("a.csv", "good,x\n", {}, "a.csv is neither a folder nor a file of labelled texts"),
    ],
)
def test_malformed_file_is_reported_with_file_and_line(
    name: str, content: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert message in error_message(read_rows, write_file(tmp_path / name, content), **values)


def test_missing_files_and_invalid_utf8_are_reported(tmp_path: Path) -> None:
    assert error_message(read_rows, tmp_path / "gone.tsv") == f"there is no file {tmp_path / 'gone.tsv'}"
    assert error_message(read_rows, tmp_path / "gone") == f"there is no file and no folder {tmp_path / 'gone'}"
    assert "contains no texts" in error_message(read_rows, tmp_path)
    path = write_file(tmp_path / "a" / "1.txt", b"fine\n\xff\n")
    message = f"{path}:2: not UTF-8 (byte 1 of the line); convert the file first"
    assert error_message(read_rows, tmp_path) == message


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
def test_arbitrary_bytes_are_read_or_refused(
    tmp_path_factory: Any, ending: str, content: bytes, packed: bool, values: dict[str, Any]
) -> None:
    compress = PACKED.get(Path(ending).suffix, bytes)
    path = tmp_path_factory.mktemp("fuzz") / f"a{ending}"
    path.write_bytes(compress(content) if packed else content)
    try:
        found = list(read_labelled_texts([path], ClassificationSettings(**values)))
    except UserError:
        return
    assert all(one.label and one.text.encode() is not None for one in found)


# Batches


def make_encoding(by_sentence: bool, max_length: int = 50, max_sentences: int = 50) -> TextEncoder:
    words = WordTokenizer.train([text for _, text in ROWS], 100)
    return TextEncoder(words, by_sentence, "en", max_length, max_sentences)


def make_vocabulary(encoding: TextEncoder) -> ClassificationVocabulary:
    return ClassificationVocabulary(encoding, LabelVocabulary(["bad", "good"]), VocabularySettings())


def label_texts(*labels: str) -> list[LabelledText]:
    return [LabelledText(text, label, "") for label, (_, text) in zip(labels, ROWS, strict=True)]


def make_texts(by_sentence: bool, **values: Any) -> ClassificationDataset:
    encoding = make_encoding(by_sentence, **values)
    return ClassificationDataset(label_texts("good", "bad", "good", "bad"), make_vocabulary(encoding))


def test_batch_of_texts_is_padded_to_the_longest() -> None:
    source = make_texts(False)
    batch = source.make_batch(np.array([0, 2]))
    assert batch.source.shape == (2, 8)
    assert batch.lengths.tolist() == [8, 4]
    assert batch.labels.tolist() == [1, 1]
    assert (
        source.encoder.tokenizer.convert_ids_to_tokens(batch.source[1].tolist())
        == ["All", "was", "well", "."] + ["<pad>"] * 4
    )
    assert (batch.num_rows, batch.num_targets, batch.num_tokens) == (2, 2, 12)
    assert source.sizes.tolist() == [8, 9, 4, 7]


def test_batch_of_documents_is_padded_in_sentences_and_words() -> None:
    source = make_texts(True)
    batch = source.make_batch(np.array([2, 1]))
    assert batch.source.shape == (2, 2, 6)
    assert batch.lengths.tolist() == [[4, 0], [3, 6]]
    assert not batch.source[0, 1].any()
    assert source.sizes.tolist() == [2 * 4, 2 * 6, 4, 7]
    parts = batch.split_into(5)
    assert [part.num_rows for part in parts] == [1, 1]
    assert torch.equal(torch.cat([part.source for part in parts]), batch.source)


def test_max_length_and_max_sentences_truncate_texts() -> None:
    short = make_texts(True, max_length=2, max_sentences=1)
    pieces = [
        short.encoder.tokenizer.convert_ids_to_tokens(ids) for row in range(4) for ids in short.get_token_ids(row)
    ]
    assert pieces == [["A", "fine"], ["It", "rained"], ["All", "was"], ["Nothing", "worked"]]
    assert [len(make_texts(False, max_length=3, max_sentences=1).get_token_ids(row)[0]) for row in range(4)] == [3] * 4


def test_fingerprint_changes_with_texts_and_labels() -> None:
    flat, vocabulary = make_texts(False), make_vocabulary(make_encoding(False))
    assert flat.fingerprint == make_texts(False).fingerprint
    assert flat.fingerprint != make_texts(True).fingerprint
    relabelled = ClassificationDataset(label_texts("good", "bad", "good", "good"), vocabulary)
    assert relabelled.fingerprint != flat.fingerprint


def test_bpe_dropout_is_determined_by_the_seed() -> None:
    lines = [text for _, text in ROWS] * 20
    pieces = SentencePieceTokenizer.train(lines, 60, "bpe", False)
    for by_sentence in (False, True):
        encoding = TextEncoder(pieces, by_sentence, "en", 100, 5)
        texts = label_texts("bad", "good", "bad", "good")
        noisy, plain = (ClassificationDataset(texts, make_vocabulary(encoding), dropout) for dropout in (0.5, 0.0))
        rows = np.arange(4)
        first, again, other = (noisy.make_batch(rows, seed) for seed in (1, 1, 2))
        assert torch.equal(first.source, again.source)
        assert first.num_tokens != other.num_tokens or not torch.equal(first.source, other.source)
        assert first.num_tokens > plain.make_batch(rows, 1).num_tokens
        flat = [" ".join(pieces.decode(ids) for ids in plain.get_token_ids(int(row))) for row in rows]
        read_again = first.source.flatten(1).tolist()
        assert [pieces.decode(ids) for ids in read_again] == flat
        short = ClassificationDataset(texts, make_vocabulary(encoding._replace(max_length=3)), 0.5)
        assert short.make_batch(rows, 1).source.shape[-1] == 3


def test_batches_stay_within_batch_tokens() -> None:
    source = make_texts(False)
    order = TokenBatchSampler(source.sizes, 16, 10, 1)
    for rows, _ in (pair for pair, _ in zip(order.iterate_batches(SamplerPosition()), range(8), strict=False)):
        assert len(rows) * source.sizes[rows].max() <= 16


# Dev split


def write_numbered_texts(path: Path, count: int = 60) -> Path:
    return write_file(path, "".join(f"{'ab'[number % 2]}\ttext number {number}\n" for number in range(count)))


def test_dev_split_depends_on_content_and_seed_not_on_order(tmp_path: Path) -> None:
    path = write_numbered_texts(tmp_path / "a.tsv")
    reordered = write_file(tmp_path / "b.tsv", "".join(reversed(path.read_text().splitlines(keepends=True))))
    settings = ClassificationSettings(train=(str(path),))
    found = split_texts(settings, 1)
    dev = {one.text for one in found.dev}
    assert dev == {one.text for one in split_texts(ClassificationSettings(train=(str(reordered),)), 1).dev}
    assert dev != {one.text for one in split_texts(settings, 2).dev}
    assert len(dev) == 6
    assert len(split_texts(ClassificationSettings(train=(str(path),), dev_pairs=3), 1).dev) == 3
    assert not {one.text for one in found.train} & dev
    assert len(found.train) == 54


def test_equal_texts_are_never_split_between_train_and_dev(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", write_numbered_texts(tmp_path / "b.tsv", 30).read_text() * 2 + "a\t \n")
    found = split_texts(ClassificationSettings(train=(str(path),)), 1)
    assert not {one.text for one in found.train} & {one.text for one in found.dev}
    assert found.left_out["empty"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no texts to train on"),
        ("a\t \n", "no texts to train on"),
        ("a\tx\nb\tx\n", "all texts are equal, too little"),
    ],
)
def test_corpora_too_small_to_train_on_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", content)
    assert message in error_message(split_texts, ClassificationSettings(train=(str(path),)), 1)
    assert "nothing to train on" in error_message(split_texts, ClassificationSettings(), 1)


def test_measured_dev_texts_are_spaced_evenly() -> None:
    examples = [LabelledText(str(number), "a", "") for number in range(10)]
    assert [one.text for one in subsample_evenly(examples, 4)] == ["0", "2", "5", "7"]
    assert subsample_evenly(examples, 10) == subsample_evenly(examples, 99) == examples


# Runs


def make_job(name: str, path: Path, tmp_path: Path, **changes: Any) -> Any:
    return prepare_job(name, path, tmp_path / "run", **{**SMALL[name], **changes})


def test_training_reports_truncated_and_empty_texts(tmp_path: Path) -> None:
    rows = [*ROWS, ("good", " "), *[("bad", f"text {number}.") for number in range(6)]]
    path = write_file(tmp_path / "a.tsv", tsv(rows))
    dev = [str(write_file(tmp_path / "dev.tsv", tsv(ROWS)))]
    flat = make_job("lin2017", path, tmp_path, **{"data.max_length": 5, "data.dev": dev})
    assert flat.description.startswith(
        "10 texts (left out: 1 empty; 3 texts cut at 5 tokens; labels: bad 8, good 2), 4 dev texts, vocabulary "
    )
    nested = make_job("yang2016", path, tmp_path, **{"data.max_length": 5, "data.max_sentences": 1, "data.dev": dev})
    assert "2 sentences cut at 5 tokens; 2 texts cut at 1 sentences" in nested.description
    assert flat.vocabulary_sizes == (flat.dataset.encoder.tokenizer.vocab_size, 2)


def test_language_setting_changes_sentence_boundaries(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", tsv([("a", "Am 3. Mai kam er. Gut."), *ROWS]))
    dev = [str(write_file(tmp_path / "dev.tsv", tsv(ROWS)))]
    counts = [
        len(make_job("yang2016", path, tmp_path, **{"data.language": code, "data.dev": dev}).dataset.get_token_ids(0))
        for code in ("de", "en")
    ]
    assert counts == [2, 3]


def test_text_settings_take_effect(tmp_path: Path) -> None:
    path = write_numbered_texts(tmp_path / "a.tsv")
    upper = write_file(tmp_path / "b.tsv", path.read_text().replace("text", "TEXT"))

    def job(data: Path = path, /, **changes: Any) -> Any:
        return make_job("lin2017", data, tmp_path, **changes)

    for kind, tokenizer in (("word", WordTokenizer), ("char", SentencePieceTokenizer)):
        made = job(**{"text.kind": kind, "text.vocabulary": 40}).dataset.encoder.tokenizer
        assert type(made) is tokenizer
    lower = job(upper).dataset.encoder.tokenizer
    cased = job(upper, **{"text.lowercase": False}).dataset.encoder.tokenizer
    lower_tokens = lower.convert_ids_to_tokens(range(lower.vocab_size))
    assert lower_tokens[4] == "number" or "text" in lower_tokens
    assert "TEXT" in cased.convert_ids_to_tokens(range(cased.vocab_size))
    assert job(**{"text.vocabulary": 10}).vocabulary_sizes[0] == 10
    assert job(**{"text.kind": "bpe", "text.vocabulary": 300, "text.dropout": 0.1}).dataset.dropout == 0.1
    assert job(**{"text.kind": "bpe", "text.vocabulary": 60, "text.byte_fallback": False}).vocabulary_sizes[0] <= 60


def test_validate_pairs_limits_the_measured_dev_set(tmp_path: Path) -> None:
    path = write_numbered_texts(tmp_path / "a.tsv")
    made = make_job("lin2017", path, tmp_path, **{"data.dev": [str(path)], "training.validate_pairs": 7})
    assert len(made.validate.dataset) == 7


def test_single_label_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", tsv([("a", text) for _, text in ROWS]))
    message = error_message(make_job, "lin2017", path, tmp_path)
    assert "every text has the label 'a': a classifier needs at least two labels" in message


def test_label_found_in_dev_only_is_reported_with_file_and_line(tmp_path: Path) -> None:
    dev = write_file(tmp_path / "dev.tsv", "good\tx\nfine\ty\n")
    path = write_file(tmp_path / "a.tsv", tsv(ROWS))
    message = error_message(train, "lin2017", path, tmp_path / "run", dev=dev, **SMALL["lin2017"])
    assert "dev.tsv:2: there is no label 'fine'; there are bad, good" in message


def test_model_that_does_not_classify_is_refused(tmp_path: Path) -> None:
    recipe = recipe_of("luong2015-global") | {"task": "classify", "text": {}, "data": recipe_of("lin2017")["data"]}
    data = write_numbered_texts(tmp_path / "a.tsv")
    message = error_message(train, recipe, data, tmp_path / "run")
    assert "model.kind 'luong' is not a classifier" in message


def test_classifier_of_a_plugin_trains_and_predicts(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "mine", MODELS["yang"])
    recipe = recipe_of("yang2016")
    recipe["model"] = {**recipe["model"], "kind": "mine"}
    made = train(recipe, corpus / "train.tsv", tmp_path / "run", dev=corpus / "dev.tsv", **SMALL["yang2016"])
    (prediction,) = package.load(made.folder).predict(["We left. It rained."])
    assert len(prediction.to_dict()["sentence_weights"]) == 2


@each_recipe
def test_resume_is_bit_identical_to_an_uninterrupted_run(run: Run, tmp_path: Path) -> None:
    tasks.assert_resume_is_bit_identical(run, tmp_path / "run")


@pytest.mark.parametrize("run", NAMES[:1], indirect=True)
def test_resume_with_changed_training_data_is_refused(run: Run, corpus: Path, tmp_path: Path) -> None:
    data = write_file(tmp_path / "a.tsv", (corpus / "train.tsv").read_text())
    tasks.assert_resume_refuses_changed_data(
        run, data, tmp_path / "run", lambda: write_file(data, data.read_text().replace("rained", "snowed", 1))
    )


@each_recipe
def test_predictions_do_not_depend_on_the_rest_of_the_batch(run: Run) -> None:
    classifier = package.load(run.folder)
    texts = ["I found the lake lovely.", "", "It rained. " * 30, "I did not find the tower boring at all. We left."]
    made = classifier.predict(texts)
    for text, together in zip(texts, made, strict=True):
        alone = classifier.predict([text])[0]
        assert alone.label == together.label
        assert alone.probabilities == pytest.approx(together.probabilities, abs=1e-5)
    assert classifier.predict([]) == []
    for prediction in made:
        assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert prediction.probability == max(prediction.probabilities.values())
        assert prediction.to_text() == f"{prediction.label}\t{prediction.probability:.4f}"
        document = json.loads(json.dumps(prediction.to_dict()))
        assert document["probabilities"].keys() == {"liked", "disliked", "undecided"}


@each_recipe
def test_attention_lines_show_each_word_with_its_weight(run: Run) -> None:
    prediction = package.load(run.folder).predict(["I found the lake lovely. We left."])[0]
    document, lines = prediction.to_dict(), prediction.make_attention_lines()
    if run.read_config()["recipe"] == "lin2017":
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
    assert max(line.compute_darkness(max(line.weights)) for line in lines) == 1.0


@pytest.mark.parametrize("name", slow_after(1, NAMES))
def test_max_pooling_has_no_attention_to_show(name: str, corpus: Path, tmp_path: Path) -> None:
    changes = {**SMALL[name], "model.pooling": "max", "training.steps": 2}
    pooled = package.train(name, corpus / "train.tsv", tmp_path / "run", dev=corpus / "dev.tsv", **changes)
    made = package.load(pooled.folder).predict(["We left. It rained."])[0]
    assert made.make_attention_lines() == []
    assert made.to_dict()["weights"] is None
    assert made.to_dict()["tokens"]
    assert "has no attention" in (pooled.folder / "report.html").read_text(encoding="utf-8")


@first_or_slow
def test_evaluation_agrees_with_predictions(run: Run, corpus: Path) -> None:
    classifier = package.load(run.folder)
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


@first_or_slow
def test_unknown_label_in_evaluation_is_reported_with_file_and_line(run: Run, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", "liked\tx\nlike\ty\n")
    classifier = package.load(run.folder)
    message = error_message(classifier.evaluate, [path])
    assert message == f"{path}:2: there is no label 'like'; did you mean 'liked'?"
    assert "no texts to score on" in error_message(classifier.evaluate, [write_file(tmp_path / "b.tsv", "\n")])


@first_or_slow
def test_init_from_keeps_the_labels(run: Run, tmp_path: Path) -> None:
    def write_texts(label: str) -> Path:
        return write_file(tmp_path / "a.tsv", "".join(f"{label}\tmore of it, {number}\n" for number in range(20)))

    start: dict[str, Any] = {"training.init_from": str(run.folder), "training.steps": 2}
    tuned = train(None, write_texts("liked"), tmp_path / "tuned", **start)
    assert package.load(tuned.folder).vocabulary.labels.names == ["disliked", "liked", "undecided"]
    message = error_message(train, None, write_texts("odd"), tmp_path / "other", **start)
    assert "there is no label 'odd'" in message


@first_or_slow
def test_report_shades_words_by_attention(run: Run) -> None:
    page = write_report(run).read_text(encoding="utf-8")
    assert page.count("<p class=attended dir=ltr>") >= 5
    assert "Dev accuracy" in page
    assert "Dev macro-F1" in page
    assert page.count("--w:1.000") >= 5
    assert sorted(path.name for path in (run.folder / "samples").glob("*.png"))[0] == "attention-1.png"


def test_run_without_its_labels_is_refused(corpus: Path, tmp_path: Path) -> None:
    made = train("lin2017", corpus / "train.tsv", tmp_path / "run", **{**SMALL["lin2017"], "training.steps": 1})
    labels = made.folder / "tokenizer" / "labels.txt"
    labels.write_text("liked\ndisliked\n", encoding="utf-8")
    assert "does not hold labels" in error_message(package.load, made.folder)
    labels.unlink()
    assert "the run has no labels" in error_message(package.load, made.folder)


@pytest.mark.parametrize("name", NAMES)
def test_recipes_spell_out_every_setting(name: str) -> None:
    recipe = recipe_of(name)
    assert recipe["task"] == "classify"
    for section, cls in (("data", ClassificationSettings), ("text", VocabularySettings)):
        parse_settings(cls, recipe[section], section)
    unused = {"language", "max_sentences"} if name == "lin2017" else set()
    assert set(recipe["data"]) == {*ClassificationSettings.__dataclass_fields__} - unused
    assert set(recipe["text"]) == {*VocabularySettings.__dataclass_fields__}
    assert set(recipe["training"]) == set(recipe_of("bahdanau2015")["training"])
    assert get_task(recipe).data_settings is ClassificationSettings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"label": 0}, "data: label is a column's number, from 1, or its name, not 0"),
        ({"text": -2}, "not -2"),
        ({"label": 2, "text": 2}, "label and text must be different columns, not both 2"),
        ({"max_length": 0}, "max_length must be at least 1, not 0"),
        ({"max_sentences": 0}, "max_sentences must be at least 1, not 0"),
        ({"lable": 1}, "unknown key data.lable; did you mean 'label'?"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, Any], message: str) -> None:
    assert message in error_message(parse_settings, ClassificationSettings, values, "data")


# Metrics


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_f1_and_accuracy_match_counting(pairs: list[tuple[int, int]]) -> None:
    right, chosen = [one for one, _ in pairs], [other for _, other in pairs]
    confusion = ConfusionMatrix.from_labels(right, chosen)
    f1s = []
    for label in sorted({*right, *chosen}):
        hits = sum(pair == (label, label) for pair in pairs)
        precision = hits / chosen.count(label) if label in chosen else 0.0
        recall = hits / right.count(label) if label in right else 0.0
        f1s.append(2 * precision * recall / (precision + recall) if hits else 0.0)
        counts = confusion.count_matches(label)
        assert (counts.gold, counts.precision, counts.recall, counts.f1) == pytest.approx(
            (right.count(label), 100 * precision, 100 * recall, 100 * f1s[-1])
        )
    assert confusion.macro_f1 == pytest.approx(100 * sum(f1s) / len(f1s))
    assert confusion.accuracy == pytest.approx(100 * sum(one == other for one, other in pairs) / len(pairs))
    assert {
        (one, other): count for one, row in confusion.rows_by_gold_label.items() for other, count in row.items()
    } == Counter(pairs)


# Synthetic corpus


def test_synthetic_corpus_depends_on_the_seed_without_duplicates(tmp_path: Path) -> None:
    first = tasks.assert_synthetic_corpus_depends_on_seed(write_classification_corpus, tmp_path, "lin2017")
    every = [text for paths in first[:3] for _, text in read_rows(paths[0])]
    assert len(set(every)) == len(every) == 3900


def test_synthetic_label_depends_on_one_sentence(tmp_path: Path) -> None:
    made = write_classification_corpus(tmp_path)
    rows = [line.split("\t") for line in made.test[0].read_text(encoding="utf-8").splitlines()]
    assert Counter(label for label, _, _ in rows).keys() == {"liked", "disliked", "undecided"}
    for label, text, decisive in rows:
        assert text.count(decisive) == 1
        words = decisive.rstrip(".").split()
        if label == "undecided":
            assert "whether" in words or "asked" in words
        else:
            positive, negated = bool({*words} & {*POSITIVE_ADJECTIVES}), "not" in words
            assert bool({*words} & {*NEGATIVE_ADJECTIVES}) != positive
            assert (label == "liked") == (positive != negated)


# Input for prediction and the command line


@first_or_slow
def test_prediction_reads_the_texts_of_labelled_files(run: Run, tmp_path: Path) -> None:
    classifier = package.load(run.folder)
    for name, content in (
        ("a.tsv", "liked\tIt rained.\tmore\n\tWe left.\n"),
        ("a.jsonl", '{"text": "It rained.", "label": "odd"}\n{"text": "We left."}\n'),
        ("a.txt", "It rained.\nWe left.\n"),
    ):
        assert list(classifier.read_inputs(write_file(tmp_path / name, content))) == ["It rained.", "We left."]
    write_folders(tmp_path / "folder", [("liked", "It rained.")])
    assert list(classifier.read_inputs(tmp_path / "folder")) == ["It rained."]
    assert list(classifier.parse_lines(["liked\tIt rained."])) == ["liked\tIt rained."]


@first_or_slow
def test_predict_refuses_a_single_text_and_numbers(run: Run) -> None:
    with pytest.raises(TypeError, match=r"predict takes a list of texts, not one: predict\(\[text\]\)"):
        package.load(run.folder).predict("It rained.")
    assert "the input must be text, not 5" in error_message(package.load(run.folder).predict, [5])


def test_texts_mistaken_for_labels_are_reported(tmp_path: Path) -> None:
    rows = [(f"A visit, number {number}.", "liked" if number % 2 else "disliked") for number in range(40)]
    path = write_file(tmp_path / "a.tsv", tsv(rows))
    message = error_message(make_job, "lin2017", path, tmp_path)
    assert "40 texts have 40 labels, such as 'A visit, number 0.'; check the columns data.label and" in message
    assert make_job("lin2017", path, tmp_path, **{"data.label": 2, "data.text": 1}).vocabulary_sizes[1] == 2


@pytest.mark.slow
def test_train_command_reads_folders_and_writes_a_report(regard: Command, tmp_path: Path, corpus: Path) -> None:
    for split in ("train", "test"):
        rows = [line.split("\t") for line in (corpus / f"{split}.tsv").read_text(encoding="utf-8").splitlines()]
        write_folders(tmp_path / split, [(label, text) for label, text, _ in rows])
    dev = ("--dev", tmp_path / "test")
    tasks.check_train_command(regard, "yang2016", tmp_path / "train", SMALL["yang2016"], "classify", *dev)
    folder = tmp_path / "runs" / "train-yang2016"
    assert (folder / "report.html").is_file()
    assert "accuracy" in regard("runs", tmp_path / "runs").stdout
    metrics = tasks.check_evaluate_command(regard, folder, tmp_path / "test", {"accuracy"})
    piped = regard("evaluate", folder, "-", "--json", input=(corpus / "test.tsv").read_bytes())
    assert json.loads(piped.stdout)["accuracy"] == metrics["accuracy"]


yang_run = pytest.mark.parametrize("run", NAMES[1:], indirect=True)


@yang_run
def test_predict_command_prints_label_and_probability(run: Run, regard: Command) -> None:
    texts = "I found the lake lovely.\n\nIt rained. We left.\n"
    lines, documents = tasks.check_predict_command(regard, run.folder, texts)
    pairs = [line.split("\t") for line in lines]
    assert len(pairs) == 3
    assert all(label in ("liked", "disliked", "undecided") and 0 < float(p) <= 1 for label, p in pairs)
    assert len(documents[-1]["weights"]) == 2


@yang_run
def test_evaluate_command_prints_metrics_and_reads_standard_input(run: Run, regard: Command, corpus: Path) -> None:
    metrics = json.loads(regard("evaluate", run.folder, corpus / "test.tsv", "--json").stdout)
    assert metrics["texts"] == 20
    plain = regard("evaluate", run.folder, "-", input=(corpus / "test.tsv").read_bytes()).stdout
    assert f"accuracy     {metrics['accuracy']:.2f}" in plain
    wrong = regard("evaluate", run.folder, "-", input="odd\tx\n")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "standard input:1: there is no label 'odd'" in wrong.stderr


@yang_run
def test_translate_command_refuses_a_classifier(run: Run, regard: Command) -> None:
    assert "does not translate" in regard("translate", run.folder, input="x\n").stderr
