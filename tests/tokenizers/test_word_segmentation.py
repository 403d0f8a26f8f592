"""Words and grapheme clusters of all scripts."""

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.tokenizers import segmentation
from regard.tokenizers.segmentation import find_word_spans, join_words, split_graphemes, split_words


@pytest.fixture(params=[True, False], ids=["icu", "no-icu"])
def has_icu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(segmentation, "_has_icu", lambda: request.param)
    return bool(request.param)


def test_words_of_scripts_with_spaces_are_what_is_between_spaces(has_icu: bool) -> None:
    for text in ("Don't sit, well-kept  house.", "한국어 문장 입니다.", "नमस्ते दुनिया।", "مرحبا بالعالم؟", "Ça\u00a0va"):
        assert split_words(text) == text.split()


@pytest.mark.parametrize(
    ("text", "words", "without_icu"),
    [
        ("東京は家。", "東京 は 家 。", "東 京 は 家 。"),
        ("我们买了iPhone 14。", "我们 买 了 iPhone 14 。", "我 们 买 了 iPhone 14 。"),
        ("ฉันรักแมว", "ฉัน รัก แมว", "ฉั น รั ก แ ม ว"),
        ("カタカナ語", "カタカナ 語", "カタカナ 語"),
        ("a 東京, b", "a 東京 , b", "a 東 京 , b"),
        ("ฉัน\u200bรัก", "ฉัน รัก", "ฉั น รั ก"),
    ],
)
def test_words_of_scripts_without_spaces_are_never_the_whole_line(
    has_icu: bool, text: str, words: str, without_icu: str
) -> None:
    assert split_words(text) == (words if has_icu else without_icu).split()


@given(st.text(st.sampled_from("ab 東京はカนรั家。,\u200b\u0301👩\u200d한ก\u3000\n𠮷"), max_size=30))
def test_word_spans_cover_all_visible_characters_in_order(text: str) -> None:
    spans = find_word_spans(text)
    assert [text[start:end] for start, end in spans] == split_words(text)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
    covered = {index for start, end in spans for index in range(start, end)}
    uncovered = "".join(text[index] for index in range(len(text)) if index not in covered).split()
    assert all(unicodedata.category(character) == "Cf" for character in "".join(uncovered))


def test_joined_words_have_no_spaces_within_scripts_without_spaces() -> None:
    assert join_words(["大きな", "家", "と", "iPhone", "14", "。"]) == "大きな家とiPhone 14。"
    assert join_words(["한국어", "문장"]) == "한국어 문장"
    assert join_words(["ok", "😀", "yes"]) == "ok 😀 yes"


def test_grapheme_clusters_keep_marks_and_joined_emoji_together() -> None:
    assert split_graphemes("नमस्ते") == ["न", "म", "स्", "ते"]
    assert split_graphemes("👩‍👩‍👧é각") == ["👩‍👩‍👧", "é", "각"]
