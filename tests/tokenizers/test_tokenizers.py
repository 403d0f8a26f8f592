"""Tokenizers: encoding, decoding, the mapping from tokens to words, training, saving and loading."""

import inspect
import io
import pickle
import unicodedata
from functools import cache
from pathlib import Path
from typing import Literal

import pytest
import regex
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from regard import text
from regard.config import parse_settings
from regard.errors import UserError
from regard.special_tokens import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from regard.tokenizers import tokenizer as tokenizers
from regard.tokenizers import words
from regard.tokenizers.sentencepiece import SentencePieceTokenizer
from regard.tokenizers.tokenizer import TextSettings, Tokenizer, Tokenizers, subsample_lines
from regard.tokenizers.words import CLOSING_MARKS, JOINER, OPENING_MARKS, SPACER, WordTokenizer

Kind = Literal["bpe", "unigram", "word", "char"]
KINDS: tuple[Kind, ...] = ("bpe", "unigram", "word", "char")
VOCABULARY_SIZES: dict[Kind, int] = {"bpe": 400, "unigram": 330, "word": 90, "char": 60}
SOURCE = (
    "the old teacher reads a book .",
    "she isn't at home , is she ?",
    "we see the well-kept gardens ( and the river ) .",
    "the river is 40% deeper ; nobody knows why !",
    "they read the books that the teachers gave them .",
)
TARGET = (
    "der alte Lehrer liest ein Buch .",
    "sie ist nicht zu Hause , oder ?",
    "wir sehen die gepflegten Gärten ( und den Fluss ) .",
    "der Fluss ist 40% tiefer ; niemand weiß , warum !",
    "sie lesen die Bücher , die ihnen die Lehrer gaben .",
)
ANY_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ASCII_TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
# Without control characters, and without the character that SentencePiece writes for a space.
LINES = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="▁"), max_size=20)
SIGNS = "10 m² x³ ½ Liter … ™ № 5 ㎏ ，！？（）： ﬁne ① Ⅳ 日本 Gärten"


@cache
def train_tokenizer(kind: Kind, byte_fallback: bool = True, lowercase: bool = False) -> Tokenizer:
    settings = TextSettings(
        kind=kind, vocabulary=VOCABULARY_SIZES[kind], byte_fallback=byte_fallback, lowercase=lowercase
    )
    return tokenizers.train_tokenizers(settings, lambda: SOURCE * 4, lambda: TARGET * 4).source


@cache
def train_subwords(kind: Literal["bpe", "unigram", "char"]) -> SentencePieceTokenizer:
    tokenizer = train_tokenizer(kind)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    return tokenizer


REMOVED = {"\u00ad", "\u061c", "\u200b", "\u200e", "\u200f", "\u2060", "\ufeff"}  # besides embeddings and isolates
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
ARABIC_FORMS = ("<initial>", "<medial>", "<final>", "<isolated>")


def normalize(written: str) -> str:
    """Return what decoding gives, by the Unicode character database: one space for each run of white space."""
    folded = "".join(map(fold, written))
    return " ".join(unicodedata.normalize("NFC", folded).split())


def fold(character: str) -> str:
    if character in REMOVED or unicodedata.bidirectional(character) in DIRECTIONS:
        return ""
    form, _, _ = unicodedata.decomposition(character).partition(" ")
    is_letter_form = form in ARABIC_FORMS and not "\ufdf0" <= character <= "\ufdff"
    is_wide_letter = form == "<wide>" and (character.isalpha() or character.isdecimal())
    if is_letter_form or is_wide_letter or (form == "<narrow>" and character < "\uffe0"):
        return unicodedata.normalize("NFKC", character).replace(" ", "")
    return character


