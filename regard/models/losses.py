"""Training losses of translation: cross-entropy with label smoothing, guided alignment, R-Drop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import Fraction, NonNegativeFloat
from regard.errors import UserError
from regard.nn import Attended
from regard.special_tokens import PAD

if TYPE_CHECKING:
    from regard.models.base import Seq2Seq


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """Cross-entropy −Σ log p(y_t), with label smoothing over the vocabulary (Szegedy 2016); a recipe's `loss` section.

    The sum is divided by the number of target tokens, or of sentences, as Sutskever and Luong do. With gradients
    clipped at a fixed norm, the two give different updates.
    """

    label_smoothing: Fraction = 0.0
    per: Literal["token", "sentence"] = "token"
    guided: NonNegativeFloat = 0.0
    r_drop: NonNegativeFloat = 0.0

    def require_plain(self, model_name: str) -> None:
        """Raise ValueError if guided alignment or R-Drop is on, which are for translation models."""
        for name in ("guided", "r_drop"):
            if value := getattr(self, name):
                raise ValueError(
                    f"loss.{name} is {value}, but it is for translation models; set it to 0 for a {model_name}"
                )

    def __call__(self, logits: Tensor, target_out: Tensor) -> Tensor:
        """Return the summed loss for logits (B, T, V) and ids (B, T); PAD is ignored."""
        return F.cross_entropy(
            logits.flatten(0, 1),
            target_out.flatten(),
            ignore_index=PAD,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )

    def guided_alignment_loss(self, attended: Attended, guide: Tensor) -> Tensor:
        """Return −λ Σ_t Σ_s g_t(s) log a_t(s), summed over a batch (Chen et al. 2016, guided alignment training).

        `guide` (B, T, S) is the target attention of each target token; a row of zeros adds no loss.
        """
        if attended.probabilities is not None:
            attended = attended._replace(weights=attended.probabilities)
        weights = attended.dense(guide.shape[2])
        return -self.guided * torch.xlogy(guide, weights.clamp(min=1e-9)).sum()

    def r_drop_loss(self, logits: Tensor, target_out: Tensor) -> Tensor:
        """Return the R-Drop loss α/4 · Σ_t [KL(p‖q) + KL(q‖p)], p and q of two passes with different dropout.

        This is eq. 4 of Liang 2021, halved like the two cross-entropies, so that the loss equals that of one pass if
        both passes agree. `logits` (2B, T, V) are those of the first pass, then of the second.
        """
        p, q = logits.log_softmax(-1, dtype=torch.float32).chunk(2)
        divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1)  # Σ (p−q)(log p − log q) is the sum of both divergences
        return self.r_drop / 4 * divergence.masked_fill(target_out.chunk(2)[0] == PAD, 0.0).sum()

    def loss_count(self, target_out: Tensor) -> Tensor:
        """Return the number that the sum is divided by: tokens, or sentences with at least one token."""
        real = target_out != PAD
        return real.sum() if self.per == "token" else real.any(1).sum()


def default_loss_sum(
    model: Seq2Seq, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, guide: Tensor | None
) -> Tensor:
    """Return the summed loss of a batch: cross-entropy, with guided alignment and R-Drop if the settings ask for them.

    R-Drop passes every pair twice, with different dropout, and penalises the difference.

    Args:
        model: encoder, decoder and criterion.
        source: source ids (B, S).
        lengths: source lengths (B,).
        target_in: target ids (B, T), from BOS on.
        target_out: the ids to predict, (B, T), up to EOS.
        guide: target attention of each target token for guided alignment, (B, T, S), or None.
    """
    criterion = model.criterion
    has_two_passes = model.training and criterion.r_drop > 0
    if has_two_passes:
        batch = source, lengths, target_in, target_out
        source, lengths, target_in, target_out = (torch.cat([tensor, tensor]) for tensor in batch)
        guide = None if guide is None else torch.cat([guide, guide])
    total, decoded = model.decode_and_loss(model.encode(source, lengths), target_in, target_out)
    if guide is not None:
        if decoded.attended is None:
            raise UserError("loss.guided: a model without attention cannot be guided by alignments")
        shifted_guide = model.decoder.alignment_head.shift_guide(guide)
        total = total + criterion.guided_alignment_loss(decoded.attended, shifted_guide)
    if has_two_passes:
        total = total / 2 + criterion.r_drop_loss(decoded.logits, target_out)
    return total
