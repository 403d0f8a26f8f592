"""Alignments: where a query may look, and how scores become weights.

An alignment is two functions. `window(query, mask, step)` says where each query looks: source positions B,T,2D+1, or
None for the whole sentence, and a prior to multiply the weights by, or None. `weigh(scores, mask, prior)` turns scores
into weights over what was looked at; where the weights are a sample, it gives what they were drawn from, too.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.mask import masked_softmax
from regard.nn.positional_encoding import position_ids


class HardSample(NamedTuple):
    """Weights that are a sample."""

    weights: Tensor  # B,T,S one-hot
    log_prob: Tensor  # B,T of the place chosen
    probabilities: Tensor  # B,T,S what it was drawn from


class Alignment(Protocol):
    """What `Attention` asks of an alignment; any class with these two methods is one."""

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Positions B,T,2D+1, or None for the whole sentence, and a prior for them, B,T,2D+1, or T,S or B,T,S, or None.

        `step` is the index of the first query, of all rows or B of each.
        """
        ...

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor | HardSample:
        """Weights of the scores B,T,S (or B,T,2D+1); the mask broadcasts over T where there is no window."""
        ...


class Global(nn.Module):
    """a_t(s) = softmax over all real positions (Luong 2015, eq. 7; Bahdanau 2015, eq. 6)."""

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[None, None]:
        """No window: the whole sentence."""
        return None, None

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        """Softmax over the real positions."""
        return masked_softmax(scores, mask)


class LocalMonotonic(nn.Module):
    """local-m: p_t = t, the window [p_t − D, p_t + D], softmax over its real positions (Luong 2015, section 3.2).

    Positions count from 0; a target longer than its source stays at the source's last word, as in the authors' code.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.offsets = window_offsets(window)

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[Tensor, None]:
        """Query B,T,Q -> positions B,T,2D+1 and no prior."""
        t = position_ids(step, query.shape[1], query.device)
        p = torch.minimum(t, mask.sum(1, keepdim=True) - 1)  # B,T
        return window_positions(p, self.offsets), None

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        """Softmax over the window's real positions."""
        return masked_softmax(scores, mask)


class LocalPredictive(nn.Module):
    """local-p: p_t = S·σ(v_pᵀ tanh(W_p h_t)) (Luong 2015, eq. 9), a window around ⌊p_t⌋, and a Gaussian around p_t.

    a_t(s) = align(h_t, h̄_s) · exp(−(s − p_t)² / 2σ²) with σ = D/2 (eq. 10): the softmax is over the real positions of
    the window, and what the Gaussian takes away is not given back, as in the authors' code. S is the sentence's own
    length, positions count from 0. The gradient reaches p_t through the Gaussian.
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
        """Query B,T,Q -> positions B,T,2D+1 and the Gaussian at them."""
        S = mask.sum(1, keepdim=True)
        p = S * self.relative_position(query)  # B,T
        positions = window_positions(p.detach().floor().long(), self.offsets)
        return positions, torch.exp(-((positions - p[..., None]) ** 2) / (2 * self.sigma**2))

    def relative_position(self, query: Tensor) -> Tensor:
        """p_t / S. Never in half precision: at position 200 that would be off by a word."""
        full = torch.promote_types(self.weight.dtype, torch.float32)
        with torch.autocast(query.device.type, enabled=False):
            W_p, v_p, h = self.weight.to(full), self.v.to(full), query.to(full)
            return torch.sigmoid(torch.tanh(F.linear(h, W_p)) @ v_p)

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> Tensor:
        """Softmax over the window's real positions, times the Gaussian."""
        weights = masked_softmax(scores, mask)
        return weights if prior is None else weights * prior.to(weights.dtype)


class Hard(nn.Module):
    """One place: s_t ~ Multinoulli(α_t) while training (Xu 2015, eq. 8), the most likely one otherwise."""

    def window(self, query: Tensor, mask: Tensor, step: int | Tensor) -> tuple[None, None]:
        """No window: the whole sentence."""
        return None, None

    def weigh(self, scores: Tensor, mask: Tensor, prior: Tensor | None) -> HardSample:
        """One-hot weights, the log-probability of the place, and the softmax that it was drawn from."""
        probabilities = masked_softmax(scores, mask)
        if not probabilities.numel():  # a batch without a single position
            return HardSample(probabilities, probabilities.sum(-1), probabilities)
        has_position = probabilities.sum(-1) > 0  # a sentence without words has no place to choose
        position = self.sample_or_argmax(torch.where(has_position[..., None], probabilities.detach(), 1.0))
        is_chosen = torch.arange(probabilities.shape[-1], device=position.device) == position[..., None]
        weights = (is_chosen & has_position[..., None]).to(scores.dtype)
        chosen = probabilities.gather(-1, position[..., None]).squeeze(-1)
        return HardSample(weights, torch.log(torch.where(has_position, chosen, 1.0)), probabilities)

    def sample_or_argmax(self, probabilities: Tensor) -> Tensor:
        """Places B,T of distributions B,T,S."""
        if not self.training:
            return probabilities.argmax(-1)
        return torch.multinomial(probabilities.flatten(0, 1), 1).view(probabilities.shape[:2])


def window_offsets(window: int) -> range:
    """−D … D of a window that has a middle and two sides."""
    if window < 1:
        raise ValueError(f"a window reaches at least 1 word to each side, not {window}")
    return range(-window, window + 1)


def window_positions(centre: Tensor, offsets: range) -> Tensor:
    """Positions B,T,2D+1 around centres B,T."""
    return centre[..., None] + torch.arange(offsets.start, offsets.stop, device=centre.device)
