"""Int8 inference of a Transformer on a CPU: quantization, and the kernels of `regard/fast/kernels/native/int8`.

The int8 model encodes as a `Seq2Seq` does, its decoder has the steps of a `KVCachedDecoder`, and greedy search runs
in C alone: between two chunks of steps Python allocates memory and handles signals.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence
from ctypes import addressof, byref
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast.decoding.kv_cache import BeamKVCache, KVCachedDecoder, KVState
from regard.fast.decoding.search_trace import SearchRequest, SearchTrace, find_best_hypotheses
from regard.fast.eligibility import find_transformer_obstacle, has_hooks_or_overrides, is_cpu_model
from regard.fast.kernels import build
from regard.fast.kernels.build import KernelUnavailableError, require_selftest
from regard.fast.selftest import check_products
from regard.models import Seq2Seq, vaswani2017
from regard.models.base import Acceleration
from regard.models.hypothesis import Hypothesis
from regard.models.vaswani2017 import DecoderLayer, EncoderLayer, TransformerDecoder, TransformerEncoder
from regard.nn import Attended, MultiHeadAttention, prefix_mask
from regard.special_tokens import BOS, EOS, PAD

FOLDER = build.SOURCES / "int8"


@cache
def get_struct(name: str) -> type[ctypes.Structure]:
    """Return a struct of `api.h`, which is read at first use: without that file only the kernels are unavailable."""
    return build.read_api(FOLDER)[0][name]


def load_kernels(*flags: str) -> ctypes.CDLL:
    """Load the C kernels with additional compiler flags, or raise a `KernelUnavailableError`."""
    return build.load_library(FOLDER, flags=flags)


GROUP, MIN_SCALE = 4, 1e-30  # as in `int8.h`
MAX_INT8 = 127


class QuantizedMatrix(NamedTuple):
    """W (out, in) in int8, with one scale per row."""

    rows: Tensor  # out,in
    scales: Tensor  # out
    bias: Tensor  # out

    def select_rows(self, rows: Tensor) -> QuantizedMatrix:
        """Return some rows."""
        return QuantizedMatrix(*(part.index_select(0, rows) for part in self))


def quantize_matrix(weight: Tensor, bias: Tensor | None = None) -> QuantizedMatrix:
    """Round to int8, with 127 for the largest number of each row."""
    top = weight.abs().amax(1).clamp(min=MIN_SCALE)
    rows = (weight * (MAX_INT8 / top)[:, None]).round().to(torch.int8)
    return QuantizedMatrix(rows, top / MAX_INT8, torch.zeros_like(top) if bias is None else bias)


class WeightArena:
    """Tensors and structs that C structs point to, kept alive as long as this object."""

    def __init__(self, kernels: ctypes.CDLL) -> None:
        self.panel_width: int = kernels.int8_panel_width()
        self.objects: list[object] = []

    def pin(self, x: Tensor) -> int:
        """Copy a tensor and return its address."""
        x = x.detach().clone(memory_format=torch.contiguous_format)  # a model may go on learning
        self.objects.append(x)
        return x.data_ptr()

    def product(self, matrix: QuantizedMatrix) -> ctypes.Structure:
        """A matrix in panels."""
        out, in_features = matrix.rows.shape
        row_padding, column_padding = -out % self.panel_width, -in_features % GROUP
        groups = F.pad(matrix.rows, (0, column_padding, 0, row_padding)).view(torch.int32)  # four numbers of a row
        panels = groups.view(-1, self.panel_width, groups.shape[1]).transpose(1, 2)
        sums = matrix.rows.sum(1, dtype=torch.int32)
        numbers = (F.pad(part, (0, row_padding)) for part in (matrix.scales, matrix.bias, sums))
        return get_struct("LinearLayer")(self.pin(panels), *map(self.pin, numbers), in_features, out)

    def linear(self, layer: nn.Linear) -> ctypes.Structure:
        """Return a layer."""
        return self.product(quantize_matrix(layer.weight, layer.bias))

    def _projection(self, attention: MultiHeadAttention, first: int, last: int) -> ctypes.Structure:
        some = slice(first * attention.size, last * attention.size)
        return self.product(quantize_matrix(attention.in_proj_weight[some], attention.in_proj_bias[some]))

    def norm(self, norm: nn.Module) -> ctypes.Structure:
        """Return a layer norm."""
        assert isinstance(norm, nn.LayerNorm)
        return get_struct("LayerNorm")(self.pin(norm.weight), self.pin(norm.bias), norm.eps)

    def layer(self, layer: EncoderLayer | DecoderLayer) -> ctypes.Structure:
        """Return a layer; that of a decoder has cross-attention."""
        inner, _, outer = layer.feedforward
        assert isinstance(inner, nn.Linear)
        assert isinstance(outer, nn.Linear)
        made = get_struct("Layer")(
            around_attention=self.norm(layer.around_attention.norm),
            around_feedforward=self.norm(layer.around_feedforward.norm),
            attention=self._projection(layer.attention, 0, 3),
            attention_out=self.linear(layer.attention.out_proj),
            inner=self.linear(inner),
            outer=self.linear(outer),
        )
        if isinstance(layer, DecoderLayer):
            made.around_cross = self.norm(layer.around_cross_attention.norm)
            made.cross = self._projection(layer.cross_attention, 0, 1)
            made.cross_out = self.linear(layer.cross_attention.out_proj)
        return made

    def stack(self, part: TransformerEncoder | TransformerDecoder) -> ctypes.Structure:
        """Return the uniform layers of an encoder or decoder, and the final norm if there is one."""
        layers: list[Any] = list(part.layers)
        made, first = list(map(self.layer, layers)), layers[0]
        end = addressof(self.array([self.norm(part.norm)])) if isinstance(part.norm, nn.LayerNorm) else None
        post, widest = not first.around_attention.is_pre_norm, max(layer.inner.out_features for layer in made)
        size, heads, swish = first.attention.size, first.attention.heads, isinstance(first.feedforward[1], nn.SiLU)
        return get_struct("Stack")(addressof(self.array(made)), len(made), size, heads, widest, post, swish, end)

    def memory(self, layers: Sequence[DecoderLayer]) -> ctypes.Array[Any]:
        """Return the key and value projections of all decoder layers."""
        return self.array([self._projection(layer.cross_attention, 1, 3) for layer in layers])

    def array(self, items: Sequence[ctypes.Structure]) -> ctypes.Array[Any]:
        """Return an array of structs."""
        made = (type(items[0]) * len(items))(*items)
        self.objects.append(made)
        return made


SELFTEST_SHAPE = 32, 256, 1024  # of the compared products
TOLERANCE = 0.02  # relative error


class Int8Linear:
    """X Wᵀ + b, optionally with ReLU, as a single product."""

    def __init__(self, kernels: ctypes.CDLL, weight: Tensor, bias: Tensor | None = None) -> None:
        self.kernels, self.weights = kernels, WeightArena(kernels)
        self.product = self.weights.product(quantize_matrix(weight, bias))

    def __call__(self, x: Tensor, relu: bool = False) -> Tensor:
        """Multiply x (N, I) -> (N, O)."""
        x, (rows, in_features), out_features = x.contiguous(), x.shape, self.product.out_features
        panels = torch.empty(self.kernels.int8_panel_bytes(rows, in_features), dtype=torch.uint8)
        scales, y = torch.empty(rows, dtype=torch.float32), torch.empty(rows, out_features, dtype=torch.float32)
        quantized = get_struct("QuantizedRows")(panels.data_ptr(), scales.data_ptr())
        self.kernels.int8_quantize(x.data_ptr(), rows, in_features, quantized)
        self.kernels.int8_gemm(quantized, self.product, rows, y.data_ptr(), relu)
        return y


def check_int8_gemm(kernels: ctypes.CDLL) -> str:
    """Return "" if products are right and faster than in fp32, otherwise what is wrong."""
    rows, in_features, out_features = SELFTEST_SHAPE
    with torch.random.fork_rng(devices=[]):
        x, weight = (torch.randn(many, in_features, dtype=torch.float32) for many in (rows, out_features))
    linear = Int8Linear(kernels, weight)
    return check_products("int8", lambda: linear(x), lambda: x @ weight.t(), TOLERANCE)


def quantize_model(model: Seq2Seq) -> Int8Transformer:
    """Return the int8 model."""
    return Int8Transformer(model, load_int8_kernels())


def find_int8_obstacle(model: Seq2Seq) -> str | None:
    """Return why a model cannot be decoded in int8, or None."""
    if not is_supported(model):
        return "the int8 kernels support only the unmodified Transformers of the recipes, in fp32"
    if not all(weight.isfinite().all() for weight in model.parameters()):
        return "it has NaN or infinite weights"
    try:
        load_int8_kernels()
    except KernelUnavailableError as error:
        return str(error)
    return None


@cache
def load_int8_kernels() -> ctypes.CDLL:
    """Load the kernels, if products are right and faster than in fp32."""
    found = load_kernels()
    require_selftest(found, lambda: check_int8_gemm(found))
    return found


def is_supported(model: Seq2Seq) -> bool:
    """Return whether this is an unmodified fp32 Transformer on a CPU."""
    encoder, decoder, weights = model.encoder, model.decoder, list(model.parameters())
    return (
        find_transformer_obstacle(model) is None
        and {(weight.device.type, weight.dtype) for weight in weights} == {("cpu", torch.float32)}
        and is_cpu_model(weights)
        and _is_uniform(encoder, decoder)
        and not has_hooks_or_overrides(*encoder.modules(), *decoder.modules())
    )


INT8_NETWORKS = {(nn.Linear, activation, nn.Linear) for activation in (nn.ReLU, nn.SiLU)}


def _is_uniform(encoder: Any, decoder: Any) -> bool:
    """Return whether all layers have the same sizes, norms have weights, and networks use ReLU, or swish."""
    layers = [*encoder.layers, *decoder.layers]
    sizes = {(layer.attention.size, layer.attention.heads) for layer in layers}
    networks = {tuple(type(part) for part in layer.feedforward) for layer in layers}
    last = {type(encoder.norm), type(decoder.norm)} <= {nn.LayerNorm, nn.Identity}
    norms = [part for half in (encoder, decoder) for part in half.modules() if isinstance(part, nn.LayerNorm)]
    weighted = all(part.weight is not None and part.bias is not None for part in norms)
    return last and weighted and len(sizes) == 1 and networks <= INT8_NETWORKS and len(networks) == 1


MIN_POSITIONS = 256  # positions that are computed at a time, at least


class EmbeddingTable:
    """Embedding of a Transformer without dropout, as the kernels read it. Threads may share it."""

    def __init__(self, words: Tensor, embedding: vaswani2017.TransformerEmbedding) -> None:
        self.words, self.scale = words, embedding.scale
        self.positions = copy.deepcopy(embedding.positions)
        self.position_vectors = torch.empty(0, self.words.shape[1])

    def position_table(self, count: int) -> Tensor:
        """Return the embeddings of at least `count` positions."""
        made = self.position_vectors  # another thread may replace it by a shorter one
        if count > len(made):
            made = self.positions(torch.zeros(1, 2 * count + MIN_POSITIONS, self.words.shape[1], dtype=torch.float32))
            self.position_vectors = made = made[0].detach().contiguous()
        return made

    def as_struct(self, places: Tensor) -> ctypes.Structure:
        """Return the C struct, which does not keep the positions alive."""
        return get_struct("Embedding")(self.words.data_ptr(), places.data_ptr(), len(self.words), self.scale)


class Int8Transformer:
    """Encoder and decoder, quantized from a reference model."""

    def __init__(self, model: Seq2Seq, kernels: ctypes.CDLL) -> None:
        encoder, decoder = model.encoder, model.decoder
        assert isinstance(encoder, TransformerEncoder)
        assert isinstance(decoder, TransformerDecoder)
        source, target = encoder.embedding.words.weight, decoder.embedding.words.weight
        words = source.detach().clone()
        self.embedding_table, self.kernels = EmbeddingTable(words, encoder.embedding), kernels
        self.weights = WeightArena(kernels)
        self.stack = self.weights.stack(encoder)
        self.memory = self.weights.memory(decoder.decoder_layers())
        target_table = EmbeddingTable(words if target is source else target.detach().clone(), decoder.embedding)
        self.decoder = Int8Decoder(decoder, target_table, kernels)
        self.acceleration = Acceleration(search=search_greedily)

    def restrict_vocabulary(self, token_ids: Sequence[int]) -> Int8Transformer:
        """Return a model that reads and writes the given target ids only, numbered from 0."""
        other = copy.copy(self)
        other.decoder = self.decoder.restrict_vocabulary(torch.tensor(token_ids))
        return other

    def encode(self, source: Tensor, lengths: Tensor) -> KVState:
        """Return the state before the first token of sources (B, S)."""
        mask, decoder = prefix_mask(lengths, source.shape[1]), self.decoder.stack
        ids, lengths, (rows, places) = source.long().contiguous(), mask.sum(1), mask.shape
        positions = self.embedding_table.position_table(places)
        pair = 2 * decoder.size // decoder.heads
        source_kv = torch.zeros(decoder.count, rows, decoder.heads, places, pair, dtype=torch.float32)
        workspace = torch.empty(self.kernels.int8_encode_workspace(self.stack, places), dtype=torch.uint8)
        is_valid = self.kernels.int8_encode(
            *(self.stack, self.embedding_table.as_struct(positions), ids.data_ptr(), lengths.data_ptr(), rows, places),
            *(self.memory, decoder.count, decoder.heads, source_kv.data_ptr(), workspace.data_ptr()),
        )
        _check_ids(is_valid, source, self.embedding_table)
        # Keys are interleaved with values.
        empty_keys = source_kv.new_empty(decoder.count, rows, decoder.heads, 0, places)
        empty_cache = BeamKVCache(empty_keys[..., :0, None], source_kv[..., :0, None, :], 0)
        return KVState(empty_keys, source_kv, mask, empty_cache, torch.empty(rows, 0, dtype=torch.long), 0)


def search_greedily(
    model: Int8Transformer, source: Tensor, lengths: Tensor, request: SearchRequest
) -> list[list[Hypothesis]] | None:
    """Run greedy search in C; return None for larger beams."""
    if request.beam > 1:
        return None
    return GreedySearch(model.decoder, model.encode(source, lengths), request).run()


class Int8Decoder(KVCachedDecoder):
    """Decoder whose steps run in C; keys and values are interleaved in the place of values."""

    def __init__(self, decoder: TransformerDecoder, embedding_table: EmbeddingTable, kernels: ctypes.CDLL) -> None:
        super().__init__(decoder)
        self.alignment_head, self.embedding_table, self.kernels = decoder.alignment_head, embedding_table, kernels
        self.weights, self.output_arena = WeightArena(kernels), WeightArena(kernels)
        self.stack = self.weights.stack(decoder)
        self.output_matrix = quantize_matrix(decoder.output.weight.detach(), decoder.output.bias)
        self.output = self.output_arena.product(self.output_matrix)
        self.words: Tensor | None = None  # ids of the tokens if the vocabulary is restricted

    def restrict_vocabulary(self, token_ids: Tensor) -> Int8Decoder:
        """Return a decoder for some target ids."""
        other = copy.copy(self)
        other.words = token_ids if self.words is None else self.words[token_ids]
        other.output_matrix, other.output_arena = self.output_matrix.select_rows(token_ids), WeightArena(self.kernels)
        other.output = other.output_arena.product(other.output_matrix)
        return other

    def start(self, encoded: KVState) -> KVState:  # type: ignore[override]
        """Return the encoder's state, which is the initial one."""
        return encoded

    def step(self, state: KVState, tokens: Tensor) -> tuple[Tensor, KVState, Attended]:
        """Take one step: tokens (B,) -> log-probabilities (B, V)."""
        num_written = state.table.shape[1]
        state = self._append_slot(state)
        rows, source_kv, mask, cache = len(tokens), state.values.contiguous(), state.mask.contiguous(), state.cache
        batch = get_struct("DecodeBatch")(
            *(rows, rows, None, *mask.shape, source_kv.data_ptr(), mask.data_ptr()),
            *(cache.groups, cache.slots, cache.keys.shape[4], num_written),
            *(cache.values.data_ptr(), state.table.data_ptr()),
        )
        token_ids = tokens.long().contiguous() if self.words is None else self.words[tokens]
        steps = torch.full((rows,), state.step) if isinstance(state.step, int) else state.step.contiguous()
        log_probs = torch.empty(rows, self.output.out_features, dtype=torch.float32)
        alignment = torch.zeros(rows, mask.shape[1], dtype=torch.float32)
        positions, workspace = self._step_buffers(batch, num_written)
        tensors = (part.data_ptr() for part in (token_ids, steps, alignment, log_probs, workspace))
        is_valid = self.kernels.int8_step(*self._step_arguments(batch, positions), *tensors)
        _check_ids(is_valid, token_ids, self.embedding_table)
        cache.length = num_written + 1
        return log_probs, state._replace(step=state.step + 1), Attended(alignment[:, None, :0], alignment[:, None])

    def _step_buffers(self, batch: ctypes.Structure, last: int) -> tuple[Tensor, Tensor]:
        """Return the embeddings of positions, and a workspace, for steps up to `last`."""
        workspace = torch.empty(self.kernels.int8_step_workspace(self.stack, batch, last), dtype=torch.uint8)
        return self.embedding_table.position_table(last + 1), workspace

    def _step_arguments(self, batch: ctypes.Structure, positions: Tensor) -> tuple[Any, ...]:
        """Return the first arguments of a step and of a search."""
        layer, head, _ = self.alignment_head
        attention = get_struct("AlignmentSource")(layer % len(self.layers), -1 if head is None else head)
        return self.stack, batch, self.embedding_table.as_struct(positions), self.output, attention


