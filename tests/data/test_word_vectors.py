"""Pretrained word vectors: formats, words that are found, and what is wrong with a file."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.training import newest_weights, train_tiny

from regard.data.word_vectors import read_word_vectors
from regard.errors import UserError
from regard.runs import Run
from regard.training import train

VECTORS = {"cat": [0.1, -2.0, 3e-05], "Dog": [1.0, 2.0, 3.0], "new york": [4.0, 5.0, 6.0], "paris": [7.0, 8.0, 9.0]}
IDS = {"cat": [4], "Dog": [5, 6], "new york": [7], "Paris": [8], "zebra": [9]}


def write_vectors(path: Path, form: str) -> Path:
    """Write `VECTORS` in one of the formats."""
    header = f"{len(VECTORS)} 3\n"
    lines = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in VECTORS.items())
    if form == "glove":
        path.write_text(lines, encoding="utf-8")
    elif form == "fasttext":
        path.write_text(header + lines.replace("\n", " \n"), encoding="utf-8")
    elif form == "word2vec.gz":
        path.write_bytes(gzip.compress((header + lines).encode()))
    else:
        entries = ((word.replace(" ", "_").encode(), vector) for word, vector in VECTORS.items())
        content = b"".join(word + b" " + struct.pack("<3f", *vector) + b"\n" for word, vector in entries)
        path.write_bytes(header.encode() + content)
    return path


@pytest.mark.parametrize("form", ["glove", "fasttext", "word2vec.gz", "word2vec.bin"])
def test_vectors_of_the_words_of_a_vocabulary_are_found(form: str, tmp_path: Path) -> None:
    found = read_word_vectors(write_vectors(tmp_path / "vectors", form), IDS, 3)
    expected = {4: "cat", 5: "Dog", 6: "Dog", 8: "paris"} | ({} if form == "word2vec.bin" else {7: "new york"})
    assert found.keys() == expected.keys()
    for id, word in expected.items():
        np.testing.assert_allclose(found[id], VECTORS[word], rtol=1e-6)


def test_vector_of_the_same_case_is_preferred(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    for lines in ("may 1 1\nMay 2 2\n", "May 2 2\nmay 1 1\n"):
        path.write_text(lines, encoding="utf-8")
        found = read_word_vectors(path, {"May": [4], "may": [5], "MAY": [6]}, 2)
        assert {id: vector.tolist() for id, vector in found.items()} == {4: [2, 2], 5: [1, 1], 6: [1, 1]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"cat 1 2\n", "has vectors of 2 numbers, but the model's embeddings have 3: set model.embedding=2"),
        (b"2 300\ncat 1 2\n", "has vectors of 300 numbers"),
        (b"cat 1 2 3\ndog 1 2\n", ":2: expected a word and 3 numbers, found 2"),
        (b"cat 1 2 3\nDog 1 x 3\n", ":2: the vector of 'Dog' is not made of numbers"),
        (b"cat 1 nan 3\n", ":1: the vector of 'cat' is not made of numbers"),
        (b"", ":1: expected a word and its vector"),
        (b"2 3\ncat \x00\x00\x00\x00", "ends after 0 of 2 vectors"),
        (b"\xba\x16\x4f\x2f\x0c\x00", "is a model of fastText; take the file with its vectors, .vec"),
    ],
)
def test_broken_file_is_named(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(content)
    with pytest.raises(UserError, match="vectors") as caught:
        read_word_vectors(path, IDS, 3)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_named_and_nothing_is_written(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*nothing\.vec"):
        train_tiny("bahdanau2015", corpus, tmp_path / "run", **{"text.vectors": str(tmp_path / "nothing.vec")})
    assert not Run(tmp_path / "run").exists


def test_transformer_and_frozen_embeddings_without_vectors_are_refused(corpus: Path, tmp_path: Path) -> None:
    path = write_vectors(tmp_path / "vectors", "glove")
    with pytest.raises(UserError, match=r"text\.vectors is for recurrent models and classifiers"):
        train_tiny("default", corpus, tmp_path / "run", **{"text.vectors": str(path), "model.heads": 2})
    with pytest.raises(UserError, match=r"it needs text\.vectors"):
        train_tiny("bahdanau2015", corpus, tmp_path / "run", **{"text.tune_vectors": False})


def test_frozen_vectors_of_a_classifier_stay_through_a_resumed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.tsv"
    texts.write_text("".join(f"{kind}\ta {kind} cat {i}\n" for i in range(40) for kind in ("good", "bad")), "utf-8")
    changes: dict[str, Any] = {
        "model.embedding": 3,
        "model.size": 4,
        "text.vectors": str(write_vectors(tmp_path / "vectors", "glove")),
        "text.tune_vectors": False,
        "training.steps": 2,
        "training.optimizer": "adam",
        "training.tensorboard": False,
    }
    run = train("lin2017", texts, tmp_path / "run", **changes)
    assert "have a vector in" in capsys.readouterr().err
    (tmp_path / "vectors").unlink()
    longer: dict[str, Any] = {"training.steps": 4}
    before = newest_weights(run)["embedding.weight"]
    train(None, None, run.folder, resume=True, **longer)
    after = newest_weights(run)
    assert torch.equal(before, after["embedding.weight"])
    assert any(torch.equal(row, torch.tensor(VECTORS["cat"])) for row in after["embedding.weight"])
    start: dict[str, Any] = {"training.init_from": str(run.folder), "training.epochs": 1}
    tuned = train(None, texts, tmp_path / "tuned", **start)
    assert torch.equal(before, newest_weights(tuned)["embedding.weight"]), "they stay frozen in fine-tuning"
