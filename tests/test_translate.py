"""The translator on a real, if little trained, run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import QUICK, files

import regard
from regard.data.corpus import pairs
from regard.errors import UserError
from regard.evaluate import aer, read_gold
from regard.runs import Run
from regard.training import train
from regard.translate import Translator, assess, load


@pytest.fixture(scope="module")
def translator(run: Run) -> Translator:
    return regard.load(run.folder)


@pytest.fixture(scope="module")
def sources(corpus: Path) -> list[str]:
    return [pair.source for pair in pairs(files(corpus, "test"))]


def test_order_is_kept_and_empty_lines_stay_empty(translator: Translator, sources: list[str]) -> None:
    texts = [sources[0], "", sources[1], "   ", *sources[2:8]]
    together = translator.translate(texts)
    assert [made.source for made in together] == texts
    assert (together[1].text, together[3].text) == ("", "   ")
    for text, made in zip(texts, together, strict=True):
        if text.strip():
            alone = translator.translate([text])[0]
            assert alone.text == made.text
            assert alone.score == pytest.approx(made.score, rel=1e-4)


def test_a_translation_says_what_it_looked_at(translator: Translator, sources: list[str]) -> None:
    for made in translator.translate(sources[:10]):
        assert made.attention is not None
        assert made.attention.shape == (len(made.tokens), len(made.source_tokens))
        np.testing.assert_allclose(made.attention.sum(1), 1, atol=1e-4)
        assert made.source_tokens[-1] == "</s>"
        alignment = made.alignment
        assert alignment is not None
        assert alignment.source == made.source.split()
        assert alignment.target == made.text.split()
        assert alignment.soft.shape == (len(alignment.target), len(alignment.source))
        assert (alignment.soft.sum(1) <= 1 + 1e-4).all()
        for target, row in enumerate(alignment.soft):
            if row.max() > 0:
                assert (int(row.argmax()), target) in alignment.pairs


def test_n_best_are_the_first_and_its_alternatives(translator: Translator, sources: list[str]) -> None:
    made = translator.translate(sources[:3], beam=4, n_best=3)
    for translation in made:
        scores = [translation.score, *(other.score for other in translation.alternatives)]
        assert 1 <= len(scores) <= 3
        assert scores == sorted(scores, reverse=True)
    assert any(translation.alternatives for translation in made)


def test_without_alignments_there_are_none(translator: Translator, sources: list[str]) -> None:
    assert translator.translate(sources[:2], alignments=False)[0].alignment is None


def test_one_text_is_not_a_list_of_texts(translator: Translator) -> None:
    with pytest.raises(TypeError, match="list of texts"):
        translator.translate("one text")


def test_words_nobody_has_seen_do_no_harm(translator: Translator) -> None:
    made = translator.translate(["Zyxw 漢字 \x00 🙂 ."])[0]
    assert made.source_tokens == ["<unk>", "<unk>", "<unk>", "<unk>", ".", "</s>"]
    assert made.tokens


def test_alignments_of_given_pairs_are_those_of_teacher_forcing(translator: Translator, corpus: Path) -> None:
    test = pairs(files(corpus, "test"))
    gold = read_gold(corpus / "test.align", test)
    found = [alignment.pairs for alignment in translator.align(test) if alignment is not None]
    assert len(found) == len(test)
    for (source, target), links in zip(test, found, strict=True):
        assert {link[1] for link in links} <= set(range(len(target.split())))
        assert {link[0] for link in links} <= set(range(len(source.split())))
    result = assess(translator, test, gold, beam=1)
    expected = aer([set(links) for links in found], [links.sure for links in gold], [links.possible for links in gold])
    assert result.aer == pytest.approx(expected)
    assert result.aer is not None
    assert 0 < result.aer < 1
    assert len(result.translations) == len(test)


def test_an_ensemble_of_runs_needs_one_vocabulary(run: Run, corpus: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(run.folder, twin)
    text = ["The dog sleeps ."]
    one, two = load(run.folder).translate(text), load(run.folder, twin).translate(text)
    assert one[0].text == two[0].text
    assert one[0].score == pytest.approx(two[0].score, rel=1e-4)
    other = {**QUICK, "text.vocabulary": 99, "training.steps": 1}
    stranger = train("bahdanau2015", files(corpus, "train"), tmp_path / "other", **other)
    with pytest.raises(UserError, match="different vocabularies"):
        load(run.folder, stranger.folder)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_subwords_come_back_as_words(kind: str, corpus: Path, tmp_path: Path) -> None:
    size = {"bpe": 500, "unigram": 500, "char": 200}[kind]
    settings = {**QUICK, "text.kind": kind, "text.vocabulary": size, "training.steps": 2, "text.shared": True}
    run = train("bahdanau2015", files(corpus, "train"), tmp_path / "run", **settings)
    for made in load(run.folder).translate(["The old dog sleeps .", "A café ☕ ."]):
        assert made.alignment is not None
        assert made.alignment.target == made.text.split()
        assert made.alignment.soft.shape == (len(made.text.split()), len(made.source.split()))


def test_training_from_python_leaves_a_report(corpus: Path, tmp_path: Path) -> None:
    quick = {**QUICK, "training.steps": 1}
    made = regard.train("bahdanau2015", files(corpus, "train"), tmp_path / "run", dev=files(corpus, "dev"), **quick)
    assert "<h2>Where it looked</h2>" in (made.folder / "report.html").read_text(encoding="utf-8")
    assert Path(made.config()["data"]["train"][0]).is_absolute()


def test_what_is_not_a_run(tmp_path: Path, run: Run) -> None:
    with pytest.raises(UserError, match="is not a run"):
        load(tmp_path)
    half = tmp_path / "half"
    shutil.copytree(run.folder, half)
    shutil.rmtree(half / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint yet"):
        load(half)
    shutil.rmtree(half / "tokenizer")
    with pytest.raises(UserError, match="no vocabulary"):
        load(half)
