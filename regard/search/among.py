"""A search among some words of the target's vocabulary: no others are written, or weighed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from regard.fast.narrow import narrowed
from regard.models import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.search.beam import per_source, phrased, search
from regard.search.phrases import Phrase
from regard.symbols import NAMES


def search_among(
    words: Iterable[int],
    models: Sequence[Seq2Seq],
    source: Tensor,
    lengths: Tensor,
    *,
    prefix: Sequence[Sequence[int]] | None = None,
    force: Sequence[Sequence[Phrase | Sequence[int]]] | None = None,
    forbid: Sequence[Sequence[int]] = (),
    **options: Any,
) -> list[list[Hypothesis]]:
    """What `search` finds with these options where targets hold nothing but the words.

    Special symbols, and the tokens of what is given and forced, are always among them. Probabilities are those of the
    words alone: they add up to 1. Rules of one's own cannot be had: they know the ids of the whole vocabulary.
    """
    if options.get("rules"):
        raise ValueError("rules of one's own go with the whole vocabulary")
    given = per_source(prefix, len(lengths), "prefix")
    forced = [[phrased(item) for item in some] for some in per_source(force, len(lengths), "force")]
    asked = [*given, *(phrase.tokens for some in forced for phrase in some)]
    among = Words([*words, *(token for tokens in asked for token in tokens)])
    found = search(
        [narrowed(model, among.ids) for model in models],
        source,
        lengths,
        prefix=[among.places(tokens) for tokens in given],
        force=[[among.phrase(phrase) for phrase in some] for some in forced],
        forbid=[among.places(tokens) for tokens in forbid if among.hold(tokens)],
        **options,
    )
    return [[among.named(hypothesis) for hypothesis in each] for each in found]


class Words:
    """Some of a vocabulary's ids, counted anew in their order; special symbols come first, and stay what they are."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = sorted({*range(len(NAMES)), *ids})
        self.place = {id: place for place, id in enumerate(self.ids)}

    def hold(self, tokens: Iterable[int]) -> bool:
        """Whether all of these tokens are among them."""
        return self.place.keys() >= set(tokens)

    def places(self, tokens: Iterable[int]) -> list[int]:
        """What tokens are called here."""
        return [self.place[token] for token in tokens]

    def phrase(self, phrase: Phrase) -> Phrase:
        """The same phrase."""
        ends = None if phrase.ends is None else frozenset(self.places(phrase.ends & self.place.keys()))
        return Phrase(tuple(self.places(phrase.tokens)), ends)

    def named(self, hypothesis: Hypothesis) -> Hypothesis:
        """The same hypothesis in the vocabulary's ids."""
        return hypothesis._replace(tokens=[self.ids[place] for place in hypothesis.tokens])
