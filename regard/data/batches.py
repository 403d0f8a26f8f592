"""Batches of a number of tokens, from pools of sentences that are shuffled, sorted by length and cut.

The order is a pure function of (seed, epoch), so that a position in it is all there is to remember.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    guide: Tensor | None = None  # B,T,S where each target token should look, where alignments are given

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        source, lengths, target_in, target_out = (tensor.to(device) for tensor in self[:4])
        guide = None if self.guide is None else self.guide.to(device)
        return Batch(source, lengths, target_in, target_out, guide)


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
    guide = None if examples.links is None else guides(examples.links, rows, target_out.shape[1], source.shape[1])
    return Batch(source, lengths, target_in, target_out, guide)


def guides(links: Sequence[npt.NDArray[np.int32]], rows: Indices, targets: int, sources: int) -> Tensor:
    """B,T,S: each target token's links, evenly weighed; nothing for one without."""
    table = np.zeros((len(rows), targets, sources), dtype=np.float32)
    for place, row in enumerate(rows):
        table[place, links[row][:, 1], links[row][:, 0]] = 1
    return torch.from_numpy(table / np.maximum(table.sum(2, keepdims=True), 1))


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
