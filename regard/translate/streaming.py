"""Streaming: the words of a translation while it is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from regard.search import BeamSearch, Floats, SearchOptions
from regard.special_tokens import EOS
from regard.translate.options import Options
from regard.translate.segmentation import EncodedSegment
from regard.translate.translator import Translator
from regard.translate.word_alignment import TokenizedWords, align_words


class StreamedWord(NamedTuple):
    """A word of the translation, the white space before it, and its attention."""

    before: str
    text: str
    weights: list[float] | None  # over the words of the whole source text; None: the model has no attention


def stream_words(translator: Translator, text: str) -> Iterator[StreamedWord]:
    """Yield the words of a text's greedy translation as soon as each is complete."""
    before, words_before, total_words = "", 0, len(text.split())
    for encoded in translator.prepare_texts(
        [text], translator.compile_options(Options(beam=1, addresses=False))
    ).encoded_segments:
        segment = encoded.segment
        before += segment.before
        num_words = len(segment.text.split())
        for index, (word, attention) in enumerate(_decode_greedily(translator, encoded) if encoded.ids else ()):
            weights = (
                None
                if attention is None
                else [0.0] * words_before + attention.tolist() + [0.0] * (total_words - words_before - num_words)
            )
            yield StreamedWord(before if not index else " ", word, weights)
            before = ""
        words_before += num_words
        before += segment.after
    if before:
        yield StreamedWord(before, "", None)


def _decode_greedily(translator: Translator, encoded: EncodedSegment) -> Iterator[tuple[str, Floats | None]]:
    """Decode a segment by greedy search; yield each word when it is complete, with its attention over source words."""
    target = translator.tokenizers.target
    searcher = BeamSearch(translator.models, SearchOptions(beam=1))
    searcher.add(*translator.make_batch([encoded.ids]))
    (sentence,) = searcher.active
    num_emitted = 0
    while searcher.num_active:
        searcher.step()
        tokens = [row[0] for row in sentence.tokens if row[0] != EOS]
        attention = [rows[0] for rows in sentence.attention]
        if translator.uses_next_step_attention:
            attention = [*attention[1:], *attention[-1:]]
        words = target.decode(tokens).split()
        complete = words if sentence.done else words[:-1]  # the next tokens may continue the last word
        if len(complete) > num_emitted:
            tokenized = TokenizedWords(complete, target.find_word_ids(tokens), target.convert_ids_to_tokens(tokens))
            yield from _iterate_new_words(encoded, tokenized, attention, num_emitted)
            num_emitted = len(complete)


def _iterate_new_words(
    encoded: EncodedSegment, tokens: TokenizedWords, attention_rows: list[Floats], num_emitted: int
) -> Iterator[tuple[str, Floats | None]]:
    """Yield the words after the first `num_emitted`; `tokens` may include those of an incomplete word."""
    if not attention_rows:
        yield from ((word, None) for word in tokens.words[num_emitted:])
        return
    kept = [number for number, word in enumerate(tokens.word_ids) if word < len(tokens.words)]
    rows = (
        np.stack([attention_rows[number] for number in kept])
        if kept
        else np.zeros((0, len(attention_rows[0])), dtype=np.float32)
    )
    target = TokenizedWords(
        tokens.words, [tokens.word_ids[number] for number in kept], [tokens.subwords[number] for number in kept]
    )
    alignment = align_words(rows, TokenizedWords(encoded.segment.text.split(), encoded.word_ids), target)
    yield from zip(tokens.words[num_emitted:], alignment.soft[num_emitted:], strict=True)
