"""Linear model of n-grams, for a text as a set of hashed features."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NgramLinear(nn.Module):
    """Linear map of a set F of features: s/√|F| Σ_{f∈F} W_f + b.

    |F| is the number of features before dropout, so that texts of all lengths have logits of one scale. W starts at 0.
    Feature 0 is padding. In training, each feature is left out with the probability `dropout`.
    """

    def __init__(self, num_features: int, output_size: int, scale: float = 3.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Embedding(num_features, output_size, padding_idx=0)
        nn.init.zeros_(self.weight.weight)
        self.bias = nn.Parameter(torch.zeros(output_size))
        self.scale = scale
        self.dropout = dropout

    def forward(self, features: Tensor, factors: Tensor | None = None) -> Tensor:
        """Return outputs (B, O) for sets of features (B, N), padded with 0.

        With `factors` (M, B, N), which the features of each set are multiplied by, return outputs (M, B, O).
        """
        kept, norm = features, self.scale / (features > 0).sum(1, keepdim=True).clamp(min=1).sqrt()
        if self.training and self.dropout:
            kept = features * (torch.rand(features.shape, device=features.device) >= self.dropout)
            norm = norm / (1 - self.dropout)
        values = self.weight(kept)
        summed = values.sum(1) if factors is None else torch.einsum("mbn,bno->mbo", factors, values)
        return summed * norm + self.bias
