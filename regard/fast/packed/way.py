"""When a Transformer's loss is added up without padding: on a GPU with Triton, in fp32 or bf16, unguided."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from regard.console import say
from regard.fast.packed import stack
from regard.fast.packed.batch import Batch, Sizes, packed
from regard.fast.packed.parts import Parts
from regard.fast.packed.replay import Recorder
from regard.fast.packed.spans import Spans
from regard.models import seq2seq
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import TransformerDecoder, TransformerEncoder
from regard.symbols import PAD

FIRST = 50  # batches that go the readable way: compiling kernels takes seconds, and is not to make a short run longer


def covers(model: Seq2Seq) -> bool:
    """Whether this is the Transformer that `stack` knows, not one that somebody made of it."""
    kinds = type(model), type(model.encoder), type(model.decoder)
    return kinds == (Seq2Seq, TransformerEncoder, TransformerDecoder)


class Packed:
    """The loss of a batch, summed up; by the readable way where there is something that this one does not know."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.batches = 0

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
        ready = self.batches > FIRST and source.is_cuda and guide is None and takes(model)
        fused = parts() if ready else None
        words = torch.stack((lengths.min(), lengths.sum(), (target_in != PAD).sum())).tolist() if fused else [0]
        if fused is None or not words[0]:  # a source without a word is the readable way's to handle
            return seq2seq.added_up(model, source, lengths, target_in, target_out, guide)
        given = source, lengths, target_in, target_out
        sizes = Sizes(len(source), *words[1:])
        r_drop = model.criterion.settings.r_drop if model.training else 0.0
        found = self.recorded(model, given, sizes, r_drop, fused)
        if found is None:
            found = stack.summed(model, packed(*given, sizes, 2 if r_drop else 1), r_drop, precision(model), fused)
        return found

    def recorded(
        self, model: Seq2Seq, given: tuple[Tensor, Tensor, Tensor, Tensor], sizes: Sizes, r_drop: float, fused: Parts
    ) -> Tensor | None:
        """By a CUDA graph, where sizes like these have come before and there is something to learn."""
        from regard.fast.packed.fused import LONGEST, power

        source, target = given[0].shape[1], given[2].shape[1]
        if not torch.is_grad_enabled() or not model.training or max(source, target) > LONGEST:
            return None
        alike, kind = sizes.rounded(source, target), precision(model)
        longest = power(source), power(target)

        def compute(inputs: Sequence[Tensor]) -> Tensor:
            source, a, b, c, target_in, target_out, d, e, f = inputs
            there, here = Spans(a, b, c, longest[0]), Spans(d, e, f, longest[1])
            return stack.summed(model, Batch(source, there, target_in, target_out, here), r_drop, kind, fused)

        batch = packed(*given, alike, 2 if r_drop else 1)
        inputs = batch.source, *batch.there[:3], batch.target_in, batch.target_out, *batch.here[:3]
        return self.recorder.loss((alike, longest, kind), model, compute, inputs)


def precision(model: Seq2Seq) -> torch.dtype:
    """What matrix products are to be counted in."""
    weight = next(model.parameters())
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else weight.dtype


def takes(model: Seq2Seq) -> bool:
    """Whether the weights are here whole, and counted with as the kernels do."""
    return type(next(model.parameters())) is nn.Parameter and precision(model) in (torch.float32, torch.bfloat16)


@cache
def parts() -> Parts | None:
    """The fused parts, if they can be compiled here; if not, that is said once."""
    try:
        from regard.fast.packed import fused

        fused.sums(torch.ones(1, 1, device="cuda"))
    except Exception as error:  # Triton has many ways to fail: it, its compiler or the card may not be there
        say(f"training goes without fused kernels: {' '.join(str(error).split())[:200]}")
        return None
    return fused.FUSED
