"""Restriction of a model to a part of its target vocabulary: logits are computed for these tokens only."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from regard.models import Seq2Seq
from regard.special_tokens import SPECIAL_TOKENS


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


def narrowed(model: Any, words: Sequence[int]) -> Any:
    """The same model among some words, in the way of the engine that runs it, where that has one of its own."""
    own = getattr(model, "narrowed", None)
    return cut(model, words) if own is None else own(words)


def cut(model: Seq2Seq, words: Sequence[int]) -> Seq2Seq:
    """The same model, which reads and writes the given target ids only, and calls them 0, 1, …

    What a decoder's `vocabulary` has is cut down to the rows of these words; everything else is the model's own. Its
    log-probabilities are normalised over the words.
    """
    decoder = model.decoder
    whole = {id(weights): weights for layer in decoder.vocabulary_layers() for weights in layer.parameters()}
    if not whole:
        raise ValueError(f"{type(decoder).__name__} does not say which of its layers have a row for each word")
    rows = torch.tensor(words, device=next(iter(whole.values())).device)
    # A copy takes what is known here as it is; what is left are the modules around the layers, which hold no numbers.
    known: dict[int, Any] = {id(weights): weights for weights in decoder.parameters()}
    known |= {id(part): part for part in decoder.modules() if whole.keys().isdisjoint(map(id, part.parameters()))}
    known |= {key: nn.Parameter(weights.detach()[rows], requires_grad=False) for key, weights in whole.items()}
    smaller = Seq2Seq(model.encoder, copy.deepcopy(decoder, known), model.criterion).train(model.training)
    smaller.make_fast_decoder = model.make_fast_decoder
    return smaller
