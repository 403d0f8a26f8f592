"""Packed loss of a Transformer, without padding: eligibility, forward pass, and CUDA graphs.

The loss is that of `Seq2Seq.loss_sum` with the same modules and parameters. The projections of the source for all
decoder layers are one matrix product, and a residual connection and the norm that follows are one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.console import log_message
from regard.fast.cuda_graphs.buckets import reach
from regard.fast.cuda_graphs.cache import LossRecorder
from regard.fast.cuda_graphs.function import aliased
from regard.fast.eligibility import EMBEDDING_PARTS, KNOWN, Listeners, Outline, here, precision, takes
from regard.fast.selftest import succeeds
from regard.fast.training.linear_cross_entropy import say_padded
from regard.fast.training.packed.batch import Batch, Given, Sizes, Spans, packed, roomy
from regard.fast.training.packed.ops import Parts
from regard.fast.training.packed.ops_cpu import LEAN
from regard.models.base import Seq2Seq
from regard.models.losses import CrossEntropy, default_loss_sum
from regard.models.vaswani2017 import (
    DecoderLayer,
    EncoderLayer,
    PostNorm,
    PreNorm,
    Residual,
    TransformerDecoder,
    TransformerEmbedding,
    TransformerEncoder,
)
from regard.nn import MultiHeadAttention

FIRST = 50  # batches that go the readable way: compiling kernels takes seconds, and is not to make a short run longer
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
            return summed(model, packed(*given, sizes, 2 if r_drop else 1), r_drop, kind, fused)

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
            return summed(model, batch, r_drop, kind, fused)

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
    return summed(model, packed(*given, sizes, 1), 0.0, next(model.parameters()).dtype, LEAN)


def there_and_back(model: Seq2Seq, loss: Callable[[], Tensor]) -> None:
    """A loss and all its gradients, which are nobody's."""
    with aliased(model) as leaves:
        torch.autograd.grad(loss(), leaves, allow_unused=True)


@cache
def parts() -> Parts | None:
    """The fused parts, where there is Triton; where there is none, that is said once."""
    try:
        from regard.fast.training.packed import ops_triton as fused
    except ImportError as error:
        log_message(f"training goes without kernels of its own: {error}")
        return None
    return fused.FUSED


class Flow:
    """A stream of words through sub-layers: x as it is, and `read`, which the next sub-layer reads.

    With the norm before each sub-layer the stream is the sum, and the norm behind a link is that of the sub-layer
    after; with the norm behind, it is its own, and the stream is what it gives.
    """

    def __init__(
        self, parts: Parts, x: Tensor, residuals: Sequence[Residual], last: nn.Module, kind: torch.dtype
    ) -> None:
        self.parts = parts
        self.pre = isinstance(residuals[0], PreNorm)
        norms = [residual.norm for residual in residuals]
        self.x, self.read = x, x.to(kind)
        if self.pre:
            first = norms.pop(0)
            assert isinstance(last, nn.LayerNorm)
            norms.append(last)
            self.read = F.layer_norm(x, x.shape[1:], first.weight, first.bias, first.eps).to(kind)
        self.after = iter(zip(residuals, norms, strict=True))

    def leave(self, y: Tensor, bias: Tensor) -> None:
        """A sub-layer gave y, which lacks its bias."""
        residual, norm = next(self.after)
        dropout = residual.dropout.p if residual.dropout.training else 0.0
        self.x, self.read = self.parts.add_norm(
            self.x, y, bias, norm.weight, norm.bias, norm.eps, dropout, not self.pre
        )

    def attended(self, heads: Tensor, attention: MultiHeadAttention) -> None:
        """W^O of all heads."""
        self.leave(self.parts.linear(heads, attention.out_proj.weight, None), attention.out_proj.bias)

    def self_attention(self, attention: MultiHeadAttention, words: Spans, causal: bool) -> None:
        """Each sentence over itself."""
        qkv = self.parts.linear(self.read, attention.in_proj_weight, attention.in_proj_bias)
        self.attended(self.parts.attend_self(qkv, words, attention.heads, causal), attention)

    def cross_attention(self, attention: MultiHeadAttention, kv: Tensor, words: Spans, source: Spans) -> None:
        """Each sentence over its source, projected."""
        size = attention.size
        q = self.parts.linear(self.read, attention.in_proj_weight[:size], attention.in_proj_bias[:size])
        self.attended(self.parts.attend(q, kv, words, source, attention.heads), attention)

    def feed_forward(self, network: nn.Sequential) -> None:
        """Word by word."""
        first, _, second = network
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        self.leave(self.parts.feed_forward(self.read, first.weight, first.bias, second.weight), second.bias)


def embedded(embedding: TransformerEmbedding, ids: Tensor, words: Spans) -> Tensor:
    """Ids N -> N,size: each word is a row of its own, that begins at its place."""
    x: Tensor = embedding(ids[:, None], words.places)
    return x[:, 0]


def encoded(encoder: TransformerEncoder, ids: Tensor, words: Spans, parts: Parts, kind: torch.dtype) -> Tensor:
    """Ids N -> the memory N,size."""
    layers: list[EncoderLayer] = list(encoder.layers)  # type: ignore[arg-type]
    residuals = [link for layer in layers for link in (layer.around_attention, layer.around_feedforward)]
    flow = Flow(parts, embedded(encoder.embedding, ids, words), residuals, encoder.norm, kind)
    for layer in layers:
        flow.self_attention(layer.attention, words, causal=False)
        flow.feed_forward(layer.feedforward)
    return flow.read


def decoded(
    decoder: TransformerDecoder, memory: Tensor, source: Spans, ids: Tensor, words: Spans, parts: Parts
) -> Tensor:
    """Ids N over a memory M,size -> what the output layer reads, N,size."""
    layers = decoder.decoder_layers()
    residuals = [
        link
        for layer in layers
        for link in (layer.around_attention, layer.around_cross_attention, layer.around_feedforward)
    ]
    flow = Flow(parts, embedded(decoder.embedding, ids, words), residuals, decoder.norm, memory.dtype)
    for layer, kv in zip(layers, projected(layers, memory, parts), strict=True):
        flow.self_attention(layer.attention, words, causal=True)
        flow.cross_attention(layer.cross_attention, kv, words, source)
        flow.feed_forward(layer.feedforward)
    return flow.read


def projected(layers: Sequence[DecoderLayer], memory: Tensor, parts: Parts) -> tuple[Tensor, ...]:
    """Keys and values of the source for each layer, M,2·size."""
    attentions = [layer.cross_attention for layer in layers]
    weight = torch.cat([attention.in_proj_weight[attention.size :] for attention in attentions])
    bias = torch.cat([attention.in_proj_bias[attention.size :] for attention in attentions])
    return parts.linear(memory, weight, bias).chunk(len(layers), 1)


def summed(model: Seq2Seq, batch: Batch, r_drop: float, kind: torch.dtype, parts: Parts) -> Tensor:
    """The loss of a batch, summed up; R-Drop's second pass is the second half of it."""
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder, TransformerEncoder)
    assert isinstance(decoder, TransformerDecoder)
    with torch.autocast(batch.source.device.type, enabled=False):
        memory = encoded(encoder, batch.source, batch.there, parts, kind)
        h = decoded(decoder, memory, batch.there, batch.target_in, batch.here, parts)
        smoothing = model.criterion.settings.label_smoothing
        return parts.losses(h, decoder.output.weight, None, batch.target_out, smoothing, r_drop)
