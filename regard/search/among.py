"""A search among some words of the target's vocabulary: no others are written, or weighed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from regard.fast.narrow import narrowed
from regard.models import Seq2Seq
from regard.models.hypothesis import Hypothesis
from regard.search.beam import as_phrase, check_per_source, search
from regard.search.phrases import Phrase
from regard.special_tokens import SPECIAL_TOKENS


def search_restricted(
    token_ids: Iterable[int],
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
    if options.get("constraints"):
        raise ValueError("rules of one's own go with the whole vocabulary")
    given = check_per_source(prefix, len(lengths), "prefix")
    forced = [[as_phrase(item) for item in phrases] for phrases in check_per_source(force, len(lengths), "force")]
    required = [*given, *(phrase.tokens for some in forced for phrase in some)]
    subset = VocabularySubset([*token_ids, *(token for tokens in required for token in tokens)])
    found = search(
        [narrowed(model, subset.ids) for model in models],
        source,
        lengths,
        prefix=[subset.to_local(tokens) for tokens in given],
        force=[[subset.to_local_phrase(phrase) for phrase in some] for some in forced],
        forbid=[subset.to_local(tokens) for tokens in forbid if subset.contains(tokens)],
        **options,
    )
    return [[subset.to_global(hypothesis) for hypothesis in each] for each in found]


class VocabularySubset:
    """Some of a vocabulary's ids, counted anew in their order; special symbols come first, and stay what they are."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = sorted({*range(len(SPECIAL_TOKENS)), *ids})
        self.local_ids = {id: index for index, id in enumerate(self.ids)}

    def contains(self, tokens: Iterable[int]) -> bool:
        """Whether all of these tokens are among them."""
        return self.local_ids.keys() >= set(tokens)

    def to_local(self, tokens: Iterable[int]) -> list[int]:
        """What tokens are called here."""
        return [self.local_ids[token] for token in tokens]

    def to_local_phrase(self, phrase: Phrase) -> Phrase:
        """The same phrase."""
        ends = None if phrase.ends is None else frozenset(self.to_local(phrase.ends & self.local_ids.keys()))
        return Phrase(tuple(self.to_local(phrase.tokens)), ends)

    def to_global(self, hypothesis: Hypothesis) -> Hypothesis:
        """The same hypothesis in the vocabulary's ids."""
        return hypothesis._replace(tokens=[self.ids[index] for index in hypothesis.tokens])
