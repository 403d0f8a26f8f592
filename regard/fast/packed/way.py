"""When a Transformer's loss is added up without padding: unguided, on a CPU, or by Triton on a GPU in fp32 or bf16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from regard.console import say
from regard.fast.output import way as output
from regard.fast.output.way import precision, takes
from regard.fast.packed import stack
from regard.fast.packed.batch import Given, Sizes, folded, heard, packed, unfolded
from regard.fast.packed.lean import LEAN
from regard.fast.packed.parts import Parts
from regard.fast.packed.replay import LossRecorder, aliased
from regard.models import seq2seq
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    PostNorm,
    PreNorm,
    TransformerDecoder,
    TransformerEncoder,
)
from regard.nn import MultiHeadAttention

FIRST = 50  # batches that go the readable way: compiling kernels takes seconds, and is not to make a short run longer
KNOWN = {
    *(EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward, PreNorm, PostNorm),
    *(nn.ModuleList, nn.Linear, nn.LayerNorm, nn.ReLU, nn.Dropout, nn.Identity),
}


def covers(model: Seq2Seq) -> bool:
    """Whether this is the Transformer that `stack` knows, not one that somebody made of it.

    Of the embeddings nothing need be known: they are called as they are.
    """
    encoder, decoder = model.encoder, model.decoder
    if (type(model), type(encoder), type(decoder)) != (Seq2Seq, TransformerEncoder, TransformerDecoder):
        return False
    assert isinstance(encoder, TransformerEncoder)
    assert isinstance(decoder, TransformerDecoder)
    inside = [part for each in (encoder.layers, encoder.norm, decoder.layers, decoder.norm) for part in each.modules()]
    heard = any(map(output.heard, (*inside, decoder.output)))
    kinds = {type(part) for part in inside}
    return kinds <= KNOWN and not {PreNorm, PostNorm} <= kinds and decoder.output.bias is None and not heard


class Packed:
    """The loss of a batch, summed up; by the readable way where there is something that this one does not know."""

    def __init__(self) -> None:
        self.recorder = LossRecorder()
        self.batches = 0
        self.tried: dict[torch.dtype, bool] = {}  # whether the kernels do, by precision

    def __reduce__(self) -> tuple[type[Packed], tuple[()]]:
        """A copy begins anew: recordings are of one model's weights, where these are."""
        return Packed, ()

    def __call__(
        self,
        model: Seq2Seq,
        source: Tensor,
        lengths: Tensor,
        target_in: Tensor,
        target_out: Tensor,
        guide: Tensor | None,
    ) -> Tensor:
        """A scalar."""
        self.batches += model.training
        given = (source, lengths, target_in, target_out)
        ready = self.batches > FIRST and source.is_cuda and guide is None and takes(model)
        fused = parts() if ready else None
        found = None if fused is None else self.packed(model, given, fused)
        if guide is None and leans(model):
            found = leanly(model, given)
        return seq2seq.added_up(model, source, lengths, target_in, target_out, guide) if found is None else found

    def packed(self, model: Seq2Seq, given: Given, fused: Parts) -> Tensor | None:
        """Without padding; None where a source has no word, which is the readable way's to handle, or kernels fail."""
        sizes, kind = counted(given), precision(model)
        if sizes is None:
            return None
        r_drop = model.criterion.settings.r_drop if model.training else 0.0
        learns = torch.is_grad_enabled() and model.training

        def loss() -> Tensor:
            return stack.summed(model, packed(*given, sizes, 2 if r_drop else 1), r_drop, kind, fused)

        if learns and kind not in self.tried:
            self.tried[kind] = works(model, loss)
        if not self.tried.get(kind):
            return None
        found = self.recorded(model, given, sizes, r_drop, fused) if learns else None
        return loss() if found is None else found

    def recorded(self, model: Seq2Seq, given: Given, sizes: Sizes, r_drop: float, fused: Parts) -> Tensor | None:
        """By a CUDA graph, where sizes like these have come before."""
        from regard.fast.kernels import power
        from regard.fast.packed.fused import longest as most

        source, target, kind = given[0].shape[1], given[2].shape[1], precision(model)
        if max(source, target) > most(kind):
            return None
        alike, longest = sizes.rounded(source, target), (power(source), power(target))

        def compute(inputs: Sequence[Tensor]) -> Tensor:
            return stack.summed(model, unfolded(inputs, *longest), r_drop, kind, fused)

        inputs = folded(packed(*given, alike, 2 if r_drop else 1))
        dropped = tuple(part.p * part.training for part in model.modules() if isinstance(part, nn.Dropout))
        name = (alike, longest, kind, model.criterion.settings, dropped)
        return self.recorder.loss(name, model, compute, inputs)


def counted(given: Given) -> Sizes | None:
    """How much there is in a batch; None where a source has no word, or no target has."""
    source, lengths, target_in, target_out = given
    least, *words = torch.stack((lengths.min(), lengths.sum(), heard(target_in, target_out).sum())).tolist()
    return Sizes(len(source), *words) if least and words[1] else None


def leans(model: Seq2Seq) -> bool:
    """Whether the parts for a CPU do, which know nothing of R-Drop."""
    return covers(model) and output.here(model) and not (model.training and model.criterion.settings.r_drop)


def leanly(model: Seq2Seq, given: Given) -> Tensor | None:
    """The loss on a CPU."""
    sizes = counted(given)
    if sizes is None:
        return None
    return stack.summed(model, packed(*given, sizes, 1), 0.0, next(model.parameters()).dtype, LEAN)


def works(model: Seq2Seq, loss: Callable[[], Tensor]) -> bool:
    """Whether the kernels compile for this model and this card, there and back; if not, that is said."""
    try:
        with aliased(model) as leaves:
            torch.autograd.grad(loss(), leaves, allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton has many ways to fail, and its own errors
        say(f"training goes without fused kernels: {' '.join(str(error).split())[:200]}")
        return False
    return True


@cache
def parts() -> Parts | None:
    """The fused parts, where there is Triton; where there is none, that is said once."""
    try:
        from regard.fast.packed import fused
    except ImportError as error:
        say(f"training goes without fused kernels: {error}")
        return None
    return fused.FUSED
