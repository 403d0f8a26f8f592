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
from regard.tokenizers import segmentation
from regard.tokenizers.segmentation import find_word_spans, join_words, split_words
from regard.training import train
from regard.translate import load
from regard.translate.markup import parse_markup
from regard.translate.options import Glossary
from regard.translate.tag_projection import restore_markup
from regard.translate.translator import Translator, stream_words

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
    monkeypatch.setattr(segmentation, "_has_icu", lambda: request.param)
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
    options = ("--presegmented", "--gold", corpus / "test.align", "--beam", 1, "--json")
    report = json.loads(regard("evaluate", run.folder, *pairs, *options).stdout)
    assert f"aer {report['aer']:.4f}" in done.stderr
    plain = json.loads(regard("evaluate", run.folder, pairs[0], corpus / "test.ja", "--beam", 1, "--json").stdout)
    assert [report[name] for name in ("bleu", "chrf", "perplexity")] == [
        plain[name] for name in ("bleu", "chrf", "perplexity")
    ]


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


@pytest.mark.parametrize(("units", "least"), [("words", 3), ("subwords", 1), ("characters", 4)])
def test_translate_command_numbers_the_units(regard: Command, run: Run, units: str, least: int) -> None:
    text = f"{PAIRS[0][0]}\n{PAIRS[7][0]}\n"
    done = regard("translate", run.folder, "--units", units, "--json", input=text)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        found = json.loads(line)
        alignment = found["alignment"]
        assert alignment["units"] == units
        assert len(alignment["target"]) >= least
        if units != "subwords":
            assert [found["text"][start:end] for start, end in alignment["target_offsets"]] == alignment["target"]
    links = regard("translate", run.folder, "--units", units, "--alignments", "pharaoh", input=text).stdout
    pairs = json.loads(done.stdout.splitlines()[0])["alignment"]["pairs"]
    assert links.splitlines()[0].split(" ||| ")[1] == " ".join(f"{left}-{right}" for left, right in sorted(pairs))
    refused = regard("translate", run.folder, "--units", units, "--tags", "--json", input=text)
    assert refused.returncode == (0 if units == "words" else 2)


def test_subwords_of_several_lines_are_numbered_on(translator: Translator) -> None:
    source = f"{PAIRS[0][0]}\n{PAIRS[7][0]}"
    for units in ("subwords", "characters"):
        (translation,) = translator.translate([source], beam=1, units=units)
        alignment = translation.alignment
        assert alignment is not None
        assert alignment.units == units
        assert alignment.soft.shape == (len(alignment.target), len(alignment.source))
        if units == "characters":
            assert alignment.source == [character for character in source if not character.isspace()]
            assert [source[start:end] for start, end in alignment.source_spans] == alignment.source


@pytest.mark.usefixtures("has_icu")
def test_streamed_words_are_complete_and_make_up_the_translation(translator: Translator) -> None:
    for source in (PAIRS[0][0], f"{PAIRS[0][0]}\n{PAIRS[7][0]}"):
        words = list(stream_words(translator, source))
        whole = translator.translate([source], beam=1, addresses=False)[0]
        assert "".join(word.before + word.text for word in words) == whole.text
        assert len(words) > 3
        assert whole.alignment is not None
        for word in words:
            assert word.weights is not None
            assert len(word.weights) == len(split_words(source))
        assert [word.text for word in words][:3] == whole.alignment.target[:3]


def test_forbidden_japanese_word_is_nowhere_in_the_translation(translator: Translator) -> None:
    sources = [source for source, _ in PAIRS[:12]]
    plain = translator.translate(sources, beam=3)
    word = plain[0].text[:1]
    assert any(word in one.text[1:] or one.text.startswith(word) for one in plain)
    assert not any(word in one.text for one in translator.translate(sources, beam=3, forbid=[word]))
    with pytest.raises(UserError, match="both forced and forbidden"):
        translator.translate(sources, forbid=["猫"], force=["黒猫" if "黒" in word else "猫は"])


def test_forced_japanese_phrase_has_no_space_before_it(translator: Translator) -> None:
    for made in translator.translate([source for source, _ in PAIRS[:6]], beam=4, force=["先生は"]):
        assert "先生は" in made.text
        assert " " not in made.text


@pytest.mark.usefixtures("has_icu")
def test_glossary_finds_words_inside_text_without_spaces(translator: Translator) -> None:
    glossary = Glossary(translator.tokenizers.target, {"犬": "犬", "iPhone": "本", "dog": "猫"})
    for text, count in (
        ("大きな犬は私のiPhoneを見る。", 2),
        ("犬", 1),
        ("iPhones dogs hot-dog", 0),
        ("a dog, the (iPhone)", 2),
        ("猫は水を飲む。", 0),
        ("Dogの家とdog-houseとhotdog", 1),
    ):
        assert len(glossary.find_phrases(text)) == count


@pytest.mark.parametrize(
    ("text", "target", "links", "expected"),
    [
        ("the <b>cat</b> sleeps", "大きな猫は眠る。", [("cat", "猫"), ("sleeps", "眠る")], "大きな<b>猫</b>は眠る。"),
        ("<i>大きな猫</i>は", "the big cat", [("大きな", "big"), ("猫", "cat")], "the <i>big cat</i>"),
        ("see {name} now", "今見る。", [("see", "見る"), ("now", "今")], "{name}今見る。"),
        ("今{name}を見る", "see now", [("見る", "see"), ("今", "now")], "see now {name}"),
    ],
)
def test_tags_go_around_japanese_words_without_spaces(
    text: str, target: str, links: list[tuple[str, str]], expected: str
) -> None:
    parsed = parse_markup(text)
    sources, targets = split_words(parsed.blocks[0].plain_text), split_words(target)
    numbered = [(sources.index(left), targets.index(right)) for left, right in links]
    assert restore_markup(parsed, [target], [numbered]) == expected


@pytest.mark.usefixtures("has_icu")
def test_urls_in_japanese_text_are_kept_and_aligned_with_themselves(translator: Translator) -> None:
    source = "見るhttps://example.org/a?b=cと猫"
    assert "https://example.org/a?b=c" in split_words(source)
    (made,) = translator.translate([source], beam=1)
    assert made.text.count("https://example.org/a?b=c") == 1
    assert made.alignment is not None
    assert made.alignment.source == split_words(source)
    url = made.alignment.source.index("https://example.org/a?b=c")
    assert any(
        made.alignment.target[right].startswith("https://example.org/a?b=c")
        for left, right in made.alignment.pairs
        if left == url
    )
