"""Linear-chain conditional random field (Lafferty et al. 2001): scores for pairs of neighbouring labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.nn.memory import prefix_mask
from regard.nn.recurrent import reverse_sequences


class LinearChainCRF(nn.Module):
    """p(y) = exp(Σ_t s_t[y_t] + Σ_t T[y_{t-1}, y_t]) / Z for scores s (B, S, V) of V labels; T starts at 0."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))

    def forward(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the logarithm of the marginal probabilities p(y_t), (B, S, V), by the forward-backward algorithm."""
        scores = scores.to(self.transitions.dtype)
        forwards = _sum_prefixes(scores, self.transitions)
        backwards = _sum_prefixes(reverse_sequences(scores, lengths), self.transitions.T)
        joint = forwards + reverse_sequences(backwards, lengths) - scores
        return joint - joint.logsumexp(-1, keepdim=True)

    def loss_sum(self, scores: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        """Return −Σ log p(y) of label sequences (B, S)."""
        scores = scores.to(self.transitions.dtype)
        real = prefix_mask(lengths, labels.shape[1])
        last = _sum_prefixes(scores, self.transitions)[torch.arange(len(labels), device=labels.device), lengths - 1]
        single = scores.gather(2, labels[..., None])[..., 0]
        pairs = self.transitions[labels[:, :-1], labels[:, 1:]]
        return last.logsumexp(-1).sum() - single[real].sum() - pairs[real[:, 1:]].sum()


def _sum_prefixes(scores: Tensor, transitions: Tensor) -> Tensor:
    """Return the logarithm of the summed exponential scores of all label sequences up to t that end in a label."""
    sums = [scores[:, 0]]
    for score in scores.unbind(1)[1:]:
        sums.append((sums[-1][..., None] + transitions).logsumexp(1) + score)
    return torch.stack(sums, 1)
