"""`regard train FILE` without a recipe: the task that the file is for, and the default recipe of that task."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from support.files import write_file
from support.tasks import SIX_STEPS, assert_resume_is_bit_identical, error_message

from regard import load
from regard.data.readers.dispatch import detect_task
from regard.models.registry import build
from regard.recipes.recipe import read_recipe, resolve_auto_sizes
from regard.report.html import write_report
from regard.runs import Run
from regard.training import train

ADVERBS = ("very", "quite", "rather", "really", "so", "too", "hardly", "almost", "not", "never")
GOOD, BAD = ("fine", "good", "nice", "lovely"), ("poor", "bad", "awful", "dull")
REVIEWS = [
    (label, f"the film was {adverb} {word} .")
    for (label, words) in (("pos", GOOD), ("neg", BAD))
    for adverb, word in product(ADVERBS, words)
]
LABELLED = "".join(f"{label}\t{text}\n" for label, text in REVIEWS)
COLUMNS = "the DT\nfilm NN\nwas VB\n\nit PR\nwas VB\nnot RB\ngood JJ\n\n" * 12
SMALL: dict[str, Any] = {**SIX_STEPS, "model.size": 8, "training.batch_tokens": 200, "training.schedule": "constant"}


def test_rows_with_few_values_in_the_first_column_are_labelled_texts(tmp_path: Path) -> None:
    assert detect_task([write_file(tmp_path / "a.tsv", LABELLED)]) == "classify"
    assert detect_task([write_file(tmp_path / "b.tsv", "label\ttext\ngood\tfine\n")]) == "classify"
    assert detect_task([write_file(tmp_path / "c.jsonl", json.dumps({"text": "a", "label": 1}) + "\n")]) == "classify"
    assert detect_task([write_file(tmp_path / "pos" / "1.txt", "fine\n").parent.parent]) == "classify"


def test_pairs_stay_pairs_even_if_sources_repeat(tmp_path: Path) -> None:
    pairs = "".join(f"Run {number // 3} !\tLauf {number} !\n" for number in range(200))
    assert detect_task([write_file(tmp_path / "a.tsv", pairs)]) == "translate"
    assert detect_task([write_file(tmp_path / "b.tsv", "a\tb\n")]) == "translate"
    assert detect_task([write_file(tmp_path / "c.jsonl", '{"source": "a", "target": "b"}\n')]) == "translate"
    assert (
        detect_task([write_file(tmp_path / name, "good day\n\nbad day\n") for name in ("d.en", "d.de")]) == "translate"
    )


def test_words_with_labels_are_found_by_their_columns(tmp_path: Path) -> None:
    assert detect_task([write_file(tmp_path / "train.txt", COLUMNS)]) == "tag"
    conllu = "# text = it was\n1\tit\tit\tPRON\t_\t_\t2\tx\t_\t_\n2\twas\tbe\tVERB\t_\t_\t0\tx\t_\t_\n\n" * 2
    assert detect_task([write_file(tmp_path / "train.conllu", conllu)]) == "tag"
    assert detect_task([write_file(tmp_path / "prose.txt", "good day\nbad day\n")]) == "translate"


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("".join(f"{text}\t{label}\n" for label, text in REVIEWS), "data.label=2 data.text=1,"),
        ("sentence\tlabel\nfine\t1\n", "data.label=2 data.text=1 data.header=true,"),
    ],
)
def test_labels_in_another_column_are_asked_about(content: str, advice: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.tsv", content)
    message = error_message(train, None, path, tmp_path / "run")
    assert message.endswith(
        f"to train a classifier, add --recipe default-classification {advice} for a translation model --recipe default"
    )
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train the default classifier for 6 updates on a file whose task is detected."""
    folder = tmp_path_factory.mktemp("classify")
    return train(None, write_file(folder / "reviews.tsv", LABELLED), folder / "run", **SMALL)


def test_default_classifier_is_sized_by_the_corpus(classifier: Run) -> None:
    config = classifier.read_config()
    assert config["recipe"] == "default-classification"
    assert (config["model"]["members"], config["model"]["buckets"]) == (3, 16_384)
    large = resolve_auto_sizes(read_recipe("default-classification"), 100_000_000)
    assert (large["model"]["members"], large["model"]["buckets"]) == (1, 1 << 20)


def test_default_classifier_predicts_with_attention_over_all_tokens(classifier: Run) -> None:
    predictor = load(classifier.folder)
    short, empty, unknown = predictor.predict(["the film was fine.", "", "ünheard of"])
    assert predictor.predict([""])[0].probabilities == pytest.approx(empty.probabilities)
    assert short.tokens[:4] == ["the", "film", "was", "fine"]
    assert short.weights is not None
    assert short.weights.shape == (12, 5), "three members with four hops each"
    torch.testing.assert_close(torch.tensor(short.weights.sum(1)), torch.ones(12))
    for prediction in (short, empty, unknown):
        assert sum(prediction.probabilities.values()) == pytest.approx(1.0, abs=1e-5)
    assert short.plot() is not None
    write_report(classifier)
    assert "film" in (classifier.folder / "report.html").read_text(encoding="utf-8")


