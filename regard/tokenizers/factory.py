"""The `text` section of a recipe, and the pair of tokenizers that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

from regard.errors import UserError
from regard.tokenizers.sentencepiece import SentencePieceTokenizer
from regard.tokenizers.tokenizer import Tokenizer
from regard.tokenizers.words import WordTokenizer


@dataclass(frozen=True, kw_only=True)
class VocabularySettings:
    """How text becomes ids, where there is one vocabulary."""

    kind: Literal["bpe", "unigram", "word", "char"] = "bpe"
    vocabulary: int = 8000
    byte_fallback: bool = True
    lowercase: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.vocabulary < 5:
            raise ValueError(f"vocabulary must hold more than the four special ids, not {self.vocabulary}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a probability below 1, not {self.dropout}")
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout={self.dropout} leaves merges out, and only kind bpe has merges, not {self.kind}")


@dataclass(frozen=True, kw_only=True)
class TextSettings(VocabularySettings):
    """How the text of two sides becomes ids."""

    shared: bool = True


class Tokenizers(NamedTuple):
    """One for each side; the same object twice where the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """How many ids each has."""
        return self.source.vocab_size, self.target.vocab_size


LineSource = Callable[[], Iterable[str]]  # text that can be read more than once
_MAX_TRAINING_LINES = 2_000_000  # lines to learn subwords from


def train_tokenizers(
    settings: TextSettings, source: LineSource, target: LineSource, tags: Sequence[str] = ()
) -> Tokenizers:
    """Vocabularies for the two sides of a corpus; that of the source has the tags."""
    if settings.shared:
        both = train_tokenizer(settings, lambda: chain(source(), target()), tags)
        return Tokenizers(both, both)
    return Tokenizers(train_tokenizer(settings, source, tags), train_tokenizer(settings, target, ()))


def train_tokenizer(settings: VocabularySettings, lines: LineSource, tags: Sequence[str] = ()) -> Tokenizer:
    """A vocabulary of one side, or of both together."""
    size, lowercase = settings.vocabulary, settings.lowercase
    if settings.kind == "word":
        return WordTokenizer.train(lines(), size, lowercase, tags)
    return SentencePieceTokenizer.train(
        subsample_lines(lines, _MAX_TRAINING_LINES), size, settings.kind, settings.byte_fallback, lowercase, tags
    )


def subsample_lines(lines: LineSource, max_lines: int) -> Iterable[str]:
    """At most so many lines, evenly spread; those that SentencePiece would choose by itself are others each time."""
    count = sum(1 for _ in lines())
    return islice(lines(), 0, None, max(1, -(-count // max_lines)))


def save_tokenizers(tokenizers: Tokenizers, settings: TextSettings, folder: Path) -> None:
    """Writes `shared` or `source` and `target` into the folder."""
    for name in _list_vocabulary_names(settings):
        tokenizer = tokenizers.target if name == "target" else tokenizers.source
        tokenizer.save(folder / make_vocabulary_file_name(name, settings))


def load_tokenizers(settings: TextSettings, folder: Path) -> Tokenizers:
    """Reads what `save` wrote."""
    loaded = [
        load_tokenizer(settings, folder / make_vocabulary_file_name(name, settings))
        for name in _list_vocabulary_names(settings)
    ]
    return Tokenizers(loaded[0], loaded[-1])


def load_tokenizer(settings: VocabularySettings, path: Path) -> Tokenizer:
    """One vocabulary."""
    if not path.is_file():
        raise UserError(f"{path} is missing: the run has no vocabulary")
    reader: Callable[[Path, bool], Tokenizer] = (
        WordTokenizer.load if settings.kind == "word" else SentencePieceTokenizer.load
    )
    return reader(path, settings.lowercase)


def _list_vocabulary_names(settings: TextSettings) -> tuple[str, ...]:
    """The names of the vocabularies."""
    return ("shared",) if settings.shared else ("source", "target")


def make_vocabulary_file_name(side: str, settings: VocabularySettings) -> str:
    """Words are a list that people can read, SentencePiece has a format of its own."""
    return f"{side}.{'vocab' if settings.kind == 'word' else 'model'}"
