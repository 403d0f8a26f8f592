"""Tokenizers: ids, the words they belong to, and the way back."""

from functools import cache
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import text
from regard.errors import UserError
from regard.text import BOS, EOS, NAMES, PAD, UNK, Subwords, TextSettings, Tokenizer, Tokenizers, Words
from regard.text.settings import spread

Kind = Literal["bpe", "unigram", "word", "char"]
KINDS: tuple[Kind, ...] = ("bpe", "unigram", "word", "char")
SIZE: dict[Kind, int] = {"bpe": 400, "unigram": 330, "word": 90, "char": 60}
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
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ascii_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)


@cache
def learnt(kind: Kind, byte_fallback: bool = True, lowercase: bool = False) -> Tokenizer:
    wanted = TextSettings(kind=kind, vocabulary=SIZE[kind], byte_fallback=byte_fallback, lowercase=lowercase)
    return text.learn(wanted, lambda: SOURCE * 4, lambda: TARGET * 4).source


@cache
def subwords(kind: Literal["bpe", "unigram", "char"]) -> Subwords:
    made = learnt(kind)
    assert isinstance(made, Subwords)
    return made


def normal(written: str) -> str:
    """What SentencePiece's own normaliser makes of each white-space word, with one space between."""
    return " ".join(" ".join(map(subwords("bpe").processor.normalize, written.split())).replace("▁", " ").split())


