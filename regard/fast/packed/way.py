"""When a Transformer's loss is added up without padding: unguided, on a CPU, or by Triton on a GPU in fp32 or bf16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from regard.console import log_message
from regard.fast.hearing import Listeners
from regard.fast.outline import Outline
from regard.fast.output.way import here, precision, say_padded, takes
from regard.fast.packed import stack
from regard.fast.packed.batch import Given, Sizes, packed, reach, roomy
from regard.fast.packed.lean import LEAN
from regard.fast.packed.parts import Parts
from regard.fast.packed.replay import LossRecorder, aliased
from regard.fast.trial import succeeds
from regard.models.base import Seq2Seq
from regard.models.losses import CrossEntropy, default_loss_sum
from regard.models.vaswani2017 import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    PostNorm,
    PreNorm,
    TransformerDecoder,
    TransformerEmbedding,
    TransformerEncoder,
)
from regard.nn import LearnedPositions, MultiHeadAttention, NoPositions, SinusoidalPositions

FIRST = 50  # batches that go the readable way: compiling kernels takes seconds, and is not to make a short run longer
KNOWN = {
    *(EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward, PreNorm, PostNorm),
    *(nn.ModuleList, nn.Linear, nn.LayerNorm, nn.ReLU, nn.Dropout, nn.Identity),
}
EMBEDDING_PARTS = {TransformerEmbedding, nn.Embedding, nn.Dropout, SinusoidalPositions, LearnedPositions, NoPositions}
OUTER: dict[str, type[nn.Module]] = {
    "": Seq2Seq,
    "encoder": TransformerEncoder,
    "decoder": TransformerDecoder,
    "encoder.embedding": TransformerEmbedding,
    "decoder.embedding": TransformerEmbedding,
}


def covers(model: Seq2Seq) -> bool:
    """Whether this is the Transformer that `stack` knows, without changed parts."""
    return find_obstacle(model) is None


def find_obstacle(model: Seq2Seq) -> str | None:
    """Return why `stack` cannot compute the loss of a model, or None if it can.

    Embeddings are called with one word a row, so they must be position-wise, as regard's own are.
    """
    for path, kind in OUTER.items():
        part = model.get_submodule(path)
        if type(part) is not kind:
            return f"{path or 'the model'} is of class {type(part).__name__}"
    parts = within(model)[2:]
    unknown = next((part for part in parts if type(part) not in KNOWN | EMBEDDING_PARTS), None)
    if unknown is not None:
        path = next(path for path, part in model.named_modules() if part is unknown)
        return f"{path} is of class {type(unknown).__name__}"
    if {PreNorm, PostNorm} <= set(map(type, parts)):
        return "it has both PreNorm and PostNorm layers"
    if model.get_submodule("decoder.output").bias is not None:
        return "decoder.output has a bias"
    criterion = type(model.criterion)
    return None if criterion is CrossEntropy else f"the criterion is of class {criterion.__name__}"


def within(model: Seq2Seq) -> list[nn.Module]:
    """List the modules that `stack` replaces, or calls with other shapes: encoder, decoder and their parts."""
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder, TransformerEncoder)
    assert isinstance(decoder, TransformerDecoder)
    parts = (
        *(encoder.embedding, encoder.layers, encoder.norm),
        *(decoder.embedding, decoder.layers, decoder.norm, decoder.output),
    )
    return [encoder, decoder, *(part for each in parts for part in each.modules())]


class Packed:
    """The loss of a batch, summed up; by the readable way where there is something that this one does not know."""

    def __init__(self) -> None:
        self.recorder = LossRecorder()
        self.batches = 0
        self.tried: dict[torch.dtype, bool] = {}  # whether the kernels do, by precision
        self.outline: Outline | None = None  # of the model that was last asked for
        self.known: Listeners | None = None  # to what of it is stood in for, where `stack` knows it
        self.has_said_why = False  # batches are padded

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
        found = self.quick(model, given) if guide is None else None
        return default_loss_sum(model, source, lengths, target_in, target_out, guide) if found is None else found

    def quick(self, model: Seq2Seq, given: Given) -> Tensor | None:
        """By kernels, or on a CPU by parts for it; None where neither will do."""
        known = self.knows(model)
        if known is None:
            if model.training and not self.has_said_why:
                say_padded(find_obstacle(model) or "a module has a hook, or a method that is not its class's own")
                self.has_said_why = True
            return None
        if leans(model, known.weights):
            return leanly(model, given)
        ready = self.batches > FIRST and given[0].is_cuda and takes(known.weights)
        fused = parts() if ready else None
        return None if fused is None else self.packed(model, known, given, fused)

    def knows(self, model: Seq2Seq) -> Outline | None:
        """The model's, if it still is one that `stack` knows; recordings of what it was before are given up."""
        if self.outline is None or not self.outline.fits(model):
            known = Listeners(within(model)) if covers(model) else None
            self.outline, self.known, self.recorder = Outline(model), known, LossRecorder()
        same = self.known is not None and type(model.criterion) is CrossEntropy and not self.known.heard()
        return self.outline if same else None

    def packed(self, model: Seq2Seq, known: Outline, given: Given, fused: Parts) -> Tensor | None:
        """Without padding; None where a source has no word, which is the readable way's to handle, or kernels fail."""
        sizes, kind = counted(given, fused), precision(known.weights[0])
        if sizes is None:
            return None
        r_drop = model.criterion.settings.r_drop if model.training else 0.0
        learns = torch.is_grad_enabled() and model.training

        def loss() -> Tensor:
            return stack.summed(model, packed(*given, sizes, 2 if r_drop else 1), r_drop, kind, fused)

        if learns and kind not in self.tried:
            self.tried[kind] = succeeds("training", lambda: there_and_back(model, loss))
        if not self.tried.get(kind):
            return None
        found = self.recorded(model, known, given, sizes, r_drop, fused) if learns else None
        return loss() if found is None else found

    def recorded(
        self, model: Seq2Seq, known: Outline, given: Given, sizes: Sizes, r_drop: float, fused: Parts
    ) -> Tensor | None:
        """By a CUDA graph, where sizes like these have come before."""
        source, target, kind = given[0].shape[1], given[2].shape[1], precision(known.weights[0])
        alike, longest = sizes.rounded(source, target), (reach(source), reach(target))

        def compute(given: Sequence[Tensor]) -> Tensor:
            ids, lengths, target_in, target_out = given
            batch = packed(ids, lengths, target_in, target_out, alike, 2 if r_drop else 1)
            return stack.summed(model, batch, r_drop, kind, fused)

        dropped = tuple([part.p * part.training for part in known.dropouts])
        name = (alike, longest, kind, model.criterion.settings, dropped)
        return self.recorder.loss(name, model, known.weights, compute, given, roomy(alike, *longest))


