"""What every kind of tokenizer can do."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from regard.errors import UserError, format_suggestion, short_repr


class Tokenizer(Protocol):
    """Text to ids and back. A word, wherever words are counted, is what stands between white space in the text."""

    lowercase: bool  # whether all text is lower-cased first

    @property
    def vocab_size(self) -> int:
        """Number of ids, PAD, UNK, BOS and EOS among them."""
        ...

    def encode_with_word_ids(self, text: str) -> tuple[list[int], list[int]]:
        """Ids (no BOS, no EOS), and for each the number of the word it is part of."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids alone."""
        ...

    def find_tag_id(self, name: str) -> int:
        """The id that a tag has; an error where the vocabulary has no such tag."""
        ...

    def apply_bpe_dropout(self, sentences: Sequence[Sequence[int]], dropout: float, seed: int) -> list[list[int]]:
        """The ids of the same sentences, cut otherwise as far as `dropout` and the seed have it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; PAD, BOS and EOS are silent."""
        ...

    def find_word_ids(self, ids: Sequence[int]) -> list[int]:
        """For each id the number of the word of `decode(ids)` that it is part of."""
        ...

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Each id in writing, as a picture or a table shows it."""
        ...

    def find_word_boundary_ids(self) -> frozenset[int] | None:
        """The ids that cannot carry a word on: one of them follows every whole word. None: no id can."""
        ...

    def save(self, path: Path) -> None:
        """Writes one file that `load` of the same kind reads."""
        ...


def check_unicode(text: str) -> None:
    """Raise a UserError for a lone surrogate, half a character, which has no form in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"{text[error.start]!r} at position {error.start}"
        raise UserError(
            f"{short_repr(text)} has half a character ({half}), which UTF-8 cannot hold: remove it"
        ) from error


def normalize(text: str, lowercase: bool) -> str:
    """Return the text in Unicode normalization form C, lower-cased before if asked."""
    return unicodedata.normalize("NFC", text.lower() if lowercase else text)


def format_tag(name: str) -> str:
    """How a tag is written in a vocabulary."""
    return f"<{name}>"


def make_missing_tag_error(name: str, known: Sequence[str]) -> UserError:
    """What to say of a tag that a vocabulary does not have."""
    why = format_suggestion(name, known) if known else ": this model was trained without tags"
    return UserError(f"there is no tag {name!r}{why}")
