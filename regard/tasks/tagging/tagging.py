"""Encoded sentences through a model: a label for each word."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from regard.data.order import cuts
from regard.data.ragged import Indices
from regard.models.schuster import Tagger
from regard.symbols import PAD
from regard.tasks.memory import in_pieces
from regard.tasks.tagging.examples import Examples


class Chosen(NamedTuple):
    """What a model chose for the words of a sentence."""

    labels: list[int]
    probabilities: list[float]
    loss: float  # summed up over the words whose label is known


@torch.inference_mode()
def choose(model: Tagger, examples: Examples, device: torch.device, batch_tokens: int) -> list[Chosen]:
    """The most probable label of each word, sentence by sentence, in order; in batches of about one length."""

    def of_rows(rows: Indices) -> dict[int, Chosen]:
        batch = examples.batch(rows).to(device)
        logits = model(batch.source, batch.lengths).float()
        best = logits[..., PAD + 1 :].softmax(-1).max(-1)
        losses = F.cross_entropy(logits.transpose(1, 2), batch.target, ignore_index=PAD, reduction="none").sum(1)
        each = zip(rows.tolist(), best.indices.tolist(), best.values.tolist(), losses.tolist(), strict=True)
        return {
            row: Chosen([label + PAD + 1 for label in labels[:size]], chances[:size], loss)
            for (row, labels, chances, loss), size in zip(each, batch.lengths.tolist(), strict=True)
        }

    order = np.argsort(examples.sizes, kind="stable")
    lots = [some for rows in cuts(order, examples.sizes, batch_tokens) for some in in_pieces(of_rows, rows)]
    found = {row: chosen for some in lots for row, chosen in some.items()}
    return [found[row] for row in range(len(examples))]
