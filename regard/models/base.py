"""Base classes of all models: `Model`, `Encoder`, `Decoder` (forward/start/step/select) and `Seq2Seq`.

Their loss: cross-entropy with label smoothing, guided alignment, R-Drop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Fraction, NonNegativeFloat
from regard.errors import UserError
from regard.models import decoder_state
from regard.nn import Attended, Memory
from regard.special_tokens import PAD


class Model(nn.Module):
    """Base class of all models: a module with a loss. The fields of a batch are passed as positional arguments."""

    loss_sum: Callable[..., Tensor]  # a batch -> its summed loss
    loss_count: Callable[..., Tensor]  # a batch -> the number that the summed loss is divided by

    def loss(self, *batch: Tensor | None, **named: Tensor | None) -> Tensor:
        """Return the training loss of a batch, a scalar, given the arguments of `loss_sum`, also by name."""
        return self.loss_sum(*batch, **named) / self.loss_count(*batch, **named).clamp(min=1)

    def fsdp_units(self) -> list[nn.Module]:
        """Return the submodules to shard separately with FSDP."""
        return []


class Encoded(NamedTuple):
    """Output of an encoder: the memory that attention reads, and the initial decoder state, or None."""

    memory: Memory
    state: Any


class Decoded(NamedTuple):
    """Logits (B, T, V) of a whole target, and the attention of each position, or None."""

    logits: Tensor
    attended: Attended | None


class AlignmentHead(NamedTuple):
    """Cross-attention that is reported as the alignment: decoder `layer` (0-based) and `head` (None: mean over heads).

    `shifted`: the attention of a step often says less about the token that it predicts than about the previous token,
    which is its input (Chen et al. 2020, section 3.2). An alignment then takes the attention of a token from the step
    after it.
    """

    layer: int = -1
    head: int | None = None
    shifted: bool = False

    def shift_guide(self, guide: Tensor) -> Tensor:
        """Shift guided-alignment targets (B, T, S) one step to the right if `shifted`."""
        return torch.cat((torch.zeros_like(guide[:, :1]), guide[:, :-1]), 1) if self.shifted else guide


class Encoder(nn.Module):
    """Base class of encoders: source ids (B, S), right-padded, and lengths (B,) → `Encoded`."""

    def forward(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Encode a batch of sources."""
        raise NotImplementedError

    def fsdp_units(self) -> list[nn.Module]:
        """Return the submodules to shard separately with FSDP."""
        return []


