"""Tokenizers: settings (the `text` section of a recipe), the interface, training, saving and loading.

`sentencepiece.py` and `words.py` hold the implementations.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol, Self

from regard.config import Fraction, Range
from regard.errors import UserError, format_suggestion, short_repr
from regard.special_tokens import SPECIAL_TOKENS

if TYPE_CHECKING:
    from regard.models.hypothesis import Floats

WORDS = "words"
Span = tuple[int, int]  # of characters: start and end
_CHUNK = re.compile(r"\S+")
_SHORT_CHARACTERS = bytes(range(0xE0))  # bytes of characters of one or two bytes, and those that continue a character


@dataclass(frozen=True, kw_only=True)
class VocabularySettings:
    """Tokenizer and vocabulary settings of a task with one vocabulary."""

    kind: Literal["bpe", "unigram", "word", "char", "marian"] = "bpe"
    vocabulary: Annotated[int, Range(len(SPECIAL_TOKENS) + 1)] = 8000
    byte_fallback: bool = True
    lowercase: bool = False
    dropout: Fraction = 0.0
    vectors: str | None = None
    tune_vectors: bool = True

    def __post_init__(self) -> None:
        if not self.tune_vectors and self.vectors is None:
            raise ValueError("tune_vectors=false freezes pretrained vectors: it needs text.vectors")
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout={self.dropout} skips BPE merges: it needs kind bpe, not {self.kind}")


@dataclass(frozen=True, kw_only=True)
class TextSettings(VocabularySettings):
    """Tokenizer and vocabulary settings of a source and a target language."""

    shared: bool = True


class TokenizedWords(NamedTuple):
    """The words (or other units) of a text, and those that each token is part of."""

    words: list[str]
    word_ids: Sequence[int]  # the word of each token; ignored if there are weights
    subwords: Sequence[str] = ()  # the text of each token; empty: punctuation tokens count as well
    spans: Sequence[Span] = ()  # the characters of each word in the text
    weights: Floats | None = None  # tokens × words: the fraction of a token in each word; None: all of it in one
    units: str = WORDS

    def make_weights(self, num_tokens: int) -> Floats:
        """Return the fraction of each token in each word (tokens, words); tokens behind the text have none."""
        import numpy as np  # slow to load, and commands without a model do without it

        weights = np.zeros((num_tokens, len(self.words)), dtype=np.float32)
        if self.weights is None:
            weights[np.arange(len(self.word_ids)), self.word_ids] = 1
        else:
            weights[: len(self.weights)] = self.weights
        return weights


class Tokenizer(Protocol):
    """Convert text to ids and back. Words are counted as separated by white space."""

    lowercase: bool  # all text is lower-cased first
    normalization: int  # version of the rule; 0: SentencePiece's own
    has_dotless_i: bool = False  # lower-case I becomes ı

    def for_language(self, language: str | None) -> Self:
        """Return the tokenizer with the lower case of a language (by its code), unless it is of an earlier version."""
        has_dotless_i = self.lowercase and self.normalization > 1 and bool(_has_dotless_i(language or ""))
        if has_dotless_i == self.has_dotless_i:
            return self
        other = copy(self)
        other.has_dotless_i = has_dotless_i
        return other

    def lower_dotless_i(self, text: str) -> str:
        """Return the text with I and İ in lower case if the vocabulary has them so, as sacreBLEU does not."""
        return lower_dotless_i(text) if self.has_dotless_i else text

    def normalize(self, text: str) -> str:
        """Return the text as the vocabulary has it."""
        return normalize(text, self.lowercase, self.normalization)

    @property
    def vocab_size(self) -> int:
        """Number of ids, including PAD, UNK, BOS and EOS."""

    def encode_by_word(self, text: str) -> list[list[int]]:
        """Return the ids of each white-space word, without BOS and EOS."""

    def encode_with_word_ids(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of a text, and for each the index of its white-space word."""
        by_word = self.encode_by_word(text)
        return [id for word in by_word for id in word], [index for index, word in enumerate(by_word) for _ in word]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without BOS and EOS."""
        return [id for word in self.encode_by_word(text) for id in word]

    def encode_phrase(self, text: str) -> list[int]:
        """Return the ids of a phrase inside a text; in scripts without spaces nothing marks its beginning."""
        return self.encode(text)

    def is_tag(self, id: int) -> bool:
        """Return True if the id is that of a tag, which no text can produce."""

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

    def find_word_ids(self, ids: Sequence[int]) -> list[int]:
        """Return, for each id, the index of the word of `decode(ids)` that it belongs to."""

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id, as plots and tables show it."""

    def measure_tokens(self, ids: Sequence[int]) -> list[int]:
        """Return the number of UTF-8 bytes, without spaces, that each id adds to a text."""
        return [len(token.encode()) for token in self.convert_ids_to_tokens(ids)]

    def find_word_boundary_ids(self) -> frozenset[int] | None:
        """Return the ids that cannot continue a word, one of which follows each whole word; None if no id can."""
        return None

    def save(self, path: Path) -> None:
        """Write one file, which `load` of the same class reads."""


