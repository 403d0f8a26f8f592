"""Search with a shortlist: only some words of the target vocabulary are scored and produced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from regard.fast.narrow import narrowed
from regard.models.hypothesis import Hypothesis, SearchOptions
from regard.search.beam import DEFAULTS, as_phrase, check_per_source, search
from regard.search.constraints import Phrase
from regard.search.ensemble import SearchModel
from regard.special_tokens import SPECIAL_TOKENS


def search_restricted(
    words: Iterable[int],
    models: Sequence[SearchModel],
    source: Tensor,
    lengths: Tensor,
    options: SearchOptions = DEFAULTS,
    *,
    prefix: Sequence[Sequence[int]] | None = None,
    force: Sequence[Sequence[Phrase | Sequence[int]]] | None = None,
    **changes: Any,
) -> list[list[Hypothesis]]:
    """Run `search` with these options over targets that contain only these word ids.

    Special symbols and the tokens of prefixes and forced phrases are always included. Probabilities are normalised over
    the words included. A user's own `constraints` are refused: they know the ids of the whole vocabulary.
    """
    options = replace(options, **changes)
    if options.constraints:
        raise ValueError("constraints of your own need the whole vocabulary: search without a shortlist")
    prefixes = check_per_source(prefix, len(lengths), "prefix")
    phrases = [[as_phrase(item) for item in some] for some in check_per_source(force, len(lengths), "force")]
    forced = [*prefixes, *(phrase.tokens for some in phrases for phrase in some)]
    subset = VocabularySubset([*words, *(token for tokens in forced for token in tokens)])
    found = search(
        [narrowed(model, subset.ids) for model in models],
        source,
        lengths,
        replace(options, forbid=[subset.to_local(tokens) for tokens in options.forbid if subset.contains(tokens)]),
        prefix=[subset.to_local(tokens) for tokens in prefixes],
        force=[[subset.localize_phrase(phrase) for phrase in some] for some in phrases],
    )
    return [[subset.to_global(hypothesis) for hypothesis in hypotheses] for hypotheses in found]


class VocabularySubset:
    """Some ids of a vocabulary, numbered anew in their order; special symbols come first and keep their ids."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = sorted({*range(len(SPECIAL_TOKENS)), *ids})
        self.local_ids = {id: local for local, id in enumerate(self.ids)}

    def contains(self, tokens: Iterable[int]) -> bool:
        """Return whether all tokens are in the subset."""
        return self.local_ids.keys() >= set(tokens)

    def to_local(self, tokens: Iterable[int]) -> list[int]:
        """Return the tokens' ids within the subset."""
        return [self.local_ids[token] for token in tokens]

    def localize_phrase(self, phrase: Phrase) -> Phrase:
        """Return the phrase with ids within the subset."""
        ends = None if phrase.ends is None else frozenset(self.to_local(phrase.ends & self.local_ids.keys()))
        return Phrase(tuple(self.to_local(phrase.tokens)), ends)

    def to_global(self, hypothesis: Hypothesis) -> Hypothesis:
        """Return the hypothesis with ids of the whole vocabulary."""
        return hypothesis._replace(tokens=[self.ids[local] for local in hypothesis.tokens])
