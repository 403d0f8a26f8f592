"""Batches of a number of tokens, from pools of sentences that are shuffled, sorted by length and cut.

The order is a pure function of (seed, epoch), so that a position in it is all there is to remember.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.data.sentences import Examples, Sentences
from regard.symbols import BOS, EOS, PAD

Indices = npt.NDArray[np.int64]


class Batch(NamedTuple):
    """What `model.loss` takes. B pairs, right-padded."""

    source: Tensor  # B,S with EOS
    lengths: Tensor  # B
    target_in: Tensor  # B,T from BOS on
    target_out: Tensor  # B,T up to EOS

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(*(tensor.to(device) for tensor in self))


def order(sizes: npt.NDArray[np.int64], batch_tokens: int, pool: int, seed: int, epoch: int) -> list[Indices]:
    """The batches of one epoch as indices of pairs, which take `sizes` tokens each; a pool is `pool` batches large."""
    random = np.random.default_rng([seed, epoch])
    shuffled = random.permutation(len(sizes))
    in_pool = max(1, int(pool * batch_tokens / max(1.0, float(sizes.mean()))))
    batches: list[Indices] = []
    for start in range(0, len(shuffled), in_pool):
        some = shuffled[start : start + in_pool]
        cut = cuts(some[np.argsort(sizes[some], kind="stable")], sizes, batch_tokens)
        batches.extend(cut[index] for index in random.permutation(len(cut)))
    return batches


def cuts(rows: Indices, sizes: npt.NDArray[np.int64], batch_tokens: int) -> list[Indices]:
    """Rows in order of size, cut so that rows times the longest stay within the tokens; one that is longer is alone."""
    batches, start = [], 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or int(sizes[rows[end]]) * (end + 1 - start) > batch_tokens:
            batches.append(rows[start:end])
            start = end
    return batches


def collate(examples: Examples, rows: Indices) -> Batch:
    """The pairs at `rows` as tensors."""
    source, lengths = padded(examples.source, rows, before=(), after=(EOS,))
    target_in, _ = padded(examples.target, rows, before=(BOS,), after=())
    target_out, _ = padded(examples.target, rows, before=(), after=(EOS,))
    return Batch(source, lengths, target_in, target_out)


def padded(
    sentences: Sentences, rows: Indices, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Sentences with ids before and after them, right-padded: B,S and their lengths B."""
    whole = [np.concatenate((before, sentences[int(row)], after)) for row in rows]
    lengths = [len(ids) for ids in whole]
    table = np.full((len(whole), max(lengths)), PAD, dtype=np.int64)
    for row, ids in zip(table, whole, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(table), torch.tensor(lengths)