def check_unicode(text: str, where: str = "") -> None:
    """Raise a UserError for a lone surrogate (half a character), which JSON may hold and UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        prefix, half = where and f"{where}: ", f"{text[error.start]!r} at position {error.start}"
        raise UserError(
            f"{prefix}{short_repr(text)} has half a character ({half}), which UTF-8 cannot hold: remove it"
        ) from error


NORMALIZATION_VERSION = 2  # of new vocabularies, whose files record it
# Soft hyphen, zero-width space, word joiner, byte-order mark, and marks of the writing direction.
_REMOVED = "\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"
# Full-width digits and letters, half-width Katakana, Hangul and marks; Arabic presentation forms except words (ﷺ).
_FOLDED = "\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff61-\uffdc\ufb50-\ufd3d\ufd50-\ufdc7\ufe70-\ufefc"
_REMOVED_OR_FOLDED = re.compile(f"[{_REMOVED}]+|([{_FOLDED}])")
_has_dotless_i = re.compile("(az|aze|tr|tur)([-_].*)?", re.IGNORECASE).fullmatch  # language codes


def has_long_characters(text: str) -> bool:
    """Return True if a text has characters of three or four bytes in UTF-8: those from U+0800, such as Asian scripts.

    A tenth of the time of a search by `re`.
    """
    return not text.isascii() and bool(text.encode("utf-8", "surrogatepass").translate(None, _SHORT_CHARACTERS))


def find_units(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], chunk_ids: Sequence[int], units: str = WORDS
) -> TokenizedWords:
    """Divide a text into units, words by default; `chunk_ids` has the index of each id's part between spaces."""
    if units == WORDS and not has_long_characters(text):
        spans = [match.span() for match in _CHUNK.finditer(text)]
        return TokenizedWords(text.split(), chunk_ids, tokenizer.convert_ids_to_tokens(ids), spans)
    from regard.tokenizers.alignment_units import divide_text  # which imports this module

    return divide_text(tokenizer, text, ids, chunk_ids, units)


def find_units_of_text(tokenizer: Tokenizer, text: str, units: str = WORDS) -> TokenizedWords:
    """Encode a text and divide it into units."""
    return find_units(tokenizer, text, *tokenizer.encode_with_word_ids(text), units)


def normalize(text: str, lowercase: bool, version: int = NORMALIZATION_VERSION) -> str:
    """Return the text in Unicode normalization form C (NFC), lower-cased first if `lowercase`.

    Version 2 removes and folds some characters as well: docs/training.md lists them. Version 0 only lower-cases.
    """
    text = text.lower() if lowercase else text
    if text.isascii() or version == 0:
        return text
    if version > 1 and (has_long_characters(text) or "\u00ad" in text or "\u061c" in text):
        text = _REMOVED_OR_FOLDED.sub(_fold, text)
    return unicodedata.normalize("NFC", text)


