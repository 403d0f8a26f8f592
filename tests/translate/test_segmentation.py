"""Splitting long texts into segments, and joining the translations of the segments."""

from __future__ import annotations

import math
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.tokenizers import segmentation
from regard.tokenizers.segmentation import find_word_spans, has_unspaced_script, split_sentences, split_words
from regard.translate.protected_spans import protect_markup
from regard.translate.translation import Alignment, Segment, Translation, join_segments, split_into_segments

split_english = partial(split_sentences, language="en")
TEXTS = st.text(st.sampled_from("ab .!?,;。、「」と家។៕ក\n\r\t\u2028\u00a0"), max_size=60)


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("ja", "これはペンです。|あれは本です！|本当？|彼は「行きます。」と言った。|「いや！」|「はい。」|半角｡|次"),
        ("zh", "你好。|我是学生！|你呢？|他问：「你好吗？」|我说好。"),
        ("hi", "मैं घर जाता हूँ। |वह जाती है। |क्या तुम आओगे? |हाँ!"),
        ("ar", "هل أنت بخير؟ |نعم، أنا بخير. |شكرا!"),
        ("my", "သူသွားတယ်။ |ငါနေတယ်။|ဟုတ်လား။"),
        ("km", "ខ្ញុំទៅផ្ទះ។ |គាត់នៅទីនេះ។|អ្នកសុខសប្បាយទេ? |«បាទ។» |ចប់៕"),
        ("th", "ฉันรักแมว เธอรักหมา จริงหรือ? |ใช่"),
        (None, "これはペンです。|あれは本です！"),
        (None, "ខ្ញុំទៅផ្ទះ។ |គាត់នៅទីនេះ។"),
    ],
)
def test_sentences_end_at_the_full_stops_of_the_language(language: str | None, sentences: str) -> None:
    expected = sentences.split("|")
    assert split_sentences("".join(expected), language) == expected


def test_long_sentences_without_spaces_are_split_between_words() -> None:
    text = "東京の大きな家と古い学校と新しい図書館"
    made = [segment.text for segment in split_into_segments(text, lambda part: len(part) <= 5, split_english, 1)]
    assert "".join(made) == text
    assert all(1 < len(part) <= 5 for part in made)
    assert [word for part in made for word in split_words(part)] == split_words(text)


@given(TEXTS, st.integers(1, 6))
def test_concatenated_segments_equal_the_text(text: str, most: int) -> None:
    made = split_into_segments(text, lambda piece: len(piece) <= most, split_english, 2)
    assert "".join(segment.before + segment.text + segment.after for segment in made) == text
    for segment in made:
        assert len(segment.text) <= most
        assert segment.text == segment.text.strip()
        assert not (segment.before + segment.after).strip()
        assert not any(len(line) != len(segment.text) for line in segment.text.splitlines())


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("One two. Three four! Five?", 4, ["One two.", "Three four!", "Five?"]),
        ("One two. Three four! Five?", 9, ["One two. Three four! Five?"]),
        ("One two, three four; five six.", 4, ["One two, three four;", "five six."]),
        ("one two three four five", 2, ["one two", "three four", "five"]),
        ("He said „Stop.” Then he left.", 4, ["He said „Stop.”", "Then he left."]),
        ("J. S. Bach wrote it. I know.", 5, ["J. S. Bach wrote it.", "I know."]),
        ("a\n\nb\nc", 9, ["a", "", "b", "c"]),
        ("ذهبت إلى البيت، ثم نمت؛ وحلمت", 3, ["ذهبت إلى البيت،", "ثم نمت؛ وحلمت"]),
    ],
)
def test_text_is_split_at_sentences_then_clauses_then_words(text: str, most: int, expected: list[str]) -> None:
    made = split_into_segments(text, lambda piece: len(piece.split()) <= most, split_english, math.inf)
    assert [segment.text for segment in made] == expected


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("We see. They go.", 1, ["We see.", "They go."]),
        ("We see. They go.", 2, ["We see. They go."]),
        ("We see. They go. I stay.", 2, ["We see.", "They go.", "I stay."]),
        ("Mr. Smith sees No. 5 at 3 p.m. today.", 1, ["Mr. Smith sees No. 5 at 3 p.m. today."]),
    ],
)
def test_segment_has_at_most_the_given_number_of_sentences(text: str, most: int, expected: list[str]) -> None:
    made = split_into_segments(text, lambda piece: True, split_english, most)
    assert [segment.text for segment in made] == expected
    assert "".join(segment.before + segment.text + segment.after for segment in made) == text


def test_text_without_spaces_is_split_at_punctuation_or_characters() -> None:
    made = split_into_segments(
        "一二三。四五六。七八", lambda piece: len(piece) <= 4, partial(split_sentences, language="zh"), math.inf
    )
    assert [segment.text for segment in made] == ["一二三。", "四五六。", "七八"]
    made = split_into_segments("abcdefgh", lambda piece: len(piece) <= 3, split_english, math.inf)
    assert [segment.text for segment in made] == ["ab", "cd", "ef", "gh"]


@given(TEXTS, st.integers(2, 12))
def test_sentences_of_a_long_text_are_the_text(text: str, window: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segmentation, "SENTENCE_WINDOW", window)
        sentences = split_english(text)
    assert "".join(sentences) == text
    assert all(len(sentence) <= window for sentence in sentences)


