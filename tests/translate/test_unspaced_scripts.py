"""Words of scripts without spaces: alignments, units, gold alignments of segmented text, in a small trained model."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support.commands import Command
from support.training import TINY

from regard.errors import UserError
from regard.runs import Run
from regard.tokenizers import word_segmentation
from regard.tokenizers.word_segmentation import find_word_spans, join_words, split_words
from regard.training import train
from regard.translate import load
from regard.translate.translator import Translator

NOUNS = {"dog": "犬", "cat": "猫", "teacher": "先生", "student": "学生", "book": "本", "water": "水"}
VERBS = {"sees": "見る", "buys": "買う", "wants": "欲しがる"}
PAIRS = [
    (f"the {subject} {verb} the {other} .", f"{NOUNS[subject]} は {NOUNS[other]} を {VERBS[verb]} 。")
    for subject, verb, other in product(NOUNS, VERBS, NOUNS)
]
# Of each target word: は, を and the full stop are not aligned with anything but their neighbours.
GOLD = "1-0 4-2 2-4 5-5"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the pairs, the target without spaces, and segmented with its gold alignments."""
    folder = tmp_path_factory.mktemp("unspaced")
    lines = {
        "en": [source for source, _ in PAIRS],
        "ja": [join_words(target.split()) for _, target in PAIRS],
        "segmented": [target for _, target in PAIRS],
        "align": [GOLD] * len(PAIRS),
    }
    for ending, of_ending in lines.items():
        (folder / f"test.{ending}").write_text("".join(f"{line}\n" for line in of_ending), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path) -> Run:
    """Train a model that translates most of the pairs."""
    files = [corpus / "test.en", corpus / "test.ja"]
    steps = {f"training.{name}": 100 for name in ("steps", "validate_every", "checkpoint_every")}
    text = {"text.kind": "bpe", "text.vocabulary": 100, "text.byte_fallback": False}
    changes = {**steps, **text, "training.learning_rate": 0.02, "training.batch_tokens": 600}
    return train("bahdanau2015", files, corpus / "run", dev=files, **{**TINY, **changes})


@pytest.fixture(scope="module")
def translator(run: Run) -> Translator:
    return load(run.folder)


@pytest.fixture(params=[True, False], ids=["icu", "no-icu"])
def has_icu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(word_segmentation, "_has_icu", lambda: request.param)
    return bool(request.param)


@pytest.mark.usefixtures("has_icu")
def test_japanese_translation_is_aligned_by_words_and_not_as_one(translator: Translator) -> None:
    texts = [source for source, _ in PAIRS[:8]]
    for translation in translator.translate(texts, beam=1):
        alignment = translation.alignment
        assert alignment is not None
        assert alignment.target == split_words(translation.text)
        assert len(alignment.target) > 3
        assert len({target for _, target in alignment.pairs}) > 3
        assert alignment.soft.shape == (len(alignment.target), len(alignment.source))
        assert alignment.soft.sum(1).max() <= 1 + 1e-5
        assert list(alignment.target_spans) == find_word_spans(translation.text)


def test_alignment_of_several_sentences_numbers_the_words_of_the_whole_text(translator: Translator) -> None:
    source = "\n".join(source for source, _ in PAIRS[:3])
    (translation,) = translator.translate([source])
    assert translation.alignment is not None
    assert translation.alignment.target == split_words(translation.text)
    assert list(translation.alignment.target_spans) == find_word_spans(translation.text)
    assert max(source for source, _ in translation.alignment.pairs) >= 12, "the third sentence is linked, too"


def test_presegmented_words_are_aligned_as_their_text_without_spaces(translator: Translator) -> None:
    joined = [(source, join_words(target.split())) for source, target in PAIRS]
    alignments, plain = translator.align(PAIRS, presegmented=True), translator.align(joined, units="characters")
    for (source, target), alignment, by_character in zip(PAIRS, alignments, plain, strict=True):
        assert alignment is not None
        assert by_character is not None
        assert (alignment.source, alignment.target) == (source.split(), target.split())
        assert [target[start:end] for start, end in alignment.target_spans] == target.split()
        characters = iter(by_character.soft)
        for word, row in zip(alignment.target, alignment.soft, strict=True):
            rows = np.array([next(characters) for _ in word])  # characters, to be compared with words of the source
            np.testing.assert_allclose(row.sum(), rows.mean(0).sum(), atol=1e-4)
    for score, other in zip(
        translator.score_pairs(PAIRS, presegmented=True), translator.score_pairs(joined), strict=True
    ):
        assert score.hypothesis.log_prob == pytest.approx(other.hypothesis.log_prob)


def test_units_that_do_not_exist_or_contradict_are_refused(translator: Translator) -> None:
    with pytest.raises(UserError, match="units must be one of words, subwords, characters, not 'letters'"):
        translator.align(PAIRS[:1], units="letters")
    with pytest.raises(UserError, match="pre-segmented texts are aligned by words, not by subwords"):
        translator.align(PAIRS[:1], units="subwords", presegmented=True)


def test_gold_alignments_number_the_segmented_words(regard: Command, run: Run, corpus: Path) -> None:
    pairs = corpus / "test.en", corpus / "test.segmented"
    done = regard("align", run.folder, *pairs, "--presegmented", "--gold", corpus / "test.align")
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stderr.split("aer ")[1].split(",")[0]) < 0.9
    assert all(int(link.split("-")[1]) < 6 for line in done.stdout.splitlines() for link in line.split())


@pytest.mark.parametrize("units", ["words", "subwords", "characters"])
def test_align_command_links_the_units_and_says_where_they_are(
    regard: Command, run: Run, corpus: Path, tmp_path: Path, units: str
) -> None:
    (tmp_path / "one.tsv").write_text("the dog sees the cat .\t犬は猫を見る。\n", encoding="utf-8")
    done = regard("align", run.folder, "one.tsv", "--units", units, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["units"] == units
    text = "犬は猫を見る。"
    if units == "subwords":
        assert "".join(found["target"]).replace("▁", "") == text
    else:
        assert [text[start:end] for start, end in found["target_offsets"]] == found["target"]
    assert found["target_offsets"][-1] == [6, 7]
    if units == "characters":
        assert found["target"] == list(text)
    if units != "words":
        refused = regard("align", run.folder, "one.tsv", "--units", units, "--choose-head")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
