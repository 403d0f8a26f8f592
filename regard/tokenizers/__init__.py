"""Tokenizers: settings (the `text` section of a recipe), training, saving and loading.

They are SentencePiece (BPE, unigram, characters) and whole words; classifiers have vocabularies of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from regard.config import Fraction, Range
from regard.errors import UserError
from regard.special_tokens import SPECIAL_TOKENS
from regard.tokenizers.sentencepiece import SentencePieceTokenizer
from regard.tokenizers.tokenizer import Tokenizer
from regard.tokenizers.vocabularies import LabelVocabulary
from regard.tokenizers.words import WordTokenizer

__all__ = [
    "LabelVocabulary",
    "SentencePieceTokenizer",
    "TextSettings",
    "Tokenizer",
    "Tokenizers",
    "VocabularySettings",
    "WordTokenizer",
    "load_tokenizer",
    "load_tokenizers",
    "make_vocabulary_file_name",
    "save_tokenizers",
    "train_tokenizer",
    "train_tokenizers",
]


@dataclass(frozen=True, kw_only=True)
class VocabularySettings:
    """Tokenizer and vocabulary settings of a task with one vocabulary."""

    kind: Literal["bpe", "unigram", "word", "char"] = "bpe"
    vocabulary: Annotated[int, Range(len(SPECIAL_TOKENS) + 1)] = 8000
    byte_fallback: bool = True
    lowercase: bool = False
    dropout: Fraction = 0.0

    def __post_init__(self) -> None:
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout={self.dropout} skips BPE merges: it needs kind bpe, not {self.kind}")


@dataclass(frozen=True, kw_only=True)
class TextSettings(VocabularySettings):
    """Tokenizer and vocabulary settings of a source and a target language."""

    shared: bool = True


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
    settings: TextSettings, source: LineSource, target: LineSource, tags: Sequence[str] = ()
) -> Tokenizers:
    """Train the tokenizers of the two sides of a corpus; only the source vocabulary contains the tags."""
    if settings.shared:
        both = train_tokenizer(settings, lambda: chain(source(), target()), tags)
        return Tokenizers(both, both)
    return Tokenizers(train_tokenizer(settings, source, tags), train_tokenizer(settings, target, ()))


def train_tokenizer(settings: VocabularySettings, lines: LineSource, tags: Sequence[str] = ()) -> Tokenizer:
    """Train one tokenizer, of one side or of both sides together."""
    size, kind, lowercase = settings.vocabulary, settings.kind, settings.lowercase
    if kind == "word":
        return WordTokenizer.train(lines(), size, lowercase, tags)
    sample = subsample_lines(lines, _MAX_TRAINING_LINES)
    return SentencePieceTokenizer.train(sample, size, kind, settings.byte_fallback, lowercase, tags)


def subsample_lines(lines: LineSource, max_lines: int) -> Iterable[str]:
    """Return at most `max_lines` lines, evenly spaced.

    SentencePiece's own sampling of lines differs from run to run.
    """
    count = sum(1 for _ in lines())
    return islice(lines(), 0, None, max(1, -(-count // max_lines)))


def save_tokenizers(tokenizers: Tokenizers, settings: TextSettings, folder: Path) -> None:
    """Write the vocabulary `shared`, or `source` and `target`, to the folder."""
    for name, tokenizer in zip(_list_vocabulary_names(settings), tokenizers, strict=False):
        tokenizer.save(folder / make_vocabulary_file_name(name, settings))


def load_tokenizers(settings: TextSettings, folder: Path) -> Tokenizers:
    """Read the tokenizers that `save_tokenizers` wrote."""
    names = (make_vocabulary_file_name(name, settings) for name in _list_vocabulary_names(settings))
    loaded = [load_tokenizer(settings, folder / name) for name in names]
    return Tokenizers(loaded[0], loaded[-1])


def load_tokenizer(settings: VocabularySettings, path: Path) -> Tokenizer:
    """Read one vocabulary file."""
    if not path.is_file():
        raise UserError(f"{path} is missing: the run has no vocabulary")
    if settings.kind == "word":
        return WordTokenizer.load(path, settings.lowercase)
    return SentencePieceTokenizer.load(path, settings.lowercase)


def _list_vocabulary_names(settings: TextSettings) -> tuple[str, ...]:
    return ("shared",) if settings.shared else ("source", "target")


def make_vocabulary_file_name(side: str, settings: VocabularySettings) -> str:
    """Return the file name of a vocabulary: `.vocab` for a plain list of words, `.model` for a SentencePiece model."""
    return f"{side}.{'vocab' if settings.kind == 'word' else 'model'}"
