"""Sequence tagging: column files, word features, training, predictions and metrics."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tasks
from support.commands import Command
from support.files import write_file
from support.tasks import SIX_STEPS, error_message, prepare_job
from support.training import copy_run, format_overrides

import regard as package
from regard.config import parse_settings
from regard.data.tagging import (
    UNKNOWN,
    TagDataSettings,
    TaggedSentence,
    TaggingVocabulary,
    TagTextSettings,
    compute_word_shape,
    extract_word_features,
    parse_untagged_sentences,
    read_tagged_sentences,
)
from regard.errors import UserError
from regard.models import build
from regard.runs import Run
from regard.special_tokens import PAD
from regard.synthetic.corpora import TIME_WORDS, make_tagged_sentence, write_tagging_corpus
from regard.tasks.base import Split, Validator
from regard.tasks.tagging import (
    TaggingDataset,
    TaggingPredictor,
    TaggingTask,
    compute_tagging_metrics,
)
from regard.training import train

CONLL = "The DT B-NP\ndog NN I-NP\nbarks VBZ B-VP\n. . O\n\n\n# SYM O\n12 CD B-NP\n"
CONLLU = """# sent_id = 1
# text = They don't sleep
1\tThey\tthey\tPRON\tPRP\tCase=Nom\t3\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
3.1\tghost\tghost\tNOUN\tNN\t_\t_\t_\t_\t_
4\tsleep\tsleep\tVERB\tVB\t_\t0\troot\t_\t_

1\t10 000\t10000\tNUM\tCD\t_\t0\troot\t_\t_
"""
QUICK: dict[str, Any] = {
    **SIX_STEPS,
    "model.size": 12,
    "model.layers": 2,
    "model.dropout": 0.2,
    "text.dropout": 0.2,
    "training.batch_tokens": 120,
    "training.schedule": "constant",
}


def read_sentences(path: Path, **settings: Any) -> list[TaggedSentence]:
    return list(read_tagged_sentences([path], TagDataSettings(**settings)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write train, dev and test of 100 sentences; columns: word, its first letter as a capital, label."""
    folder = tmp_path_factory.mktemp("tagging")
    generator = random.Random(4)
    for name in ("train", "dev", "test"):
        blocks = (
            "".join(f"{row[0]}\t{row[0][0].upper()}\t{label}\n" for row, label in zip(*one, strict=True)) + "\n"
            for one in (make_tagged_sentence(generator) for _ in range(100))
        )
        write_file(folder / f"{name}.conll", "".join(blocks))
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train on words alone, with a report; read-only."""
    out = tmp_path_factory.mktemp("runs") / "words"
    return package.train("schuster1997", corpus / "train.conll", out, dev=corpus / "dev.conll", **QUICK)


@pytest.fixture(scope="module")
def column_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train on words and the second column; read-only."""
    out = tmp_path_factory.mktemp("runs") / "columns"
    return train("schuster1997", corpus / "train.conll", out, **{**QUICK, "data.inputs": [2]})


# Reading.


def test_conll_columns_are_word_first_and_label_last(tmp_path: Path) -> None:
    first, second = read_sentences(write_file(tmp_path / "words.txt", CONLL))
    assert first == ((("The",), ("dog",), ("barks",), (".",)), ("B-NP", "I-NP", "B-VP", "O"))
    assert second == ((("#",), ("12",)), ("O", "B-NP"))


def test_label_and_input_columns_are_chosen_by_number(tmp_path: Path) -> None:
    first, _ = read_sentences(write_file(tmp_path / "words.txt", CONLL), label=2, inputs=(3,))
    assert first.words[:2] == (("The", "B-NP"), ("dog", "I-NP"))
    assert first.labels == ("DT", "NN", "VBZ", ".")


def test_conllu_is_recognised_by_content_not_by_file_name(tmp_path: Path) -> None:
    path = write_file(tmp_path / "words.txt", CONLLU)
    first, second = read_sentences(path)
    assert first == ((("They",), ("do",), ("n't",), ("sleep",)), ("PRON", "AUX", "PART", "VERB"))
    assert second == ((("10 000",),), ("NUM",))
    first, _ = read_sentences(path, label="xpos", inputs=("lemma", 4))
    assert first.words[2] == ("n't", "not", "PART")
    assert first.labels == ("PRP", "VBP", "RB", "VB")


