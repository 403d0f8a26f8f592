"""A translation word by word, while it is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from regard.search import Floats
from regard.search.ensemble import Ensemble
from regard.symbols import BOS, EOS, PAD
from regard.translate.alignment import Tokens, align_words
from regard.translate.options import Options
from regard.translate.plan import Piece
from regard.translate.translator import Translator


class Word(NamedTuple):
    """A word of the translation, the white space before it, and where the model looked for it."""

    before: str
    text: str
    weights: list[float] | None  # over the words of the whole source text; None: the model has no attention


def words(translator: Translator, text: str) -> Iterator[Word]:
    """The words of a text's translation as soon as each is whole; the likeliest token is taken each time."""
    before, read, count = "", 0, len(text.split())
    for piece in translator.draft([text], translator.plan(Options(beam=1, addresses=False))).pieces:
        segment = piece.segment
        before += segment.before
        own = len(segment.text.split())
        for number, (word, look) in enumerate(decoded(translator, piece) if piece.ids else ()):
            weights = None if look is None else [0.0] * read + look.tolist() + [0.0] * (count - read - own)
            yield Word(before if not number else " ", word, weights)
            before = ""
        read += own
        before += segment.after
    if before:
        yield Word(before, "", None)


@torch.inference_mode()
def decoded(translator: Translator, piece: Piece) -> Iterator[tuple[str, Floats | None]]:
    """The words of one piece, each with its look at the words of the source."""
    target, models = translator.tokenizers.target, Ensemble(translator.models)
    source, lengths = translator.batch([piece.ids])
    written: list[int] = []
    looks: list[Floats] = []
    told, token = 0, BOS
    states = models.start(source, lengths)

    def seen() -> list[Floats]:
        return [*looks[1:], *looks[-1:]] if translator.after else looks

    for _ in range(2 * len(piece.ids) + 12):
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
            yield from tell(piece, Tokens(whole[:-1], target.words(written), target.pieces(written)), seen(), told)
            told = len(whole) - 1
    whole = target.decode(written).split()
    yield from tell(piece, Tokens(whole, target.words(written), target.pieces(written)), seen(), told)


def tell(piece: Piece, made: Tokens, looks: list[Floats], told: int) -> Iterator[tuple[str, Floats | None]]:
    """The words that have not been told yet; `made` may have tokens of one that has not ended."""
    if not looks:
        yield from ((word, None) for word in made.words[told:])
        return
    kept = [number for number, word in enumerate(made.of) if word < len(made.words)]
    rows = np.stack([looks[number] for number in kept]) if kept else np.zeros((0, len(looks[0])), dtype=np.float32)
    target = Tokens(made.words, [made.of[number] for number in kept], [made.pieces[number] for number in kept])
    found = align_words(rows, Tokens(piece.segment.text.split(), piece.words), target)
    yield from zip(made.words[told:], found.soft[told:], strict=True)
