"""What a model thinks of captions that are given, and where it looks for their words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch.nn import functional as F

from regard.data.ragged import Indices
from regard.models import Decoded, Seq2Seq
from regard.models.hard import entropy
from regard.symbols import PAD
from regard.tasks.captioning.examples import Captions
from regard.tasks.memory import in_lots

Marks = Mapping[int, Sequence[int]]  # the number of a token: the cells that it names


class Judgement(NamedTuple):
    """Sums over captions: −log p, the entropy of the looks, and the tokens that both are of; and looks at objects."""

    loss: float = 0.0
    entropy: float = 0.0
    tokens: int = 0
    on_object: float = 0.0  # weight on the cells that a token names …
    named: int = 0  # … and tokens that name any

    def figures(self) -> dict[str, float]:
        """The means: how unsure the looks are, and how many of a hundred parts lie where they should."""
        found = {"perplexity": math.exp(min(self.mean_loss, 100.0)), "entropy": self.entropy / max(1, self.tokens)}
        return found | ({"on_object": 100 * self.on_object / self.named} if self.named else {})

    @property
    def mean_loss(self) -> float:
        """Cross-entropy per token."""
        return self.loss / max(1, self.tokens)


@torch.inference_mode()
def judged(
    model: Seq2Seq, captions: Captions, marks: Sequence[Marks], device: torch.device, batch_tokens: int
) -> Judgement:
    """What a model that is not being trained thinks of the captions."""

    def of(rows: Indices) -> Judgement:
        batch = captions.batch(rows).to(device)
        decoded: Decoded = model.decoder(model.encode(batch.source, batch.lengths), batch.target_in)
        assert decoded.attended is not None
        real, weights = batch.target_out != PAD, decoded.attended.dense(batch.source.shape[1]).float()
        logits = decoded.logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD, reduction="sum")
        drawn_from = decoded.attended.probabilities  # where one place alone has the weight
        unsure = entropy(weights if drawn_from is None else drawn_from.float())
        looks = [
            float(weights[place, token, list(cells)].sum())
            for place, row in enumerate(rows.tolist())
            for token, cells in marks[row].items()
        ]
        return Judgement(loss.item(), (unsure * real).sum().item(), int(real.sum()), sum(looks), len(looks))

    found = in_lots(of, captions.sizes, batch_tokens)
    return Judgement(*(sum(figures) for figures in zip(*found, strict=True)))
