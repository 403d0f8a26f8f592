"""Word vectors from the texts at hand: a truncated SVD of positive pointwise mutual information (PPMI).

Levy, Goldberg & Dagan 2015, doi:10.1162/tacl_a_00134: eigenvalue weighting 0.5, context distribution smoothing 0.75.
Contexts on the left and on the right are different, so that the vectors tell parts of speech as well as topics.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regard.data.dataset import Integers, RaggedArray
from regard.special_tokens import UNK

_WINDOW = 3
_CHUNK_TOKENS = 1 << 21
_MAX_CONTEXTS = 20_000  # most frequent words that are counted as contexts
_SMOOTHING = 0.75


def learn_word_vectors(texts: RaggedArray, vocabulary_size: int, vector_size: int, seed: int) -> Tensor:
    """Return vectors of unit variance (V, vector_size); 0 for special tokens and for words that do not occur."""
    tokens = np.asarray(texts.values, dtype=np.int64)
    text_ids = np.repeat(np.arange(len(texts.offsets) - 1), np.diff(texts.offsets))
    frequencies = np.bincount(tokens, minlength=vocabulary_size).astype(np.float64)
    frequencies[: UNK + 1] = 0
    contexts = np.argsort(-frequencies, kind="stable")[:_MAX_CONTEXTS]
    columns = np.full(vocabulary_size, -1)
    columns[contexts] = np.arange(len(contexts))
    shape = torch.Size((vocabulary_size, 2 * len(contexts)))
    counts = _count_pairs(tokens[:0], text_ids[:0], columns, shape)
    for start in range(0, len(tokens), _CHUNK_TOKENS):
        chunk = slice(start, start + _CHUNK_TOKENS)
        counts = (counts + _count_pairs(tokens[chunk], text_ids[chunk], columns, shape)).coalesce()
    rows, cols = counts.indices()
    values = counts.values().double()
    per_word, per_context = (torch.zeros(size).double() for size in shape)
    per_word.index_add_(0, rows, values)
    per_context.index_add_(0, cols, values)
    per_context = per_context**_SMOOTHING / (per_context**_SMOOTHING).sum()
    information = (values / (per_word[rows] * per_context[cols])).log().clamp(min=0)
    matrix = torch.sparse_coo_tensor(counts.indices(), information.float(), shape, check_invariants=False).coalesce()
    rank = min(vector_size, *shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, singular, _ = torch.svd_lowrank(matrix, rank, niter=3)
    vectors = torch.nn.functional.normalize(left * singular.sqrt()) * vector_size**0.5
    vectors[per_word == 0] = 0.0
    return torch.nn.functional.pad(vectors, (0, vector_size - rank))


def _count_pairs(tokens: Integers, text_ids: Integers, columns: Integers, shape: torch.Size) -> Tensor:
    """Return counts of words and their contexts, each divided by the distance: those on the right, then on the left."""
    keys, weights = [], []
    for distance in range(1, _WINDOW + 1):
        first, second = tokens[:-distance], tokens[distance:]
        same_text = text_ids[:-distance] == text_ids[distance:]
        for word, context, offset in ((first, second, 0), (second, first, shape[1] // 2)):
            kept = same_text & (columns[context] >= 0) & (word > UNK)
            keys.append(np.stack((word[kept], columns[context[kept]] + offset)))
            weights.append(np.full(keys[-1].shape[1], 1 / distance, dtype=np.float32))
    indices, values = torch.from_numpy(np.concatenate(keys, 1)), torch.from_numpy(np.concatenate(weights))
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False).coalesce()
