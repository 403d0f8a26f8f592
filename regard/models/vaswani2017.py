"""Transformer: Vaswani et al. 2017, Attention is all you need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Fraction, NumLayers, PositiveInt
from regard.models import decoder_state
from regard.models.base import AlignmentHead, CrossEntropy, Decoder, Encoded, Encoder, Seq2Seq, log_probs
from regard.nn.attention import MultiHeadAttention
from regard.nn.memory import Attended, Memory, prefix_mask
from regard.nn.positional_encoding import LearnedPositions, NoPositions, SinusoidalPositions
from regard.special_tokens import PAD


@dataclass(frozen=True, kw_only=True)
class TransformerSettings:
    """The `model` section of a Transformer recipe."""

    size: PositiveInt = 512
    layers: NumLayers = 6
    decoder_layers: NumLayers | None = None
    heads: PositiveInt = 8
    feedforward: PositiveInt | None = None
    activation: Literal["relu", "swish", "gelu"] = "relu"
    dropout: Fraction = 0.1
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    max_positions: PositiveInt = 1000
    tie: Literal["all", "decoder", "none"] = "all"
    scale_embedding: bool = True
    output_bias: bool = False
    align_layer: Literal["auto"] | int | None = None
    align_head: int | None = None
    align_after: bool = False

    def __post_init__(self) -> None:
        if self.size % self.heads:
            raise ValueError(f"the number of heads must divide the size: {self.heads} heads, size {self.size}")
        for name, maximum in (("align_layer", self.num_decoder_layers), ("align_head", self.heads)):
            chosen = getattr(self, name)
            if isinstance(chosen, int) and not 1 <= chosen <= maximum:
                raise ValueError(f"{name} must be between 1 and {maximum}, not {chosen}")

    @property
    def num_decoder_layers(self) -> int:
        """Number of layers of the decoder."""
        return self.layers if self.decoder_layers is None else self.decoder_layers

    @property
    def feedforward_size(self) -> int:
        """Width of the hidden layer of a feed-forward network."""
        return 4 * self.size if self.feedforward is None else self.feedforward


class Residual(nn.Module):
    """Residual connection around a sub-layer, with dropout and layer normalisation.

    Post-norm is LayerNorm(x + Sublayer(x)), as in the paper (section 3.1). Pre-norm is x + Sublayer(LayerNorm(x)); it
    trains without a careful warm-up, but needs a final norm.
    """

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.size)
        self.dropout = nn.Dropout(settings.dropout)
        self.is_pre_norm = settings.norm == "pre"

    def sublayer_input(self, x: Tensor) -> Tensor:
        """Return the input of the sub-layer."""
        return self.norm(x) if self.is_pre_norm else x

    def add_residual(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x after the sub-layer's output y is added."""
        out: Tensor = x + self.dropout(y)
        return out if self.is_pre_norm else self.norm(out)


Positions = SinusoidalPositions | LearnedPositions | NoPositions


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "swish": nn.SiLU, "gelu": nn.GELU}


class FeedForward(nn.Sequential):
    """Feed-forward network FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (eq. 2), or with another activation than ReLU."""

    def __init__(self, size: int, hidden_size: int, activation: str = "relu") -> None:
        super().__init__(nn.Linear(size, hidden_size), ACTIVATIONS[activation](), nn.Linear(hidden_size, size))


class TransformerEmbedding(nn.Module):
    """Token embeddings E x · √size plus positions, then dropout (sections 3.4, 3.5, 5.4); or without √size."""

    def __init__(
        self, token_embedding: nn.Embedding, positions: Positions, dropout: float, is_scaled: bool = True
    ) -> None:
        super().__init__()
        self.words = token_embedding
        self.positions = positions
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(token_embedding.embedding_dim) if is_scaled else 1.0

    def forward(self, ids: Tensor, step: int | Tensor = 0) -> Tensor:
        """Embed ids (B, T) as (B, T, size); `step` is the position of the first one, for all rows or (B,)."""
        x: Tensor = self.dropout(self.positions(self.words(ids) * self.scale, step))
        return x


class EncoderLayer(nn.Module):
    """Encoder layer: self-attention and feed-forward network."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(settings.size, settings.heads)
        self.around_attention = Residual(settings)
        self.feedforward = FeedForward(settings.size, settings.feedforward_size, settings.activation)
        self.around_feedforward = Residual(settings)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Run the layer on x (B, S, size) with mask (B, S)."""
        y = self.around_attention.sublayer_input(x)
        x = self.around_attention.add_residual(x, self.attention(y, Memory(y, y, mask)).context)
        return self.around_feedforward.add_residual(x, self.feedforward(self.around_feedforward.sublayer_input(x)))


