"""Hard attention: one place is looked at (Xu 2015, section 4.1), trained in three ways.

- `reinforce`: places are drawn, and made more likely as far as the target does better than a moving average (eq. 11, 12
  with the entropy term); with a chance of `soft_share` a sentence takes the expectation instead.
- `soft-baseline`: the same, against what soft attention makes of the same target (Deng 2018).
- `marginal`: log Σ_s α_s p(y | a_s), exactly; the state reads the expected context, only the output sees the place
  (Deng 2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models.base import Decoded, Encoded, Encoder, Seq2Seq, log_probs
from regard.models.losses import CrossEntropy
from regard.models.rnn_common import Bridge, RecurrentAttentionSettings, build_encoder, build_score
from regard.models.settings_checks import check_nonnegative
from regard.models.xu2015 import XuBaseSettings, XuDecoder, XuOutput, XuState, build_decoder_parts
from regard.nn import Attended, Attention, Hard, Memory, Recurrent
from regard.special_tokens import PAD

Estimator = Literal["reinforce", "soft-baseline", "marginal"]


@dataclass(frozen=True, kw_only=True)
class HardAttentionBaseSettings(XuBaseSettings):
    """What hard attention has besides, over words and over images."""

    estimator: Estimator = "reinforce"
    decode: Literal["argmax", "marginal"] = "argmax"
    soft_share: float = 0.5
    reward: float = 0.1
    entropy: float = 0.002

    def __post_init__(self) -> None:
        super().__post_init__()
        check_nonnegative(self, "reward", "entropy")
        if not 0 <= self.soft_share <= 1:
            raise ValueError(f"soft_share is a probability, not {self.soft_share}")


@dataclass(frozen=True, kw_only=True)
class HardAttentionSettings(HardAttentionBaseSettings, RecurrentAttentionSettings):
    """The `model` section of `xu2015-hard`."""


class HardAttentionDecoder(XuDecoder):
    """Looks at one place: drawn while training, the most likely one, or all of them weighed, otherwise."""

    supports_shared_memory = False  # a place is taken out of each row's own memory

    def __init__(
        self,
        embedding: nn.Embedding,
        attention: Attention,
        recurrent: Recurrent,
        bridge: Bridge,
        output: XuOutput,
        gate: nn.Linear | None,
        dropout: float,
        settings: HardAttentionBaseSettings,
    ) -> None:
        super().__init__(embedding, attention, recurrent, bridge, output, gate, dropout)
        self.settings = settings

    def uses_marginal(self) -> bool:
        """Whether the output is the marginal Σ_s α_s p(y | a_s)."""
        return (self.settings.estimator if self.training else self.settings.decode) == "marginal"

    def start(self, encoded: Encoded) -> XuState:
        """Draws which sentences take the expectation."""
        state, rows = super().start(encoded), encoded.memory.mask.shape[0]
        if self.uses_marginal() or self.settings.estimator == "marginal":
            return state._replace(soft_mask=encoded.memory.mask.new_ones(rows))
        if self.training and self.settings.estimator == "reinforce" and self.settings.soft_share:
            return state._replace(
                soft_mask=torch.rand(rows, device=encoded.memory.mask.device) < self.settings.soft_share
            )
        return state

    def attend(self, state: XuState) -> Attended:
        """One place, or, in soft rows, all of them by their weights."""
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
        """The whole target with soft attention, by the same weights."""
        state = super().start(encoded)
        return self.decode_from_state(state._replace(soft_mask=encoded.memory.mask.new_ones(len(target_in))), target_in)

    def compute_logits(self, state_and_gate: Tensor, word: Tensor, attended: Attended, memory: Memory) -> Tensor:
        """Logits B,T,V; of a marginal they are its log-probabilities."""
        if self.uses_marginal():
            return self.marginal_log_probs(state_and_gate, word, attended, memory)
        if self.settings.estimator == "marginal":  # the state has read the expectation, the output sees one place
            assert attended.probabilities is not None
            one_hot = F.one_hot(attended.probabilities.argmax(-1), memory.mask.shape[1]).to(state_and_gate.dtype)
            attended = attended._replace(context=one_hot @ memory.values)
        return super().compute_logits(state_and_gate, word, attended, memory)

    def vocabulary_layers(self) -> list[nn.Module]:
        """None for the marginal, which is of probabilities that were normalised place by place."""
        return [] if self.settings.decode == "marginal" else super().vocabulary_layers()

    def marginal_log_probs(self, state_and_gate: Tensor, word: Tensor, attended: Attended, memory: Memory) -> Tensor:
        """log Σ_s α_s p(y | a_s), step by step: all places of one step are B,S,V."""
        assert attended.probabilities is not None
        h, beta = state_and_gate.tensor_split([-1], -1)
        rows = []
        for t in range(h.shape[1]):
            contexts = beta[:, t, :, None] * memory.values  # B,S,D
            log_probs_by_position = log_probs(self.output(h[:, t, None], word[:, t, None], contexts))
            weights = attended.probabilities[:, t, :, None].clamp(min=torch.finfo(log_probs_by_position.dtype).tiny)
            rows.append((weights.log() + log_probs_by_position).logsumexp(1))
        return torch.stack(rows, 1)


class HardAttentionModel(Seq2Seq):
    """What training minimises with each estimator. The moving baseline is a buffer, so that it resumes."""

    baseline: Tensor
    decoder: HardAttentionDecoder

    def __init__(
        self,
        encoder: Encoder,
        decoder: HardAttentionDecoder,
        criterion: CrossEntropy,
        settings: HardAttentionBaseSettings,
    ) -> None:
        super().__init__(encoder, decoder, criterion)
        self.settings = settings
        self.register_buffer("baseline", torch.zeros(()))

    def decode_and_loss(self, encoded: Encoded, target_in: Tensor, target_out: Tensor) -> tuple[Tensor, Decoded]:
        """A sum whose gradient is the estimator's."""
        if self.settings.estimator == "marginal":
            return super().decode_and_loss(encoded, target_in, target_out)
        rng_state = _get_rng_state(target_in.device)
        decoded: Decoded = self.decoder(encoded, target_in)
        attended = decoded.attended
        assert attended is not None
        assert attended.log_prob is not None
        assert attended.probabilities is not None
        real = target_out != PAD
        advantage = self.compute_advantage(
            encoded, _target_log_probs(decoded.logits, target_out), target_in, target_out, rng_state
        )
        reinforce_term = (advantage.detach() * attended.log_prob * real).sum()
        entropy_term = (attention_entropy(attended.probabilities) * real).sum()
        gain = self.settings.reward * reinforce_term + self.settings.entropy * entropy_term
        return self.criterion(decoded.logits, target_out) - gain, decoded

    def compute_advantage(
        self, encoded: Encoded, sampled_log_probs: Tensor, target_in: Tensor, target_out: Tensor, rng_state: Tensor
    ) -> Tensor:
        """How much better than its baseline a sentence's draw was, B,T, of the log-probabilities B,T that it gave.

        Soft attention is run with the dropout of the draw, or the two would differ by more than where they looked.
        """
        if self.settings.estimator == "soft-baseline":
            with torch.no_grad(), _replay_rng(rng_state, sampled_log_probs.device):
                soft = _target_log_probs(self.decoder.decode_with_soft_attention(encoded, target_in).logits, target_out)
            return (
                (sampled_log_probs - soft).flip(1).cumsum(1).flip(1)
            )  # a place is answerable for what comes after it only
        whole = sampled_log_probs.sum(1, keepdim=True)
        advantage = (whole - self.baseline).expand_as(sampled_log_probs)
        if self.training:
            mean = whole.detach().mean().to(self.baseline.dtype)
            self.baseline.lerp_(torch.where(mean.isfinite(), mean, self.baseline), 0.1)  # what is no number would stay
        return advantage


def _get_rng_state(device: torch.device) -> Tensor:
    """Where the random numbers of a device stand."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def _replay_rng(state: Tensor, device: torch.device) -> Iterator[None]:
    """The random numbers from `state` on, once more; afterwards they go on where they were."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        if on_gpu:
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
        yield


def _target_log_probs(logits: Tensor, target_out: Tensor) -> Tensor:
    """log p(y_t) of each target token, B,T; 0 for PAD."""
    picked = log_probs(logits).gather(-1, target_out[..., None]).squeeze(-1)
    return picked.masked_fill(target_out == PAD, 0.0)


def attention_entropy(probabilities: Tensor) -> Tensor:
    """−Σ_s α_s log α_s: B,T,S -> B,T."""
    return -torch.xlogy(probabilities, probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)).sum(-1)


def build(settings: HardAttentionSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """The model of the settings."""
    attention_score = build_score(settings, settings.size, settings.memory_size, settings.score_hidden_size)
    decoder = HardAttentionDecoder(
        *build_decoder_parts(settings, target_size, Attention(attention_score, Hard())), settings
    )
    return HardAttentionModel(build_encoder(settings, source_size), decoder, criterion, settings)
