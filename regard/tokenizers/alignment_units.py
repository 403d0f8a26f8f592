"""Units that alignments link: the words, subwords or characters of a text, and how much of each token is in each.

In scripts without spaces a token may cross the boundary of two words, and a word may have no token of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from regard.errors import UserError
from regard.special_tokens import UNK
from regard.tokenizers.segmentation import (
    find_word_spans,
    has_unspaced_script,
    join_words,
    split_graphemes,
)
from regard.tokenizers.tokenizer import WORDS, Span, TokenizedWords, Tokenizer

SUBWORDS, CHARACTERS = "subwords", "characters"
UNITS = (WORDS, SUBWORDS, CHARACTERS)
Floats = npt.NDArray[np.float32]
_CHUNK = re.compile(r"\S+")


def check_units(units: str, presegmented: bool = False) -> None:
    """Raise UserError for units that do not exist, or that cannot be read from pre-segmented texts."""
    if units not in UNITS:
        raise UserError(f"units must be one of {', '.join(UNITS)}, not {units!r}")
    if presegmented and units != WORDS:
        raise UserError(f"pre-segmented texts are aligned by {WORDS}, not by {units}")


def divide_text(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], chunk_ids: Sequence[int], units: str = WORDS
) -> TokenizedWords:
    """Divide a text into units; see `regard.tokenizers.tokenizer.find_units`."""
    subwords = tokenizer.convert_ids_to_tokens(ids)
    if units == WORDS and not has_unspaced_script(text):
        return TokenizedWords(text.split(), chunk_ids, subwords, find_word_spans(text))
    token_spans = _find_token_spans(tokenizer, text, ids, chunk_ids)
    if units == SUBWORDS:
        outer = np.stack((np.floor(token_spans[:, 0]), np.ceil(token_spans[:, 1])), axis=1).astype(int)
        return TokenizedWords(subwords, range(len(ids)), subwords, list(map(tuple, outer.tolist())), None, units)
    spans = find_word_spans(text) if units == WORDS else _find_character_spans(text)
    words, weights = [text[start:end] for start, end in spans], _weigh_units(token_spans, spans)
    return TokenizedWords(words, chunk_ids, subwords, spans, weights, units)


def find_presegmented_words(tokenizer: Tokenizer, text: str) -> TokenizedWords:
    """Return the words between the spaces of a text, whose tokens are those of the words joined by `join_words`."""
    words, given_spans = text.split(), [match.span() for match in _CHUNK.finditer(text)]
    joined = join_words(words)
    ids, chunk_ids = tokenizer.encode_with_word_ids(joined)
    subwords = tokenizer.convert_ids_to_tokens(ids)
    if joined.split() == words:
        return TokenizedWords(words, chunk_ids, subwords, given_spans)
    spans, position = list[Span](), 0
    for word in words:
        start = joined.index(word, position)
        position = start + len(word)
        spans.append((start, position))
    weights = _weigh_units(_find_token_spans(tokenizer, joined, ids, chunk_ids), spans)
    return TokenizedWords(words, chunk_ids, subwords, given_spans, weights)


def _find_token_spans(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], chunk_ids: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return the start and end of each token (tokens, 2) in characters, of which a byte piece has a fraction.

    Unknown tokens share what the other tokens of their chunk leave. If the tokens of a chunk are longer or shorter than
    it, as with the normalization of old vocabularies, they have their fractions of it.
    """
    sizes, spans = np.array(tokenizer.measure_tokens(ids), dtype=np.float64), np.zeros((len(ids), 2))
    for index, chunk in enumerate(_CHUNK.finditer(text)):
        tokens = range(*np.searchsorted(chunk_ids, (index, index + 1)))
        characters = split_graphemes(chunk[0])
        offsets = list(accumulate((len(tokenizer.normalize(one).encode()) for one in characters), initial=0))
        unknown = [token for token in tokens if ids[token] == UNK]
        if unknown:
            sizes[unknown] = 0
            sizes[unknown] = max(offsets[-1] - sizes[tokens].sum(), 0) / len(unknown)
        ends = sizes[tokens].cumsum()
        if len(ends) and ends[-1]:
            ends *= offsets[-1] / ends[-1]
        character_ends = list(accumulate(map(len, characters), initial=chunk.start()))
        positions = np.interp([0, *ends], offsets, character_ends).round(6)
        spans[tokens] = np.stack((positions[:-1], positions[1:]), axis=1)
    return spans


def _find_character_spans(text: str) -> list[Span]:
    """Return the spans of the characters that are not white space; a grapheme cluster is one character."""
    ends = accumulate(map(len, characters := split_graphemes(text)))
    return [(end - len(one), end) for one, end in zip(characters, ends, strict=True) if not one.isspace()]


def _weigh_units(token_spans: npt.NDArray[np.float64], spans: Sequence[Span]) -> Floats:
    """Return the fraction of each token in each unit (tokens, units); text between two units counts for the first."""
    if not spans:
        return np.zeros((len(token_spans), 0), dtype=np.float32)
    inner = [float(start) for start, _ in spans[1:]]
    starts, ends = token_spans[:, :1], token_spans[:, 1:]
    overlaps = np.minimum(ends, [*inner, np.inf]) - np.maximum(starts, [-np.inf, *inner])
    without_text = np.flatnonzero(starts[:, 0] == ends[:, 0])
    sizes = np.where(starts == ends, 1, ends - starts)
    weights = (overlaps.clip(0) / sizes).astype(np.float32)
    weights[without_text, np.searchsorted(inner, starts[without_text, 0], side="right")] = 1
    return weights
