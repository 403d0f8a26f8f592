"""Attention windows (global, local-m, local-p) and hard attention: which positions a query attends to, and how much.

"Alignment" is Luong's word for the function that turns scores into weights; for word alignments of a translation see
`regard.translate`. An alignment has two methods. `window(query, mask, step)` returns the source positions of each
query, (B, T, 2D+1), or None for the whole sentence, and a prior by which the weights are multiplied, or None.
`weigh(scores, mask, prior)` turns scores into weights; hard attention returns a `HardSample` instead of a tensor.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.memory import masked_softmax
from regard.nn.positional_encoding import position_ids


class HardSample(NamedTuple):
    """One-hot weights sampled by hard attention, with the distribution that they were sampled from."""

    weights: Tensor  # (B, T, S), one-hot
    log_prob: Tensor  # (B, T), of the chosen position
    probabilities: Tensor  # (B, T, S), the distribution that it was sampled from


class Alignment(Protocol):
    """Interface of an alignment, as `Attention` uses it; any class with these two methods implements it."""

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the window of each query and the prior of its positions.

        Args:
            query: queries (B, T, Q).
            mask: True for real source positions, (B, S).
            step: target index of the first query, one for all rows or (B,).

        Returns:
            Positions (B, T, 2D+1), or None for the whole sentence.
            A prior (B, T, 2D+1), (T, S) or (B, T, S), or None.
        """

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor | HardSample:
        """Return the weights of scores (B, T, S) or (B, T, 2D+1).

        Without a window the mask broadcasts over T.
        """


class Global(nn.Module):
    """Global attention: a_t(s) = softmax over all real positions (Luong 2015, eq. 7; Bahdanau 2015, eq. 6)."""

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[None, None]:
        """Return no window: every query attends to the whole sentence."""
        return None, None

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        """Return the softmax over the real positions."""
        return masked_softmax(scores, mask)


class LocalMonotonic(nn.Module):
    """Local-m attention: p_t = t, softmax over the real positions of [p_t − D, p_t + D] (Luong 2015, section 3.2).

    Positions count from 0. If the target is longer than the source, the window stays at the last source position, as in
    the authors' code.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.offsets = window_offsets(window)

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[Tensor, None]:
        """Return positions (B, T, 2D+1) for queries (B, T, Q), and no prior."""
        t = position_ids(step, query.shape[1], query.device)
        p = torch.minimum(t, mask.sum(1, keepdim=True) - 1)  # (B, T)
        return window_positions(p, self.offsets), None

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        """Return the softmax over the window's real positions."""
        return masked_softmax(scores, mask)


class LocalPredictive(nn.Module):
    """Local-p attention: p_t = S·σ(v_pᵀ tanh(W_p h_t)) (Luong 2015, eq. 9), with a window around ⌊p_t⌋.

    The weights are multiplied by a Gaussian around p_t: a_t(s) = align(h_t, h̄_s) · exp(−(s − p_t)² / 2σ²) with σ = D/2
    (eq. 10). The softmax is over the real positions of the window, and the weights are not renormalised after the
    Gaussian, as in the authors' code. S is the length of the sentence without padding, positions count from 0. The
    gradient reaches p_t through the Gaussian.
    """

    def __init__(self, query_size: int, window: int, size: int) -> None:
        super().__init__()
        self.offsets = window_offsets(window)
        self.sigma = window / 2
        self.weight = nn.Parameter(torch.empty(size, query_size))  # W_p
        self.v = nn.Parameter(torch.empty(size))  # v_p
        nn.init.xavier_uniform_(self.weight)
        nn.init.uniform_(self.v, -(size**-0.5), size**-0.5)

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """Return positions (B, T, 2D+1) for queries (B, T, Q), and the Gaussian at these positions."""
        p = self.centre(query, mask)
        positions = window_positions(p.detach().floor().long(), self.offsets)
        return positions, torch.exp(-((positions - p[..., None]) ** 2) / (2 * self.sigma**2))

    def centre(self, query: Tensor, mask: Tensor) -> Tensor:
        """Return p_t (B, T), a real number from 0 to S, for queries (B, T, Q)."""
        return mask.sum(1, keepdim=True) * self.relative_position(query)

    def relative_position(self, query: Tensor) -> Tensor:
        """Return p_t / S, (B, T), in fp32 at least: in half precision, position 200 would be off by a word."""
        full = torch.promote_types(self.weight.dtype, torch.float32)
        with torch.autocast(query.device.type, enabled=False):
            W_p, v_p, h = self.weight.to(full), self.v.to(full), query.to(full)
            return torch.sigmoid(torch.tanh(F.linear(h, W_p)) @ v_p)

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        """Return the softmax over the window's real positions, multiplied by the Gaussian."""
        weights = masked_softmax(scores, mask)
        return weights if prior is None else weights * prior.to(weights.dtype)


class Hard(nn.Module):
    """Hard attention to one position: s_t ~ Multinoulli(α_t) in training (Xu 2015, eq. 8), the argmax in eval mode."""

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[None, None]:
        """Return no window: every query attends to the whole sentence."""
        return None, None

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> HardSample:
        """Return one-hot weights, the log-probability of the chosen position, and the softmax."""
        probabilities = masked_softmax(scores, mask)
        if not probabilities.numel():  # an empty batch, or S = 0
            return HardSample(probabilities, probabilities.sum(-1), probabilities)
        has_position = probabilities.sum(-1) > 0  # False for a sentence of length 0
        position = self.sample_or_argmax(torch.where(has_position[..., None], probabilities.detach(), 1.0))
        is_chosen = torch.arange(probabilities.shape[-1], device=position.device) == position[..., None]
        weights = (is_chosen & has_position[..., None]).to(scores.dtype)
        chosen = probabilities.gather(-1, position[..., None]).squeeze(-1)
        return HardSample(weights, torch.log(torch.where(has_position, chosen, 1.0)), probabilities)

    def sample_or_argmax(self, probabilities: Tensor) -> Tensor:
        """Return positions (B, T) for distributions (B, T, S)."""
        if not self.training:
            return probabilities.argmax(-1)
        return torch.multinomial(probabilities.flatten(0, 1), 1).view(probabilities.shape[:2])


def window_offsets(window: int) -> range:
    """Return the offsets −D … D of a window; raise ValueError if D is below 1."""
    if window < 1:
        raise ValueError(f"window must be at least 1 position to each side, not {window}")
    return range(-window, window + 1)


def window_positions(centre: Tensor, offsets: range) -> Tensor:
    """Return positions (B, T, 2D+1) around centres (B, T)."""
    return centre[..., None] + torch.arange(offsets.start, offsets.stop, device=centre.device)
