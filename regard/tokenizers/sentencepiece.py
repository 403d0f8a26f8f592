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
from regard.special_tokens import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from regard.tokenizers.bpe_dropout import BpeMerges
from regard.tokenizers.tokenizer import check_unicode, format_tag, make_missing_tag_error, normalize

_WORD_START = "▁"  # what SentencePiece writes where a word begins
_WORD = re.compile(r"\S+")
_MAX_CACHED_WORDS = 300_000  # words whose ids are kept at hand


class SentencePieceTokenizer:
    """A trained SentencePiece model. No piece reaches over white space."""

    def __init__(self, model: bytes, lowercase: bool = False) -> None:
        self.model = model
        self.lowercase = lowercase
        self._word_cache: dict[str, list[int]] = {}  # of words: most of a text is a few words over and over
        self._character_cache: dict[tuple[int, ...], list[str]] = {}
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        # Models of earlier versions carry SentencePiece's rule nmt_nfkc, which turns ² into 2, and keep it.
        self.is_nfc = "²" in self.processor.normalize("²")

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        size: int,
        kind: Literal["bpe", "unigram", "char"],
        byte_fallback: bool = True,
        lowercase: bool = False,
        tags: Sequence[str] = (),
    ) -> SentencePieceTokenizer:
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
                pad_piece=SPECIAL_TOKENS[PAD],
                unk_piece=SPECIAL_TOKENS[UNK],
                unk_surface=SPECIAL_TOKENS[UNK],
                bos_piece=SPECIAL_TOKENS[BOS],
                eos_piece=SPECIAL_TOKENS[EOS],
                control_symbols=[format_tag(tag) for tag in tags],
                max_sentence_length=1_000_000,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise UserError(
                f"text.vocabulary={size} does not suit this text for text.kind={kind}: {_format_trainer_error(str(error))}"
            ) from error
        return cls(model.getvalue(), lowercase)

    @classmethod
    def load(cls, path: Path, lowercase: bool = False) -> SentencePieceTokenizer:
        """Reads what `save` wrote."""
        model = path.read_bytes()
        try:
            if not model:
                raise RuntimeError("SentencePiece takes an empty file for no file")
            loaded = cls(model, lowercase)
            pieces = loaded.convert_ids_to_tokens(
                range(loaded.vocab_size)
            )  # each of them, for one that is not UTF-8 has no text
        except (RuntimeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not a SentencePiece model") from error
        if tuple(pieces[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
            raise UserError(
                f"{path} is not a vocabulary of regard: its first four pieces are not {' '.join(SPECIAL_TOKENS)}"
            )
        return loaded

    def save(self, path: Path) -> None:
        """One file, which every SentencePiece tool reads."""
        path.write_bytes(self.model)

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return int(self.processor.get_piece_size())

    def encode_with_word_ids(self, text: str) -> tuple[list[int], list[int]]:
        """Ids, and the white-space word of each."""
        by_word = [self._encode_word(word) for word in self._normalize(text).split()]
        ids = [id for word in by_word for id in word]
        return ids, [number for number, word in enumerate(by_word) for _ in word]

    def _encode_word(self, word: str) -> list[int]:
        """The ids of one word, which do not depend on those around it."""
        found = self._word_cache.get(word)
        if found is None:
            if len(self._word_cache) >= _MAX_CACHED_WORDS:
                self._word_cache.clear()
            check_unicode(word)
            found = self._word_cache[word] = self.processor.encode(word)
        return found

    def encode(self, text: str) -> list[int]:
        """The ids alone."""
        return [id for word in self._normalize(text).split() for id in self._encode_word(word)]

    def _normalize(self, text: str) -> str:
        return normalize(text, self.lowercase) if self.is_nfc else text.lower() if self.lowercase else text

    def apply_bpe_dropout(self, sentences: Sequence[Sequence[int]], dropout: float, seed: int) -> list[list[int]]:
        """The same sentences cut otherwise: each merge is left out with a chance of `dropout`.

        A pure function of the seed. What no merge made, a tag or an unknown piece, stays as it is.
        """
        random = Random(seed)
        return [
            [
                self.merges.ids[part]
                for word in self._iterate_words(ids)
                for part in self.merges.segment_with_dropout(self._split_into_characters(word), dropout, random)
            ]
            for ids in sentences
        ]

    @cached_property
    def merges(self) -> BpeMerges:
        """The merges of the vocabulary."""
        processor = self.processor
        pieces = [str(processor.id_to_piece(id)) for id in range(self.vocab_size)]
        odd = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
        made = [id for id in range(self.vocab_size) if len(pieces[id]) > 1 and not any(is_odd(id) for is_odd in odd)]
        return BpeMerges(
            {pieces[id]: processor.get_score(id) for id in made}, {piece: id for id, piece in enumerate(pieces)}
        )

    def _iterate_words(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The ids of each word: no merge reaches into the next one."""
        start = 0
        for place in range(1, len(ids) + 1):
            if place == len(ids) or self._starts_word[ids[place]]:
                yield tuple(ids[start:place])
                start = place

    @cached_property
    def _starts_word(self) -> list[bool]:
        """Of each id, whether a word begins with it."""
        return [str(self.processor.id_to_piece(id)).startswith(_WORD_START) for id in range(self.vocab_size)]

    def _split_into_characters(self, word: tuple[int, ...]) -> list[str]:
        """What the pieces of a word were merged from."""
        found = self._character_cache.get(word)
        if found is None:
            if len(self._character_cache) >= _MAX_CACHED_WORDS:
                self._character_cache.clear()
            pieces = (str(self.processor.id_to_piece(int(id))) for id in word)
            found = self._character_cache[word] = [
                symbol for piece in pieces for symbol in self.merges.split_into_characters(piece)
            ]
        return found

    def find_tag_id(self, name: str) -> int:
        """The id of a tag that the vocabulary was learnt with."""
        id = self.processor.piece_to_id(format_tag(name))
        if id == UNK:
            raise make_missing_tag_error(
                name, [self.processor.id_to_piece(id)[1:-1] for id in range(self.vocab_size) if self.is_tag(id)]
            )
        return int(id)

    def is_tag(self, id: int) -> bool:
        """Whether an id is that of a tag."""
        return id >= len(SPECIAL_TOKENS) and bool(self.processor.is_control(int(id)))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return str(self.processor.decode([id for id in ids if id not in (PAD, BOS, EOS)]))

    def find_word_ids(self, ids: Sequence[int]) -> list[int]:
        """The word of `decode(ids)` that each id is part of.

        A lone space counts with the word that follows, if one does, and a silent id with the word before it.
        """
        spelt = [self._decode_piece(id) for id in ids]
        ends = _find_word_end_offsets(b"".join(spelt))
        numbers, number, place = [], 0, 0
        for letters in spelt:
            if letters:
                number = min(bisect_right(ends, place), max(0, len(ends) - 1))
            numbers.append(number)
            place += len(letters)
        return numbers

    def _decode_piece(self, id: int) -> bytes:
        """What an id adds to a text, in UTF-8; a byte piece may be only a part of a character."""
        if id in (PAD, BOS, EOS) or self.is_tag(id):
            return b""
        piece = str(self.processor.id_to_piece(id))
        return bytes([int(piece[3:5], 16)]) if self.processor.is_byte(id) else piece.replace(_WORD_START, " ").encode()

    def find_word_boundary_ids(self) -> frozenset[int]:
        """EOS, a piece that begins a word, or one that begins with a mark of punctuation."""
        ends = {
            id
            for id, piece in enumerate(self.convert_ids_to_tokens(range(self.vocab_size)))
            if not self.processor.is_byte(id) and not self.processor.is_control(id) and not piece[0].isalnum()
        }
        return frozenset(ends - {UNK} | {EOS})

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The pieces, with `▁` where a word begins."""
        return [str(self.processor.id_to_piece(id)) for id in ids]


def _find_word_end_offsets(text: bytes) -> list[int]:
    """Where each white-space word ends, counted in bytes; bytes that are no character count as letters."""
    letters = text.decode("utf-8", "surrogateescape")
    return [len(letters[: word.end()].encode("utf-8", "surrogateescape")) for word in _WORD.finditer(letters)]


def _format_trainer_error(error: str) -> str:
    """What SentencePiece's trainer complains of, without the names of its own options."""
    few = re.search(r"required_chars\. \d+ vs (\d+)", error)
    if few:
        return f"its characters and the special ids alone need {few[1]}; give it at least that many"
    return error.rsplit("] ", 1)[-1].strip() or "the text gave no pieces"