def test_conll_and_conllu_files_can_be_mixed_and_compressed(tmp_path: Path) -> None:
    paths = [
        write_file(tmp_path / "a.txt.gz", gzip.compress(CONLL.encode())),
        write_file(tmp_path / "b.txt", CONLLU.replace("\n", "\r\n")),
    ]
    assert [len(one.words) for one in read_tagged_sentences(paths, TagDataSettings())] == [4, 2, 4, 1]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("a X\nb\n", {}, "words.txt:2: no label after the input columns, separated by white space: 'b'"),
        ("a X\n", {"inputs": (2,)}, "words.txt:1: no label after the input columns, separated by white space: 'a X'"),
        ("a X\n", {"label": 3}, "words.txt:1: column 3 (data.label) is needed, but there are 2: 'a X'"),
        ("a X Y\n", {"label": 2, "inputs": (7,)}, "words.txt:1: column 7 is needed, but there are 3: 'a X Y'"),
        ("a X\n", {"label": "upos"}, "only CoNLL-U files have a column named 'upos'"),
        ("a X\n", {"label": 0}, "columns are counted from 1, not 0"),
        ("a X\n", {"label": 1}, "must be different columns, and not the word's (1)"),
        (CONLLU, {"label": "upso"}, "there is no column 'upso'; did you mean 'upos'"),
        (CONLLU, {"label": 11}, "columns are counted from 1 to 10, not 11"),
        (CONLLU, {"inputs": ("lemma", 3)}, "must be different columns, and not the word's (2)"),
        (CONLLU.replace("3\tn't\tnot", "3\tn't not"), {}, "words.txt:6: not a CoNLL-U word"),
        (CONLLU.replace("They\tthey\tPRON", "They\tthey\t "), {}, "words.txt:3: the label is empty"),
        (CONLLU.replace("2\tdo\tdo", "2\t\tdo"), {}, "words.txt:5: an input column is empty"),
        (b"a X\n\xff Y\n", {}, "words.txt:2: not UTF-8"),
    ],
)
def test_malformed_line_is_reported_with_file_and_line(
    text: str | bytes, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert message in error_message(read_sentences, write_file(tmp_path / "words.txt", text), **settings)


def test_input_for_prediction_may_lack_labels() -> None:
    settings = TagDataSettings(inputs=(2,))
    assert list(parse_untagged_sentences(["a X", "b Y", "", "c Z W"], settings)) == [
        (("a", "X"), ("b", "Y")),
        (("c", "Z"),),
    ]
    with pytest.raises(UserError, match="line 3: column 2 is needed, but there are 1: 'b'"):
        list(parse_untagged_sentences(["a X", "", "b"], settings))


def read_or_refuse(path: Path, settings: dict[str, Any]) -> tuple[list[TaggedSentence], str]:
    """Return the sentences of a file, or none and the error message."""
    try:
        return read_sentences(path, **settings), ""
    except UserError as error:
        return [], str(error)


FRAGMENTS = st.sampled_from(
    ["a", "B-X", "\t", " ", "\n", "\n\n", "#", "1", "2-3", "1.1", "_", "\r", "\x85", "é", "\x00", "\ufeff"]
)
CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.lists(FRAGMENTS, max_size=60).map(lambda parts: "".join(parts).encode()),
    st.tuples(st.integers(0, len(CONLLU)), st.lists(FRAGMENTS, max_size=4)).map(
        lambda cut: (CONLLU[: cut[0]] + "".join(cut[1]) + CONLLU[cut[0] :]).encode()
    ),
)