class Decoder(nn.Module):
    """Base class of decoders: the interface that training and search use.

    A decoder has `start`, `step`, and `forward` or both of `hidden_states` and `vocabulary_layers`, which also serve
    faster losses and shortlists. Every other method has a default: `expand_beams` and the methods after it are for beam
    search, `alignment_heads` and `attention_by_head` for word alignment.
    """

    alignment_head = AlignmentHead()
    has_attention_sink = False  # whether punctuation of the source gets the attention that heads do not need
    supports_shared_memory = False  # whether `expand_beams` and its companions work; if not, search uses `select`
    # The quantities that one step computes, in order, in the paper's symbols; without a_t there is no attention.
    computation_order: tuple[str, ...] = ("a_t", "c_t")

    def forward(self, encoded: Encoded, target_in: Tensor) -> Decoded:
        """Run teacher forcing on target_in (B, T), which begins with BOS; equal to repeated `step`."""
        hidden, attended = self.hidden_states(encoded, target_in)
        return Decoded(self.vocabulary_layers()[-1](hidden), attended)

    def hidden_states(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, Attended | None]:
        """Run teacher forcing up to the output layer, the last of `vocabulary_layers`; return its input (B, T, ·)."""
        raise NotImplementedError

    def start(self, encoded: Encoded) -> Any:
        """Return the state before the first token."""
        raise NotImplementedError

    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, Any, Attended | None]:
        """Feed one token per row, (B,).

        Return log-probabilities of the next token (B, V), the new state, and the attention with T = 1.
        """
        raise NotImplementedError

    def plot_state(self, state: Any) -> Tensor | None:
        """Return the vectors (B, n) that represent a state in a plot, or None."""
        return None

    def attentional_vector(self, state: Any) -> Tensor | None:
        """Return Luong's attentional vector h̃_t (B, n), or None for decoders without one."""
        return None

    def alignment_heads(self) -> list[AlignmentHead]:
        """Return the possible values of `alignment_head`; empty if the model has a single cross-attention."""
        return []

    def attention_by_head(self, encoded: Encoded, target_in: Tensor) -> list[Tensor]:
        """Run teacher forcing and return the attention (B, T, S) of each of `alignment_heads`, in their order."""
        return []

    def fsdp_units(self) -> list[nn.Module]:
        """Return the submodules to shard separately with FSDP; each is called only by `forward` and `project`."""
        return []

    def vocabulary_layers(self) -> list[nn.Module]:
        """Return embedding and output layers indexed by target token.

        Empty if the decoder cannot use a restricted vocabulary.
        """
        return []

    def select(self, state: Any, rows: Tensor) -> Any:
        """Return the state of the given rows: reorders, repeats or removes hypotheses."""
        return decoder_state.select(state, rows)

    def expand_beams(self, state: Any, width: int) -> Any:
        """Repeat each row `width` times, for the hypotheses of a beam; they share the memory of their source."""
        return decoder_state.expand_beams(state, width)

    def reorder_beams(self, state: Any, rows: Tensor) -> Any:
        """Reorder the rows of an expanded state; each row stays within its source."""
        return decoder_state.reorder_beams(state, rows)

    def keep_rows(self, state: Any, rows: Tensor, sources: Tensor) -> Any:
        """Keep beam rows `rows` and the encoder memory of the unfinished `sources`."""
        return decoder_state.keep_rows(state, rows, sources)

    def concat_states(self, first: Any, second: Any) -> Any:
        """Concatenate two batches of decoder states that may be at different steps."""
        return decoder_state.concat_states(first, second)

    def trim_padding(self, state: Any, source_length: int, target_length: int) -> Any:
        """Remove padding: no row has more than `source_length` source positions or `target_length` previous tokens."""
        return decoder_state.trim_padding(state, source_length)


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


@dataclass
class Acceleration:
    """Implementations of the loss and of the search of a `Seq2Seq`; the defaults are the reference.

    `regard.fast.accelerate` gives a model faster ones with the same results. `make_decoder` returns the decoder whose
    steps a search calls; `search` is a whole beam search, which may return None to decline a request.
    """

    loss_sum: Callable[..., Tensor] = default_loss_sum
    make_decoder: Callable[[Decoder], Any] | None = None
    search: Any = None


class Seq2Seq(Model):
    """Encoder, decoder and training loss."""

    def __init__(self, encoder: Encoder, decoder: Decoder, criterion: CrossEntropy) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.criterion = criterion
        self.acceleration = Acceleration()

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Encode source ids (B, S), right-padded, each ending with EOS; lengths (B,) include it."""
        encoded: Encoded = self.encoder(source, lengths)
        return encoded

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor) -> Tensor:
        """Return logits (B, T, V) of the token that follows each token of target_in (B, T)."""
        decoded: Decoded = self.decoder(self.encode(source, lengths), target_in)
        return decoded.logits

    def loss_count(
        self, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, guide: Tensor | None = None
    ) -> Tensor:
        """Return the number that the summed loss of a batch is divided by: tokens or sentences."""
        return self.criterion.loss_count(target_out)

    def fsdp_units(self) -> list[nn.Module]:
        """Return the FSDP units of encoder and decoder."""
        return [*self.encoder.fsdp_units(), *self.decoder.fsdp_units()]

    def loss_sum(
        self, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, guide: Tensor | None = None
    ) -> Tensor:
        """Return the summed loss of a batch, so that the batches of one update can be added up.

        `guide` (B, T, S) is the target attention of each target token, for guided alignment training.
        """
        return self.acceleration.loss_sum(self, source, lengths, target_in, target_out, guide)

    def decode_and_loss(self, encoded: Encoded, target_in: Tensor, target_out: Tensor) -> tuple[Tensor, Decoded]:
        """Return the summed loss of a batch and the decoder output that it was computed from."""
        decoded: Decoded = self.decoder(encoded, target_in)
        return self.criterion(decoded.logits, target_out), decoded


def log_probs(logits: Tensor) -> Tensor:
    """Return log-probabilities (…, V), in fp32 at least."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