def counted(given: Given, parts: Parts) -> Sizes | None:
    """How much there is in a batch; None where a source has no word, or no target has."""
    source, lengths, target_in, target_out = given
    least, *words = parts.counts(lengths, target_in, target_out).tolist()
    return Sizes(len(source), *words) if least and words[1] else None


def leans(model: Seq2Seq, weights: Sequence[Tensor]) -> bool:
    """Whether the parts for a CPU do, which know nothing of R-Drop."""
    return here(weights) and not (model.training and model.criterion.settings.r_drop)


def leanly(model: Seq2Seq, given: Given) -> Tensor | None:
    """The loss on a CPU."""
    sizes = counted(given, LEAN)
    if sizes is None:
        return None
    return stack.summed(model, packed(*given, sizes, 1), 0.0, next(model.parameters()).dtype, LEAN)


def there_and_back(model: Seq2Seq, loss: Callable[[], Tensor]) -> None:
    """A loss and all its gradients, which are nobody's."""
    with aliased(model) as leaves:
        torch.autograd.grad(loss(), leaves, allow_unused=True)


@cache
def parts() -> Parts | None:
    """The fused parts, where there is Triton; where there is none, that is said once."""
    try:
        from regard.fast.packed import fused
    except ImportError as error:
        log_message(f"training goes without kernels of its own: {error}")
        return None
    return fused.FUSED
