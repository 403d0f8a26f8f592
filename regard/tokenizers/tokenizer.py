"""The tokenizer interface, Unicode normalization, and tags."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from regard.errors import UserError, format_suggestion, short_repr


class Tokenizer(Protocol):
    """Convert text to ids and back. Words are counted as separated by white space."""

    lowercase: bool  # all text is lower-cased first

    @property
    def vocab_size(self) -> int:
        """Number of ids, including PAD, UNK, BOS and EOS."""
        ...

    def encode_by_word(self, text: str) -> list[list[int]]:
        """Return the ids of each white-space word, without BOS and EOS."""
        ...

    def encode_with_word_ids(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of a text, and for each the index of its white-space word."""
        by_word = self.encode_by_word(text)
        return [id for word in by_word for id in word], [index for index, word in enumerate(by_word) for _ in word]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without BOS and EOS."""
        return [id for word in self.encode_by_word(text) for id in word]

    def is_tag(self, id: int) -> bool:
        """Return True if the id is that of a tag, which no text can produce."""
        ...

    @cached_property
    def tag_ids(self) -> dict[str, int]:
        """Ids of the tags by name."""
        tokens = self.convert_ids_to_tokens(range(self.vocab_size))
        return {token[1:-1]: id for id, token in enumerate(tokens) if self.is_tag(id)}

    def find_tag_id(self, name: str) -> int:
        """Return the id of a tag; raise a UserError if the vocabulary was trained without it."""
        if name not in self.tag_ids:
            hint = format_suggestion(name, self.tag_ids) if self.tag_ids else ": this model was trained without tags"
            raise UserError(f"there is no tag {name!r}{hint}")
        return self.tag_ids[name]

    def apply_bpe_dropout(self, sentences: Sequence[Sequence[int]], dropout: float, seed: int) -> list[list[int]]:
        """Segment sentences again with BPE dropout, which depends on the seed only; unchanged without BPE merges."""
        return [list(ids) for ids in sentences]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without PAD, BOS and EOS."""
        ...

    def find_word_ids(self, ids: Sequence[int]) -> list[int]:
        """Return, for each id, the index of the word of `decode(ids)` that it belongs to."""
        ...

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id, as plots and tables show it."""
        ...

    def find_word_boundary_ids(self) -> frozenset[int] | None:
        """Return the ids that cannot continue a word, one of which follows each whole word; None if no id can."""
        return None

    def save(self, path: Path) -> None:
        """Write one file, which `load` of the same class reads."""
        ...


def check_unicode(text: str) -> None:
    """Raise a UserError for a lone surrogate (half a character), which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"{text[error.start]!r} at position {error.start}"
        raise UserError(
            f"{short_repr(text)} has half a character ({half}), which UTF-8 cannot hold: remove it"
        ) from error


def normalize(text: str, lowercase: bool) -> str:
    """Return the text in Unicode normalization form C (NFC), lower-cased first if `lowercase`."""
    return unicodedata.normalize("NFC", text.lower() if lowercase else text)


def format_tag(name: str) -> str:
    """Return a tag as it is written in a vocabulary."""
    return f"<{name}>"