@given(CONTENTS, st.sampled_from([{}, {"label": 2}, {"inputs": (2,)}, {"label": "upos", "inputs": ("lemma",)}]))
def test_arbitrary_bytes_are_read_or_refused_in_one_line(content: bytes, settings: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        sentences, refusal = read_or_refuse(write_file(Path(folder) / "words.txt", content), settings)
    assert "\n" not in refusal
    for one in sentences:
        assert len(one.words) == len(one.labels) > 0
        assert all(len(row) == 1 + len(settings.get("inputs", ())) and all(map(str.strip, row)) for row in one.words)
        assert all(label.strip() for label in one.labels)
    text = TagTextSettings(minimum=1)
    vocabulary = TaggingVocabulary.learn(sentences, text, settings.get("inputs", ()))
    assert all(all(vocabulary.encode_labels(one.labels)) for one in sentences)
    assert all(id < vocabulary.sizes[0] for one in sentences for id in vocabulary.encode(one.words))


# Features.


def test_word_features_are_suffixes_and_shape() -> None:
    settings = TagTextSettings(suffix=3)
    assert extract_word_features(("Walking", "VBG"), settings) == ["walking", "VBG", "g", "ng", "ing", "Aa"]
    assert extract_word_features(("An",), settings) == ["an", "n", "an", None, "Aa"]
    assert extract_word_features(("An",), TagTextSettings(suffix=0, shape=False, lowercase=False)) == ["An"]
    assert extract_word_features(("An",), TagTextSettings(suffix=1, lowercase=False)) == ["An", "n", "Aa"]


def test_word_shape_collapses_runs_of_a_character_class() -> None:
    shapes = {"McDonald-2000": "AaAa-0", "IBM": "A", "1,000.5": "0.0.0", "e-mail": "a-a", "...": ".", "-": "-"}
    assert {word: compute_word_shape(word) for word in shapes} == shapes


def test_rare_features_become_the_unknown_of_their_kind() -> None:
    rows = (("cat", "N"), ("cat", "N"), ("bat", "V"))
    vocabulary = TaggingVocabulary.learn(
        [TaggedSentence(rows, ("X", "X", "Y"))], TagTextSettings(minimum=2, suffix=2, shape=False), [2]
    )
    assert vocabulary.feature_values == {
        "word": [UNKNOWN, "cat"],
        "column 2": [UNKNOWN, "N"],
        "suffix 1": [UNKNOWN, "t"],
        "suffix 2": [UNKNOWN, "at"],
    }
    assert vocabulary.encode([("cat", "N"), ("bat", "V"), ("q", "N")]) == [2, 4, 6, 8, 1, 3, 6, 8, 1, 4, 5, 0]
    assert vocabulary.sizes == (9, 3)
    assert vocabulary.labels == ["X", "Y"]
    assert vocabulary.encode_labels(["Y", "Z", "X"]) == [2, PAD, 1]
    every = TaggingVocabulary.learn(
        [TaggedSentence(rows, ("X", "X", "Y"))], TagTextSettings(minimum=1, suffix=0, shape=False), [2]
    )
    assert every.feature_values == {"word": [UNKNOWN, "cat", "bat"], "column 2": [UNKNOWN, "N", "V"]}


def test_vocabulary_round_trips_and_damaged_files_are_refused(tmp_path: Path) -> None:
    settings = TagTextSettings(minimum=1)
    made = TaggingVocabulary.learn([TaggedSentence((("a\u2028b\rc", "é"),), ("X",))], settings, ["lemma"])
    made.save(tmp_path)
    again = TaggingVocabulary.load(tmp_path, settings, ["lemma"])
    assert (again.feature_values, again.labels, again.sizes) == (
        made.feature_values,
        made.labels,
        made.sizes,
    )
    with pytest.raises(
        UserError, match="read word, column lemma, suffix 1, suffix 2, suffix 3, shape of a word, not word"
    ):
        TaggingVocabulary.load(tmp_path, settings, [])
    path = tmp_path / "vocabulary.json"
    for damage in (
        "",
        "{}",
        "[1]",
        '{"features": {"word": ["", 1]}, "labels": []}',
        '{"features": {"word": []}}',
        "[" * 9999,
    ):
        path.write_text(damage, encoding="utf-8")
        with pytest.raises(UserError, match="is not a vocabulary"):
            TaggingVocabulary.load(tmp_path, settings, ["lemma"])
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        TaggingVocabulary.load(tmp_path, settings, ["lemma"])


# Batches.


def make_examples(dropout: float = 0.0) -> tuple[list[TaggedSentence], TaggingVocabulary, TaggingDataset]:
    generator = random.Random(2)
    sentences = [make_tagged_sentence(generator) for _ in range(40)]
    vocabulary = TaggingVocabulary.learn(sentences, TagTextSettings(minimum=1, suffix=2), ())
    return sentences, vocabulary, TaggingDataset(sentences, vocabulary, dropout)


def test_batch_holds_features_of_each_word_and_zero_padding() -> None:
    sentences, vocabulary, examples = make_examples()
    rows = np.array([3, 0, 11])
    batch = examples.make_batch(rows)
    assert batch.num_rows == 3
    assert batch.lengths.tolist() == [len(sentences[row].words) for row in rows]
    assert batch.num_tokens == batch.num_targets == int(batch.lengths.sum())
    assert batch.source.shape == (3, int(batch.lengths.max()), 4)
    for index, row in enumerate(rows):
        size = len(sentences[row].words)
        assert batch.source[index, :size].flatten().tolist() == vocabulary.encode(sentences[row].words)
        assert batch.target[index, :size].tolist() == vocabulary.encode_labels(sentences[row].labels)
        assert not batch.source[index, size:].any()
        assert not batch.target[index, size:].any()
    parts = batch.split_into(2)
    assert [part.num_rows for part in parts] == [1, 2]
    assert torch.equal(torch.cat([part.source for part in parts]), batch.source)
    assert len(batch.split_into(9)) == 3
    assert examples.sizes.tolist() == [len(one.words) for one in sentences]


def test_word_dropout_is_determined_by_the_seed() -> None:
    _, vocabulary, examples = make_examples(0.4)
    plain, rows = make_examples()[2], np.arange(40)
    first, again, other = (examples.make_batch(rows, seed) for seed in (1, 1, 2))
    assert torch.equal(first.source, again.source)
    assert not torch.equal(first.source, other.source)
    whole = plain.make_batch(rows, 1)
    changed = first.source != whole.source
    assert not changed[..., 1:].any(), "word dropout changes suffixes or shapes"
    assert (first.source[changed] == vocabulary.feature_ids[0][UNKNOWN]).all()
    assert 0.3 < changed[..., 0].sum() / whole.num_tokens < 0.5
    assert not first.source[whole.source == PAD].any()
    assert examples.fingerprint == plain.fingerprint


def test_fingerprint_changes_with_sentences_and_labels() -> None:
    sentences, vocabulary, examples = make_examples()
    assert TaggingDataset(sentences, vocabulary).fingerprint == examples.fingerprint
    assert TaggingDataset(sentences[:-1], vocabulary).fingerprint != examples.fingerprint
    relabelled = [sentences[0]._replace(labels=("THE",) * len(sentences[0].words)), *sentences[1:]]
    assert TaggingDataset(relabelled, vocabulary).fingerprint != examples.fingerprint


def split_sentences(settings: TagDataSettings, seed: int) -> Split[TaggedSentence]:
    return TaggingTask().split(settings, seed)


def make_settings(*train: Path, **more: Any) -> TagDataSettings:
    return TagDataSettings(train=tuple(map(str, train)), **more)


def test_dev_split_depends_on_content_and_seed_not_on_order(corpus: Path, tmp_path: Path) -> None:
    blocks = (corpus / "train.conll").read_text(encoding="utf-8").strip().split("\n\n")
    reordered = write_file(tmp_path / "words.txt", "\n\n".join(reversed(blocks)))
    first, other = (split_sentences(make_settings(path), 1) for path in (corpus / "train.conll", reordered))
    assert len(first.dev) == 10
    assert sorted(first.dev) == sorted(other.dev)
    assert sorted(split_sentences(make_settings(reordered), 2).dev) != sorted(first.dev)
    assert len(split_sentences(make_settings(reordered, dev_sentences=3), 1).dev) == 3
    assert Counter(first.train + first.dev) == Counter(read_tagged_sentences([reordered], TagDataSettings()))
    assert not set(first.train) & set(first.dev)
    given_dev = split_sentences(make_settings(reordered, dev=(str(corpus / "dev.conll"),)), 1)
    assert len(given_dev.train) == len(given_dev.dev) == 100


def test_max_length_drops_sentences_from_training_only(corpus: Path) -> None:
    whole = split_sentences(make_settings(corpus / "train.conll"), 1)
    cut = split_sentences(make_settings(corpus / "train.conll", max_length=8), 1)
    assert cut.dev == whole.dev
    assert cut.train == [one for one in whole.train if len(one.words) <= 8]
    assert cut.left_out["too long"] == len(whole.train) - len(cut.train) > 0
    with pytest.raises(UserError, match=r"all sentences have more than 2 words \(data.max_length\)"):
        split_sentences(make_settings(corpus / "train.conll", max_length=2), 1)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_file_without_sentences_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no sentences to train on"):
        split_sentences(make_settings(write_file(tmp_path / "words.txt", text)), 1)


# Metrics.


def test_chunk_labels_are_scored_by_precision_recall_and_f1() -> None:
    gold, made = [["B-NP", "I-NP", "O"], ["B-VP"]], [["B-NP", "I-NP", "B-VP"], ["B-VP"]]
    metrics = compute_tagging_metrics(gold, made, ["O", "B-NP", "I-NP", "B-VP"])
    assert metrics["accuracy"] == 75.0
    assert (metrics["precision"], metrics["recall"]) == (pytest.approx(200 / 3), 100.0)
    assert metrics["f1"] == pytest.approx(80.0)
    assert metrics["f1_by_kind"] == {"NP": 100.0, "VP": pytest.approx(200 / 3)}
    assert compute_tagging_metrics([["N"], []], [["N"], []], ["N", "V"]) == {"accuracy": 100.0}


def make_validator(sentences: list[TaggedSentence], measured: int = 99) -> tuple[Validator, Any]:
    vocabulary = TaggingVocabulary.learn(sentences, TagTextSettings(minimum=1), ())

    def make_predictor(model: Any, device: torch.device) -> TaggingPredictor:
        return TaggingPredictor(model, vocabulary, TagDataSettings(), device, 60)

    torch.manual_seed(1)
    model = build("schuster1997", *vocabulary.sizes, size=6)
    return Validator(make_predictor, sentences, TaggingDataset(sentences, vocabulary), measured), model


def test_validation_ignores_padding_and_restores_mode_and_rng_state() -> None:
    sentences = make_examples()[0]
    validator, model = make_validator(sentences)
    vocabulary = validator.dataset.vocabulary  # type: ignore[attr-defined]
    state = torch.get_rng_state()
    model.train()
    found = validator(model, torch.device("cpu"))
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert found.selection_metric == "accuracy"
    assert found.score == found.metrics["accuracy"]
    assert len(found.samples) == 5
    assert set(found.samples[0].texts) == {"right", "tagged"}
    assert found.samples[0].plot() is None
    model.eval()
    total, right, words = 0.0, 0, 0
    for one in sentences:
        batch = TaggingDataset([one], vocabulary).make_batch(np.array([0]))
        logits = model(batch.source, batch.lengths)[0].detach()
        total -= float(logits.log_softmax(-1).gather(1, batch.target[0][:, None]).sum())
        right += int((logits[:, 1:].argmax(-1) + 1 == batch.target[0]).sum())
        words += len(one.words)
    assert found.loss == pytest.approx(total / words, rel=1e-5)
    assert found.score == pytest.approx(100 * right / words)


def test_validate_pairs_limits_the_metrics_but_not_the_loss() -> None:
    sentences = make_examples()[0]
    (whole, model), (few, _) = make_validator(sentences), make_validator(sentences, 3)
    first, second = (one(model, torch.device("cpu")) for one in (whole, few))
    assert first.loss == second.loss
    limited = replace(whole, max_measured=3)
    assert second.metrics == limited(model, torch.device("cpu")).metrics != first.metrics


# Runs.


def test_resume_is_bit_identical_to_an_uninterrupted_run(run: Run, tmp_path: Path) -> None:
    tasks.assert_resume_is_bit_identical(run, tmp_path / "run")


def test_resume_with_changed_training_data_is_refused(corpus: Path, run: Run, tmp_path: Path) -> None:
    data = write_file(tmp_path / "train.conll", (corpus / "train.conll").read_bytes())
    tasks.assert_resume_refuses_changed_data(
        run, data, tmp_path / "run", lambda: write_file(data, (corpus / "test.conll").read_bytes())
    )


def test_resume_with_another_training_file_is_refused(corpus: Path, run: Run, tmp_path: Path) -> None:
    copy, further = copy_run(run, tmp_path / "run").folder, {"training.steps": 9}
    message = error_message(train, None, corpus / "test.conll", copy, resume=True, **further)
    assert "the training data differs from that of" in message
    assert f"--init-from {copy}" in message


def test_predictions_do_not_depend_on_the_rest_of_the_batch(run: Run) -> None:
    tagger = package.load(run.folder)
    texts = ["today they put the box .", "", "once we cut the old rope and you hit the door ?", "zzz"]
    together = tagger.predict(texts)
    assert [len(one.tags) for one in together] == [6, 0, 12, 1]
    for text, one in zip(texts, together, strict=True):
        (alone,) = tagger.predict([text.split()])
        assert (alone.words, alone.tags) == (one.words, one.tags)
        assert alone.probabilities == pytest.approx(one.probabilities, abs=1e-6)
        assert all(0 < probability <= 1 for probability in one.probabilities)
        assert one.to_text() == " ".join(f"{word}/{tag}" for word, tag in zip(text.split(), one.tags, strict=True))
        assert json.loads(json.dumps(one.to_dict())) == one.to_dict()
        assert one.make_attention_lines() == []
    assert not tagger.model.training


def test_predicted_tag_is_the_most_probable_label(run: Run) -> None:
    tagger = package.load(run.folder)
    (made,) = tagger.predict(["now children shut the door ?"])
    ids = torch.tensor([tagger.vocabulary.encode(made.words)]).view(1, 6, -1)
    probabilities = tagger.model(ids, torch.tensor([6]))[0, :, 1:].softmax(-1).detach()
    assert made.tags == tuple(tagger.vocabulary.labels[index] for index in probabilities.argmax(-1).tolist())
    assert made.probabilities == pytest.approx(probabilities.max(-1).values.tolist())


def test_prediction_refuses_words_with_missing_or_extra_columns(run: Run, column_run: Run) -> None:
    words, columns = package.load(run.folder), package.load(column_run.folder)
    with pytest.raises(UserError, match=r"reads its text, column 2, not \('a',\)"):
        columns.predict(["a b"])
    with pytest.raises(UserError, match=r"reads its text, not \('a', 'X'\)"):
        words.predict([[("a", "X")]])
    with pytest.raises(UserError, match="reads its text"):
        words.predict([["a", " "]])
    with pytest.raises(TypeError, match="a list of sentences"):
        words.predict("a b")
    with pytest.raises(UserError, match="a model that tags cannot join an ensemble"):
        package.load(run.folder, run.folder)
    (made,) = columns.predict([[("today", "T"), ("they", "T")]])
    assert made.to_dict()["words"] == ["today", "they"]


def test_evaluation_agrees_with_predictions(corpus: Path, run: Run) -> None:
    tagger: TaggingPredictor = package.load(run.folder)
    metrics = tagger.evaluate([corpus / "test.conll"])
    assert metrics.pop("loss") > 0
    gold = list(read_tagged_sentences([corpus / "test.conll"], TagDataSettings()))
    made = tagger.predict([" ".join(row[0] for row in one.words) for one in gold])
    pairs = [pair for one, tagged in zip(gold, made, strict=True) for pair in zip(one.labels, tagged.tags, strict=True)]
    assert metrics == {
        "sentences": 100,
        "words": len(pairs),
        "accuracy": pytest.approx(100 * sum(left == right for left, right in pairs) / len(pairs)),
    }


def test_report_and_list_of_runs_show_accuracy(run: Run, regard: Command) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Dev accuracy" in page
    (first, *_) = TaggingTask().load_dev_set(TaggingTask().make_config(run.read_config()))
    assert first.reference_text.split()[0] in page
    listed = regard("runs", run.folder)
    assert "schuster1997" in listed.stdout
    assert "accuracy" in listed.stdout


def test_predict_command_prints_a_line_for_each_sentence(run: Run, regard: Command) -> None:
    text = "today they put the box .\n\nnow we cut the rope ?\n"
    lines, documents = tasks.check_predict_command(regard, run.folder, text)
    assert [len(line.split()) for line in lines] == [6, 0, 6]
    assert [pair.split("/")[0] for pair in lines[0].split()] == ["today", "they", "put", "the", "box", "."]
    assert documents[0]["words"] == ["today", "they", "put", "the", "box", "."]
    assert len(documents[0]["tags"]) == len(documents[0]["probabilities"]) == 6


def test_predict_command_reads_a_file_of_columns(corpus: Path, column_run: Run, regard: Command) -> None:
    done = regard("predict", column_run.folder, corpus / "test.conll")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 100
    refused = regard("predict", column_run.folder, input="just words\n\nword\n")
    assert refused.returncode == 2
    assert "column 2 is needed" in refused.stderr


def test_conllu_is_recognised_in_files_but_not_in_plain_lines(run: Run, tmp_path: Path) -> None:
    words = ("today", "they", "put", "the", "box", ".")
    block = "".join(f"{number}\t{word}\t_\tX\t_\t_\t0\t_\t_\t_\n" for number, word in enumerate(words, 1))
    path = write_file(tmp_path / "a.txt", f"# a comment\n{block}\n# another\n{block}")
    tagger = package.load(run.folder)
    rows = tuple((word,) for word in words)
    assert list(tagger.read_inputs(path)) == [rows, rows]
    assert list(tagger.parse_lines(["", "# they put", "1 box"])) == [
        (),
        (("#",), ("they",), ("put",)),
        (("1",), ("box",)),
    ]


def test_corpora_too_small_to_train_on_are_refused(tmp_path: Path) -> None:
    def message(content: str) -> str:
        return error_message(train, "schuster1997", write_file(tmp_path / "a.txt", content), tmp_path / "run")

    assert message("a X\n\nb X\n\n") == "every word has the label 'X': a tagger needs at least two labels"
    assert message("a X\nb Y\n").startswith(
        "there is one sentence, or all are equal (a blank line ends a sentence), too little to train"
    )
    assert message("a X\n\na X\n").startswith("there is one sentence, or all are equal")


def test_train_command_says_how_to_tag(corpus: Path, regard: Command) -> None:
    tasks.check_train_command(regard, "schuster1997", corpus / "train.conll", QUICK, "tag")


@pytest.mark.slow
def test_train_command_reads_standard_input(corpus: Path, regard: Command) -> None:
    data = (corpus / "train.conll").read_bytes()
    done = regard("train", "-", "--recipe", "schuster1997", "--out", "run", *format_overrides(QUICK), input=data)
    assert done.returncode == 0, done.stderr


def test_evaluate_command_prints_accuracy_and_refuses_search_options(corpus: Path, run: Run, regard: Command) -> None:
    metrics = tasks.check_evaluate_command(regard, run.folder, corpus / "test.conll", {"accuracy"})
    assert set(metrics) == {"system", "sentences", "words", "loss", "accuracy"}
    refused = regard("evaluate", run.folder, corpus / "test.conll", "--beam", 3)
    assert refused.returncode == 2
    assert refused.stderr == f"regard: --beam is for runs that translate, but {run.folder} does not\n"


def test_init_from_keeps_input_columns_and_vocabulary(corpus: Path, column_run: Run, tmp_path: Path) -> None:
    start: dict[str, Any] = {"training.init_from": str(column_run.folder), "training.steps": 3}
    child = train(None, corpus / "test.conll", tmp_path / "child", **start)
    config = child.read_config()
    assert config["data"]["inputs"] == [2]
    same = "tokenizer/vocabulary.json"
    assert (child.folder / same).read_bytes() == (column_run.folder / same).read_bytes()
    other = write_file(tmp_path / "words.txt", "a X NEW\n\nb X NEW\n")
    with pytest.raises(UserError, match="does not know the label 'NEW'; it chooses from"):
        train(None, other, tmp_path / "no", **start)
    with pytest.raises(UserError, match="for models that read word, column 2, "):
        train(None, corpus / "test.conll", tmp_path / "no", **start | {"data.inputs": None})


def test_training_on_chunk_labels_is_validated_by_f1(tmp_path: Path) -> None:
    path = write_file(tmp_path / "words.txt", "a B-X\nb I-X\nc O\n\n" * 3 + "b B-X\nc O\n\n" * 30 + "c O\n\n" * 30)
    made = train("schuster1997", path, tmp_path / "run", dev=path, **{**QUICK, "text.suffix": 0})
    rows = [row for row in made.read_metrics() if row["kind"] == "dev"]
    assert {"precision", "recall", "f1", "accuracy"} < set(rows[-1])
    assert rows[-1]["measure"] == "f1"
    assert list(package.load(made.folder).evaluate([path])["f1_by_kind"]) == ["X"]


# Settings.


def test_text_and_data_settings_take_effect(corpus: Path, tmp_path: Path) -> None:
    def job(**changes: Any) -> Any:
        return prepare_job("schuster1997", corpus / "train.conll", tmp_path, **{**QUICK, **changes})

    def kinds(**changes: Any) -> list[str]:
        return list(job(**changes).dataset.vocabulary.feature_values)

    assert kinds() == ["word", "suffix 1", "suffix 2", "suffix 3", "shape"]
    assert kinds(**{"text.suffix": 1, "text.shape": False, "data.inputs": [2]}) == ["word", "column 2", "suffix 1"]
    few, many = (job(**{"text.minimum": count}).vocabulary_sizes[0] for count in (30, 1))
    assert few < many
    values = job(**{"text.vocabulary": 7}).dataset.vocabulary.feature_values
    assert max(map(len, values.values())) == 8, "7 values and the unknown"
    assert job(**{"text.dropout": 0.3}).dataset.dropout == 0.3
    assert job(**{"training.validate_pairs": 4}).validate.max_measured == 4
    assert "THE" not in job(**{"data.label": 2}).dataset.vocabulary.labels
    assert len(job(**{"data.dev_sentences": 2}).validate.examples) == 2
    assert not job(**{"text.lowercase": False}).dataset.vocabulary.settings.lowercase


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("text", {"kind": "bpe"}, "text.kind is one of word, not 'bpe'"),
        ("text", {"vocabulary": 0}, "vocabulary must be at least 1, not 0"),
        ("text", {"minimum": 0}, "minimum must be at least 1, not 0"),
        ("text", {"suffix": -1}, "suffix must be at least 0, not -1"),
        ("text", {"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ("data", {"max_length": 0}, "max_length must be at least 1, not 0"),
        ("data", {"dev_sentences": 0}, "dev_sentences must be at least 1, not 0"),
        ("data", {"inputs": [2, 2]}, "inputs must be different columns and not include the label"),
        ("data", {"inputs": [2], "label": 2}, "inputs must be different columns and not include the label"),
        ("data", {"inputs": "lemma"}, "data.inputs is a list"),
        ("data", {"label": 1.5}, "data.label is a whole number or text or null"),
    ],
)
def test_invalid_settings_are_refused(section: str, values: dict[str, Any], message: str) -> None:
    settings: type = {"text": TagTextSettings, "data": TagDataSettings}[section]
    assert message in error_message(parse_settings, settings, values, section)


# The synthetic corpus.


def test_synthetic_verb_tags_depend_on_first_and_last_word() -> None:
    generator = random.Random(5)
    tags: dict[tuple[str, str], set[str]] = {}
    for _ in range(500):
        made = make_tagged_sentence(generator)
        when, mark = made.words[0][0], made.words[-1][0]
        tags.setdefault((TIME_WORDS[when], mark), set()).update(label for label in made.labels if "-" in label)
        others = {(row[0], label) for row, label in zip(*made, strict=True) if "-" not in label}
        assert len({word for word, _ in others}) == len(others), "a word other than a verb has two tags"
    assert all(len(possible) == 1 for possible in tags.values())
    assert len({tag for possible in tags.values() for tag in possible}) == len(tags) == 4


def test_synthetic_corpus_depends_on_the_seed_without_duplicates(tmp_path: Path) -> None:
    first = tasks.assert_synthetic_corpus_depends_on_seed(write_tagging_corpus, tmp_path, "schuster1997")
    sentences = list(read_tagged_sentences([*first.train, *first.dev, *first.test], TagDataSettings()))
    assert len(sentences) == len(set(sentences)) == 2600


@pytest.mark.learn
def test_bidirectional_rnn_learns_what_a_unidirectional_rnn_cannot(tmp_path: Path) -> None:
    corpus = write_tagging_corpus(tmp_path / "data")
    scores = {}
    for network in ("brnn", "rnn"):
        changes = {**corpus.overrides, "model.network": network}
        made = train("schuster1997", corpus.train, tmp_path / network, dev=corpus.dev, **changes)
        scores[network] = package.load(made.folder).evaluate(corpus.test)["accuracy"]
    gold = list(read_tagged_sentences(corpus.test, TagDataSettings()))
    verbs = sum("-" in label for one in gold for label in one.labels) / sum(len(one.labels) for one in gold)
    assert scores["brnn"] >= 99
    assert scores["rnn"] < 100 - 40 * verbs, "without the last word half of the verbs are a guess"