def _check_ids(is_valid: int, ids: Tensor, embedding_table: EmbeddingTable) -> None:
    """Raise an IndexError for ids outside of the vocabulary."""
    if not is_valid:
        least, most = ids.min().item(), ids.max().item()
        raise IndexError(f"ids are from 0 to {len(embedding_table.words) - 1}, not from {least} to {most}")


GREEDY_CHUNK = 32  # steps per call of the kernels


class GreedySearch:
    """Greedy search from an initial state."""

    def __init__(self, decoder: Int8Decoder, state: KVState, request: SearchRequest) -> None:
        self.decoder, self.request = decoder, request
        self.source_kv, self.mask = state.values, state.mask
        layers, rows, heads, places, pair = state.values.shape
        self.past = torch.empty(layers, rows, heads, 0, pair, dtype=torch.float32)
        self.batch = get_struct("DecodeBatch")(
            *(rows, rows, None, rows, places, self.source_kv.data_ptr(), self.mask.data_ptr()),
            *(rows, 1, 0, 0, None, None),
        )
        self.max_lengths, self.forbidden = torch.tensor(request.max_lengths), torch.tensor((PAD, BOS))
        self.limits = get_struct("SearchLimits")(
            *(request.min_length, self.max_lengths.data_ptr(), EOS, self.forbidden.data_ptr(), len(self.forbidden)),
            _pointer_or_none(decoder.words),
        )
        self.rows = torch.stack((torch.arange(rows), torch.full((rows,), BOS), *torch.zeros(2, rows, dtype=torch.long)))
        self.log_probs = torch.zeros(rows, dtype=torch.float32)
        self.logits = torch.empty(rows, decoder.output.out_features, dtype=torch.float32)

    def run(self) -> list[list[Hypothesis]]:
        """Return the hypothesis of each source."""
        trace = SearchTrace(self.batch.rows, 1)
        while self.batch.num_active:
            trace.add_steps(np.arange(self.batch.rows), *self._run_chunk())
        trace.done = self.rows[3].int().numpy()
        return find_best_hypotheses(trace, self.request)

    def _run_chunk(self) -> tuple[list[Any], Any]:
        """Take some steps of the open hypotheses; return their choices and attention for a trace."""
        decoder, rows, before = self.decoder, self.batch.rows, self.batch.num_written
        self._grow_cache(before + GREEDY_CHUNK)
        tokens = torch.zeros(GREEDY_CHUNK, rows, dtype=torch.long)
        log_probs = torch.zeros(GREEDY_CHUNK, rows, dtype=torch.float32)
        shape = GREEDY_CHUNK, rows, self.batch.source_length
        attention = torch.empty(shape, dtype=torch.float32) if self.request.attention else None
        positions, workspace = decoder._step_buffers(self.batch, before + GREEDY_CHUNK)
        row_ids, token_ids, token_positions, done = (part.data_ptr() for part in self.rows)
        active_rows = get_struct("ActiveRows")(row_ids, token_ids, token_positions, self.log_probs.data_ptr(), done)
        outputs = get_struct("StepOutput")(*map(_pointer_or_none, (tokens, log_probs, attention, self.logits)))
        decoder.kernels.int8_greedy(
            *decoder._step_arguments(self.batch, positions),
            *(byref(self.limits), active_rows, outputs, GREEDY_CHUNK, workspace.data_ptr()),
        )
        steps = self.batch.num_written - before
        chosen = [part[:steps, :, None].numpy() for part in (log_probs, torch.zeros_like(tokens), tokens)]
        return chosen, None if attention is None else attention[:steps, :, None].numpy()

    def _grow_cache(self, positions: int) -> None:
        """Enlarge the KV cache for so many positions."""
        if positions <= self.batch.positions:
            return
        layers, rows, heads, size, pair = self.past.shape
        larger = torch.empty(layers, rows, heads, max(positions, 2 * size), pair, dtype=torch.float32)
        larger[:, :, :, :size] = self.past
        self.past, self.batch.positions, self.batch.kv_cache = larger, larger.shape[3], larger.data_ptr()


def _pointer_or_none(part: Tensor | None) -> int | None:
    return None if part is None else part.data_ptr()
