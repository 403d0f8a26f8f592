"""Units of alignments: how much of each token is in each word or character, in all scripts and tokenizers."""

import unicodedata
from itertools import accumulate
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.synthetic.translation import generate_corpus
from regard.tokenizers import segmentation
from regard.tokenizers.alignment_units import CHARACTERS, SUBWORDS, UNITS, find_presegmented_words
from regard.tokenizers.segmentation import find_word_spans, join_words, split_words
from regard.tokenizers.sentencepiece import SentencePieceTokenizer
from regard.tokenizers.tokenizer import WORDS, TextSettings, Tokenizer, find_units, find_units_of_text, train_tokenizer
from regard.tokenizers.words import WordTokenizer

LINES = [
    "東京の大きな家で猫が水を飲む。",
    "先生は学生に本をあげます。",
    "猫は魚を食べないと思います。",
    "ฉันรักแมวตัวใหญ่มาก",
    "ครูอ่านหนังสือ",
    "the old teacher reads a book in 東京 .",
    "a small house, and the iPhone 14.",
]
PARTS = ["東京", "は", "猫", "。", "the", "iPhone", "ฉัน", "แมว", "が", "𠮷", "é", "x.", " ", "\u200b"]
TEXTS = st.lists(st.sampled_from([*LINES, *PARTS])).map("".join)


def make_tokenizers() -> dict[str, Tokenizer]:
    trained: dict[str, Tokenizer] = {
        "bpe": SentencePieceTokenizer.train(LINES * 4, 400, "bpe"),
        "unigram": SentencePieceTokenizer.train(LINES * 4, 350, "unigram"),
        "char": SentencePieceTokenizer.train(LINES, 200, "char", byte_fallback=False),
        "bytes": SentencePieceTokenizer.train(["a b"], 263, "bpe"),
        "lower": SentencePieceTokenizer.train(LINES * 4, 400, "bpe", lowercase=True),
        "word": WordTokenizer.train(LINES, 40),
    }
    return trained


TOKENIZERS = make_tokenizers()
with_each_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


@pytest.fixture(params=[True, False], ids=["icu", "no-icu"])
def has_icu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(segmentation, "_has_icu", lambda: request.param)
    return bool(request.param)


@pytest.mark.usefixtures("has_icu")
@with_each_tokenizer
def test_no_attention_is_lost_between_tokens_and_units(name: str) -> None:
    tokenizer = TOKENIZERS[name]

    @given(TEXTS, st.sampled_from(UNITS))
    def check(text: str, kind: str) -> None:
        ids = tokenizer.encode(text)
        for given_text, units in (
            (text, find_units_of_text(tokenizer, text, kind)),
            (
                tokenizer.decode(ids),
                find_units(tokenizer, tokenizer.decode(ids), ids, tokenizer.find_word_ids(ids), kind),
            ),
        ):
            weights = units.make_weights(len(ids) + 1)
            assert (weights >= 0).all()
            np.testing.assert_allclose(weights[:-1].sum(1), np.ones(len(ids)), atol=1e-5)
            assert not weights[-1].any(), "the end of the sentence is in no unit"
            if kind == WORDS:
                assert units.words == split_words(given_text)
                assert list(units.spans) == find_word_spans(given_text)
            if kind == CHARACTERS:
                assert "".join(units.words) == "".join(given_text.split())
            if kind != SUBWORDS:
                assert [given_text[start:end] for start, end in units.spans] == units.words

    check()


@with_each_tokenizer
def test_tokens_of_text_with_spaces_are_in_the_words_between_spaces(name: str) -> None:
    tokenizer = TOKENIZERS[name]

    @given(st.text(st.sampled_from("ab é.한नमस्ते\u0301-"), max_size=30))
    def check(text: str) -> None:
        ids, word_ids = tokenizer.encode_with_word_ids(text)
        units, given_units = find_units_of_text(tokenizer, text), find_presegmented_words(tokenizer, text)
        assert (units.words, units.word_ids, units.weights) == (text.split(), word_ids, None)
        assert given_units == units
        expected = np.zeros((len(ids), len(units.words)), dtype=np.float32)
        for token, word in enumerate(word_ids):
            expected[token, word] = 1
        assert np.array_equal(units.make_weights(len(ids)), expected)

    check()


