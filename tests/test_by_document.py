"""Technical prose split by document, and the clock by which two toolkits are trained on it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.technical import said_by_joeynmt, stopped
from regard.data.corpus import pairs
from regard.reproduce.corpora import Corpus, prepared
from regard.reproduce.documents import HELD, LARGEST, SHORTEST, Line, joined, split

HELD_FEW = {"test": 4, "dev": 3}

words = st.sampled_from(["press", "the", "red", "key", "to", "save", "a", "file"])
texts = st.lists(words, min_size=1, max_size=8).map(" ".join)
collections = st.lists(st.builds(Line, texts, texts, st.sampled_from([f"page-{n}" for n in range(12)])), max_size=60)


def documents(lines: list[Line]) -> set[str]:
    return {line.document for line in lines}


@given(collections)
def test_a_document_is_in_one_part_whole(lines: list[Line]) -> None:
    parts = split(lines, HELD_FEW, largest=10)
    assert sorted(line for part in parts.values() for line in part) == sorted(lines)
    found = [documents(part) for part in parts.values()]
    assert sum(map(len, found)) == len(documents(lines)), "no document is in two"


@given(collections, st.randoms(use_true_random=False))
def test_names_decide_not_the_order_of_lines(lines: list[Line], random: Random) -> None:
    other = random.sample(lines, len(lines))
    first, second = split(lines, HELD_FEW, largest=10), split(other, HELD_FEW, largest=10)
    assert {name: documents(part) for name, part in first.items()} == {
        name: documents(part) for name, part in second.items()
    }


@given(collections, collections)
def test_nothing_that_is_tested_on_is_known_from_elsewhere(some: list[Line], others: list[Line]) -> None:
    halves = [split(some, HELD_FEW, largest=10), split(others, HELD_FEW, largest=10)]
    parts = joined(halves)
    test, dev, train = ([line.source for line in parts[name]] for name in ("test", "dev", "train"))
    assert not set(test) & set(dev)
    assert not {*test, *dev} & set(train)
    assert len(set(test)) == len(test)
    assert len(set(dev)) == len(dev)
    assert all(len(source.split()) >= SHORTEST for source in (*test, *dev))
    wanted = {line[:2] for half in halves for line in half["train"] if line.source not in {*test, *dev}}
    assert sorted(line[:2] for line in parts["train"]) == sorted(wanted), "and all else is trained on, once"


def test_large_documents_are_trained_on() -> None:
    lines = [Line(f"line {n} of a long document", "Zeile", "long") for n in range(LARGEST + 1)]
    lines += [Line(f"line {n} of a short document", "Zeile", "short") for n in range(LARGEST)]
    parts = split(lines)
    assert (documents(parts["train"]), documents(parts["test"])) == ({"long"}, {"short"})


@pytest.fixture
def prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A corpus of three kinds of text, each of more documents than are held out."""
    count = sum(HELD.values()) + 100
    for name in ("libreoffice", "manpages", "ddtp"):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for ending, text in (("en", "sentence {} of this {}"), ("fr", "phrase {} de ce {}"), ("doc", "{1}-{2}")):
            lines = (text.format(n, name, n // 7) + "\n" for n in range(count))
            (folder / f"{name}.en-fr.{ending}").write_text("".join(lines), encoding="utf-8")
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    return prepared("technical-enfr", tmp_path)


def test_the_corpus_says_which_document_each_line_is_of(prose: Corpus) -> None:
    found = {}
    for name, paths in (("train", prose.train), ("dev", prose.dev), ("test", prose.test)):
        assert paths is not None
        named = paths[0].with_suffix(".doc").read_text(encoding="utf-8").splitlines()
        for pair, document in zip(pairs(paths), named, strict=True):
            *_, number, _, _, kind = pair.source.split()
            assert document == f"{kind}/{kind}-{int(number) // 7}"
            assert pair.target == f"phrase {number} de ce {kind}"
        found[name] = set(named)
        assert {document.split("/")[0] for document in named} == {"libreoffice", "manpages", "ddtp"}
    assert not found["train"] & found["dev"]
    assert not found["train"] & found["test"]
    assert not found["dev"] & found["test"]


def test_the_first_dev_sentences_are_of_every_kind(prose: Corpus) -> None:
    assert prose.dev is not None
    first = [pair.source.split()[-1] for pair in pairs(prose.dev)[:50]]
    assert set(first) == {"libreoffice", "manpages", "ddtp"}


# The contest.


def test_a_trainer_is_asked_to_stop_when_its_time_is_over(tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit('asked to stop'))\n"
        "print('first epoch', flush=True)\n"
        "signal.pause()"
    )
    log = tmp_path / "log"
    took = stopped([sys.executable, "-c", code], "epoch", 0.0, signal.SIGTERM, log, {})
    assert took >= 0
    assert log.read_text(encoding="utf-8").splitlines() == ["first epoch", "asked to stop"]


@pytest.mark.parametrize("said", ["print('epoch')", "pass"])
def test_a_trainer_that_fails_is_heard(tmp_path: Path, said: str) -> None:
    code = f"{said}; raise SystemExit('there is no GPU')"
    with pytest.raises(SystemExit, match="there is no GPU"):
        stopped([sys.executable, "-c", code], "epoch", 600.0, signal.SIGTERM, tmp_path / "log", {})


def test_a_trainer_may_end_before_its_time(tmp_path: Path) -> None:
    took = stopped([sys.executable, "-c", "print('epoch')"], "epoch", 600.0, signal.SIGTERM, tmp_path / "log", {})
    assert took < 600.0, "nobody waits for the time to be over"
    assert (tmp_path / "log").read_text(encoding="utf-8") == "epoch\n"


def test_what_a_log_of_joeynmt_says() -> None:
    log = """
    INFO - Epoch   1, Step:      100, Batch Loss: 5.2, Batch Acc: 0.1, Tokens per Sec:    41200, Lr: 0.0001
    INFO - Evaluation result (greedy): bleu:   1.52, loss:   4.80, ppl: 121.50, acc:   0.25, 0.2341[sec]
    INFO - Epoch   1, Step:      200, Batch Loss: 4.2, Batch Acc: 0.2, Tokens per Sec:    41400, Lr: 0.0002
    INFO - Evaluation result (greedy): bleu:  10.00, loss:   3.80, ppl:  44.70, acc:   0.35, 0.2341[sec]
    INFO - Interrupt at epoch 1, step 217.
    """
    said = said_by_joeynmt(log)
    assert said == {"updates": 217, "best": None, "tokens_per_second": 41300.0, "dev": [1.52, 10.0]}