def test_long_text_is_split_into_the_sentences_of_a_short_one() -> None:
    sentences = ["Mr. Smith sees No. 5 at 3 p.m. today. ", "“We see. They go.” ", "He (J. S. Bach) wrote it! ", "Why? "]
    words = "one two " * (segmentation.SENTENCE_WINDOW // 8)
    assert split_english("".join(sentences * 200)) == sentences * 200
    assert split_english(f"{words}three. Four.") == [words, "three. ", "Four."]
    assert split_sentences("一二三。" * 3000, "zh") == ["一二三。"] * 3000


def translate_to_upper_case(text: str, score: float) -> Translation:
    """Return a translation in upper case, with each word aligned to itself."""
    if not text:
        return Translation(text, text)
    words = split_words(text)
    links = [(number, number) for number in range(len(words))]
    soft = np.eye(len(words), dtype=np.float32)
    spans = find_word_spans(text), find_word_spans(text.upper())
    alignment = Alignment(words, split_words(text.upper()), soft, links, *spans)
    attention = np.eye(len(words) + 1, dtype=np.float32)
    tokens = [*words, "</s>"]
    return Translation(text, text.upper(), score, tokens, tokens, attention, alignment)


@given(st.text(st.sampled_from("ab .!?,;\n\r\t\u2028\u00a0"), max_size=60), st.integers(1, 6))
def test_joined_translation_has_the_alignment_of_its_segments(text: str, most: int) -> None:
    cut = split_into_segments(text, lambda piece: len(piece) <= most, split_english, 2)
    if not cut:
        return
    whole = join_segments(text, cut, [translate_to_upper_case(segment.text, -1.0) for segment in cut])
    assert whole.text == text.upper()
    if not text.strip():
        return
    assert whole.alignment is not None
    words = split_words(text)
    assert whole.alignment.source == words
    assert whole.alignment.target == split_words(text.upper())
    assert [text[start:end] for start, end in whole.alignment.source_spans] == words
    assert [whole.text[start:end] for start, end in whole.alignment.target_spans] == whole.alignment.target
    links = [(number, number) for number in range(len(words))]
    # Marks that a segment has in one word may be words of their own beside a script without spaces.
    assert set(whole.alignment.pairs) <= set(links) if has_unspaced_script(text) else whole.alignment.pairs == links
    assert whole.attention is not None
    assert whole.attention.shape == (len(whole.tokens), len(whole.source_tokens))
    assert whole.score == -sum(bool(segment.text) for segment in cut)


def test_n_best_alternatives_of_segments_are_joined_by_rank() -> None:
    first, second = translate_to_upper_case("a", -1.0), translate_to_upper_case("b", -1.0)
    first.alternatives.append(Translation("a", "x", -2.0))
    whole = join_segments("a\nb", [Segment("", "a", "\n"), Segment("", "b", "")], [first, second])
    assert whole.text == "A\nB"
    assert [(other.text, other.score) for other in whole.alternatives] == [("x\nB", -3.0)]


def test_sentence_without_translation_keeps_its_source() -> None:
    segments = [Segment("", "The dog sleeps .", " "), Segment("", "Qzx .", " "), Segment("", "We run .", "")]
    made = [Translation(one.text, text, tokens=["x"]) for one, text in zip(segments, ("Der", "", "Wir"), strict=True)]
    whole = join_segments("The dog sleeps . Qzx . We run .", segments, made)
    assert (whole.text, whole.untranslated) == ("Der Qzx . Wir", 1)
    nothing = join_segments("Qzx . Qzx .", segments[1:], [made[1], made[1]])
    assert (nothing.text.strip(), nothing.untranslated) == ("", 0), "nothing is translated: the caller decides"


@pytest.mark.parametrize(
    ("source", "targets", "joined"),
    [
        ("It rains. We stay here.", ["雨です。", "ここにいます。"], "雨です。ここにいます。"),
        ("Does it rain?  Yes.\nGo!", ["雨ですか?", "はい。", "行け!"], "雨ですか?はい。\n行け!"),
        ("雨です。ここにいます。", ["It rains.", "We stay here."], "It rains. We stay here."),
        ("雨です。 ここにいます。", ["它下雨。", "Bleib."], "它下雨。Bleib."),
        ("It rains. Stay.", ["ฝนตก", "อยู่ที่นี่"], "ฝนตก อยู่ที่นี่"),
        ("雨です。いて。", ["ฝนตก", "อยู่ที่นี่"], "ฝนตก อยู่ที่นี่"),
        ("It rains. Stay.", ["비가 온다.", "있어 ㅋㅋ"], "비가 온다. 있어 ㅋㅋ"),
        ("It rains. Stay.", ["Das ist 雨 heute.", "Bleib."], "Das ist 雨 heute. Bleib."),
        ("It rains. Stay.", ["Es regnet (雨).", "Bleib."], "Es regnet (雨). Bleib."),
    ],
)
def test_white_space_between_sentences_is_that_of_the_target_language(
    source: str, targets: list[str], joined: str
) -> None:
    def split(line: str) -> list[str]:
        return [part for part in re.split(r"(?<=[.?!])(?= )|(?<=。)", line) if part]

    segments = split_into_segments(source, lambda _: True, split, 1)
    made = [
        Translation(one.text, text, alignment=Alignment([one.text], [text], np.ones((1, 1), np.float32), [(0, 0)]))
        for one, text in zip(segments, targets, strict=True)
    ]
    whole = join_segments(source, segments, made)
    assert whole.text == joined
    assert whole.alignment is not None
    assert "".join(whole.alignment.target) == "".join(joined.split())


def test_line_of_markup_without_translation_keeps_its_source_and_tags() -> None:
    protected = protect_markup("<p>The dog .</p><p><b>Qzx .</b></p><p>The cow .</p>")
    texts = protected.translatable_texts
    restored = protected.restore([Translation(text, "" if "Qzx" in text else "x", tokens=["x"]) for text in texts])
    assert (restored.text, restored.untranslated) == ("<p>x</p><p><b>Qzx .</b></p><p>x</p>", 1)
