"""Target vocabulary in decoding: restriction of a model to a part of it, and top-k over it on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.fast.eligibility import fast_paths_enabled
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


def restrict_vocabulary(model: Any, words: Sequence[int]) -> Any:
    """Return the model restricted to some target tokens, by the method of its backend if there is one."""
    own = getattr(model, "restrict_vocabulary", None)
    return _slice_vocabulary(model, words) if own is None else own(words)


def _slice_vocabulary(model: Seq2Seq, words: Sequence[int]) -> Seq2Seq:
    """Return a model that reads and writes the given target ids only, numbered from 0.

    Of the layers in `vocabulary_layers` only the rows of these tokens are copied; everything else is shared.
    Log-probabilities are normalized over the tokens.
    """
    decoder = model.decoder
    whole = {id(weights): weights for layer in decoder.vocabulary_layers() for weights in layer.parameters()}
    if not whole:
        raise ValueError(f"{type(decoder).__name__} has no vocabulary_layers, the layers with one row per token")
    rows = torch.tensor(words, device=next(iter(whole.values())).device)
    # deepcopy keeps the objects in its memo; it copies only the modules around the layers, which hold no weights.
    known: dict[int, Any] = {id(weights): weights for weights in decoder.parameters()}
    known |= {id(part): part for part in decoder.modules() if whole.keys().isdisjoint(map(id, part.parameters()))}
    known |= {key: nn.Parameter(weights.detach()[rows], requires_grad=False) for key, weights in whole.items()}
    smaller = Seq2Seq(model.encoder, copy.deepcopy(decoder, known), model.criterion).train(model.training)
    smaller.acceleration.make_decoder = model.acceleration.make_decoder
    return smaller


MAX_ARGMAX_K = 8  # largest k for repeated argmax, which takes as long as `Tensor.topk` for about twelve


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row of x (R, V), in descending order, and their indices.

    If a row has fewer than k numbers above −inf, the rest are −inf with meaningless indices.
    """
    has_numpy_dtype = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    if has_numpy_dtype and k <= MAX_ARGMAX_K and fast_paths_enabled():
        return topk_by_argmax(x, k)
    return tuple(x.topk(k, -1))  # type: ignore[return-value]


def topk_by_argmax(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find one maximum after the other with NumPy, whose argmax is many times as fast as PyTorch's.

    Found numbers are −inf in x meanwhile, and restored at the end: a copy would cost as much as one argmax.
    """
    rows, left = np.arange(len(x)), x.numpy()
    places, values = np.empty((len(x), k), np.int64), np.empty((len(x), k), left.dtype)
    for rank in range(k):
        places[:, rank] = found = left.argmax(1)
        values[:, rank] = left[rows, found]
        if rank + 1 < k:
            left[rows, found] = -np.inf
    for rank in reversed(range(k - 1)):  # an index of −inf may have been found again
        left[rows, places[:, rank]] = values[:, rank]
    return torch.from_numpy(values), torch.from_numpy(places)
