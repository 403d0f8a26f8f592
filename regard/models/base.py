"""What training knows of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models import decoder_state
from regard.models.losses import CrossEntropy
from regard.nn import Attended, Memory


class Model(nn.Module):
    """Something with a loss. A batch is handed to it field by field."""

    loss_sum: Callable[..., Tensor]  # a batch -> what training minimises, summed up over it
    loss_count: Callable[..., Tensor]  # a batch -> what that sum is divided by

    def fsdp_units(self) -> list[nn.Module]:
        """The parts whose weights are needed one part after the other, so that they may lie apart until then."""
        return []


class Encoded(NamedTuple):
    """What an encoder leaves: the memory that attention reads, and the state that a decoder starts from, if any."""

    memory: Memory
    state: Any


class Decoded(NamedTuple):
    """Logits B,T,V of a whole target, and what was attended to at each position, if anything was."""

    logits: Tensor
    attended: Attended | None


class AlignmentHead(NamedTuple):
    """Of several looks at the source, whose is given out: a layer's, from 0, and of its heads one, or their mean.

    `after`: where a step looks says less of the word that it writes than of the one before, which it has read (Chen et
    al. 2020, section 3.2); an alignment takes each word's look from the step after it.
    """

    layer: int = -1
    head: int | None = None
    shifted: bool = False

    def shift_guide(self, guide: Tensor) -> Tensor:
        """What is asked of words B,T,S, as it is asked of the steps whose looks are theirs."""
        return torch.cat((torch.zeros_like(guide[:, :1]), guide[:, :-1]), 1) if self.shifted else guide


class Encoder(nn.Module):
    """Source ids B,S, right-padded, and lengths B -> Encoded."""

    def forward(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Reads a batch of sources."""
        raise NotImplementedError

    def fsdp_units(self) -> list[nn.Module]:
        """The parts whose weights are needed one part after the other, so that they may lie apart until then."""
        return []


class Decoder(nn.Module):
    """The interface that training and search know."""

    alignment_head = AlignmentHead()
    supports_shared_memory = False  # whether states can be widened; `select` is for those that cannot
    computation_order: tuple[str, ...] = ()  # what one step computes, one after the other, in the paper's symbols

    def forward(self, encoded: Encoded, target_in: Tensor) -> Decoded:
        """Teacher forcing: target_in B,T begins with BOS. The same numbers as repeated `step`."""
        raise NotImplementedError

    def hidden_states(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, Attended | None]:
        """Teacher forcing up to the output layer, the last of `vocabulary`: B,T,· that it makes logits of."""
        raise NotImplementedError

    def start(self, encoded: Encoded) -> Any:
        """The state before the first token."""
        raise NotImplementedError

    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, Any, Attended | None]:
        """One token for each row, B -> log-probabilities of the next one B,V, the new state, attention with T = 1."""
        raise NotImplementedError

    def plot_state(self, state: Any) -> Tensor | None:
        """The vectors B,n that stand for a state in a picture, if any do."""
        return None

    def attentional_vector(self, state: Any) -> Tensor | None:
        """The vectors h̃ B,n of a state, made of what was seen and what was in mind, where the order has such."""
        return None

    def alignment_heads(self) -> list[AlignmentHead]:
        """What `viewpoint` may be set to, where a model looks at the source from more than one."""
        return []

    def attention_by_head(self, encoded: Encoded, target_in: Tensor) -> list[Tensor]:
        """Teacher forcing: where each of the viewpoints looks, B,T,S, in their order."""
        return []

    def fsdp_units(self) -> list[nn.Module]:
        """The parts whose weights are needed one part after the other; what each does is `forward` and `project`."""
        return []

    def vocabulary_layers(self) -> list[nn.Module]:
        """The layers whose weights have a row for each target word; none where it cannot do with fewer words."""
        return []

    def select(self, state: Any, rows: Tensor) -> Any:
        """The state of the given rows: reorders, widens or narrows a beam."""
        return decoder_state.select(state, rows)

    def expand_beams(self, state: Any, width: int) -> Any:
        """Every row so many times, one behind the other, as the hypotheses of a beam: they share their source."""
        return decoder_state.expand_beams(state, width)

    def reorder_beams(self, state: Any, rows: Tensor) -> Any:
        """Rows of a state that was widened, each of which stays within its source."""
        return decoder_state.reorder_beams(state, rows)

    def keep_rows(self, state: Any, rows: Tensor, sources: Tensor) -> Any:
        """Rows of a state that was widened, of the sources, by their places among all, that are left."""
        return decoder_state.keep_rows(state, rows, sources)

    def concat_states(self, first: Any, second: Any) -> Any:
        """The rows of one state, then those of another, which may have come further or not so far."""
        return decoder_state.concat_states(first, second)

    def trim_padding(self, state: Any, source_length: int, target_length: int) -> Any:
        """The state without padding: no row has more source positions, or more tokens behind it, than this."""
        return decoder_state.trim_padding(state, source_length)


