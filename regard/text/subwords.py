"""SentencePiece: byte-pair encoding, unigram pieces, or single characters."""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Literal

import sentencepiece

from regard.errors import UserError
from regard.symbols import BOS, EOS, NAMES, PAD, UNK
from regard.text.merges import Merges
from regard.text.tags import no_tag, tag_piece
from regard.text.tokenizer import check_unicode, normalize

SPACE = "▁"  # what SentencePiece writes where a word begins
WORD = re.compile(r"\S+")
REMEMBERED = 300_000  # words whose ids are kept at hand


class Subwords:
    """A trained SentencePiece model. No piece reaches over white space."""

    def __init__(self, model: bytes, lowercase: bool = False) -> None:
        self.model = model
        self.lowercase = lowercase
        self.memo: dict[str, list[int]] = {}  # of words: most of a text is a few words over and over
        self.spelling: dict[tuple[int, ...], list[str]] = {}
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        # Models of earlier versions carry SentencePiece's rule nmt_nfkc, which turns ² into 2, and keep it.
        self.is_nfc = "²" in self.processor.normalize("²")

    @classmethod
    def learn(
        cls,
        lines: Iterable[str],
        size: int,
        kind: Literal["bpe", "unigram", "char"],
        byte_fallback: bool = True,
        lowercase: bool = False,
        tags: Sequence[str] = (),
    ) -> Subwords:
        """Trains on text; fewer than `size` pieces come out where the text does not hold so many.

        A tag gets an id that no text can have. Characters with byte fallback have the 256 bytes besides `size` pieces.
        """
        model = io.BytesIO()
        bytes_besides = 256 if byte_fallback and kind == "char" else 0
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(normalize(line, lowercase) for line in lines),
                model_writer=model,
                model_type=kind,
                vocab_size=size + bytes_besides,
                hard_vocab_limit=False,
                byte_fallback=byte_fallback,
                normalization_rule_name="identity",
                character_coverage=1.0 if kind == "char" else 0.9999,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                pad_piece=NAMES[PAD],
                unk_piece=NAMES[UNK],
                unk_surface=NAMES[UNK],
                bos_piece=NAMES[BOS],
                eos_piece=NAMES[EOS],
                control_symbols=[tag_piece(tag) for tag in tags],
                max_sentence_length=1_000_000,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise UserError(
                f"text.vocabulary={size} does not suit this text for text.kind={kind}: {reason(str(error))}"
            ) from error
        return cls(model.getvalue(), lowercase)

    @classmethod
    def load(cls, path: Path, lowercase: bool = False) -> Subwords:
        """Reads what `save` wrote."""
        model = path.read_bytes()
        try:
            if not model:
                raise RuntimeError("SentencePiece takes an empty file for no file")
            loaded = cls(model, lowercase)
            pieces = loaded.pieces(range(loaded.size))  # each of them, for one that is not UTF-8 has no text
        except (RuntimeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not a SentencePiece model") from error
        if tuple(pieces[: len(NAMES)]) != NAMES:
            raise UserError(f"{path} is not a vocabulary of regard: its first four pieces are not {' '.join(NAMES)}")
        return loaded

    def save(self, path: Path) -> None:
        """One file, which every SentencePiece tool reads."""
        path.write_bytes(self.model)

    @property
    def size(self) -> int:
        """Number of ids."""
        return int(self.processor.get_piece_size())

    def split(self, text: str) -> tuple[list[int], list[int]]:
        """Ids, and the white-space word of each."""
        by_word = [self.word(word) for word in self._normalize(text).split()]
        ids = [id for word in by_word for id in word]
        return ids, [number for number, word in enumerate(by_word) for _ in word]

    def word(self, word: str) -> list[int]:
        """The ids of one word, which do not depend on those around it."""
        found = self.memo.get(word)
        if found is None:
            if len(self.memo) >= REMEMBERED:
                self.memo.clear()
            check_unicode(word)
            found = self.memo[word] = self.processor.encode(word)
        return found

    def encode(self, text: str) -> list[int]:
        """The ids alone."""
        return [id for word in self._normalize(text).split() for id in self.word(word)]

    def _normalize(self, text: str) -> str:
        return normalize(text, self.lowercase) if self.is_nfc else text.lower() if self.lowercase else text

    def resample(self, sentences: Sequence[Sequence[int]], dropout: float, seed: int) -> list[list[int]]:
        """The same sentences cut otherwise: each merge is left out with a chance of `dropout`.

        A pure function of the seed. What no merge made, a tag or an unknown piece, stays as it is.
        """
        random = Random(seed)
        return [
            [
                self.merges.ids[part]
                for word in self.by_word(ids)
                for part in self.merges.cut(self.letters(word), dropout, random)
            ]
            for ids in sentences
        ]

    @cached_property
    def merges(self) -> Merges:
        """The merges of the vocabulary."""
        processor = self.processor
        pieces = [str(processor.id_to_piece(id)) for id in range(self.size)]
        odd = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
        made = [id for id in range(self.size) if len(pieces[id]) > 1 and not any(is_odd(id) for is_odd in odd)]
        return Merges(
            {pieces[id]: processor.get_score(id) for id in made}, {piece: id for id, piece in enumerate(pieces)}
        )

    def by_word(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The ids of each word: no merge reaches into the next one."""
        start = 0
        for place in range(1, len(ids) + 1):
            if place == len(ids) or self.begins[ids[place]]:
                yield tuple(ids[start:place])
                start = place

    @cached_property
    def begins(self) -> list[bool]:
        """Of each id, whether a word begins with it."""
        return [str(self.processor.id_to_piece(id)).startswith(SPACE) for id in range(self.size)]

    def letters(self, word: tuple[int, ...]) -> list[str]:
        """What the pieces of a word were merged from."""
        found = self.spelling.get(word)
        if found is None:
            if len(self.spelling) >= REMEMBERED:
                self.spelling.clear()
            pieces = (str(self.processor.id_to_piece(int(id))) for id in word)
            found = self.spelling[word] = [symbol for piece in pieces for symbol in self.merges.symbols(piece)]
        return found

    def tag(self, name: str) -> int:
        """The id of a tag that the vocabulary was learnt with."""
        id = self.processor.piece_to_id(tag_piece(name))
        if id == UNK:
            raise no_tag(name, [self.processor.id_to_piece(id)[1:-1] for id in range(self.size) if self.is_tag(id)])
        return int(id)

    def is_tag(self, id: int) -> bool:
        """Whether an id is that of a tag."""
        return id >= len(NAMES) and bool(self.processor.is_control(int(id)))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return str(self.processor.decode([id for id in ids if id not in (PAD, BOS, EOS)]))

    def words(self, ids: Sequence[int]) -> list[int]:
        """The word of `decode(ids)` that each id is part of.

        A lone space counts with the word that follows, if one does, and a silent id with the word before it.
        """
        spelt = [self.spelt(id) for id in ids]
        ends = word_ends(b"".join(spelt))
        numbers, number, place = [], 0, 0
        for letters in spelt:
            if letters:
                number = min(bisect_right(ends, place), max(0, len(ends) - 1))
            numbers.append(number)
            place += len(letters)
        return numbers

    def spelt(self, id: int) -> bytes:
        """What an id adds to a text, in UTF-8; a byte piece may be only a part of a character."""
        if id in (PAD, BOS, EOS) or self.is_tag(id):
            return b""
        piece = str(self.processor.id_to_piece(id))
        return bytes([int(piece[3:5], 16)]) if self.processor.is_byte(id) else piece.replace(SPACE, " ").encode()

    def word_ends(self) -> frozenset[int]:
        """EOS, a piece that begins a word, or one that begins with a mark of punctuation."""
        ends = {
            id
            for id, piece in enumerate(self.pieces(range(self.size)))
            if not self.processor.is_byte(id) and not self.processor.is_control(id) and not piece[0].isalnum()
        }
        return frozenset(ends - {UNK} | {EOS})

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces, with `▁` where a word begins."""
        return [str(self.processor.id_to_piece(id)) for id in ids]


def word_ends(text: bytes) -> list[int]:
    """Where each white-space word ends, counted in bytes; bytes that are no character count as letters."""
    letters = text.decode("utf-8", "surrogateescape")
    return [len(letters[: word.end()].encode("utf-8", "surrogateescape")) for word in WORD.finditer(letters)]


def reason(error: str) -> str:
    """What SentencePiece's trainer complains of, without the names of its own options."""
    few = re.search(r"required_chars\. \d+ vs (\d+)", error)
    if few:
        return f"its characters and the special ids alone need {few[1]}; give it at least that many"
    return error.rsplit("] ", 1)[-1].strip() or "the text gave no pieces"
