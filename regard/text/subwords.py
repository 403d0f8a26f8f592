"""SentencePiece: byte-pair encoding, unigram pieces, or single characters."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import sentencepiece

from regard.errors import UserError
from regard.symbols import BOS, EOS, NAMES, PAD, UNK

SPACE = "▁"  # what SentencePiece writes where a word begins


class Subwords:
    """A trained SentencePiece model. No piece reaches over white space."""

    def __init__(self, model: bytes, lowercase: bool = False) -> None:
        self.model = model
        self.lowercase = lowercase
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def learn(
        cls,
        lines: Iterable[str],
        size: int,
        kind: Literal["bpe", "unigram", "char"],
        byte_fallback: bool = True,
        lowercase: bool = False,
    ) -> Subwords:
        """Trains on text; fewer than `size` pieces come out where the text does not hold so many."""
        model = io.BytesIO()
        bytes_too = byte_fallback and kind != "char"
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(line.lower() if lowercase else line for line in lines),
                model_writer=model,
                model_type=kind,
                vocab_size=size,
                hard_vocab_limit=False,
                byte_fallback=bytes_too,
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
                input_sentence_size=2_000_000,
                shuffle_input_sentence=True,
                max_sentence_length=1_000_000,
                minloglevel=2,
            )
        except RuntimeError as error:
            reason = str(error).rsplit("] ", 1)[-1].strip() or "the text gave no pieces"
            raise UserError(f"text.vocabulary={size} does not suit this text for text.kind={kind}: {reason}") from error
        return cls(model.getvalue(), lowercase)

    @classmethod
    def load(cls, path: Path, lowercase: bool = False) -> Subwords:
        """Reads what `save` wrote."""
        try:
            return cls(path.read_bytes(), lowercase)
        except RuntimeError as error:
            raise UserError(f"{path} is not a SentencePiece model") from error

    def save(self, path: Path) -> None:
        """One file, which every SentencePiece tool reads."""
        path.write_bytes(self.model)

    @property
    def size(self) -> int:
        """Number of ids."""
        return int(self.processor.get_piece_size())

    def split(self, text: str) -> tuple[list[int], list[int]]:
        """Ids, and the white-space word of each."""
        by_word = self.processor.encode((text.lower() if self.lowercase else text).split())
        ids = [id for word in by_word for id in word]
        return ids, [number for number, word in enumerate(by_word) for _ in word]

    def encode(self, text: str) -> list[int]:
        """The ids alone."""
        return self.split(text)[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return str(self.processor.decode([id for id in ids if id not in (PAD, BOS, EOS)]))

    def words(self, ids: Sequence[int]) -> list[int]:
        """The word of `decode(ids)` that each id is part of; a lone space counts with the word that follows."""
        numbers, number, begins = [], -1, True
        for piece in (self.processor.id_to_piece(id) if id not in (PAD, BOS, EOS) else "" for id in ids):
            begins = begins or piece.startswith(SPACE)
            if piece.strip(SPACE) and begins:
                number, begins = number + 1, False
            numbers.append(number + 1 if begins and piece else max(number, 0))
        return numbers

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces, with `▁` where a word begins."""
        return [str(self.processor.id_to_piece(id)) for id in ids]
