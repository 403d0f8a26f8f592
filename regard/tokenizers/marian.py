"""Tokenizer of Marian models: a SentencePiece model for each language, and a vocabulary that numbers the pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, ZipInfo

from regard.errors import UserError
from regard.special_tokens import SPECIAL_TOKENS, UNK
from regard.tokenizers.sentencepiece import WORD_START, SentencePieceTokenizer
from regard.tokenizers.tokenizer import check_unicode

MODEL_MEMBER, PIECES_MEMBER = "model.spm", "pieces.json"  # of a tokenizer file, which is a zip archive
_LANGUAGE_TOKEN = re.compile(r">>[^\s<>]+<<")


class MarianTokenizer(SentencePieceTokenizer):
    """A SentencePiece model whose pieces have the ids of a vocabulary; pieces outside of the vocabulary are unknown.

    A text is encoded as a whole and as it is: SentencePiece's own rule normalizes it. The target language token of a
    multilingual model, such as `>>deu<<`, is a tag, which a text may also begin with.
    """

    def __init__(self, model: bytes, pieces: Sequence[str]) -> None:
        super().__init__(model)
        self.pieces = list(pieces)
        self.ids = {piece: id for id, piece in enumerate(self.pieces)}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.pieces)

    @classmethod
    def load(cls, path: Path, lowercase: bool = False) -> MarianTokenizer:
        """Read the file that `save` wrote."""
        try:
            with ZipFile(path) as archive:
                loaded = cls(archive.read(MODEL_MEMBER), json.loads(archive.read(PIECES_MEMBER)))
        except (BadZipFile, KeyError, ValueError, RuntimeError, TypeError) as error:
            raise UserError(f"{path} is not the tokenizer of an imported model") from error
        if tuple(loaded.pieces[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
            raise UserError(f"{path}: the vocabulary does not begin with {' '.join(SPECIAL_TOKENS)}")
        return loaded

    def save(self, path: Path) -> None:
        """Write a zip archive with the SentencePiece model and the pieces by id; equal tokenizers give equal files."""
        with ZipFile(path, "w") as archive:
            archive.writestr(ZipInfo(MODEL_MEMBER), self.model)
            archive.writestr(ZipInfo(PIECES_MEMBER), json.dumps(self.pieces, ensure_ascii=False))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without BOS and EOS."""
        check_unicode(text)
        match = _LANGUAGE_TOKEN.match(text)
        start = match.end() if match and match[0] in self.ids else 0
        language = [self.ids[text[:start]]] if start else []
        return [*language, *map(self.find_piece, self.processor.encode(text[start:], out_type=str))]

    def _encode_words(self, text: str) -> list[list[int]]:
        """Return the ids of each white-space word; together they are those of the whole text."""
        words, ids = text.split(), self.encode(text)
        by_word = [self._encode_cached_word(word) for word in words]
        if list(chain.from_iterable(by_word)) == ids:
            return by_word
        # Some characters are white space for only one of Python and SentencePiece.
        by_word = [[] for _ in words]
        for index, group in enumerate(self._group_words(ids) if words else ()):
            by_word[min(index, len(words) - 1)] += group
        return by_word

    def _group_words(self, ids: Sequence[int]) -> list[list[int]]:
        """Split ids before each piece that begins a word."""
        groups: list[list[int]] = []
        for id in ids:
            if not groups or self.pieces[id].startswith(WORD_START):
                groups.append([])
            groups[-1].append(id)
        return groups

    def _encode_word(self, word: str) -> list[int]:
        return self.encode(word)

    def find_piece(self, piece: str) -> int:
        """Return the id of a piece; UNK if there is none."""
        return self.ids.get(piece, UNK)

    def is_byte(self, id: int) -> bool:
        """Return True if the id is that of a byte."""
        return bool(self.processor.is_byte(self.processor.piece_to_id(self.pieces[id])))

    def _is_control(self, id: int) -> bool:
        return bool(_LANGUAGE_TOKEN.fullmatch(self.pieces[id]))

    @cached_property
    def tag_ids(self) -> dict[str, int]:
        """Ids of the target languages by code."""
        return {piece[2:-2]: id for piece, id in self.ids.items() if _LANGUAGE_TOKEN.fullmatch(piece)}

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return b"".join(map(self._decode_piece, ids)).decode(errors="replace").strip()