def _fold(match: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", match[1] or "").replace(" ", "")  # NFKC puts spaces before lone marks


def lower_dotless_i(text: str) -> str:
    """Return the text with I and İ in lower case, as Turkish and Azerbaijani have it.

    >>> lower_dotless_i("ISI İYİ")
    'ıSı iYi'
    """
    return text.replace("I\u0307", "i").replace("İ", "i").replace("I", "ı")


def format_tag(name: str) -> str:
    """Return a tag as it is written in a vocabulary."""
    return f"<{name}>"


class Tokenizers(NamedTuple):
    """Source and target tokenizer; the same object twice if the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Number of source and target ids."""
        return self.source.vocab_size, self.target.vocab_size


LineSource = Callable[[], Iterable[str]]  # text that can be read more than once
_MAX_TRAINING_LINES = 2_000_000  # that SentencePiece is trained on


def train_tokenizers(
    settings: TextSettings,
    source: LineSource,
    target: LineSource,
    tags: Sequence[str] = (),
    languages: Sequence[str | None] = (None, None),
) -> Tokenizers:
    """Train the tokenizers of the two sides of a corpus; only the source vocabulary contains the tags."""
    if settings.shared:
        first, second = (_lower_lines(settings, *side) for side in zip((source, target), languages, strict=True))
        both = train_tokenizer(settings, lambda: chain(first(), second()), tags)
        return Tokenizers(*map(both.for_language, languages))
    return Tokenizers(
        train_tokenizer(settings, source, tags, languages[0]), train_tokenizer(settings, target, (), languages[1])
    )


def _lower_lines(settings: VocabularySettings, lines: LineSource, language: str | None) -> LineSource:
    """Return the lines, with I and İ in lower case if that depends on the language."""
    if not settings.lowercase or not _has_dotless_i(language or ""):
        return lines
    return lambda: map(lower_dotless_i, lines())


def train_tokenizer(
    settings: VocabularySettings, lines: LineSource, tags: Sequence[str] = (), language: str | None = None
) -> Tokenizer:
    """Train one tokenizer, of one side or of both sides together."""
    from regard.tokenizers.segmentation import has_unspaced_script, is_segmenter_installed
    from regard.tokenizers.sentencepiece import SentencePieceTokenizer  # which imports this module
    from regard.tokenizers.words import WordTokenizer

    size, kind, lowercase = settings.vocabulary, settings.kind, settings.lowercase
    lines = _lower_lines(settings, lines, language)
    if kind == "marian":
        raise UserError("text.kind=marian is the vocabulary of an imported model: name its run with --init-from")
    if kind == "word":
        return WordTokenizer.train(lines(), size, lowercase, tags).for_language(language)
    # A piece of several words would blur what they are aligned with.
    within_words = kind != "char" and is_segmenter_installed() and any(map(has_unspaced_script, lines()))
    sample = subsample_lines(lines, _MAX_TRAINING_LINES)
    trained = SentencePieceTokenizer.train(sample, size, kind, settings.byte_fallback, lowercase, tags, within_words)
    return trained.for_language(language)


def subsample_lines(lines: LineSource, max_lines: int) -> Iterable[str]:
    """Return at most `max_lines` lines, evenly spaced.

    SentencePiece's own sampling of lines differs from run to run.
    """
    count = sum(1 for _ in lines())
    return islice(lines(), 0, None, max(1, -(-count // max_lines)))


def save_tokenizers(tokenizers: Tokenizers, settings: TextSettings, folder: Path) -> None:
    """Write the vocabulary `shared`, or `source` and `target`, to the folder."""
    for name, tokenizer in zip(_list_vocabulary_names(settings), tokenizers, strict=False):
        save_tokenizer(tokenizer, settings, folder, name)


def load_tokenizers(settings: TextSettings, folder: Path, languages: Sequence[str | None] = (None, None)) -> Tokenizers:
    """Read the tokenizers that `save_tokenizers` wrote."""
    loaded = [load_tokenizer(settings, folder, name) for name in _list_vocabulary_names(settings)]
    return Tokenizers(loaded[0].for_language(languages[0]), loaded[-1].for_language(languages[1]))


def save_tokenizer(tokenizer: Tokenizer, settings: VocabularySettings, folder: Path, name: str) -> None:
    """Write one vocabulary to the folder."""
    tokenizer.save(_make_vocabulary_path(settings, folder, name))


def load_tokenizer(settings: VocabularySettings, folder: Path, name: str) -> Tokenizer:
    """Read the vocabulary of this name that `save_tokenizer` wrote."""
    from regard.tokenizers.sentencepiece import SentencePieceTokenizer
    from regard.tokenizers.words import WordTokenizer

    path = _make_vocabulary_path(settings, folder, name)
    if not path.is_file():
        raise UserError(f"{path} is missing: the run has no vocabulary")
    if settings.kind == "word":
        return WordTokenizer.load(path, settings.lowercase)
    if settings.kind == "marian":
        from regard.tokenizers.marian import MarianTokenizer

        return MarianTokenizer.load(path, settings.lowercase)
    return SentencePieceTokenizer.load(path, settings.lowercase)


def _list_vocabulary_names(settings: TextSettings) -> tuple[str, ...]:
    # The languages of a Marian model have SentencePiece models of their own, also where they share the vocabulary.
    return ("shared",) if settings.shared and settings.kind != "marian" else ("source", "target")


_SUFFIXES = {"word": "vocab", "marian": "marian"}


def _make_vocabulary_path(settings: VocabularySettings, folder: Path, name: str) -> Path:
    """Return the path of a vocabulary: `.vocab` for a plain list of words, `.model` for a SentencePiece model."""
    return folder / f"{name}.{_SUFFIXES.get(settings.kind, 'model')}"