def test_token_across_two_words_is_divided_by_its_characters(has_icu: bool) -> None:
    tokenizer = SentencePieceTokenizer.train(["猫は水", "猫は火", "大きな水", "大きな火"] * 20, 290, "bpe")
    text = "大きな猫は水"
    units = find_units_of_text(tokenizer, text)
    tokens = [token.strip("▁") for token in units.subwords]
    assert "".join(tokens) == text
    assert "は水" in tokens
    assert "大きな" in tokens
    weights = dict(zip(tokens, units.make_weights(len(tokens)), strict=True))
    assert units.words == ["大きな", "猫", "は", "水"] if has_icu else list(text)
    across = weights["は水"][units.words.index("は")], weights["は水"][units.words.index("水")]
    assert across == pytest.approx((0.5, 0.5))
    whole = [weight for weight in weights["大きな"] if weight]
    assert whole == pytest.approx([1] if has_icu else [1 / 3] * 3)
    characters = find_units_of_text(tokenizer, text, CHARACTERS)
    assert characters.words == list(text)
    subwords = find_units_of_text(tokenizer, text, SUBWORDS)
    assert [text[start:end] for start, end in subwords.spans] == tokens


def test_bytes_of_a_character_are_fractions_of_it() -> None:
    text = "a 𠮷家"
    units = find_units_of_text(TOKENIZERS["bytes"], text, CHARACTERS)
    assert units.words == ["a", "𠮷", "家"]
    byte_pieces = [index for index, token in enumerate(units.subwords) if token.startswith("<0x")]
    assert units.make_weights(len(units.subwords))[byte_pieces].argmax(1).tolist() == [1] * 4 + [2] * 3


def test_unknown_tokens_share_what_the_others_leave() -> None:
    tokenizer = SentencePieceTokenizer.train(["猫は水"] * 5, 10, "char", byte_fallback=False)
    text = "猫は龍水"
    units = find_units_of_text(tokenizer, text, CHARACTERS)
    assert units.words == list(text)
    unknown = units.subwords.index("<unk>")
    assert units.make_weights(len(units.subwords))[unknown].argmax() == text.index("龍")


def test_presegmented_words_are_those_between_spaces(has_icu: bool) -> None:
    text = "東京 都 の iPhone は 高い 。"
    words = text.split()
    tokenizer = TOKENIZERS["char"]
    units = find_presegmented_words(tokenizer, text)
    assert units.words == words
    assert [text[start:end] for start, end in units.spans] == words
    joined = join_words(words)
    assert joined == "東京都のiPhoneは高い。"
    assert tokenizer.decode(tokenizer.encode(joined)).count(" ") == 0
    weights = units.make_weights(len(tokenizer.encode(joined)))
    np.testing.assert_allclose(weights.sum(1), 1)
    np.testing.assert_allclose(weights.sum(0), [2, 1, 1, 6, 1, 2, 1], atol=1.01)  # characters; one token is `▁`


@given(TEXTS)
def test_presegmented_text_loses_no_attention(text: str) -> None:
    for tokenizer in TOKENIZERS.values():
        units = find_presegmented_words(tokenizer, text)
        tokens = tokenizer.encode(join_words(text.split()))
        np.testing.assert_allclose(units.make_weights(len(tokens)).sum(1), np.ones(len(tokens)), atol=1e-5)


def test_decomposed_text_has_the_words_of_composed_text(has_icu: bool) -> None:
    composed = "大きながく、と家"
    decomposed = unicodedata.normalize("NFD", composed)
    assert decomposed != composed
    one, other = (find_units_of_text(TOKENIZERS["char"], text) for text in (composed, decomposed))
    assert [unicodedata.normalize("NFC", word) for word in other.words] == one.words
    np.testing.assert_allclose(one.make_weights(len(one.subwords)), other.make_weights(len(one.subwords)), atol=1e-5)


def measure_pieces_across_words(tokenizer: Tokenizer, lines: list[str]) -> float:
    """Return the fraction of the tokens of lines that contain the end of a word before their own end."""
    across = []
    for line in lines:
        tokens = [token.strip("▁") for token in tokenizer.convert_ids_to_tokens(tokenizer.encode(line))]
        ends = {end for _, end in find_word_spans(line)}
        spans = zip(tokens, accumulate(map(len, tokens)), strict=True)
        across += [not ends.isdisjoint(range(end - len(token) + 1, end)) for token, end in spans]
    return sum(across) / len(across)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_of_a_new_vocabulary_do_not_span_words_without_spaces_between_them(
    kind: Literal["bpe", "unigram"],
) -> None:
    lines = ["".join(pair.target.split()) for pair in generate_corpus(train=300, dev=0, test=0, pair="en-ja")["train"]]
    settings = TextSettings(kind=kind, vocabulary=1000)
    assert measure_pieces_across_words(train_tokenizer(settings, lambda: iter(lines)), lines) < 0.03
    assert measure_pieces_across_words(SentencePieceTokenizer.train(lines, 1000, kind), lines) > 0.2, "the opposite"
