"""A translation word by word, while it is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from regard.search import Floats
from regard.search.ensemble import Ensemble
from regard.special_tokens import BOS, EOS, PAD
from regard.translate.options import EncodedSegment, Options
from regard.translate.translator import Translator
from regard.translate.word_alignment import TokenizedWords, align_words


class StreamedWord(NamedTuple):
    """A word of the translation, the white space before it, and where the model looked for it."""

    before: str
    text: str
    weights: list[float] | None  # over the words of the whole source text; None: the model has no attention


def stream_words(translator: Translator, text: str) -> Iterator[StreamedWord]:
    """The words of a text's translation as soon as each is whole; the likeliest token is taken each time."""
    before, read, count = "", 0, len(text.split())
    for piece in translator.prepare_texts(
        [text], translator.compile_options(Options(beam=1, addresses=False))
    ).encoded_segments:
        segment = piece.segment
        before += segment.before
        own = len(segment.text.split())
        for number, (word, look) in enumerate(_decode_greedily(translator, piece) if piece.ids else ()):
            weights = None if look is None else [0.0] * read + look.tolist() + [0.0] * (count - read - own)
            yield StreamedWord(before if not number else " ", word, weights)
            before = ""
        read += own
        before += segment.after
    if before:
        yield StreamedWord(before, "", None)


@torch.inference_mode()
def _decode_greedily(translator: Translator, encoded: EncodedSegment) -> Iterator[tuple[str, Floats | None]]:
    """The words of one piece, each with its look at the words of the source."""
    target, models = translator.tokenizers.target, Ensemble(translator.models)
    source, lengths = translator.make_batch([encoded.ids])
    written: list[int] = []
    looks: list[Floats] = []
    told, token = 0, BOS
    states = models.start(source, lengths)

    def get_word_attention() -> list[Floats]:
        return [*looks[1:], *looks[-1:]] if translator.uses_next_step_attention else looks

    for _ in range(2 * len(encoded.ids) + 12):
        log_probs, states, attention = models.step(states, torch.tensor([token], device=source.device), source.shape[1])
        log_probs[:, [PAD, BOS]] = -torch.inf
        token = int(log_probs.argmax())
        if attention is not None:
            looks.append(attention[0].float().cpu().numpy())
        if token == EOS:
            break
        written.append(token)
        whole = target.decode(written).split()
        if len(whole) > told + 1:  # the last one may still grow
            yield from _iterate_new_words(
                encoded,
                TokenizedWords(whole[:-1], target.find_word_ids(written), target.convert_ids_to_tokens(written)),
                get_word_attention(),
                told,
            )
            told = len(whole) - 1
    whole = target.decode(written).split()
    yield from _iterate_new_words(
        encoded,
        TokenizedWords(whole, target.find_word_ids(written), target.convert_ids_to_tokens(written)),
        get_word_attention(),
        told,
    )


def _iterate_new_words(
    encoded: EncodedSegment, tokens: TokenizedWords, attention_rows: list[Floats], num_emitted: int
) -> Iterator[tuple[str, Floats | None]]:
    """The words that have not been told yet; `made` may have tokens of one that has not ended."""
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
    found = align_words(rows, TokenizedWords(encoded.segment.text.split(), encoded.word_ids), target)
    yield from zip(tokens.words[num_emitted:], found.soft[num_emitted:], strict=True)
