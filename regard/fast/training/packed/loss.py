"""Packed loss of a Transformer, without padding: eligibility, forward pass, and CUDA graphs.

The loss is that of `Seq2Seq.loss_sum` with the same modules and parameters. The projections of the source for all
decoder layers are one matrix product, and a residual connection and the norm that follows are one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.cuda_graphs.buckets import bucket_length
from regard.fast.cuda_graphs.cache import LossGraph, LossGraphCache, use_detached_parameters
from regard.fast.eligibility import (
    HookMonitor,
    ModelFingerprint,
    compute_dtype,
    dropout_rate,
    find_transformer_obstacle,
    is_cpu_model,
)
from regard.fast.training.linear_cross_entropy import KernelLoss, PaddedBatch
from regard.fast.training.packed.batch import BatchSize, PackedBatch, Ragged, pack_batch
from regard.fast.training.packed.ops import CPU_OPS, PackedOps
from regard.models.base import CrossEntropy, Seq2Seq
from regard.models.vaswani2017 import (
    DecoderLayer,
    EncoderLayer,
    Residual,
    TransformerDecoder,
    TransformerEmbedding,
    TransformerEncoder,
)
from regard.nn import MultiHeadAttention
from regard.special_tokens import EOS


def find_obstacle(model: Seq2Seq) -> str | None:
    """Return why the packed loss does not support a model, or None.

    Embeddings are called with one token per row, so they must be position-wise, as regard's own are.
    """
    obstacle = find_transformer_obstacle(model)
    if obstacle is not None:
        return obstacle
    criterion = type(model.criterion)
    return None if criterion is CrossEntropy else f"the criterion is of class {criterion.__name__}"


class PackedLoss(KernelLoss):
    """Loss without padding."""

    def __init__(self) -> None:
        super().__init__("packed training", "regard.fast.training.packed.ops_triton")
        self.graph_cache = LossGraphCache()
        self.fingerprint: ModelFingerprint | None = None  # of the last model
        self.hook_monitor: HookMonitor | None = None  # of its replaced modules, if it is supported

    def __reduce__(self) -> tuple[type[PackedLoss], tuple[()]]:
        """Copies start without CUDA graphs, which belong to the weights of one model."""
        return PackedLoss, ()

    def compute(self, model: Seq2Seq, batch: PaddedBatch) -> Tensor | None:
        """Return the loss by Triton kernels, or on a CPU by its own operations; None if neither is possible."""
        fingerprint = self._find_supported_model(model)
        if fingerprint is None:
            if model.training and not self.has_logged_padding:  # finding the obstacle takes a millisecond
                self.log_padding(find_obstacle(model) or "a module has a hook, or a method that is not its class's own")
            return None
        is_training = torch.is_grad_enabled() and model.training
        if is_cpu_model(fingerprint.weights):
            ops = None if model.training and model.criterion.r_drop else CPU_OPS
        else:
            kernels = self.kernels.select(fingerprint.weights, is_training, partial(_try_kernels, model, batch))
            ops = None if kernels is None else kernels.TRITON_OPS
        size = None if ops is None else _measure_batch(batch, ops)
        if ops is None or size is None:
            return None
        has_graph = is_training and ops is not CPU_OPS
        loss = self._compute_by_graph(model, fingerprint, batch, size, ops) if has_graph else None
        return _compute_eagerly(model, batch, size, ops) if loss is None else loss

    def _find_supported_model(self, model: Seq2Seq) -> ModelFingerprint | None:
        """Return the fingerprint of a supported model, else None; graphs of a changed model are dropped."""
        if self.fingerprint is None or not self.fingerprint.matches(model):
            replaced = [*model.encoder.modules(), *model.decoder.modules()]  # not called, or with other shapes
            self.hook_monitor = HookMonitor(replaced) if find_obstacle(model) is None else None
            self.fingerprint, self.graph_cache = ModelFingerprint(model), LossGraphCache()
        if type(model.criterion) is not CrossEntropy:
            return None
        is_unmodified = self.hook_monitor is not None and not self.hook_monitor.has_hooks_or_overrides()
        return self.fingerprint if is_unmodified else None

    def _compute_by_graph(
        self, model: Seq2Seq, fingerprint: ModelFingerprint, batch: PaddedBatch, size: BatchSize, ops: PackedOps
    ) -> Tensor | None:
        """Return the loss by a CUDA graph if batches of similar size have come before, else None."""
        source, target = batch[0].shape[1], batch[2].shape[1]
        bucket, S, T = size.round_up(source, target), bucket_length(source), bucket_length(target)
        shapes = [(bucket.pairs, S), (bucket.pairs,), (bucket.pairs, T), (bucket.pairs, T)]
        dropout_rates = tuple([part.p * part.training for part in fingerprint.dropouts])
        dtype = compute_dtype(fingerprint.weights[0])
        key = (bucket, S, T, dtype, model.criterion, dropout_rates)

        def compute(inputs: Sequence[Tensor]) -> Tensor:
            return _compute_eagerly(model, inputs, bucket, ops)

        make = partial(LossGraph, model, compute, batch, shapes)
        return self.graph_cache.compute_loss(key, fingerprint.weights, batch, make)


def _measure_batch(batch: PaddedBatch, ops: PackedOps) -> BatchSize | None:
    """Return the size of a batch; None if a source, or every target, is empty."""
    source, lengths, target_in, target_out = batch
    shortest, *words = ops.count_tokens(lengths, target_in, target_out).tolist()
    return BatchSize(len(source), *words) if shortest and words[1] else None


def _compute_eagerly(model: Seq2Seq, batch: Sequence[Tensor], size: BatchSize, ops: PackedOps) -> Tensor:
    """Return the loss of a batch that is packed to this size, without a graph."""
    source, lengths, target_in, target_out = batch
    r_drop = model.criterion.r_drop if model.training else 0.0
    packed = pack_batch(source, lengths, target_in, target_out, size, 2 if r_drop else 1)
    return compute_packed_loss(model, packed, r_drop, compute_dtype(next(model.parameters())), ops)


def _try_kernels(model: Seq2Seq, batch: PaddedBatch, kernels: Any) -> None:
    """Run all kernels, forward and backward, for this batch, or for one of a single token if it has an empty side."""
    size = _measure_batch(batch, kernels.TRITON_OPS)
    if size is None:
        ids, lengths = batch[0].new_full((1, 1), EOS), batch[1].new_ones(1)
        batch, size = (ids, lengths, ids, ids), BatchSize(1, 1, 1)
    with use_detached_parameters(model) as leaves:
        loss = _compute_eagerly(model, batch, size, kernels.TRITON_OPS)
        torch.autograd.grad(loss, leaves, allow_unused=True)


class ResidualStream:
    """Residual stream x through sub-layers, and the input of the next sub-layer.

    Pre-norm: the stream is the sum, and the norm after a sub-layer is that of the next one. Post-norm: the stream is
    the output of its own norm.
    """

    def __init__(
        self,
        ops: PackedOps,
        x: Tensor,
        layers: Sequence[nn.Module],
        final_norm: nn.Module,
        dtype: torch.dtype,
        cast: Callable[[Tensor], Tensor] = lambda weight: weight,
    ) -> None:
        """`cast` returns the weights of matrix products as the operations read them."""
        self.ops, self.cast = ops, cast
        residuals = [link for layer in layers for link in layer.children() if isinstance(link, Residual)]
        self.is_pre_norm = residuals[0].is_pre_norm
        norms = [residual.norm for residual in residuals]
        self.x, self.layer_input = x, x.to(dtype)
        if self.is_pre_norm:
            first = norms.pop(0)
            assert isinstance(final_norm, nn.LayerNorm)
            norms.append(final_norm)
            self.layer_input = F.layer_norm(x, x.shape[1:], first.weight, first.bias, first.eps).to(dtype)
        self.residuals_and_norms = iter(zip(residuals, norms, strict=True))

    def add_sublayer(self, y: Tensor, bias: Tensor) -> None:
        """Add the output y of a sub-layer, which lacks its bias."""
        residual, norm = next(self.residuals_and_norms)
        dropout, post = dropout_rate(residual.dropout), not self.is_pre_norm
        self.x, self.layer_input = self.ops.add_norm(self.x, y, bias, norm.weight, norm.bias, norm.eps, dropout, post)

    def add_attention(self, attention: MultiHeadAttention, parts: int, attend: Callable[..., Tensor]) -> None:
        """Add attention; `attend` gets `parts` of queries, keys and values (N, parts·size), and the number of heads."""
        rows = parts * attention.size
        weight, bias = self.cast(attention.in_proj_weight)[:rows], self.cast(attention.in_proj_bias)[:rows]
        heads = attend(self.ops.linear(self.layer_input, weight, bias), heads=attention.heads)
        out = attention.out_proj
        self.add_sublayer(self.ops.linear(heads, self.cast(out.weight), None), out.bias)

    def add_feed_forward(self, network: nn.Sequential) -> None:
        """Add the feed-forward network."""
        first, activation, second = network
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        W_1, b_1, W_2 = map(self.cast, (first.weight, first.bias, second.weight))
        if isinstance(activation, nn.ReLU):
            y = self.ops.feed_forward(self.layer_input, W_1, b_1, W_2)
        else:
            y = self.ops.linear(activation(self.ops.linear(self.layer_input, W_1, b_1)), W_2, None)
        self.add_sublayer(y, second.bias)


def _embed(embedding: TransformerEmbedding, ids: Tensor, words: Ragged) -> Tensor:
    """Embed ids (N,) as (N, size): each token is a row that starts at its position."""
    x: Tensor = embedding(ids[:, None], words.positions)
    return x[:, 0]


def encode(encoder: TransformerEncoder, ids: Tensor, words: Ragged, ops: PackedOps, dtype: torch.dtype) -> Tensor:
    """Encode ids (N,) as a memory (N, size)."""
    layers: list[EncoderLayer] = list(encoder.layers)  # type: ignore[arg-type]
    stream = ResidualStream(ops, _embed(encoder.embedding, ids, words), layers, encoder.norm, dtype)
    for layer in layers:
        stream.add_attention(layer.attention, 3, partial(ops.self_attention, words=words, causal=False))
        stream.add_feed_forward(layer.feedforward)
    return stream.layer_input


def _decode(
    decoder: TransformerDecoder, memory: Tensor, source: Ragged, ids: Tensor, words: Ragged, ops: PackedOps
) -> Tensor:
    """Return the input of the output layer (N, size), for ids (N,) over a memory (M, size)."""
    layers = decoder.decoder_layers()
    stream = ResidualStream(ops, _embed(decoder.embedding, ids, words), layers, decoder.norm, memory.dtype)
    for layer, kv in zip(layers, _project_memory(layers, memory, ops), strict=True):
        stream.add_attention(layer.attention, 3, partial(ops.self_attention, words=words, causal=True))
        attend = partial(ops.cross_attention, kv=kv, queries=words, keys=source)
        stream.add_attention(layer.cross_attention, 1, attend)
        stream.add_feed_forward(layer.feedforward)
    return stream.layer_input


def _project_memory(layers: Sequence[DecoderLayer], memory: Tensor, ops: PackedOps) -> tuple[Tensor, ...]:
    """Return keys and values of the source for each layer, (M, 2·size)."""
    attentions = [layer.cross_attention for layer in layers]
    weight = torch.cat([attention.in_proj_weight[attention.size :] for attention in attentions])
    bias = torch.cat([attention.in_proj_bias[attention.size :] for attention in attentions])
    return ops.linear(memory, weight, bias).chunk(len(layers), 1)


def compute_packed_loss(
    model: Seq2Seq, batch: PackedBatch, r_drop: float, dtype: torch.dtype, ops: PackedOps
) -> Tensor:
    """Return the summed loss of a batch; R-Drop's second pass is its second half."""
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder, TransformerEncoder)
    assert isinstance(decoder, TransformerDecoder)
    with torch.autocast(batch.source.device.type, enabled=False):
        memory = encode(encoder, batch.source, batch.source_layout, ops, dtype)
        h = _decode(decoder, memory, batch.source_layout, batch.target_in, batch.target_layout, ops)
        smoothing = model.criterion.label_smoothing
        return ops.cross_entropy(h, decoder.output.weight, decoder.output.bias, batch.target_out, smoothing, r_drop)
