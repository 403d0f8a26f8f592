"""The corpus of technical documents split by document, and the benchmark that trains two toolkits on it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.technical_corpus import (
    HELD_OUT_SENTENCES,
    MAX_HELD_OUT_DOCUMENT,
    MIN_TEST_WORDS,
    DocumentLine,
    merge_splits,
    prepare_technical_corpus,
    split_by_document,
)
from benchmarks.peers.train_technical_joeynmt import parse_joeynmt_log, run_for_seconds
from regard.data.readers.dispatch import read_all_pairs
from regard.reproduce.corpora import CorpusFiles

FEW_HELD_OUT = {"test": 4, "dev": 3}

WORDS = st.sampled_from(["press", "the", "red", "key", "to", "save", "a", "file"])
TEXTS = st.lists(WORDS, min_size=1, max_size=8).map(" ".join)
CORPORA = st.lists(
    st.builds(DocumentLine, TEXTS, TEXTS, st.sampled_from([f"page-{n}" for n in range(12)])), max_size=60
)


def document_names(lines: list[DocumentLine]) -> set[str]:
    return {line.document for line in lines}


@given(CORPORA)
def test_split_keeps_each_document_in_one_part(lines: list[DocumentLine]) -> None:
    parts = split_by_document(lines, FEW_HELD_OUT, max_document=10)
    assert sorted(line for part in parts.values() for line in part) == sorted(lines)
    found = [document_names(part) for part in parts.values()]
    assert sum(map(len, found)) == len(document_names(lines)), "a document is in two parts"


@given(CORPORA, st.randoms(use_true_random=False))
def test_split_does_not_depend_on_the_order_of_lines(lines: list[DocumentLine], random: Random) -> None:
    shuffled = random.sample(lines, len(lines))
    first, second = (split_by_document(some, FEW_HELD_OUT, max_document=10) for some in (lines, shuffled))
    names, shuffled_names = ([document_names(part) for part in parts.values()] for parts in (first, second))
    assert first.keys() == second.keys()
    assert names == shuffled_names


@given(CORPORA, CORPORA)
def test_test_and_dev_sentences_are_unique_and_not_in_training(
    some: list[DocumentLine], others: list[DocumentLine]
) -> None:
    corpora = [split_by_document(lines, FEW_HELD_OUT, max_document=10) for lines in (some, others)]
    parts = merge_splits(corpora)
    test, dev, train = ([line.source for line in parts[name]] for name in ("test", "dev", "train"))
    assert not set(test) & set(dev)
    assert not {*test, *dev} & set(train)
    assert len(set(test)) == len(test)
    assert len(set(dev)) == len(dev)
    assert all(len(source.split()) >= MIN_TEST_WORDS for source in (*test, *dev))
    wanted = {line[:2] for corpus in corpora for line in corpus["train"] if line.source not in {*test, *dev}}
    assert sorted(line[:2] for line in parts["train"]) == sorted(wanted), "the rest is trained on, each pair once"


def test_large_documents_go_to_the_training_set() -> None:
    lines = [DocumentLine(f"line {n} of a long document", "Zeile", "long") for n in range(MAX_HELD_OUT_DOCUMENT + 1)]
    lines += [DocumentLine(f"line {n} of a short document", "Zeile", "short") for n in range(MAX_HELD_OUT_DOCUMENT)]
    parts = split_by_document(lines)
    assert (document_names(parts["train"]), document_names(parts["test"])) == ({"long"}, {"short"})


@pytest.fixture(scope="module")
def technical(tmp_path_factory: pytest.TempPathFactory) -> CorpusFiles:
    """Write a corpus of three sources, each with more documents than are held out; read-only."""
    root = tmp_path_factory.mktemp("technical")
    count = sum(HELD_OUT_SENTENCES.values()) + 100
    for name in ("libreoffice", "manpages", "ddtp"):
        folder = root / "data" / name
        folder.mkdir(parents=True)
        for ending, text in (("en", "sentence {} of this {}"), ("fr", "phrase {} de ce {}"), ("doc", "{1}-{2}")):
            lines = (text.format(n, name, n // 7) + "\n" for n in range(count))
            (folder / f"{name}.en-fr.{ending}").write_text("".join(lines), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DATA", str(root / "data"))
        return prepare_technical_corpus("fr", root)


def test_corpus_names_the_document_of_each_line(technical: CorpusFiles) -> None:
    found = {}
    for name, paths in (("train", technical.train), ("dev", technical.dev), ("test", technical.test)):
        assert paths is not None
        named = paths[0].with_suffix(".doc").read_text(encoding="utf-8").splitlines()
        for pair, document in zip(read_all_pairs(paths), named, strict=True):
            *_, number, _, _, kind = pair.source.split()
            assert document == f"{kind}/{kind}-{int(number) // 7}"
            assert pair.target == f"phrase {number} de ce {kind}"
        found[name] = set(named)
        assert {document.split("/")[0] for document in named} == {"libreoffice", "manpages", "ddtp"}
    assert not found["train"] & found["dev"]
    assert not found["train"] & found["test"]
    assert not found["dev"] & found["test"]


def test_first_dev_sentences_come_from_every_source(technical: CorpusFiles) -> None:
    assert technical.dev is not None
    first = [pair.source.split()[-1] for pair in read_all_pairs(technical.dev)[:50]]
    assert set(first) == {"libreoffice", "manpages", "ddtp"}


# The benchmark against other toolkits.


def test_trainer_gets_the_signal_when_its_time_limit_is_reached(tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit('asked to stop'))\n"
        "print('first epoch', flush=True)\n"
        "signal.pause()"
    )
    log = tmp_path / "log"
    took = run_for_seconds([sys.executable, "-c", code], "epoch", 0.0, signal.SIGTERM, log, {})
    assert took >= 0
    assert log.read_text(encoding="utf-8").splitlines() == ["first epoch", "asked to stop"]


@pytest.mark.parametrize("first", ["print('epoch')", "pass"], ids=["after-start", "before-start"])
def test_error_of_a_failing_trainer_is_reported(tmp_path: Path, first: str) -> None:
    code = f"{first}; raise SystemExit('there is no GPU')"
    with pytest.raises(SystemExit, match="there is no GPU"):
        run_for_seconds([sys.executable, "-c", code], "epoch", 600.0, signal.SIGTERM, tmp_path / "log", {})


def test_trainer_may_finish_before_its_time_limit(tmp_path: Path) -> None:
    took = run_for_seconds(
        [sys.executable, "-c", "print('epoch')"], "epoch", 600.0, signal.SIGTERM, tmp_path / "log", {}
    )
    assert took < 600.0, "waited for the time limit"
    assert (tmp_path / "log").read_text(encoding="utf-8") == "epoch\n"


def test_joeynmt_log_is_parsed_for_updates_speed_and_bleu() -> None:
    log = """
    INFO - Epoch   1, Step:      100, Batch Loss: 5.2, Batch Acc: 0.1, Tokens per Sec:    41200, Lr: 0.0001
    INFO - Evaluation result (greedy): bleu:   1.52, loss:   4.80, ppl: 121.50, acc:   0.25, 0.2341[sec]
    INFO - Epoch   1, Step:      200, Batch Loss: 4.2, Batch Acc: 0.2, Tokens per Sec:    41400, Lr: 0.0002
    INFO - Evaluation result (greedy): bleu:  10.00, loss:   3.80, ppl:  44.70, acc:   0.35, 0.2341[sec]
    INFO - Interrupt at epoch 1, step 217.
    """
    assert parse_joeynmt_log(log) == {"updates": 217, "best": None, "tokens_per_second": 41300.0, "dev": [1.52, 10.0]}
