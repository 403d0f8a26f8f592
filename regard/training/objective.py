"""The model together with what it is to minimise, as one module: what data parallelism wraps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.data.loader import Batch
from regard.models import Model


class Objective(nn.Module):
    """Batch by batch, the loss's share of an update."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch | None, share: float = 0.0) -> Tensor:
        """The summed loss of a batch times `share`; without a batch a zero that every weight has a part in."""
        if batch is None:
            return torch.stack([weight.sum() for weight in self.parameters()]).sum() * 0.0
        return self.model.summed(*batch) * share

    def counts(self, batches: Sequence[Batch]) -> float:
        """What the summed loss of batches is divided by."""
        return float(sum(int(self.model.count(*batch)) for batch in batches))