def ids_of(kind: Kind) -> st.SearchStrategy[list[int]]:
    """Any ids, the special ones and single bytes among them."""
    size = learnt(kind).size
    return st.lists(
        st.one_of(st.integers(0, 3), st.integers(0, size - 1), st.integers(size - 40, size - 1)), max_size=14
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_special_ids_come_first(kind: Kind) -> None:
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert tuple(learnt(kind).pieces([PAD, UNK, BOS, EOS])) == NAMES == ("<pad>", "<unk>", "<s>", "</s>")


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_stays_within_its_size(kind: Kind) -> None:
    made = learnt(kind)
    assert 4 < made.size <= SIZE[kind]
    assert len(set(made.pieces(range(made.size)))) == made.size


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_learnt_from_comes_back(kind: Kind) -> None:
    made = learnt(kind)
    for line in ("the teacher reads the books", "der Lehrer liest die Bücher", "isn't well-kept"):
        ids = made.encode(line)
        assert made.decode(ids) == line
        assert not {PAD, UNK, BOS, EOS} & set(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_nothing(kind: Kind) -> None:
    made = learnt(kind)
    assert made.encode("") == made.encode(" \t\n ") == []
    assert made.split("") == ([], [])
    assert made.decode([]) == made.decode([PAD, BOS, EOS]) == ""
    assert made.words([]) == []
    assert made.pieces([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_pad_bos_and_eos_are_silent(kind: Kind) -> None:
    made = learnt(kind)
    first, second = made.encode("the old"), made.encode("books")
    assert made.decode([BOS, *first, PAD, *second, EOS, PAD]) == made.decode([*first, *second])


@pytest.mark.parametrize("kind", KINDS)
def test_special_names_in_a_text_are_ordinary_text(kind: Kind) -> None:
    assert not {PAD, BOS, EOS} & set(learnt(kind).encode("<pad> <s> </s> a<s>b"))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(written=any_text)
def test_any_text_comes_back_in_normal_form(kind: Kind, written: str) -> None:
    made = learnt(kind)
    ids = made.encode(written)
    assert " ".join(made.decode(ids).split()) == normal(written)
    assert UNK not in ids


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(written=ascii_text)
def test_plain_text_comes_back_with_single_spaces(kind: Kind, written: str) -> None:
    made = learnt(kind)
    assert made.decode(made.encode(written)) == " ".join(written.split())


def test_compatible_characters_are_the_same_text() -> None:
    made = learnt("bpe")
    assert made.encode("ﬁne ①") == made.encode("fine 1")
    assert made.encode("Ga\u0308rten") == made.encode("Gärten")


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_piece_covers(kind: Kind) -> None:
    made = learnt(kind, byte_fallback=False)
    assert made.decode(made.encode("the 日 books")) == "the <unk> books"
    assert UNK in made.encode("日")


@pytest.mark.parametrize("kind", KINDS)
@given(written=any_text)
def test_split_says_which_word_each_id_is_of(kind: Kind, written: str) -> None:
    made = learnt(kind)
    ids, numbers = made.split(written)
    assert ids == made.encode(written)
    assert numbers == sorted(numbers)
    by_word = [made.encode(word) for word in written.split()]
    assert ids == [id for word in by_word for id in word]
    assert numbers == [number for number, word in enumerate(by_word) for _ in word]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_words_of_any_ids_point_into_their_text(kind: Kind, data: st.DataObject) -> None:
    made = learnt(kind)
    ids = data.draw(ids_of(kind))
    numbers, written = made.words(ids), made.decode(ids).split()
    assert len(numbers) == len(ids)
    assert numbers == sorted(numbers)
    assert all(0 <= number < max(1, len(written)) for number in numbers)
    heard = {number for id, number in zip(ids, numbers, strict=True) if id not in (PAD, BOS, EOS)}
    assert heard >= set(range(len(written))), "each word was written by some id"


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_the_ids_of_a_word_spell_it(kind: Kind, data: st.DataObject) -> None:
    """Ids that are no single bytes: their pieces, put together by word, are the words."""
    made = learnt(kind)
    ids = [id for id in data.draw(ids_of(kind)) if not made.pieces([id])[0].startswith("<0x")]
    written = made.decode(ids).split()
    spelt = [""] * len(written)
    for id, piece, number in zip(ids, made.pieces(ids), made.words(ids), strict=True):
        letters = "" if id in (PAD, BOS, EOS) else piece.replace("▁", "")
        assert letters == "" or number < len(written)
        if letters:
            spelt[number] += letters
    assert spelt == written


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@given(written=any_text)
def test_words_and_split_agree_on_ordinary_text(kind: Kind, written: str) -> None:
    made = learnt(kind)
    if all(normal(word) and " " not in normal(word) for word in written.split()):
        ids, numbers = made.split(written)
        assert made.words(ids) == numbers


def bytes_of(written: bytes) -> list[int]:
    return [int(subwords("bpe").processor.piece_to_id(f"<0x{byte:02X}>")) for byte in written]


def test_white_space_spelt_in_bytes_ends_a_word() -> None:
    made = subwords("bpe")
    a, b = bytes_of(b"a"), bytes_of(b"b")
    separator = bytes_of("\u2028".encode())
    assert made.decode([*a, *separator, *b]).split() == ["a", "b"]
    assert made.words([*a, *separator, *b]) == [0, 1, 1, 1, 1]
    assert made.words([*a, *bytes_of(b" "), *b]) == [0, 1, 1]
    broken = bytes_of("日".encode()[:2])
    assert made.words([*a, *broken, *b]) == [0, 0, 0, 0]


def test_a_lone_space_counts_with_the_word_that_follows_if_one_does() -> None:
    made = subwords("char")
    (space,) = (id for id in range(made.size) if made.pieces([id]) == ["▁"])
    letter = made.encode("a")[-1]
    assert made.decode([letter, space, letter]) == "a a"
    assert made.words([letter, space, letter]) == [0, 1, 1]
    assert made.words([letter, space]) == [0, 0]
    assert made.words([letter, space, space, EOS]) == [0, 0, 0, 0]
    assert made.words([space]) == [0]
    assert made.words([letter, space, UNK, UNK, letter]) == [0, 1, 1, 1, 1]


def test_silent_ids_count_with_the_word_before() -> None:
    for kind in KINDS:
        made = learnt(kind)
        the, books = made.encode("the"), made.encode("books")
        ids = [BOS, *the, PAD, *books, EOS]
        assert made.words(ids) == [0, *[0] * len(the), 0, *[1] * len(books), 1], kind


@given(st.data())
def test_words_written_and_read_again_are_the_same_ids(data: st.DataObject) -> None:
    made = learnt("word")
    ids = data.draw(ids_of("word"))
    assert made.encode(made.decode(ids)) == [id for id in ids if id not in (PAD, BOS, EOS)]


def test_words_set_punctuation_as_people_do() -> None:
    made = learnt("word")
    line = "we see the well-kept gardens ( and the river ) ."
    assert made.decode(made.encode(line)) == "we see the well-kept gardens (and the river)."
    assert made.pieces(made.encode(line)) == line.split()
    assert made.decode(made.encode(") river")) == ") river"
    ids, numbers = made.split("isn't she, (the river)?")
    assert made.pieces(ids) == ["isn't", "she", ",", "(", "the", "river", ")", "?"]
    assert numbers == [0, 1, 1, 2, 2, 3, 3, 3]
    assert made.words(ids) == numbers


def test_words_keep_the_most_frequent() -> None:
    made = Words.learn(["b b b a a c", "c d <unk> <s>"], 7)
    assert made.vocabulary == [*NAMES, "b", "a", "c"]
    assert made.encode("a b c d <unk>") == [5, 4, 6, UNK, UNK]
    assert Words.learn(["b a"], 6).vocabulary == [*NAMES, "a", "b"]


def test_lowercase() -> None:
    for kind in KINDS:
        made = learnt(kind, lowercase=True)
        assert made.encode("The OLD Teacher") == made.encode("the old teacher"), kind
        assert made.split("THE Old")[1] == made.split("the old")[1]
        assert made.decode(made.encode("The OLD Teacher")) == "the old teacher"
        assert not any(piece != piece.lower() for piece in made.pieces(range(made.size)) if not piece.startswith("<0x"))


def test_a_shared_vocabulary_is_one_object_and_separate_ones_know_their_side() -> None:
    for kind in KINDS:
        both = text.learn(TextSettings(kind=kind, vocabulary=SIZE[kind]), lambda: SOURCE, lambda: TARGET)
        assert both.source is both.target
        apart = text.learn(TextSettings(kind=kind, vocabulary=SIZE[kind], shared=False), lambda: SOURCE, lambda: TARGET)
        assert apart.source is not apart.target
        left, right = (set(side.pieces(range(side.size))) for side in apart)
        assert left != right
        assert "ß" not in "".join(left)


def same(left: Tokenizer, right: Tokenizer) -> bool:
    lines = (*SOURCE, *TARGET, "日本 The")
    return left.pieces(range(left.size)) == right.pieces(range(right.size)) and all(
        left.split(line) == right.split(line) and left.words(left.encode(line)) == right.words(right.encode(line))
        for line in lines
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("lowercase", [True, False])
def test_saved_and_loaded_they_are_the_same(kind: Kind, shared: bool, lowercase: bool, tmp_path: Path) -> None:
    wanted = TextSettings(kind=kind, vocabulary=SIZE[kind], shared=shared, lowercase=lowercase)
    made = text.learn(wanted, lambda: SOURCE, lambda: TARGET)
    text.save(made, wanted, tmp_path)
    ending = "vocab" if kind == "word" else "model"
    assert {path.name for path in tmp_path.iterdir()} == (
        {f"shared.{ending}"} if shared else {f"source.{ending}", f"target.{ending}"}
    )
    loaded = text.load(wanted, tmp_path)
    assert isinstance(loaded, Tokenizers)
    assert same(made.source, loaded.source)
    assert same(made.target, loaded.target)
    assert (loaded.source is loaded.target) == shared


def test_of_very_many_lines_some_are_enough_and_always_the_same() -> None:
    lines = [str(number) for number in range(10)]
    assert list(spread(lambda: lines, 10)) == lines
    assert list(spread(lambda: lines, 9)) == ["0", "2", "4", "6", "8"]
    assert list(spread(lambda: lines, 3)) == ["0", "4", "8"]
    assert list(spread(lambda: [], 3)) == []


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_too_small_for_the_text_says_how_large_it_must_be(kind: Kind) -> None:
    def learn(size: int) -> Tokenizer:
        return text.learn(TextSettings(kind=kind, vocabulary=size), lambda: SOURCE, lambda: TARGET).source

    with pytest.raises(UserError, match=rf"text\.vocabulary=100 .*text\.kind={kind}.* need (\d+)") as caught:
        learn(100)
    needed = int(str(caught.value).split(" need ")[1].split(";")[0])
    assert learn(needed).size == needed
    with pytest.raises(UserError):
        learn(needed - 1)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_no_text_gives_no_vocabulary(kind: Kind) -> None:
    with pytest.raises(UserError, match="no pieces"):
        text.learn(TextSettings(kind=kind, vocabulary=300), lambda: [], lambda: [""])


def test_settings_that_hold_only_special_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="not 4"):
        TextSettings(vocabulary=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["empty", "half", "bytes", "words"])
def test_a_damaged_vocabulary_file(kind: Kind, damage: str, tmp_path: Path) -> None:
    wanted = TextSettings(kind=kind, vocabulary=SIZE[kind])
    text.save(Tokenizers(learnt(kind), learnt(kind)), wanted, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(
        {"empty": b"", "half": whole[: len(whole) // 2], "bytes": b"\xff\xfe" * 50, "words": b"not\na\nvocabulary\n"}[
            damage
        ]
    )
    with pytest.raises(UserError, match="is not a") as caught:
        text.load(wanted, tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("lines", ["a\na\n", "\n", "two words\n", " a\n"])
def test_a_word_list_has_each_word_once(lines: str, tmp_path: Path) -> None:
    path = tmp_path / "shared.vocab"
    path.write_text("".join(f"{name}\n" for name in NAMES) + lines, encoding="utf-8")
    with pytest.raises(UserError, match="one word a line, each once"):
        Words.load(path)


def test_a_foreign_sentencepiece_model_is_refused(tmp_path: Path) -> None:
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SOURCE), model_writer=model, model_type="char", vocab_size=30, minloglevel=2
    )
    path = tmp_path / "shared.model"
    path.write_bytes(model.getvalue())
    with pytest.raises(UserError, match="first four pieces"):
        Subwords.load(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_vocabulary_file(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is missing"):
        text.load(TextSettings(kind=kind), tmp_path)