class TransformerEncoder(Encoder):
    """Transformer encoder: embeddings and a stack of layers; the output of the last one is the memory."""

    def __init__(self, embedding: TransformerEmbedding, layers: list[EncoderLayer], norm: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Encode source ids (B, S) as a memory (B, S, size), without a decoder state."""
        mask = prefix_mask(lengths, source.shape[1])
        x = self.embedding(source)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        return Encoded(Memory(x, x, mask), None)

    def fsdp_units(self) -> list[nn.Module]:
        """Return the layers."""
        return list(self.layers)


class DecoderLayer(nn.Module):
    """Decoder layer: masked self-attention, cross-attention and feed-forward network."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(settings.size, settings.heads)
        self.around_attention = Residual(settings)
        self.cross_attention = MultiHeadAttention(settings.size, settings.heads)
        self.around_cross_attention = Residual(settings)
        self.feedforward = FeedForward(settings.size, settings.feedforward_size, settings.activation)
        self.around_feedforward = Residual(settings)

    def project(self, memory: Memory) -> Memory:
        """Return the memory with this layer's projected keys and values in place of the encoder's."""
        projected = self.cross_attention.project(memory.keys, memory.values)
        return Memory(projected, projected, memory.mask, projected)

    def forward(
        self, x: Tensor, kv_cache: Tensor, cache_mask: Tensor, source: Memory
    ) -> tuple[Tensor, Tensor, Attended]:
        """Run the layer on x (B, T, size) after the cached tokens.

        Return the output, the longer cache and the cross-attention.

        Args:
            x: inputs of the new tokens, (B, T, size).
            kv_cache: projected keys and values of the previous tokens, (B, t, 2·size).
            cache_mask: True for real tokens, cached and new, (B, t+T).
            source: memory prepared by this layer's `project`.
        """
        y = self.around_attention.sublayer_input(x)
        kv_cache = torch.cat((kv_cache, self.attention.project(y, y)), 1)
        y = self.attention(y, Memory(kv_cache, kv_cache, cache_mask, kv_cache), causal=True).context
        x = self.around_attention.add_residual(x, y)
        y = self.around_cross_attention.sublayer_input(x)
        attended: Attended = self.cross_attention(y, source)
        x = self.around_cross_attention.add_residual(x, attended.context)
        y = self.feedforward(self.around_feedforward.sublayer_input(x))
        return self.around_feedforward.add_residual(x, y), kv_cache, attended


class TransformerState(NamedTuple):
    """State between two steps: for each layer the projected source memory and the KV cache."""

    source: list[Memory]
    kv_cache: list[Tensor]  # (B, t, 2·size) per layer; left-padded for rows with fewer than t tokens
    step: int | Tensor  # number of tokens so far, one for all rows or (B,)

    def cache_mask(self, num_new: int) -> Tensor:
        """Return a mask (B, t+num_new) that is True for real tokens: cached ones and `num_new` new ones."""
        size = self.kv_cache[0].shape[1] + num_new
        if isinstance(self.step, int):
            return self.kv_cache[0].new_ones(self.kv_cache[0].shape[0], size, dtype=torch.bool)
        return torch.arange(size, device=self.step.device) >= size - num_new - self.step[:, None]


class TransformerDecoder(Decoder):
    """Transformer decoder: embeddings and a stack of layers.

    The output layer may share the embedding matrix (section 3.4).
    """

    supports_shared_memory = True
    has_attention_sink = True
    computation_order = ("q_t", "a_t", "c_t", "h_t")

    def __init__(
        self,
        embedding: TransformerEmbedding,
        layers: list[DecoderLayer],
        norm: nn.Module,
        output: nn.Linear,
        alignment_head: AlignmentHead,
    ) -> None:
        super().__init__()
        self.alignment_head = alignment_head
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.output = output

    def start(self, encoded: Encoded) -> TransformerState:
        """Project the memory once for each layer."""
        memory = encoded.memory
        source = [layer.project(memory) for layer in self.decoder_layers()]
        rows, _, size = memory.keys.shape
        return TransformerState(source, [memory.keys.new_zeros(rows, 0, 2 * size) for _ in source], 0)

    def run_tokens(self, state: TransformerState, tokens: Tensor) -> tuple[Tensor, TransformerState, Attended]:
        """Feed tokens (B, T), any number at once.

        Return the input of the output layer, the new state, and the cross-attention of `alignment_head`.
        """
        x, new_state, attended_layers = self._run_layers(state, tokens)
        attended, head = attended_layers[self.alignment_head.layer], self.alignment_head.head
        weights = attended.weights.mean(1) if head is None else attended.weights[:, head]
        return self.norm(x), new_state, Attended(attended.context, weights)

    def _run_layers(self, state: TransformerState, tokens: Tensor) -> tuple[Tensor, TransformerState, list[Attended]]:
        """Feed tokens (B, T) through all layers.

        Return the last one's output, the new state, and all cross-attentions.
        """
        x = self.embedding(tokens, state.step)
        new_caches, attended_layers, cache_mask = [], [], state.cache_mask(tokens.shape[1])
        for layer, layer_cache, source in zip(self.decoder_layers(), state.kv_cache, state.source, strict=True):
            x, layer_cache, attended = layer(x, layer_cache, cache_mask, source)
            new_caches.append(layer_cache)
            attended_layers.append(attended)
        return x, TransformerState(state.source, new_caches, state.step + tokens.shape[1]), attended_layers

    def hidden_states(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, Attended]:
        """Return the last layer's output, normalised, and the attention."""
        x, _, attended = self.run_tokens(self.start(encoded), target_in)
        return x, attended

    def step(self, state: TransformerState, tokens: Tensor) -> tuple[Tensor, TransformerState, Attended]:
        """Feed tokens (B,); return log-probabilities (B, V), the new state and the attention."""
        x, state, attended = self.run_tokens(state, tokens[:, None])
        return log_probs(self.output(x)[:, 0]), state, attended

    def concat_states(self, first: TransformerState, second: TransformerState) -> TransformerState:
        """Concatenate two batches of states; KV caches of rows with fewer tokens are padded on the left."""
        both = (first, second)
        steps = torch.cat([decoder_state.expand_scalar(state.kv_cache, state.step) for state in both])
        kv_cache = [_left_pad_concat(*caches) for caches in zip(first.kv_cache, second.kv_cache, strict=True)]
        return TransformerState(decoder_state.concat_states(first.source, second.source), kv_cache, steps)

    def trim_padding(self, state: TransformerState, source_length: int, target_length: int) -> TransformerState:
        """Trim the memories, and the left padding of the KV cache."""
        kv_cache = [layer_cache[:, layer_cache.shape[1] - target_length :] for layer_cache in state.kv_cache]
        return decoder_state.trim_padding(state._replace(kv_cache=kv_cache), source_length)

    def alignment_heads(self) -> list[AlignmentHead]:
        """Return, for each layer, the mean over its heads and each head."""
        layers = self.decoder_layers()
        heads: list[int | None] = [None, *range(layers[0].cross_attention.heads)]
        return [AlignmentHead(layer, head) for layer in range(len(layers)) for head in heads]

    def attention_by_head(self, encoded: Encoded, target_in: Tensor) -> list[Tensor]:
        """Return the attention (B, T, S) of all `alignment_heads`, computed in one pass."""
        _, _, attended_layers = self._run_layers(self.start(encoded), target_in)
        of_layers = (attended.weights for attended in attended_layers)  # each (B, heads, T, S)
        return [head for weights in of_layers for head in (weights.mean(1), *weights.unbind(1))]

    def vocabulary_layers(self) -> list[nn.Module]:
        """Return the target embedding and the output layer, which may share one matrix."""
        return [self.embedding.words, self.output]

    def fsdp_units(self) -> list[nn.Module]:
        """Return the layers."""
        return list(self.layers)

    def decoder_layers(self) -> list[DecoderLayer]:
        """Return the layers with their static type."""
        return list(self.layers)  # type: ignore[arg-type]


def _left_pad_concat(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate (B, t, ·) and (C, u, ·) to (B+C, max(t, u), ·), with zeros on the left of the shorter."""
    size = max(first.shape[1], second.shape[1])
    return torch.cat([F.pad(cache, (0, 0, size - cache.shape[1], 0)) for cache in (first, second)])


def build(settings: TransformerSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """Build the model from its settings; `tie: all` ties only the decoder if the vocabularies differ in size."""
    size = settings.size
    make_positions: dict[str, Callable[[], Positions]] = {
        "sinusoidal": lambda: SinusoidalPositions(size),
        "learned": lambda: LearnedPositions(size, settings.max_positions),
        "none": NoPositions,
    }

    def make_final_norm() -> nn.Module:
        return nn.LayerNorm(size) if settings.norm == "pre" else nn.Identity()

    def make_embedding(words: nn.Embedding) -> TransformerEmbedding:
        positions = make_positions[settings.positions]()
        return TransformerEmbedding(words, positions, settings.dropout, settings.scale_embedding)

    target = nn.Embedding(target_size, size, padding_idx=PAD)
    shares_embedding = settings.tie == "all" and source_size == target_size
    source = target if shares_embedding else nn.Embedding(source_size, size, padding_idx=PAD)
    output = nn.Linear(size, target_size, bias=settings.output_bias)
    encoder_layers = [EncoderLayer(settings) for _ in range(settings.layers)]
    decoder_layers = [DecoderLayer(settings) for _ in range(settings.num_decoder_layers)]
    encoder = TransformerEncoder(make_embedding(source), encoder_layers, make_final_norm())
    alignment_head = AlignmentHead(
        settings.align_layer - 1 if isinstance(settings.align_layer, int) else -1,
        None if settings.align_head is None else settings.align_head - 1,
        settings.align_after,
    )
    decoder = TransformerDecoder(make_embedding(target), decoder_layers, make_final_norm(), output, alignment_head)
    model = Seq2Seq(encoder, decoder, criterion)
    _init_weights_(model)
    if settings.tie != "none":
        output.weight = target.weight
    return model


def _init_weights_(model: Seq2Seq) -> None:
    """Initialise matrices with Xavier, embeddings from N(0, 1/size): scaled by √size, they have variance 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
