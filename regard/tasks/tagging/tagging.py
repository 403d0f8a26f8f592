"""Encoded sentences through a model: a label for each word."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

from regard.data.ragged import Indices
from regard.models.schuster import Tagger
from regard.symbols import PAD
from regard.tasks.memory import in_order
from regard.tasks.tagging.examples import Examples


class Chosen(NamedTuple):
    """What a model chose for the words of a sentence."""

    labels: list[int]
    probabilities: list[float]
    loss: float  # summed up over the words whose label is known


@torch.inference_mode()
def choose(model: Tagger, examples: Examples, device: torch.device, batch_tokens: int) -> list[Chosen]:
    """The most probable label of each word, sentence by sentence, in order; in batches of about one length."""

    def of_rows(rows: Indices) -> list[Chosen]:
        batch = examples.batch(rows).to(device)
        logits = model(batch.source, batch.lengths).float()
        best = logits[..., PAD + 1 :].softmax(-1).max(-1)
        losses = F.cross_entropy(logits.transpose(1, 2), batch.target, ignore_index=PAD, reduction="none").sum(1)
        columns = (best.indices, best.values, losses, batch.lengths)
        return [
            Chosen([label + PAD + 1 for label in labels[:size]], chances[:size], loss)
            for labels, chances, loss, size in zip(*(column.tolist() for column in columns), strict=True)
        ]

    return in_order(of_rows, examples.sizes, batch_tokens)
