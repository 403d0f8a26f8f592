"""Tagging: from columns to a run, and from sentences to tags."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.commands import Command

import regard as package
from regard.config import parse
from regard.errors import UserError
from regard.models import build
from regard.recipes import override
from regard.recipes import read as recipe
from regard.runs import Run, checkpoint
from regard.symbols import PAD
from regard.tasks import TASKS
from regard.tasks.tagging import Tagger, Validator, embedded
from regard.tasks.tagging.columns import Tagged, read, unlabelled
from regard.tasks.tagging.embedded import WHEN, sentence
from regard.tasks.tagging.examples import Examples
from regard.tasks.tagging.measures import figures
from regard.tasks.tagging.preparation import split
from regard.tasks.tagging.settings import TagDataSettings, TagTextSettings
from regard.tasks.tagging.vocabulary import UNKNOWN, Vocabulary, features, shape
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
    "model.size": 12,
    "model.dropout": 0.2,
    "training.steps": 6,
    "training.batch_tokens": 120,
    "training.learning_rate": 0.01,
    "training.schedule": "constant",
    "training.validate_every": 3,
    "training.checkpoint_every": 3,
    "training.log_every": 1,
    "training.tensorboard": False,
}


def written(folder: Path, text: str | bytes, name: str = "words.txt") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def found(path: Path, **settings: Any) -> list[Tagged]:
    return list(read([path], TagDataSettings(**settings)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train, dev and test, each a hundred sentences with words, what they describe, and labels."""
    folder = tmp_path_factory.mktemp("tagging")
    drawn = random.Random(4)
    for name in ("train", "dev", "test"):
        some = [sentence(drawn) for _ in range(100)]
        rows = (
            "".join(f"{row[0]}\t{row[0][0].upper()}\t{label}\n" for row, label in zip(*one, strict=True)) + "\n"
            for one in some
        )
        (folder / f"{name}.conll").write_text("".join(rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that reads words alone, with its report; nobody changes it."""
    out = tmp_path_factory.mktemp("runs") / "words"
    return package.train("schuster1997", corpus / "train.conll", out, dev=corpus / "dev.conll", **QUICK)


@pytest.fixture(scope="module")
def wider(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that reads the second column as well; nobody changes it."""
    out = tmp_path_factory.mktemp("runs") / "columns"
    return train("schuster1997", corpus / "train.conll", out, **{**QUICK, "data.inputs": [2]})


# Reading.


def test_columns_are_read_with_the_label_in_the_last(tmp_path: Path) -> None:
    first, second = found(written(tmp_path, CONLL))
    assert first == ((("The",), ("dog",), ("barks",), (".",)), ("B-NP", "I-NP", "B-VP", "O"))
    assert second == ((("#",), ("12",)), ("O", "B-NP"))


def test_columns_are_chosen_by_their_number(tmp_path: Path) -> None:
    first, _ = found(written(tmp_path, CONLL), label=2, inputs=(3,))
    assert first.rows[:2] == (("The", "B-NP"), ("dog", "I-NP"))
    assert first.labels == ("DT", "NN", "VBZ", ".")


def test_conll_u_is_known_by_its_first_word_whatever_its_name(tmp_path: Path) -> None:
    first, second = found(written(tmp_path, CONLLU))
    assert first == ((("They",), ("do",), ("n't",), ("sleep",)), ("PRON", "AUX", "PART", "VERB"))
    assert second == ((("10 000",),), ("NUM",))
    first, _ = found(written(tmp_path, CONLLU), label="xpos", inputs=("lemma", 4))
    assert first.rows[2] == ("n't", "not", "PART")
    assert first.labels == ("PRP", "VBP", "RB", "VB")


def test_several_files_of_both_kinds_are_read_one_after_the_other(tmp_path: Path) -> None:
    paths = [
        written(tmp_path, gzip.compress(CONLL.encode()), "a.txt.gz"),
        written(tmp_path, CONLLU.replace("\n", "\r\n")),
    ]
    assert [len(one.rows) for one in read(paths, TagDataSettings())] == [4, 2, 4, 1]


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("a X\nb\n", {}, "words.txt:2: no label behind what is read of a word, white space between: 'b'"),
        ("a X\n", {"inputs": (2,)}, "words.txt:1: no label behind what is read of a word, white space between: 'a X'"),
        ("a X\n", {"label": 3}, "words.txt:1: the label is in column 3 (data.label), of 2: 'a X'"),
        ("a X Y\n", {"label": 2, "inputs": (7,)}, "words.txt:1: column 7 is to be read, of 3: 'a X Y'"),
        ("a X\n", {"label": "upos"}, "a column is named 'upos' in CoNLL-U alone"),
        ("a X\n", {"label": 0}, "columns are counted from 1, not 0"),
        ("a X\n", {"label": 1}, "columns beside the word, 1, each once"),
        (CONLLU, {"label": "upso"}, "there is no column 'upso'; did you mean 'upos'"),
        (CONLLU, {"label": 11}, "columns are counted from 1 to 10, not 11"),
        (CONLLU, {"inputs": ("lemma", 3)}, "columns beside the word, 2, each once"),
        (CONLLU.replace("3\tn't\tnot", "3\tn't not"), {}, "words.txt:6: not a word of CoNLL-U"),
        (CONLLU.replace("They\tthey\tPRON", "They\tthey\t "), {}, "words.txt:3: the label is empty"),
        (CONLLU.replace("2\tdo\tdo", "2\t\tdo"), {}, "words.txt:5: a column that is to be read is empty"),
        (b"a X\n\xff Y\n", {}, "words.txt:2: not UTF-8"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(
    text: str | bytes, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        found(written(tmp_path, text), **settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_for_tagging_may_have_labels_or_not() -> None:
    settings = TagDataSettings(inputs=(2,))
    assert list(unlabelled(["a X", "b Y", "", "c Z W"], settings)) == [(("a", "X"), ("b", "Y")), (("c", "Z"),)]
    with pytest.raises(UserError, match="line 3: column 2 is to be read, of 1: 'b'"):
        list(unlabelled(["a X", "", "b"], settings))


def attempted(path: Path, settings: dict[str, Any]) -> tuple[list[Tagged], str]:
    """What is in a file, or why it is refused."""
    try:
        return found(path, **settings), ""
    except UserError as error:
        return [], str(error)


pieces = st.sampled_from(
    ["a", "B-X", "\t", " ", "\n", "\n\n", "#", "1", "2-3", "1.1", "_", "\r", "\x85", "é", "\x00", "\ufeff"]
)
texts = st.one_of(
    st.binary(max_size=60),
    st.lists(pieces, max_size=60).map(lambda some: "".join(some).encode()),
    st.tuples(st.integers(0, len(CONLLU)), st.lists(pieces, max_size=4)).map(
        lambda cut: (CONLLU[: cut[0]] + "".join(cut[1]) + CONLLU[cut[0] :]).encode()
    ),
)


@given(texts, st.sampled_from([{}, {"label": 2}, {"inputs": (2,)}, {"label": "upos", "inputs": ("lemma",)}]))
def test_whatever_the_bytes_they_are_read_or_refused(content: bytes, settings: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        some, refusal = attempted(written(Path(folder), content), settings)
    assert "\n" not in refusal
    for one in some:
        assert len(one.rows) == len(one.labels) > 0
        assert all(len(row) == 1 + len(settings.get("inputs", ())) and all(map(str.strip, row)) for row in one.rows)
        assert all(label.strip() for label in one.labels)
    text = TagTextSettings(minimum=1)
    vocabulary = Vocabulary.learn(some, text, settings.get("inputs", ()))
    assert all(all(vocabulary.encode_labels(one.labels)) for one in some)
    assert all(id < vocabulary.sizes[0] for one in some for id in vocabulary.encode(one.rows))


# Features.


def test_every_suffix_is_a_feature_and_so_is_the_shape() -> None:
    settings = TagTextSettings(suffix=3)
    assert features(("Walking", "VBG"), settings) == ["walking", "VBG", "g", "ng", "ing", "Aa"]
    assert features(("An",), settings) == ["an", "n", "an", None, "Aa"]
    assert features(("An",), TagTextSettings(suffix=0, shape=False, lowercase=False)) == ["An"]
    assert features(("An",), TagTextSettings(suffix=1, lowercase=False)) == ["An", "n", "Aa"]


def test_a_shape_has_each_run_once() -> None:
    shapes = {"McDonald-2000": "AaAa-0", "IBM": "A", "1,000.5": "0.0.0", "e-mail": "a-a", "...": ".", "-": "-"}
    assert {word: shape(word) for word in shapes} == shapes


def test_what_is_rare_is_the_unknown_of_its_kind() -> None:
    rows = (("cat", "N"), ("cat", "N"), ("bat", "V"))
    vocabulary = Vocabulary.learn(
        [Tagged(rows, ("X", "X", "Y"))], TagTextSettings(minimum=2, suffix=2, shape=False), [2]
    )
    assert vocabulary.values == {
        "word": [UNKNOWN, "cat"],
        "column 2": [UNKNOWN, "N"],
        "suffix 1": [UNKNOWN, "t"],
        "suffix 2": [UNKNOWN, "at"],
    }
    assert vocabulary.encode([("cat", "N"), ("bat", "V"), ("q", "N")]) == [2, 4, 6, 8, 1, 3, 6, 8, 1, 4, 5, 0]
    assert vocabulary.sizes == (9, 3)
    assert vocabulary.labels == ["X", "Y"]
    assert vocabulary.encode_labels(["Y", "Z", "X"]) == [2, PAD, 1]
    every = Vocabulary.learn([Tagged(rows, ("X", "X", "Y"))], TagTextSettings(minimum=1, suffix=0, shape=False), [2])
    assert every.values == {"word": [UNKNOWN, "cat", "bat"], "column 2": [UNKNOWN, "N", "V"]}


def test_a_vocabulary_is_written_and_read(tmp_path: Path) -> None:
    settings = TagTextSettings(minimum=1)
    made = Vocabulary.learn([Tagged((("a\u2028b\rc", "é"),), ("X",))], settings, ["lemma"])
    made.save(tmp_path)
    again = Vocabulary.load(tmp_path, settings, ["lemma"])
    assert (again.values, again.labels, again.sizes) == (made.values, made.labels, made.sizes)
    with pytest.raises(
        UserError, match="read word, column lemma, suffix 1, suffix 2, suffix 3, shape of a word, not word"
    ):
        Vocabulary.load(tmp_path, settings, [])
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
            Vocabulary.load(tmp_path, settings, ["lemma"])
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        Vocabulary.load(tmp_path, settings, ["lemma"])


# Batches.


def some_examples(dropout: float = 0.0) -> tuple[list[Tagged], Vocabulary, Examples]:
    drawn = random.Random(2)
    sentences = [sentence(drawn) for _ in range(40)]
    vocabulary = Vocabulary.learn(sentences, TagTextSettings(minimum=1, suffix=2), ())
    return sentences, vocabulary, Examples(sentences, vocabulary, dropout)


def test_a_batch_has_the_features_of_each_word_and_zeros_behind() -> None:
    sentences, vocabulary, examples = some_examples()
    rows = np.array([3, 0, 11])
    batch = examples.batch(rows)
    assert batch.rows == 3
    assert batch.lengths.tolist() == [len(sentences[row].rows) for row in rows]
    assert batch.tokens == batch.targets == int(batch.lengths.sum())
    assert batch.source.shape == (3, int(batch.lengths.max()), 4)
    for place, row in enumerate(rows):
        size = len(sentences[row].rows)
        assert batch.source[place, :size].flatten().tolist() == vocabulary.encode(sentences[row].rows)
        assert batch.target[place, :size].tolist() == vocabulary.encode_labels(sentences[row].labels)
        assert not batch.source[place, size:].any()
        assert not batch.target[place, size:].any()
    halves = batch.pieces(2)
    assert [half.rows for half in halves] == [1, 2]
    assert torch.equal(torch.cat([half.source for half in halves]), batch.source)
    assert len(batch.pieces(9)) == 3
    assert examples.sizes.tolist() == [len(one.rows) for one in sentences]


def test_words_become_unknown_as_the_seed_says() -> None:
    _, vocabulary, examples = some_examples(0.4)
    plain, rows = some_examples()[2], np.arange(40)
    first, again, other = (examples.batch(rows, seed) for seed in (1, 1, 2))
    assert torch.equal(first.source, again.source)
    assert not torch.equal(first.source, other.source)
    whole = plain.batch(rows, 1)
    changed = first.source != whole.source
    assert not changed[..., 1:].any(), "of a word nothing but itself"
    assert (first.source[changed] == vocabulary.ids[0][UNKNOWN]).all()
    assert 0.3 < changed[..., 0].sum() / whole.tokens < 0.5
    assert not first.source[whole.source == PAD].any()
    assert examples.fingerprint == plain.fingerprint


def test_a_fingerprint_tells_examples_apart() -> None:
    sentences, vocabulary, examples = some_examples()
    assert Examples(sentences, vocabulary).fingerprint == examples.fingerprint
    assert Examples(sentences[:-1], vocabulary).fingerprint != examples.fingerprint
    relabelled = [sentences[0]._replace(labels=("THE",) * len(sentences[0].rows)), *sentences[1:]]
    assert Examples(relabelled, vocabulary).fingerprint != examples.fingerprint


def settings_for(*train: Path, **more: Any) -> TagDataSettings:
    return TagDataSettings(train=tuple(map(str, train)), **more)


def test_sentences_are_held_out_by_what_they_are(corpus: Path, tmp_path: Path) -> None:
    blocks = (corpus / "train.conll").read_text(encoding="utf-8").strip().split("\n\n")
    turned = written(tmp_path, "\n\n".join(reversed(blocks)))
    first, other = (split(settings_for(path), 1) for path in (corpus / "train.conll", turned))
    assert len(first.dev) == 10
    assert sorted(first.dev) == sorted(other.dev)
    assert sorted(split(settings_for(turned), 2).dev) != sorted(first.dev)
    assert len(split(settings_for(turned, dev_sentences=3), 1).dev) == 3
    assert Counter(first.train + first.dev) == Counter(read([turned], TagDataSettings()))
    assert not set(first.train) & set(first.dev)
    given_dev = split(settings_for(turned, dev=(str(corpus / "dev.conll"),)), 1)
    assert len(given_dev.train) == len(given_dev.dev) == 100


def test_long_sentences_are_left_out_of_training_and_only_there(corpus: Path) -> None:
    whole = split(settings_for(corpus / "train.conll"), 1)
    cut = split(settings_for(corpus / "train.conll", max_length=8), 1)
    assert cut.dev == whole.dev
    assert cut.train == [one for one in whole.train if len(one.rows) <= 8]
    assert cut.too_long == len(whole.train) - len(cut.train) > 0
    with pytest.raises(UserError, match=r"no sentence has at most 2 words \(data.max_length\)"):
        split(settings_for(corpus / "train.conll", max_length=2), 1)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_files_without_sentences_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sentences in there"):
        split(settings_for(written(tmp_path, text)), 1)


# Figures.


def test_figures_of_chunks_and_of_other_labels() -> None:
    gold, made = [["B-NP", "I-NP", "O"], ["B-VP"]], [["B-NP", "I-NP", "B-VP"], ["B-VP"]]
    told = figures(gold, made, ["O", "B-NP", "I-NP", "B-VP"])
    assert told["accuracy"] == 75.0
    assert (told["precision"], told["recall"]) == (pytest.approx(200 / 3), 100.0)
    assert told["f1"] == pytest.approx(80.0)
    assert told["f1_by_kind"] == {"NP": 100.0, "VP": pytest.approx(200 / 3)}
    assert figures([["N"], []], [["N"], []], ["N", "V"]) == {"accuracy": 100.0}


def validator(sentences: list[Tagged], measured: int = 99) -> tuple[Validator, Any]:
    vocabulary = Vocabulary.learn(sentences, TagTextSettings(minimum=1), ())
    torch.manual_seed(1)
    return Validator(sentences, vocabulary, 60, measured), build("schuster1997", *vocabulary.sizes, size=6)


def test_validation_leaves_model_and_chance_as_they_were_and_knows_no_padding() -> None:
    sentences = some_examples()[0]
    whole, model = validator(sentences)
    state = torch.get_rng_state()
    model.train()
    found = whole(model, torch.device("cpu"))
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert found.measure == "accuracy"
    assert found.score == found.figures["accuracy"]
    assert len(found.samples) == 5
    assert set(found.samples[0].told()) == {"right", "tagged"}
    assert found.samples[0].picture() is None
    model.eval()
    total, right, words = 0.0, 0, 0
    for one in sentences:
        batch = Examples([one], whole.vocabulary).batch(np.array([0]))
        logits = model(batch.source, batch.lengths)[0].detach()
        total -= float(logits.log_softmax(-1).gather(1, batch.target[0][:, None]).sum())
        right += int((logits[:, 1:].argmax(-1) + 1 == batch.target[0]).sum())
        words += len(one.rows)
    assert found.loss == pytest.approx(total / words, rel=1e-5)
    assert found.score == pytest.approx(100 * right / words)


def test_figures_are_of_the_first_sentences_and_the_loss_is_of_all() -> None:
    sentences = some_examples()[0]
    (whole, model), (few, _) = validator(sentences), validator(sentences, 3)
    first, second = (one(model, torch.device("cpu")) for one in (whole, few))
    assert first.loss == second.loss
    alone, _ = validator(sentences)
    alone.measured = 3
    assert second.figures == alone(model, torch.device("cpu")).figures != first.figures


# A run.


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(corpus: Path, tmp_path: Path) -> None:
    more = {**QUICK, "text.dropout": 0.2, "model.layers": 2}
    to_the_end: dict[str, Any] = {"training.steps": 6}
    whole = train("schuster1997", corpus / "train.conll", tmp_path / "whole", **more)
    halves = train("schuster1997", corpus / "train.conll", tmp_path / "halves", **{**more, "training.steps": 3})
    halves = train(None, None, halves.folder, resume=True, **to_the_end)
    first, second = (checkpoint.read_tensors(run.checkpoint_folder(6), checkpoint.MODEL) for run in (whole, halves))
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_does_not_go_on_with_other_data(corpus: Path, run: Run, tmp_path: Path) -> None:
    copy = Run(Path(shutil.copytree(run.folder, tmp_path / "run")))
    further: dict[str, Any] = {"training.steps": 9}
    with pytest.raises(UserError, match="the training data is not what"):
        train(None, corpus / "test.conll", copy.folder, resume=True, **further)


def test_predictions_do_not_depend_on_the_company_they_are_in(run: Run) -> None:
    tagger = package.load(run.folder)
    texts = ["today they put the box .", "", "once we cut the old rope and you hit the door ?", "zzz"]
    together = tagger.predict(texts)
    assert [len(one.tags) for one in together] == [6, 0, 12, 1]
    for text, one in zip(texts, together, strict=True):
        (alone,) = tagger.predict([text.split()])
        assert (alone.rows, alone.tags) == (one.rows, one.tags)
        assert alone.probabilities == pytest.approx(one.probabilities, abs=1e-6)
        assert all(0 < chance <= 1 for chance in one.probabilities)
        assert one.line() == " ".join(f"{word}/{tag}" for word, tag in zip(text.split(), one.tags, strict=True))
        assert json.loads(json.dumps(one.document())) == one.document()
        assert one.looks() == []
    assert not tagger.model.training


def test_a_label_is_the_most_probable_one(run: Run) -> None:
    tagger = package.load(run.folder)
    (made,) = tagger.predict(["now children shut the door ?"])
    ids = torch.tensor([tagger.vocabulary.encode(made.rows)]).view(1, 6, -1)
    chances = tagger.model(ids, torch.tensor([6]))[0, :, 1:].softmax(-1).detach()
    assert made.tags == tuple(tagger.vocabulary.labels[place] for place in chances.argmax(-1).tolist())
    assert made.probabilities == pytest.approx(chances.max(-1).values.tolist())


def test_what_a_word_lacks_is_said(run: Run, wider: Run) -> None:
    words, columns = package.load(run.folder), package.load(wider.folder)
    with pytest.raises(UserError, match=r"reads its text, column 2, not \('a',\)"):
        columns.predict(["a b"])
    with pytest.raises(UserError, match=r"reads its text, not \('a', 'X'\)"):
        words.predict([[("a", "X")]])
    with pytest.raises(UserError, match="reads its text"):
        words.predict([["a", " "]])
    with pytest.raises(TypeError, match="a list of sentences"):
        words.predict("a b")
    with pytest.raises(UserError, match="a model that tags works alone, not beside others"):
        package.load(run.folder, run.folder)
    (made,) = columns.predict([[("today", "T"), ("they", "T")]])
    assert made.document()["words"] == ["today", "they"]


def test_evaluation_counts_what_predictions_are(corpus: Path, run: Run) -> None:
    tagger: Tagger = package.load(run.folder)
    told = tagger.evaluate([corpus / "test.conll"])
    gold = list(read([corpus / "test.conll"], TagDataSettings()))
    made = tagger.predict([" ".join(row[0] for row in one.rows) for one in gold])
    pairs = [pair for one, some in zip(gold, made, strict=True) for pair in zip(one.labels, some.tags, strict=True)]
    assert told == {
        "sentences": 100,
        "words": len(pairs),
        "accuracy": pytest.approx(100 * sum(left == right for left, right in pairs) / len(pairs)),
    }


def test_the_report_and_the_list_of_runs_have_it(run: Run, regard: Command) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Dev accuracy" in page
    (asked, *_) = TASKS["tag"].dev(run)
    assert asked.answer.split()[0] in page
    listed = regard("runs", run.folder)
    assert "schuster1997" in listed.stdout
    assert "accuracy" in listed.stdout


def test_a_pipe_of_sentences_gives_a_line_each(run: Run, regard: Command) -> None:
    done = regard("predict", run.folder, input="today they put the box .\n\nnow we cut the rope ?\n")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.split("\n")
    assert [len(line.split()) for line in lines] == [6, 0, 6, 0]
    assert [pair.split("/")[0] for pair in lines[0].split()] == ["today", "they", "put", "the", "box", "."]
    told = regard("predict", run.folder, "--json", input="today they put the box .\n")
    document = json.loads(told.stdout)
    assert document["words"] == ["today", "they", "put", "the", "box", "."]
    assert len(document["tags"]) == len(document["probabilities"]) == 6


def test_a_file_of_columns_gives_a_line_for_each_sentence(corpus: Path, wider: Run, regard: Command) -> None:
    done = regard("predict", wider.folder, corpus / "test.conll")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 100
    refused = regard("predict", wider.folder, input="just words\n\nword\n")
    assert refused.returncode == 2
    assert "column 2 is to be read" in refused.stderr


def test_a_file_of_conllu_is_known_where_words_alone_are_read(run: Run, tmp_path: Path) -> None:
    words = ("today", "they", "put", "the", "box", ".")
    told = "".join(f"{number}\t{word}\t_\tX\t_\t_\t0\t_\t_\t_\n" for number, word in enumerate(words, 1))
    (tmp_path / "a.txt").write_text(f"# a comment\n{told}\n# another\n{told}", encoding="utf-8")
    tagger = package.load(run.folder)
    rows = tuple((word,) for word in words)
    assert list(tagger.inputs(tmp_path / "a.txt")) == [rows, rows]
    assert list(tagger.read(["", "# they put", "1 box"])) == [(), (("#",), ("they",), ("put",)), (("1",), ("box",))]


def test_what_is_nothing_to_learn_from_is_named(tmp_path: Path) -> None:
    def said(content: str) -> str:
        (tmp_path / "a.txt").write_text(content, encoding="utf-8")
        with pytest.raises(UserError) as error:
            train("schuster1997", tmp_path / "a.txt", tmp_path / "run")
        return str(error.value)

    assert said("a X\n\nb X\n\n") == "every word has the label 'X': there is nothing to choose from"
    assert said("a X\nb Y\n").startswith("there is one sentence, which a blank line would end, too little to train")
    assert said("a X\n\na X\n").startswith("all sentences are alike, too little to train")


def test_train_and_evaluate_from_the_command_line(corpus: Path, regard: Command, tmp_path: Path) -> None:
    changes = [f"{key}={json.dumps(value)}" for key, value in QUICK.items()]
    done = regard("train", corpus / "train.conll", "--recipe", "schuster1997", *changes)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "tag with: regard predict runs/train-schuster1997 FILE"
    told = regard("evaluate", "runs/train-schuster1997", corpus / "test.conll", "--json")
    assert set(json.loads(told.stdout)) == {"system", "sentences", "words", "accuracy"}
    assert "accuracy" in regard("evaluate", "runs/train-schuster1997", corpus / "test.conll").stdout
    refused = regard("evaluate", "runs/train-schuster1997", corpus / "test.conll", "--beam", 3)
    assert refused.returncode == 2
    assert refused.stderr == "regard: --beam is for runs that translate, and runs/train-schuster1997 does not\n"
    piped = regard(
        "train",
        "-",
        "--recipe",
        "schuster1997",
        "--out",
        "piped",
        *changes,
        input=(corpus / "train.conll").read_bytes(),
    )
    assert piped.returncode == 0, piped.stderr


def test_a_run_starts_from_another_with_its_columns_and_vocabulary(corpus: Path, wider: Run, tmp_path: Path) -> None:
    start: dict[str, Any] = {"training.init_from": str(wider.folder), "training.steps": 3}
    child = train(None, corpus / "test.conll", tmp_path / "child", **start)
    config = child.config()
    assert config["data"]["inputs"] == [2]
    same = "tokenizer/vocabulary.json"
    assert (child.folder / same).read_bytes() == (wider.folder / same).read_bytes()
    other = written(tmp_path, "a X NEW\n\nb X NEW\n")
    with pytest.raises(UserError, match="does not know the label 'NEW'; it chooses from"):
        train(None, other, tmp_path / "no", **start)
    with pytest.raises(UserError, match="of models that read word, column 2, "):
        train(None, corpus / "test.conll", tmp_path / "no", **start | {"data.inputs": None})


def test_chunks_are_measured_by_f1(tmp_path: Path) -> None:
    path = written(tmp_path, "a B-X\nb I-X\nc O\n\n" * 3 + "b B-X\nc O\n\n" * 30 + "c O\n\n" * 30)
    made = train("schuster1997", path, tmp_path / "run", dev=path, **{**QUICK, "text.suffix": 0})
    rows = [row for row in made.metrics() if row["kind"] == "dev"]
    assert {"precision", "recall", "f1", "accuracy"} < set(rows[-1])
    assert rows[-1]["measure"] == "f1"
    assert list(package.load(made.folder).evaluate([path])["f1_by_kind"]) == ["X"]


# What each key says, where nothing above has shown it.


def first_update(corpus: Path, folder: Path, **changes: Any) -> Any:
    config = override(recipe("schuster1997"), {**QUICK, "data.train": [str(corpus / "train.conll")], **changes})
    return TASKS["tag"].prepared(Run(folder), config, False)


def test_the_keys_of_text_and_data_reach_the_job(corpus: Path, tmp_path: Path) -> None:
    def kinds(**changes: Any) -> list[str]:
        return list(first_update(corpus, tmp_path, **changes).validate.vocabulary.kinds)

    assert kinds() == ["word", "suffix 1", "suffix 2", "suffix 3", "shape"]
    assert kinds(**{"text.suffix": 1, "text.shape": False, "data.inputs": [2]}) == ["word", "column 2", "suffix 1"]
    few, many = (first_update(corpus, tmp_path, **{"text.minimum": chosen}).sizes[0] for chosen in (30, 1))
    assert few < many
    values = first_update(corpus, tmp_path, **{"text.vocabulary": 7}).validate.vocabulary.values
    assert max(map(len, values.values())) == 8, "seven, and the unknown"
    assert first_update(corpus, tmp_path, **{"text.dropout": 0.3}).source.dropout == 0.3
    assert first_update(corpus, tmp_path, **{"training.validate_pairs": 4}).validate.measured == 4
    assert "THE" not in first_update(corpus, tmp_path, **{"data.label": 2}).validate.vocabulary.labels
    assert len(first_update(corpus, tmp_path, **{"data.dev_sentences": 2}).validate.dev) == 2
    assert not first_update(corpus, tmp_path, **{"text.lowercase": False}).validate.vocabulary.settings.lowercase


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("text", {"kind": "bpe"}, "text.kind is one of word, not 'bpe'"),
        ("text", {"vocabulary": 0}, "vocabulary must hold at least one word, not 0"),
        ("text", {"minimum": 0}, "minimum must be at least 1, not 0"),
        ("text", {"suffix": -1}, "suffix must be from 0 to 20 letters, not -1"),
        ("text", {"dropout": 1.0}, "dropout is a probability below 1, not 1.0"),
        ("data", {"max_length": 0}, "max_length and dev_sentences are at least 1, not 0 and 1000"),
        ("data", {"dev_sentences": 0}, "max_length and dev_sentences are at least 1"),
        ("data", {"inputs": [2, 2]}, "each once, and not the label"),
        ("data", {"inputs": [2], "label": 2}, "each once, and not the label"),
        ("data", {"inputs": "lemma"}, "data.inputs is a list"),
        ("data", {"label": 1.5}, "data.label is a whole number or text or null"),
    ],
)
def test_settings_that_mean_nothing_are_refused(section: str, values: dict[str, Any], said: str) -> None:
    settings: type = {"text": TagTextSettings, "data": TagDataSettings}[section]
    with pytest.raises(UserError, match=said):
        parse(settings, values, section)


# The embedded sentences.


def test_a_verbs_tag_needs_the_first_word_and_the_last() -> None:
    drawn = random.Random(5)
    tags: dict[tuple[str, str], set[str]] = {}
    for _ in range(500):
        made = sentence(drawn)
        when, mark = made.rows[0][0], made.rows[-1][0]
        tags.setdefault((WHEN[when], mark), set()).update(label for label in made.labels if "-" in label)
        others = {(row[0], label) for row, label in zip(*made, strict=True) if "-" not in label}
        assert len({word for word, _ in others}) == len(others), "of every other word it needs nothing"
    assert all(len(some) == 1 for some in tags.values())
    assert len({tag for some in tags.values() for tag in some}) == len(tags) == 4


def test_the_embedded_sentences_are_the_same_each_time_and_none_comes_twice(tmp_path: Path) -> None:
    first, again, other = (embedded(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first.train[0].read_bytes() == again.train[0].read_bytes() != other.train[0].read_bytes()
    every = list(read([*first.train, *first.dev, *first.test], TagDataSettings()))
    assert len(every) == len(set(every)) == 2600
    override(recipe("schuster1997"), first.changes)


@pytest.mark.learn
def test_both_directions_learn_what_one_cannot(tmp_path: Path) -> None:
    corpus = embedded(tmp_path / "data")
    scores = {}
    for network in ("brnn", "rnn"):
        changes = {**corpus.changes, "model.network": network}
        made = train("schuster1997", corpus.train, tmp_path / network, dev=corpus.dev, **changes)
        scores[network] = package.load(made.folder).evaluate(corpus.test)["accuracy"]
    gold = list(read(corpus.test, TagDataSettings()))
    verbs = sum("-" in label for one in gold for label in one.labels) / sum(len(one.labels) for one in gold)
    assert scores["brnn"] >= 99
    assert scores["rnn"] < 100 - 40 * verbs, "half of the verbs are a guess"