class LossFunction(Protocol):
    """How the loss of a batch is added up."""

    def __call__(
        self,
        model: Seq2Seq,
        source: Tensor,
        lengths: Tensor,
        target_in: Tensor,
        target_out: Tensor,
        guide: Tensor | None,
        /,
    ) -> Tensor:
        """A scalar."""
        ...


class Seq2Seq(Model):
    """An encoder, a decoder and what to minimise."""

    def __init__(self, encoder: Encoder, decoder: Decoder, criterion: CrossEntropy) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.criterion = criterion
        self.loss_fn: LossFunction = default_loss_sum  # a faster one may take its place
        self.device_search: Any = None  # a search of its own that finds the same, where there is a faster one
        self.make_fast_decoder: Callable[[Decoder], Any] | None = (
            None  # gives a decoder that takes the same steps, but faster
        )

    def encode(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Source ids B,S, right-padded, EOS at the end of each; lengths B count it."""
        encoded: Encoded = self.encoder(source, lengths)
        return encoded

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor) -> Tensor:
        """Logits B,T,V of the token that follows each of target_in B,T."""
        decoded: Decoded = self.decoder(self.encode(source, lengths), target_in)
        return decoded.logits

    def loss(
        self, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, guide: Tensor | None = None
    ) -> Tensor:
        """What training minimises, a scalar: per token or per sentence, as the recipe says.

        `guide` B,T,S is where each target token should look, for guided alignment training.
        """
        summed = self.loss_sum(source, lengths, target_in, target_out, guide)
        return summed / self.loss_count(source, lengths, target_in, target_out).clamp(min=1)

    def loss_count(
        self, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, guide: Tensor | None = None
    ) -> Tensor:
        """What a sum over a batch is divided by."""
        return self.criterion.loss_count(target_out)

    def fsdp_units(self) -> list[nn.Module]:
        """Those of both halves."""
        return [*self.encoder.fsdp_units(), *self.decoder.fsdp_units()]

    def loss_sum(
        self, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, guide: Tensor | None = None
    ) -> Tensor:
        """The same, summed up over a batch: what batches that make one update together are added up by."""
        return self.loss_fn(self, source, lengths, target_in, target_out, guide)

    def decode_and_loss(self, encoded: Encoded, target_in: Tensor, target_out: Tensor) -> tuple[Tensor, Decoded]:
        """The loss of a batch, summed up, and what it was computed from."""
        decoded: Decoded = self.decoder(encoded, target_in)
        return self.criterion(decoded.logits, target_out), decoded


def default_loss_sum(
    model: Seq2Seq, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, guide: Tensor | None
) -> Tensor:
    """The loss of a batch, summed up. R-Drop passes every pair twice, and wants the two to agree."""
    criterion = model.criterion
    passes = 2 if model.training and criterion.settings.r_drop else 1
    if passes == 2:
        source, lengths, target_in, target_out = (
            torch.cat([each, each]) for each in (source, lengths, target_in, target_out)
        )
        guide = None if guide is None else torch.cat([guide, guide])
    total, decoded = model.decode_and_loss(model.encode(source, lengths), target_in, target_out)
    if guide is not None:
        if decoded.attended is None:
            raise UserError("loss.guided: a model without attention cannot be guided by alignments")
        total = total + criterion.guided_alignment_loss(
            decoded.attended, model.decoder.alignment_head.shift_guide(guide)
        )
    if passes == 2:
        total = total / 2 + criterion.r_drop_loss(decoded.logits, target_out)
    return total


def log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities …,V, in single precision at the least."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
