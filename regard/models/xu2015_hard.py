"""Hard attention to one position (Xu 2015, section 4.1), trained with one of three estimators.

- `reinforce`: positions are sampled; their log-probability is raised in proportion to the gain of the target's
  log-likelihood over a moving average (eq. 11, 12 with the entropy term). With probability `soft_share`, a sentence
  uses the expected context instead.
- `soft-baseline`: like `reinforce`, but the baseline is the log-likelihood under soft attention (Deng 2018).
- `marginal`: log Σ_s α_s p(y | a_s), exactly; the state reads the expected context, only the output depends on the
  position (Deng 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import NonNegativeFloat, Probability
from regard.models.base import CrossEntropy, Decoded, Encoded, Encoder, Seq2Seq, log_probs
from regard.models.rnn_common import RecurrentEncoder, RecurrentSettings
from regard.models.xu2015 import XuBaseSettings, XuDecoder, XuState
from regard.nn import Attended, Attention, Hard, Memory
from regard.special_tokens import PAD

Estimator = Literal["reinforce", "soft-baseline", "marginal"]


@dataclass(frozen=True, kw_only=True)
class HardAttentionBaseSettings(XuBaseSettings):
    """Keys of hard attention, over text and over images."""

    estimator: Estimator = "reinforce"
    decode: Literal["argmax", "marginal"] = "argmax"
    soft_share: Probability = 0.5
    reward: NonNegativeFloat = 0.1
    entropy: NonNegativeFloat = 0.002


@dataclass(frozen=True, kw_only=True)
class HardAttentionSettings(HardAttentionBaseSettings, RecurrentSettings):
    """The `model` section of `xu2015-hard`."""


class HardAttentionDecoder(XuDecoder):
    """Decoder with hard attention: sampled in training; the argmax or the marginal otherwise."""

    supports_shared_memory = False  # the context is computed from each row's own memory

    def __init__(self, settings: HardAttentionBaseSettings, target_size: int) -> None:
        super().__init__(settings, target_size, Attention(settings.make_score(), Hard()))
        self.settings = settings

    def uses_marginal(self) -> bool:
        """Return whether the output is the marginal Σ_s α_s p(y | a_s)."""
        return (self.settings.estimator if self.training else self.settings.decode) == "marginal"

    def start(self, encoded: Encoded) -> XuState:
        """Return the initial state; sample the sentences that use the expected context."""
        state, mask = super().start(encoded), encoded.memory.mask
        if self.uses_marginal() or self.settings.estimator == "marginal":
            return state._replace(soft_mask=mask.new_ones(len(mask)))
        if self.training and self.settings.estimator == "reinforce" and self.settings.soft_share:
            return state._replace(soft_mask=torch.rand(len(mask), device=mask.device) < self.settings.soft_share)
        return state

    def attend(self, state: XuState) -> Attended:
        """Attend to one position; in soft rows, to all of them by their weights."""
        attended = super().attend(state)
        if state.soft_mask is None:
            return attended
        assert attended.probabilities is not None
        assert attended.log_prob is not None
        soft = state.soft_mask[:, None, None]
        weights = torch.where(soft, attended.probabilities, attended.weights)
        log_prob = attended.log_prob.masked_fill(state.soft_mask[:, None], 0.0)
        return attended._replace(weights=weights, context=weights @ state.memory.values, log_prob=log_prob)

    def decode_with_soft_attention(self, encoded: Encoded, target_in: Tensor) -> Decoded:
        """Run teacher forcing with soft attention, with the same weights."""
        state = super().start(encoded)
        return self.decode_from_state(state._replace(soft_mask=encoded.memory.mask.new_ones(len(target_in))), target_in)

    def compute_logits(self, features: Tensor, words: Tensor, attended: Attended, memory: Memory) -> Tensor:
        """Return logits (B, T, V); for the marginal, its log-probabilities."""
        if self.uses_marginal():
            return self._compute_marginal(features, words, attended, memory)
        if self.settings.estimator == "marginal":  # the state has read the expectation, the output reads one position
            assert attended.probabilities is not None
            one_hot = F.one_hot(attended.probabilities.argmax(-1), memory.mask.shape[1]).to(features.dtype)
            attended = attended._replace(context=one_hot @ memory.values)
        return super().compute_logits(features, words, attended, memory)

    def vocabulary_layers(self) -> list[nn.Module]:
        """Return no layers for the marginal: it mixes probabilities that are normalised over the whole vocabulary."""
        return [] if self.settings.decode == "marginal" else super().vocabulary_layers()

    def _compute_marginal(self, features: Tensor, words: Tensor, attended: Attended, memory: Memory) -> Tensor:
        """Return log Σ_s α_s p(y | a_s), computed step by step, because one step alone needs (B, S, V)."""
        assert attended.probabilities is not None
        h, beta = features.tensor_split([-1], -1)
        steps = []
        for t in range(h.shape[1]):
            contexts = beta[:, t, :, None] * memory.values  # (B, S, D)
            log_probs_by_position = log_probs(self.output(h[:, t, None], words[:, t, None], contexts))
            weights = attended.probabilities[:, t, :, None].clamp(min=torch.finfo(log_probs_by_position.dtype).tiny)
            steps.append((weights.log() + log_probs_by_position).logsumexp(1))
        return torch.stack(steps, 1)


class HardAttentionModel(Seq2Seq):
    """Hard-attention model with the loss of each estimator.

    The moving baseline is a buffer, so that checkpoints contain it.
    """

    baseline: Tensor
    decoder: HardAttentionDecoder

    def __init__(self, encoder: Encoder, decoder: HardAttentionDecoder, criterion: CrossEntropy) -> None:
        super().__init__(encoder, decoder, criterion)
        self.settings = decoder.settings
        self.register_buffer("baseline", torch.zeros(()))

    def decode_and_loss(self, encoded: Encoded, target_in: Tensor, target_out: Tensor) -> tuple[Tensor, Decoded]:
        """Return a sum whose gradient is that of the estimator, and the decoder output."""
        if self.settings.estimator == "marginal":
            return super().decode_and_loss(encoded, target_in, target_out)
        baseline = None
        if self.settings.estimator == "soft-baseline":
            device = target_in.device
            # The generator is restored, so that the samples get the same dropout: the two differ in attention only.
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                soft = self.decoder.decode_with_soft_attention(encoded, target_in)
            baseline = _target_log_probs(soft.logits, target_out)
        decoded: Decoded = self.decoder(encoded, target_in)
        attended = decoded.attended
        assert attended is not None
        assert attended.log_prob is not None
        assert attended.probabilities is not None
        real = target_out != PAD
        advantage = self.compute_advantage(_target_log_probs(decoded.logits, target_out), baseline)
        reinforce_term = (advantage.detach() * attended.log_prob * real).sum()
        entropy_term = (attention_entropy(attended.probabilities) * real).sum()
        gain = self.settings.reward * reinforce_term + self.settings.entropy * entropy_term
        return self.criterion(decoded.logits, target_out) - gain, decoded

    def compute_advantage(self, sampled_log_probs: Tensor, soft_log_probs: Tensor | None) -> Tensor:
        """Return the advantage of samples with these log-probabilities (B, T) over the baseline, (B, T).

        The baseline are the log-probabilities with soft attention, or without them the moving average.
        """
        if soft_log_probs is not None:
            # The position of a step influences only this and later tokens.
            return (sampled_log_probs - soft_log_probs).flip(1).cumsum(1).flip(1)
        sentence_log_probs = sampled_log_probs.sum(1, keepdim=True)
        advantage = (sentence_log_probs - self.baseline).expand_as(sampled_log_probs)
        if self.training:
            mean = sentence_log_probs.detach().mean().to(self.baseline.dtype)
            # A NaN would never leave the moving average.
            self.baseline.lerp_(torch.where(mean.isfinite(), mean, self.baseline), 0.1)
        return advantage


def _target_log_probs(logits: Tensor, target_out: Tensor) -> Tensor:
    """Return log p(y_t) of each target token, (B, T); 0 for PAD."""
    picked = log_probs(logits).gather(-1, target_out[..., None]).squeeze(-1)
    return picked.masked_fill(target_out == PAD, 0.0)


def attention_entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy −Σ_s α_s log α_s: (B, T, S) → (B, T)."""
    return -torch.xlogy(probabilities, probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)).sum(-1)


def build(settings: HardAttentionSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """Build the hard-attention model from its settings."""
    decoder = HardAttentionDecoder(settings, target_size)
    return HardAttentionModel(RecurrentEncoder(settings, source_size), decoder, criterion)