def test_pretrained_vectors_start_every_member(tmp_path: Path) -> None:
    vectors = write_file(tmp_path / "words.vec", "film 1.5 2.5 3.5\nother 0 0 0\n")
    changes = {"model.embedding": 3, "text.vectors": str(vectors), "training.learning_rate": 0.0}
    run = train(None, write_file(tmp_path / "a.tsv", LABELLED), tmp_path / "run", **{**SMALL, **changes})
    predictor = load(run.folder)
    (film,) = predictor.vocabulary.encoder.tokenizer.encode("film")
    found = [member.embedding.weight[film].tolist() for member in predictor.model.members]
    assert found == [[1.5, 2.5, 3.5]] * 3


def test_embeddings_start_from_vectors_of_unlabelled_texts(tmp_path: Path) -> None:
    more = write_file(tmp_path / "more.txt", "the evening was so splendid .\nthe evening was so fine .\n" * 5)
    changes = {"data.unlabelled": [str(more)], "training.learning_rate": 0.0}
    predictors = []
    for name, path, given in (("classify", "a.tsv", LABELLED), ("tag", "a.txt", COLUMNS)):
        labelled = write_file(tmp_path / path, given)
        run = train(None, labelled, tmp_path / name, **{**SMALL, **changes})
        predictors.append(load(run.folder))
    classifier, tagger = predictors
    known = {
        "classify": [classifier.vocabulary.tokenizer.encode(word)[0] for word in ("fine", "splendid", "awful")],
        "tag": [tagger.vocabulary.feature_ids[0][word] for word in ("fine", "splendid", "film")],
    }
    for name, predictor in (("classify", classifier), ("tag", tagger)):
        member = predictor.model.members[0] if hasattr(predictor.model, "members") else predictor.model
        fine, splendid, other = torch.nn.functional.normalize(member.embedding.weight[known[name]])
        assert fine @ splendid > 0.5, "the same neighbours"
        assert fine @ splendid > fine @ other + 0.1


def test_erasure_removes_the_attended_words(classifier: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = load(classifier.folder)
    found = predictor.evaluate([write_file(tmp_path / "test.tsv", LABELLED)])["erasure"]
    assert set(found) == {"attended_drop", "attended_changed", "random_drop", "random_changed"}
    given: list[list[str]] = []
    predict = predictor.predict

    def record_and_predict(texts: list[str]) -> Any:
        given.append(texts)
        return predict(texts)

    monkeypatch.setattr(predictor, "predict", record_and_predict)
    text = "the film was never dull ."
    predictor.measure_erasure([text, "fine", ""])
    (whole, attended, _) = given
    weights = predict([text])[0].weights.mean(0)
    words = text.split()
    assert whole[0] == text
    assert attended == [" ".join(word for index, word in enumerate(words) if index != weights.argmax()), "", ""]


def test_resume_of_the_default_classifier_is_bit_identical(classifier: Run, tmp_path: Path) -> None:
    assert_resume_is_bit_identical(classifier, tmp_path / "again")


def test_default_tagger_is_chosen_for_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_file(tmp_path / "train.txt", COLUMNS.replace("film", "play", 5) + "a DT\nplay NN\n")
    run = train(None, path, tmp_path / "run", **SMALL)
    assert f"{path}: words with labels; the recipe is default-tagging" in capsys.readouterr().err
    assert load(run.folder).predict(["the film"])[0].words == (("the",), ("film",))


def test_stacked_network_reads_both_directions_in_every_layer() -> None:
    network = build("default-tagging", 20, 5, size=6, layers=2, embedding=100).network
    assert [cell.input_size for cell in network.recurrent.forwards] == [100, 12]
    x, lengths = torch.randn(1, 4, 100), torch.tensor([4])
    with torch.no_grad():
        network.eval()
        before = network(x, lengths)
        x[0, 3] += 1.0
        assert not torch.allclose(before[0, 0], network(x, lengths)[0, 0])


@pytest.mark.parametrize("labels", [("DT", "NN"), ("B-NP", "I-NP")])
def test_only_chunk_labels_get_scores_of_neighbouring_labels(labels: tuple[str, str], tmp_path: Path) -> None:
    columns = "".join(f"the {labels[0]}\n{word} {labels[1]}\n\n" for word in (*GOOD, *BAD)) * 3
    run = train("default-tagging", write_file(tmp_path / "a.txt", columns), tmp_path / "run", **SMALL)
    assert run.read_config()["model"]["transitions"] is (labels[0] == "B-NP")
    (prediction,) = load(run.folder).predict(["the good"])
    assert set(prediction.tags) <= set(labels)
    assert all(0 < probability <= 1 for probability in prediction.probabilities)
