"""Streaming: the words of a translation while it is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from regard.search import BeamSearch, SearchOptions
from regard.special_tokens import EOS
from regard.translate.options import Options
from regard.translate.segmentation import EncodedSegment
from regard.translate.translator import Translator
from regard.translate.word_alignment import TokenizedWords, align_words, shift_to_next_step


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
                else [0.0] * words_before + attention + [0.0] * (total_words - words_before - num_words)
            )
            yield StreamedWord(before if not index else " ", word, weights)
            before = ""
        words_before += num_words
        before += segment.after
    if before:
        yield StreamedWord(before, "", None)


def _decode_greedily(translator: Translator, encoded: EncodedSegment) -> Iterator[tuple[str, list[float] | None]]:
    """Decode a segment by greedy search; yield each word when it is complete, with its attention over source words."""
    target, source = translator.tokenizers.target, TokenizedWords(encoded.segment.text.split(), encoded.word_ids)
    searcher = BeamSearch(translator.models, SearchOptions(beam=1))
    searcher.add(*translator.make_batch([encoded.ids]))
    (sentence,) = searcher.active
    num_emitted = 0
    while searcher.num_active:
        searcher.step()
        ids = [tokens[0] for tokens in sentence.tokens if tokens[0] != EOS]
        words = target.decode(ids).split()
        num_complete = len(words) if sentence.done else len(words) - 1  # the next tokens may continue the last word
        if num_complete <= num_emitted:
            continue
        weights: list[Any] = [None] * num_complete
        if sentence.attention:
            attention = np.stack([rows[0] for rows in sentence.attention])
            if translator.uses_next_step_attention:
                attention = shift_to_next_step(attention)
            written = TokenizedWords(words, target.find_word_ids(ids), target.convert_ids_to_tokens(ids))
            weights = align_words(attention, source, written).soft.tolist()
        yield from list(zip(words, weights, strict=False))[num_emitted:num_complete]
        num_emitted = num_complete