@cache
def train_nfkc_subwords() -> SentencePieceTokenizer:
    """Train a model with the normalization rule of earlier versions."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SOURCE * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        pad_piece=SPECIAL_TOKENS[PAD],
        unk_piece=SPECIAL_TOKENS[UNK],
        bos_piece=SPECIAL_TOKENS[BOS],
        eos_piece=SPECIAL_TOKENS[EOS],
        minloglevel=2,
    )
    return SentencePieceTokenizer(model.getvalue())


def token_ids(kind: Kind) -> st.SearchStrategy[list[int]]:
    """Any ids, including special tokens and single bytes."""
    size = train_tokenizer(kind).vocab_size
    return st.lists(
        st.one_of(st.integers(0, 3), st.integers(0, size - 1), st.integers(size - 40, size - 1)), max_size=14
    )


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_the_first_ids(kind: Kind) -> None:
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert (
        tuple(train_tokenizer(kind).convert_ids_to_tokens([PAD, UNK, BOS, EOS]))
        == SPECIAL_TOKENS
        == ("<pad>", "<unk>", "<s>", "</s>")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary_is_not_larger_than_requested(kind: Kind) -> None:
    tokenizer = train_tokenizer(kind)
    besides = 256 if kind == "char" else 0  # bytes
    assert 4 < tokenizer.vocab_size <= VOCABULARY_SIZES[kind] + besides
    assert len(set(tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)))) == tokenizer.vocab_size


@pytest.mark.parametrize("kind", KINDS)
def test_training_text_survives_encoding_and_decoding(kind: Kind) -> None:
    tokenizer = train_tokenizer(kind)
    for line in ("the teacher reads the books", "der Lehrer liest die Bücher", "isn't well-kept"):
        ids = tokenizer.encode(line)
        assert tokenizer.decode(ids) == line
        assert not {PAD, UNK, BOS, EOS} & set(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_text_has_no_tokens(kind: Kind) -> None:
    tokenizer = train_tokenizer(kind)
    assert tokenizer.encode("") == tokenizer.encode(" \t\n ") == []
    assert tokenizer.encode_with_word_ids("") == ([], [])
    assert tokenizer.decode([]) == tokenizer.decode([PAD, BOS, EOS]) == ""
    assert tokenizer.find_word_ids([]) == []
    assert tokenizer.convert_ids_to_tokens([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_pad_bos_and_eos_are_not_decoded(kind: Kind) -> None:
    tokenizer = train_tokenizer(kind)
    first, second = tokenizer.encode("the old"), tokenizer.encode("books")
    assert tokenizer.decode([BOS, *first, PAD, *second, EOS, PAD]) == tokenizer.decode([*first, *second])


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_special_tokens_in_a_text_are_ordinary_text(kind: Kind) -> None:
    assert not {PAD, BOS, EOS} & set(train_tokenizer(kind).encode("<pad> <s> </s> a<s>b"))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@given(written=LINES)
def test_any_text_survives_encoding_and_decoding(kind: Kind, written: str) -> None:
    tokenizer = train_tokenizer(kind)
    ids = tokenizer.encode(written)
    assert tokenizer.decode(ids) == normalize(written)
    assert UNK not in ids


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_superscripts_fractions_and_full_width_marks_are_kept(kind: Literal["bpe", "unigram", "char"]) -> None:
    for lowercase, written in ((False, SIGNS), (True, SIGNS.lower())):
        tokenizer = SentencePieceTokenizer.train([SIGNS] * 20, 400, kind, lowercase=lowercase)
        assert tokenizer.decode(tokenizer.encode(SIGNS)) == written
        loaded = SentencePieceTokenizer(tokenizer.model, lowercase)
        assert loaded.decode(loaded.encode(SIGNS)) == written


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(written=ASCII_TEXTS)
def test_ascii_text_is_decoded_with_single_spaces(kind: Kind, written: str) -> None:
    tokenizer = train_tokenizer(kind)
    assert tokenizer.decode(tokenizer.encode(written)) == " ".join(written.split())


@pytest.mark.parametrize("lowercase", [False, True], ids=["cased", "lowercase"])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_composed_and_decomposed_characters_are_encoded_alike(kind: Kind, lowercase: bool) -> None:
    tokenizer = train_tokenizer(kind, lowercase=lowercase)
    assert tokenizer.encode("GA\u0308rten") == tokenizer.encode("G\u00c4rten")
    assert tokenizer.encode_with_word_ids("Ga\u0308rten") == tokenizer.encode_with_word_ids("G\u00e4rten")


def test_decomposed_training_text_gives_composed_subwords() -> None:
    decomposed = [unicodedata.normalize("NFD", line) for line in (*SOURCE, *TARGET)]
    pieces = SentencePieceTokenizer.train(decomposed * 4, 330, "bpe").convert_ids_to_tokens(range(330))
    assert "\u0308" not in "".join(pieces)
    assert "\u00e4" in "".join(pieces)


def test_model_of_an_earlier_version_keeps_its_normalization(tmp_path: Path) -> None:
    tokenizer = train_nfkc_subwords()
    assert tokenizer.encode("ﬁne ① m² …") == tokenizer.encode("fine 1 m2 ...")
    assert tokenizer.decode(tokenizer.encode("m² ½ …")) == "m2 1⁄2 ..."
    tokenizer.save(tmp_path / "shared.model")
    loaded = SentencePieceTokenizer.load(tmp_path / "shared.model")
    assert loaded.decode(loaded.encode("m² ½ …")) == "m2 1⁄2 ..."


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_characters_become_unk_without_byte_fallback(kind: Kind) -> None:
    tokenizer = train_tokenizer(kind, byte_fallback=False)
    assert tokenizer.decode(tokenizer.encode("the 日 books")) == "the <unk> books"
    assert UNK in tokenizer.encode("日")


@pytest.mark.parametrize("kind", KINDS)
@given(written=ANY_TEXTS)
def test_split_maps_each_token_to_its_word(kind: Kind, written: str) -> None:
    tokenizer = train_tokenizer(kind)
    ids, numbers = tokenizer.encode_with_word_ids(written)
    assert ids == tokenizer.encode(written)
    assert numbers == sorted(numbers)
    by_word = [tokenizer.encode(word) for word in written.split()]
    assert ids == [id for word in by_word for id in word]
    assert numbers == [number for number, word in enumerate(by_word) for _ in word]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_words_maps_any_token_ids_to_words_of_their_text(kind: Kind, data: st.DataObject) -> None:
    tokenizer = train_tokenizer(kind)
    ids = data.draw(token_ids(kind))
    numbers, written = tokenizer.find_word_ids(ids), tokenizer.decode(ids).split()
    assert len(numbers) == len(ids)
    assert numbers == sorted(numbers)
    assert all(0 <= number < max(1, len(written)) for number in numbers)
    covered = {number for id, number in zip(ids, numbers, strict=True) if id not in (PAD, BOS, EOS)}
    assert covered >= set(range(len(written))), "a word of the text belongs to no token"


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_tokens_of_a_word_spell_the_word(kind: Kind, data: st.DataObject) -> None:
    tokenizer = train_tokenizer(kind)
    # without byte tokens, whose names are not their text
    ids = [id for id in data.draw(token_ids(kind)) if not tokenizer.convert_ids_to_tokens([id])[0].startswith("<0x")]
    written = tokenizer.decode(ids).split()
    spelt = [""] * len(written)
    for id, piece, number in zip(ids, tokenizer.convert_ids_to_tokens(ids), tokenizer.find_word_ids(ids), strict=True):
        letters = "" if id in (PAD, BOS, EOS) else piece.translate({ord("▁"): None, ord(SPACER): None})
        assert letters == "" or number < len(written)
        if letters:
            spelt[number] += letters
    assert spelt == written


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@given(written=LINES)
def test_words_and_split_agree_on_encoded_text(kind: Kind, written: str) -> None:
    tokenizer = train_tokenizer(kind)
    ids, numbers = tokenizer.encode_with_word_ids(written)
    assert tokenizer.find_word_ids(ids) == numbers


def encode_bytes(written: bytes) -> list[int]:
    return [int(train_subwords("bpe").processor.piece_to_id(f"<0x{byte:02X}>")) for byte in written]


def test_white_space_in_byte_tokens_ends_a_word() -> None:
    tokenizer = train_subwords("bpe")
    a, b = encode_bytes(b"a"), encode_bytes(b"b")
    separator = encode_bytes("\u2028".encode())
    assert tokenizer.decode([*a, *separator, *b]).split() == ["a", "b"]
    assert tokenizer.find_word_ids([*a, *separator, *b]) == [0, 1, 1, 1, 1]
    assert tokenizer.find_word_ids([*a, *encode_bytes(b" "), *b]) == [0, 1, 1]
    broken = encode_bytes("日".encode()[:2])
    assert tokenizer.find_word_ids([*a, *broken, *b]) == [0, 0, 0, 0]


def test_separate_space_token_belongs_to_the_following_word() -> None:
    tokenizer = train_subwords("char")
    (space,) = (id for id in range(tokenizer.vocab_size) if tokenizer.convert_ids_to_tokens([id]) == ["▁"])
    letter = tokenizer.encode("a")[-1]
    assert tokenizer.decode([letter, space, letter]) == "a a"
    assert tokenizer.find_word_ids([letter, space, letter]) == [0, 1, 1]
    assert tokenizer.find_word_ids([letter, space]) == [0, 0]
    assert tokenizer.find_word_ids([letter, space, space, EOS]) == [0, 0, 0, 0]
    assert tokenizer.find_word_ids([space]) == [0]
    assert tokenizer.find_word_ids([letter, space, UNK, UNK, letter]) == [0, 1, 1, 1, 1]


def test_special_tokens_belong_to_the_preceding_word() -> None:
    for kind in KINDS:
        tokenizer = train_tokenizer(kind)
        the, books = tokenizer.encode("the"), tokenizer.encode("books")
        ids = [BOS, *the, PAD, *books, EOS]
        assert tokenizer.find_word_ids(ids) == [0, *[0] * len(the), 0, *[1] * len(books), 1], kind


@given(st.data())
def test_word_tokenizer_encodes_its_decoded_text_to_the_same_ids(data: st.DataObject) -> None:
    tokenizer = train_tokenizer("word")
    ids = data.draw(token_ids("word"))
    assert tokenizer.encode(tokenizer.decode(ids)) == [id for id in ids if id not in (PAD, BOS, EOS)]


def test_word_tokenizer_attaches_punctuation_to_words() -> None:
    tokenizer = train_tokenizer("word")
    line = "we see the well-kept gardens ( and the river ) ."
    assert tokenizer.decode(tokenizer.encode(line)) == line
    assert tokenizer.decode(tokenizer.encode(") river")) == ") river"
    tokenizer = WordTokenizer.train(["isn't she, (the river)?"], 20)
    ids, numbers = tokenizer.encode_with_word_ids("isn't she, (the river)?")
    assert tokenizer.convert_ids_to_tokens(ids) == ["isn't", "she", ",", "(", "the", "river", ")", "?"]
    assert numbers == [0, 1, 1, 2, 2, 3, 3, 3]
    assert tokenizer.find_word_ids(ids) == numbers


WRITINGS = {
    "hindi": "मैं हिन्दी बोलता हूँ।",
    "bengali": "আমি বাংলায় কথা বলি।",
    "tamil": "நான் தமிழ் பேசுகிறேன்.",
    "thai": "ฉันพูด ภาษาไทย ได้",
    "hebrew": "שָׁלוֹם עֲלֵיכֶם.",
    "arabic": "اَلسَّلَامُ عَلَيْكُمْ؟",
    "persian": "می\u200cخواهم بروم.",
    "chinese": "你好，世界。",
    "japanese": "東京は大きな都市です。「はい」と iPhone 14を買った。 次",
    "mixed": "は2019年iPhone、 (家)- a家 well-kept東京 ␣家 a <unk>家",
    "khmer": "ខ្ញុំទៅផ្ទះ។ គាត់នៅ។",
    "burmese": "သူသွားတယ်။ ငါ",
    "lao": "ຂ້ອຍຮັກ ແມວ",
    "korean": "한국어 문장입니다.",
    "flags": "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f 🇩🇪",
    "emoji": "👨\u200d👩\u200d👧 👍🏽 🇩🇪 ❤\ufe0f",
    "numbers": "1,000.50 3:45 $5 40% 2/3 -1",
    "quotes": '"no" \'tis „so“ »ja« «si» ("a")',
    "spaced marks": "50 % « oui » Quoi ? Hello , world . ( a ) „ b “ … ␣ ␣% «␣ a␣b ␣",
    "marks": "yes—no and/or use .NET hi :) a ... f(x) ?! a.b@c.org",
    "vietnamese": "Tiếng Việt",
}


@pytest.mark.parametrize("written", WRITINGS.values(), ids=WRITINGS)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_word_tokenizer_writes_words_and_punctuation_back_as_they_were(
    written: str, form: Literal["NFC", "NFD"]
) -> None:
    tokenizer = WordTokenizer.train([written], 100)
    ids, numbers = tokenizer.encode_with_word_ids(unicodedata.normalize(form, written))
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", written)
    assert tokenizer.find_word_ids(ids) == numbers
    assert UNK not in ids or "<unk>" in written


def test_word_tokenizer_does_not_split_words_at_combining_marks() -> None:
    for name in ("hindi", "bengali", "tamil", "hebrew", "arabic", "persian", "emoji", "flags", "vietnamese"):
        tokenizer = WordTokenizer.train([WRITINGS[name]], 100)
        expected = [word.rstrip(".।؟") for word in normalize(WRITINGS[name]).split()]
        assert [
            piece
            for piece in tokenizer.convert_ids_to_tokens(tokenizer.encode(WRITINGS[name]))
            if piece[-1] not in ".।؟"
        ] == expected


@given(
    written=st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20)
    | st.text(st.sampled_from("ab1 .,(«-␣東京は家カ。、「」ｶﾞＡ１ ฉันรั ខ្ញុ။\u200b\u200c\u200f\u3000ﷲﺎ\u302a"), max_size=20)
    | st.text(st.sampled_from("ab1 .,(«\"-$…)'\u0301\u200d👍␣‿"), max_size=16)
    | st.lists(
        st.sampled_from([*CLOSING_MARKS, *OPENING_MARKS, SPACER, JOINER, "a", "b.", "(c", "‿a", "a‿", "␣%"])
    ).map(" ".join)
)
def test_any_text_survives_a_vocabulary_of_all_its_words(written: str) -> None:
    tokenizer = WordTokenizer.train([written], 1000)
    ids = tokenizer.encode(written)
    if JOINER in written:
        assert UNK in ids
    elif "␣\u302a" not in normalize(written):  # a mark on the spacer itself
        assert UNK not in ids
        assert tokenizer.decode(ids) == normalize(written)


@pytest.mark.parametrize("written", ["‿a", "a‿", "a‿b", "a ‿ b", "‿", "‿‿", "👍\u200d‿", "‿\u0301"])
def test_joiner_in_a_text_is_unknown(written: str) -> None:
    tokenizer = WordTokenizer.train([written, "a b ."], 100)
    assert not any(JOINER in entry for entry in tokenizer.vocabulary)
    assert tokenizer.decode(tokenizer.encode(written)).replace("<unk>", "").split() == [
        word for word in written.replace("‿", " ").split() if word in "ab"
    ]


def test_vocabulary_without_spacers_reads_marks_between_spaces_as_before() -> None:
    tokenizer = WordTokenizer([*SPECIAL_TOKENS, "%", "«", "‿?‿", "oui", "50"])
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("« oui ? 50 %")) == ["«", "oui", "‿?‿", "50", "%"]


def test_punctuation_is_known_with_other_spaces_around_it() -> None:
    spaced, written = (
        WordTokenizer.train(['the " old " river , $ 5 .'], 100),
        WordTokenizer.train(['the "old" river, $5.'], 100),
    )
    assert UNK not in spaced.encode('the "old" river, $5.')
    assert spaced.encode('the "old" river, $5.') == spaced.encode('the " old " river , $ 5 .')
    assert written.decode(written.encode('the "old" river, $5.')) == 'the "old" river, $5.'
    assert UNK not in written.encode('the " old " river , $ 5 .')


def test_vocabulary_of_an_earlier_version_splits_text_as_before(tmp_path: Path) -> None:
    path = tmp_path / "shared.vocab"
    entries = [*SPECIAL_TOKENS, "Cafe", "\u0301", '"', "no", "1", ",", "000", "."]
    path.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    before = path.read_bytes()
    tokenizer = WordTokenizer.load(path)
    ids, numbers = tokenizer.encode_with_word_ids('Cafe\u0301 "no" 1,000.')
    assert tokenizer.convert_ids_to_tokens(ids) == ["Cafe", "\u0301", '"', "no", '"', "1", ",", "000", "."]
    assert numbers == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert tokenizer.decode(ids) == 'Cafe \u0301 " no " 1, 000.'
    tokenizer.save(path)
    assert path.read_bytes() == before
    WordTokenizer.train(["Cafe\u0301"], 10).save(path)
    loaded = WordTokenizer.load(path)
    assert loaded.decode(loaded.encode("Cafe\u0301")) == "Caf\u00e9"


def test_words_of_scripts_without_spaces_are_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = WordTokenizer.train(["東京は大きな家。", "家は大きな 東京"], 100)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("家は 東京。")) == ["家", "は", "␣東京", "。"]
    assert tokenizer.decode(tokenizer.encode("大きな 家")) == "大きな家", "the nearest known spacing"
    monkeypatch.setattr(words, "is_segmenter_installed", lambda: False)
    tokenizer = WordTokenizer.train(["東京は大きな家。カタカナ"], 100)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("家は東京。カタカナ")) == [*"家は東京。", "カタカナ"]


def test_word_vocabulary_is_read_with_the_segmenter_that_it_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shared.vocab"
    for is_installed, last_line in ((True, ", segmented by ICU"), (False, "")):
        monkeypatch.setattr(words, "is_segmenter_installed", lambda is_installed=is_installed: is_installed)
        WordTokenizer.train(["東京は大きな家。"], 100).save(path)
        assert path.read_text(encoding="utf-8").endswith(f"\n# regard words, version 3{last_line}\n")
        monkeypatch.setattr(words, "is_segmenter_installed", lambda: True)
        assert len(WordTokenizer.load(path).encode("東京は")) == (2 if is_installed else 3)
        WordTokenizer.train(["a house"], 100).save(path)
        assert path.read_text(encoding="utf-8").endswith("\n# regard words, version 3\n")
    WordTokenizer.train(["東京は大きな家。"], 100).save(path)
    monkeypatch.setattr(words, "is_segmenter_installed", lambda: False)
    with pytest.raises(UserError, match=r"pip install 'regard\[asian\]'"):
        WordTokenizer.load(path)


def test_word_vocabulary_of_version_2_keeps_words_between_spaces(tmp_path: Path) -> None:
    path = tmp_path / "shared.vocab"
    entries = [*SPECIAL_TOKENS, "你好世界", "‿。", "ｶﾅ", "# regard words, version 2"]
    path.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    before = path.read_bytes()
    tokenizer = WordTokenizer.load(path)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("你好世界。 ｶﾅ")) == ["你好世界", "‿。", "ｶﾅ"]
    assert tokenizer.decode(tokenizer.encode("你好世界。 ｶﾅ 你好世界")) == "你好世界。 ｶﾅ 你好世界"
    tokenizer.save(path)
    assert path.read_bytes() == before


CLUSTERS = {
    "devanagari": "हिन्दी में क्षत्रिय",
    "emoji": "👩\u200d👩\u200d👧 👍🏽 🇩🇪🇫🇷 ❤\ufe0f",
    "jamo": "\u1100\u119e\u11ab 한국",
    "arabic": "اَلسَّلَامُ عَلَيْكُمْ",
    "thai": "ฉันรักน้ำที่นี่",
    "marks": 'x\u0301 ,\u0301 "\u0301',
}


@pytest.mark.parametrize("written", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_character_vocabulary_keeps_grapheme_clusters_whole(written: str, byte_fallback: bool) -> None:
    tokenizer = SentencePieceTokenizer.train([written, "a b"], 100, "char", byte_fallback)
    ids = tokenizer.encode(written)
    pieces = [piece for piece in tokenizer.convert_ids_to_tokens(ids) if piece != "▁"]
    assert pieces == [cluster for cluster in regex.findall(r"\X", written) if cluster != " "]
    assert tokenizer.decode(ids) == written
    assert tokenizer.find_word_ids(ids) == tokenizer.encode_with_word_ids(written)[1]


def test_unknown_clusters_are_written_as_known_characters_and_bytes() -> None:
    tokenizer = SentencePieceTokenizer.train(["कि कु ना"], 100, "char")
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("कि नु"))
    assert pieces == ["▁", "कि", "▁", "न", "ु"]
    assert tokenizer.decode(tokenizer.encode("नु 👩\u200d👧")) == "नु 👩\u200d👧"
    small = SentencePieceTokenizer.train(["कि कि कि कु ना"], 6, "char")
    assert small.vocab_size <= 6 + 256
    assert small.decode(small.encode("कि कु ना")) == "कि कु ना"


@pytest.mark.parametrize("kind", KINDS)
def test_variants_of_characters_are_encoded_alike(kind: Kind) -> None:
    usual = "ガイド ABC 123 السلام لا می\u200cخواهم soft 。「"
    variants = "\ufeffｶﾞｲﾄﾞ ＡＢＣ １２３ \u202bﺍﻟﺴﻼﻡ\u202c \u200fﻻ می\u200cخواهم so\u00adf\u200bt ｡｢"
    settings = TextSettings(kind=kind, vocabulary=100 if kind in ("word", "char") else 330)
    tokenizer = tokenizers.train_tokenizer(settings, lambda: [variants] * 4)
    assert tokenizer.encode(variants) == tokenizer.encode(usual)
    assert tokenizer.decode(tokenizer.encode(variants)) == usual
    assert UNK not in tokenizer.encode(usual)


def test_normalization_follows_the_unicode_character_database() -> None:
    for code in (*range(0xD800), *range(0xE000, 0x11000)):
        expected = unicodedata.normalize("NFC", fold(chr(code)))
        assert tokenizers.normalize(chr(code), False) == expected, hex(code)


def test_models_name_their_normalization_and_earlier_ones_keep_theirs() -> None:
    tokenizer = SentencePieceTokenizer.train([*SOURCE, "ＡＢＣ"], 400, "bpe")
    assert b"regard-2" in tokenizer.processor.serialized_model_proto()[-20:], "SentencePiece reads the rule"
    assert tokenizer.decode(tokenizer.encode("ＡＢＣ\u200b")) == "ABC"
    earlier = SentencePieceTokenizer(tokenizer.model[:-12])
    assert earlier.decode(earlier.encode("ＡＢＣ\u200bA\u030a")) == "ＡＢＣ\u200bÅ"


@pytest.mark.parametrize("kind", KINDS)
def test_lower_case_is_that_of_the_language(kind: Kind, tmp_path: Path) -> None:
    settings = TextSettings(kind=kind, vocabulary=VOCABULARY_SIZES[kind], lowercase=True)
    languages = ("en", "tr")
    trained = tokenizers.train_tokenizers(
        settings, lambda: ["I AM IN"] * 9, lambda: ["ISI İYİ", "I\u0307Yİ"] * 9, (), languages
    )
    tokenizers.save_tokenizers(trained, settings, tmp_path)
    loaded = tokenizers.load_tokenizers(settings, tmp_path, languages)
    for source, target in (trained, loaded, pickle.loads(pickle.dumps(loaded))):
        assert source.decode(source.encode("I AM IN")) == "i am in"
        assert target.decode(target.encode("ISI İYİ I\u0307Yİ")) == "ısı iyi iyi"
        assert UNK not in [*source.encode("I AM IN"), *target.encode("ISI İYİ")]
        assert (source.lower_dotless_i("I"), target.lower_dotless_i("I")) == ("I", "ı"), "references are scored so"
    cased = TextSettings(kind=kind, vocabulary=VOCABULARY_SIZES[kind])
    both = tokenizers.train_tokenizers(cased, lambda: SOURCE, lambda: TARGET, (), languages)
    assert both.source is both.target
    assert both.source.decode(both.source.encode("I")) in ("I", "<unk>")


def test_combining_marks_continue_a_word() -> None:
    tokenizer = SentencePieceTokenizer.train(
        ["\u0915\u093f\u0924\u093e\u092c \u0915\u0940, \u0915\u094d\u200d\u0937"], 300, "bpe"
    )
    boundaries = tokenizer.find_word_boundary_ids()
    assert tokenizer.find_word_boundary_ids() is boundaries, (
        "a glossary of 1,000 terms would search the vocabulary as often"
    )
    starts = {piece[0] for id, piece in enumerate(tokenizer.pieces) if id in boundaries - {EOS}}
    assert {"▁", ","} <= starts
    assert not any(unicodedata.category(start) in ("Mc", "Mn", "Cf") for start in starts), (
        "a phrase could end inside a word"
    )
    assert {piece[0] for piece in tokenizer.pieces} >= {"\u093f", "\u0915"}


def test_word_vocabulary_keeps_the_most_frequent_words() -> None:
    tokenizer = WordTokenizer.train(["b b b a a c", "c d <unk> <s>"], 7)
    assert tokenizer.vocabulary == [*SPECIAL_TOKENS, "b", "a", "c"]
    assert tokenizer.encode("a b c d <unk>") == [5, 4, 6, UNK, UNK]
    assert WordTokenizer.train(["b a"], 6).vocabulary == [*SPECIAL_TOKENS, "a", "b"]


def test_lowercase_tokenizer_ignores_case() -> None:
    for kind in KINDS:
        tokenizer = train_tokenizer(kind, lowercase=True)
        assert tokenizer.encode("The OLD Teacher") == tokenizer.encode("the old teacher"), kind
        assert tokenizer.encode_with_word_ids("THE Old")[1] == tokenizer.encode_with_word_ids("the old")[1]
        assert tokenizer.decode(tokenizer.encode("The OLD Teacher")) == "the old teacher"
        assert not any(
            piece != piece.lower()
            for piece in tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
            if not piece.startswith("<0x")
        )


def test_vocabulary_is_shared_or_separate_by_setting() -> None:
    for kind in KINDS:
        both = tokenizers.train_tokenizers(
            TextSettings(kind=kind, vocabulary=VOCABULARY_SIZES[kind]), lambda: SOURCE, lambda: TARGET
        )
        assert both.source is both.target
        apart = tokenizers.train_tokenizers(
            TextSettings(kind=kind, vocabulary=VOCABULARY_SIZES[kind], shared=False), lambda: SOURCE, lambda: TARGET
        )
        assert apart.source is not apart.target
        left, right = (set(side.convert_ids_to_tokens(range(side.vocab_size))) for side in apart)
        assert left != right
        assert "ß" not in "".join(left)


def assert_same_tokenizer(left: Tokenizer, right: Tokenizer) -> None:
    assert left.convert_ids_to_tokens(range(left.vocab_size)) == right.convert_ids_to_tokens(range(right.vocab_size))
    for line in (*SOURCE, *TARGET, "日本 The"):
        assert left.encode_with_word_ids(line) == right.encode_with_word_ids(line)
        assert left.find_word_ids(left.encode(line)) == right.find_word_ids(right.encode(line))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])
@pytest.mark.parametrize("lowercase", [True, False], ids=["lowercase", "cased"])
def test_loaded_tokenizer_equals_the_saved_one(kind: Kind, shared: bool, lowercase: bool, tmp_path: Path) -> None:
    settings = TextSettings(kind=kind, vocabulary=VOCABULARY_SIZES[kind], shared=shared, lowercase=lowercase)
    trained = tokenizers.train_tokenizers(settings, lambda: SOURCE, lambda: TARGET)
    tokenizers.save_tokenizers(trained, settings, tmp_path)
    ending = "vocab" if kind == "word" else "model"
    assert {path.name for path in tmp_path.iterdir()} == (
        {f"shared.{ending}"} if shared else {f"source.{ending}", f"target.{ending}"}
    )
    loaded = tokenizers.load_tokenizers(settings, tmp_path)
    assert isinstance(loaded, Tokenizers)
    assert_same_tokenizer(trained.source, loaded.source)
    assert_same_tokenizer(trained.target, loaded.target)
    assert (loaded.source is loaded.target) == shared


def test_subword_training_takes_evenly_spaced_lines_of_long_texts() -> None:
    lines = [str(number) for number in range(10)]
    assert list(subsample_lines(lambda: lines, 10)) == lines
    assert list(subsample_lines(lambda: lines, 9)) == ["0", "2", "4", "6", "8"]
    assert list(subsample_lines(lambda: lines, 3)) == ["0", "4", "8"]
    assert list(subsample_lines(lambda: [], 3)) == []


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_too_small_vocabulary_error_names_the_smallest_size(kind: Kind) -> None:
    def learn(size: int) -> Tokenizer:
        return tokenizers.train_tokenizers(
            TextSettings(kind=kind, vocabulary=size), lambda: SOURCE, lambda: TARGET
        ).source

    with pytest.raises(UserError, match=rf"text\.vocabulary=100 .*text\.kind={kind}.* need (\d+)") as caught:
        learn(100)
    needed = int(str(caught.value).split(" need ")[1].split(";")[0])
    assert learn(needed).vocab_size == needed
    with pytest.raises(UserError):
        learn(needed - 1)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_training_subwords_on_no_text_is_refused(kind: Kind) -> None:
    with pytest.raises(UserError, match="no pieces"):
        tokenizers.train_tokenizers(TextSettings(kind=kind, vocabulary=300), lambda: [], lambda: [""])


def test_vocabulary_with_only_special_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="vocabulary must be at least 5, not 4"):
        parse_settings(TextSettings, {"vocabulary": 4}, "text")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["empty", "truncated", "binary", "text"])
def test_damaged_vocabulary_file_error_names_the_file(kind: Kind, damage: str, tmp_path: Path) -> None:
    settings = TextSettings(kind=kind, vocabulary=VOCABULARY_SIZES[kind])
    tokenizers.save_tokenizers(Tokenizers(train_tokenizer(kind), train_tokenizer(kind)), settings, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damaged = {
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "binary": b"\xff\xfe" * 50,
        "text": b"not\na\nvocabulary\n",
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(UserError, match="is not a") as caught:
        tokenizers.load_tokenizers(settings, tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "lines", ["a\na\n", "\n", "two words\n", " a\n"], ids=["duplicate", "empty", "two words", "leading space"]
)
def test_word_list_with_duplicate_or_invalid_words_is_refused(lines: str, tmp_path: Path) -> None:
    path = tmp_path / "shared.vocab"
    path.write_text("".join(f"{name}\n" for name in SPECIAL_TOKENS) + lines, encoding="utf-8")
    with pytest.raises(UserError, match="one word a line, each once"):
        WordTokenizer.load(path)


def test_sentencepiece_model_with_other_special_ids_is_refused(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SOURCE), model_writer=model, model_type="char", vocab_size=30, minloglevel=2
    )
    path = tmp_path / "shared.model"
    path.write_bytes(model.getvalue())
    with pytest.raises(UserError, match="first four pieces"):
        SentencePieceTokenizer.load(path)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_vocabulary_file_is_refused(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is missing"):
        tokenizers.load_tokenizers(TextSettings(kind=kind), tmp_path)


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_special_tokens_are_no_tags(kind: Kind) -> None:
    settings = TextSettings(kind=kind, vocabulary=VOCABULARY_SIZES[kind])
    tokenizer = tokenizers.train_tokenizer(settings, lambda: SOURCE, ["news"])
    assert tokenizer.is_tag(tokenizer.find_tag_id("news"))
    for name in ("s", "pad", "unk"):
        with pytest.raises(UserError, match=f"there is no tag '{name}'"):
            tokenizer.find_tag_id(name)


def test_text_exports_special_tokens_and_tokenizers_only() -> None:
    exported = {name: value for name, value in vars(text).items() if not name.startswith("_")}
    assert {"PAD", "UNK", "BOS", "EOS", "SPECIAL_TOKENS", "Tokenizers", "WordTokenizer"} <= exported.keys()
    modules = {value.__module__ for value in exported.values() if hasattr(value, "__module__")}
    assert all(module.startswith("regard.tokenizers.") for module in modules)
    assert not any(inspect.ismodule(value) for value in exported.values())
