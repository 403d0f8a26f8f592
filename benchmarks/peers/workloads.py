"""Workloads of all contestants. Imported in every environment, so this imports nothing but torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SENTENCES, LENGTH = 32, 25  # to decode: tokens in, and tokens out
PAIRS, TOKENS = 64, 32  # to train on: 2,048 target tokens a batch
DROPOUT, SMOOTHING = 0.1, 0.1  # of Transformers in training
SHORTLIST_PER_WORD = 20  # target words that a source word may become, where there is a shortlist
FIRST_WORD_ID = 16  # ids from here on are words in every library


class ModelSizes(NamedTuple):
    """Sizes of a model. The recurrent encoder has size / 2 in each direction.

    `shortlist_size` is the number of target words of a batch with a shortlist. Weights and shortlist are random; it is
    as long as on real text: lists learnt from 20,000 pairs, by the links of IBM model 1 instead of attention, have on
    average 1,700 of 8,000 words for 32 sentences of about 25 tokens of Multi30k (1,890 of LibreOffice's help), and
    1,350 of 32,000 of LibreOffice's.
    """

    vocabulary_size: int
    shortlist_size: int
    size: int
    layers: int
    heads: int = 0
    feedforward: int = 0


MODELS = {
    "rnn": ModelSizes(8_000, 1_700, 256, 1),
    "transformer": ModelSizes(8_000, 1_700, 256, 3, 4, 1024),
    "base": ModelSizes(32_000, 1_350, 512, 6, 8, 2048),
}
TITLES = {
    "rnn": "BiLSTM 2 × 128, LSTM 256, general score, input feeding, 8,000 words",
    "transformer": "Transformer 256, 3 + 3 layers, 4 heads, feed-forward 1024, 8,000 words",
    "base": "Transformer base: 512, 6 + 6 layers, 8 heads, feed-forward 2048, 32,000 words",
}


class Workload(NamedTuple):
    """`decode-rnn-4`: decoding by the recurrent model with a beam of 4. `train-rnn`: an update of it."""

    task: str
    model: str
    beam: int = 0

    @classmethod
    def parse_name(cls, name: str) -> Workload:
        """Parse a name."""
        task, model, *beam = name.split("-")
        return cls(task, model, *map(int, beam))

    @property
    def sizes(self) -> ModelSizes:
        """Sizes of its model."""
        return MODELS[self.model]

    @property
    def tokens(self) -> int:
        """Target tokens of one run."""
        return PAIRS * TOKENS if self.task == "train" else SENTENCES * LENGTH

    def make_sources(self) -> Tensor:
        """Return source ids (sentences, length), the same for all contestants."""
        shape = (PAIRS, TOKENS) if self.task == "train" else (SENTENCES, LENGTH)
        return torch.randint(
            FIRST_WORD_ID, self.sizes.vocabulary_size, shape, generator=torch.Generator().manual_seed(1)
        )

    def make_shortlist(self) -> dict[int, list[int]]:
        """Return the possible target ids of each source id."""
        words, random = self.sizes.vocabulary_size, torch.Generator().manual_seed(3)
        listed = FIRST_WORD_ID + torch.randperm(words - FIRST_WORD_ID, generator=random)[: self.sizes.shortlist_size]
        some = torch.rand(words, len(listed), generator=random).argsort(1)[:, :SHORTLIST_PER_WORD]
        return dict(enumerate(listed[some].tolist()))

    def make_targets(self) -> Tensor:
        """Return target ids (pairs, tokens + 1); the first is in the position of BOS."""
        shape = (PAIRS, TOKENS + 1)
        return torch.randint(
            FIRST_WORD_ID, self.sizes.vocabulary_size, shape, generator=torch.Generator().manual_seed(2)
        )
