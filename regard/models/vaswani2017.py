"""Vaswani et al. 2017, Attention is all you need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.models import decoder_state
from regard.models.base import AlignmentHead, Decoded, Decoder, Encoded, Encoder, Seq2Seq, log_probs
from regard.models.losses import CrossEntropy
from regard.models.settings_checks import check_fraction, check_positive
from regard.nn import (
    Attended,
    LearnedPositions,
    Memory,
    MultiHeadAttention,
    NoPositions,
    SinusoidalPositions,
    prefix_mask,
)
from regard.special_tokens import PAD


@dataclass(frozen=True, kw_only=True)
class TransformerSettings:
    """The `model` section of a Transformer recipe."""

    size: int = 512
    layers: int = 6
    heads: int = 8
    feedforward: int | None = None
    dropout: float = 0.1
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    max_positions: int = 1000
    tie: Literal["all", "decoder", "none"] = "all"
    align_layer: int | Literal["auto"] | None = None
    align_head: int | None = None
    align_after: bool = False

    def __post_init__(self) -> None:
        check_fraction(self, "dropout")
        check_positive(self, "size", "layers", "heads", "feedforward", "max_positions")
        if self.size % self.heads:
            raise ValueError(f"the number of heads must divide the size: {self.heads} heads, size {self.size}")
        for name, chosen, maximum in (
            ("align_layer", self.align_layer, self.layers),
            ("align_head", self.align_head, self.heads),
        ):
            if isinstance(chosen, int) and not 1 <= chosen <= maximum:
                raise ValueError(f"{name} counts from 1: there are {maximum}, not {chosen}")


class PostNorm(nn.Module):
    """LayerNorm(x + Sublayer(x)), as the paper has it (section 3.1)."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def sublayer_input(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        return x

    def add_residual(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream x after the sub-layer gave y."""
        out: Tensor = self.norm(x + self.dropout(y))
        return out


class PreNorm(nn.Module):
    """X + Sublayer(LayerNorm(x)), which trains without a careful warm-up; the stack needs one more norm at its end."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def sublayer_input(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        normed: Tensor = self.norm(x)
        return normed

    def add_residual(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream x after the sub-layer gave y."""
        out: Tensor = x + self.dropout(y)
        return out


Residual = PostNorm | PreNorm
Positions = SinusoidalPositions | LearnedPositions | NoPositions


class FeedForward(nn.Sequential):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (eq. 2)."""

    def __init__(self, size: int, hidden_size: int) -> None:
        super().__init__(nn.Linear(size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, size))


class TransformerEmbedding(nn.Module):
    """E x · √size plus positions, then dropout (sections 3.4, 3.5, 5.4)."""

    def __init__(self, token_embedding: nn.Embedding, positions: Positions, dropout: float) -> None:
        super().__init__()
        self.words = token_embedding
        self.positions = positions
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(token_embedding.embedding_dim)

    def forward(self, ids: Tensor, step: int | Tensor = 0) -> Tensor:
        """Ids B,T, the first of which is position `step`, of all rows or of each -> B,T,size."""
        x: Tensor = self.dropout(self.positions(self.words(ids) * self.scale, step))
        return x


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, size: int, heads: int, feedforward: int, residual: Callable[[], Residual]) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(size, heads)
        self.around_attention = residual()
        self.feedforward = FeedForward(size, feedforward)
        self.around_feedforward = residual()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """X B,S,size, mask B,S."""
        y = self.around_attention.sublayer_input(x)
        x = self.around_attention.add_residual(x, self.attention(y, Memory(y, y, mask)).context)
        return self.around_feedforward.add_residual(x, self.feedforward(self.around_feedforward.sublayer_input(x)))


class TransformerEncoder(Encoder):
    """A stack of layers over embeddings; what the last one gives is the memory."""

    def __init__(self, embedding: TransformerEmbedding, layers: list[EncoderLayer], norm: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Source B,S -> memory of B,S,size; a Transformer leaves no state."""
        mask = prefix_mask(lengths, source.shape[1])
        x = self.embedding(source)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        return Encoded(Memory(x, x, mask), None)

    def fsdp_units(self) -> list[nn.Module]:
        """The layers."""
        return list(self.layers)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the source, then the feed-forward network."""

    def __init__(self, size: int, heads: int, feedforward: int, residual: Callable[[], Residual]) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(size, heads)
        self.around_attention = residual()
        self.cross_attention = MultiHeadAttention(size, heads)
        self.around_cross_attention = residual()
        self.feedforward = FeedForward(size, feedforward)
        self.around_feedforward = residual()

    def project(self, memory: Memory) -> Memory:
        """The source as this layer's attention wants it; it has no use for other keys and values than its own."""
        projected = self.cross_attention.project(memory.keys, memory.values)
        return Memory(projected, projected, memory.mask, projected)

    def forward(
        self, x: Tensor, kv_cache: Tensor, cache_mask: Tensor, source: Memory
    ) -> tuple[Tensor, Tensor, Attended]:
        """X B,T,size after the words of `past`, over a source that this layer's attention has prepared.

        `past` B,t,2·size are the words before, as self-attention projected them; it comes back longer by T. `real`
        B,t+T says which of them all are words of the row.
        """
        y = self.around_attention.sublayer_input(x)
        kv_cache = torch.cat((kv_cache, self.attention.project(y, y)), 1)
        x = self.around_attention.add_residual(
            x, self.attention(y, Memory(kv_cache, kv_cache, cache_mask, kv_cache), causal=True).context
        )
        y = self.around_cross_attention.sublayer_input(x)
        attended: Attended = self.cross_attention(y, source)
        x = self.around_cross_attention.add_residual(x, attended.context)
        return (
            self.around_feedforward.add_residual(x, self.feedforward(self.around_feedforward.sublayer_input(x))),
            kv_cache,
            attended,
        )


class TransformerState(NamedTuple):
    """Between two steps: for each layer the source as its attention prepared it, and the words so far likewise."""

    source: list[Memory]
    kv_cache: list[Tensor]  # B,t,2·size; the words of a row that has fewer than t stand at the end
    step: int | Tensor  # how many they are, in all rows or B in each

    def cache_mask(self, num_new: int) -> Tensor:
        """Which of the words so far, and of so many more, are there: B,t+more."""
        size = self.kv_cache[0].shape[1] + num_new
        if isinstance(self.step, int):
            return self.kv_cache[0].new_ones(self.kv_cache[0].shape[0], size, dtype=torch.bool)
        return torch.arange(size, device=self.step.device) >= size - num_new - self.step[:, None]


class TransformerDecoder(Decoder):
    """A stack of layers over embeddings; the output layer may be the embedding's own matrix (section 3.4)."""

    supports_shared_memory = True
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
        """Projects the memory once for each layer."""
        memory = encoded.memory
        source = [layer.project(memory) for layer in self.decoder_layers()]
        rows, _, size = memory.keys.shape
        return TransformerState(source, [memory.keys.new_zeros(rows, 0, 2 * size) for _ in source], 0)

    def run_tokens(self, state: TransformerState, tokens: Tensor) -> tuple[Tensor, TransformerState, Attended]:
        """Tokens B,T, any number at once: what the output layer reads, the state after them, a look at the source."""
        x, after, attended_layers = self._run_layers(state, tokens)
        attended, head = attended_layers[self.alignment_head.layer], self.alignment_head.head
        weights = attended.weights.mean(1) if head is None else attended.weights[:, head]
        return self.norm(x), after, Attended(attended.context, weights)

    def _run_layers(self, state: TransformerState, tokens: Tensor) -> tuple[Tensor, TransformerState, list[Attended]]:
        """Tokens B,T through all layers: the last one's output, the state after them, and every layer's look."""
        x = self.embedding(tokens, state.step)
        new_caches, attended_layers, cache_mask = [], [], state.cache_mask(tokens.shape[1])
        for layer, layer_cache, source in zip(self.decoder_layers(), state.kv_cache, state.source, strict=True):
            x, layer_cache, attended = layer(x, layer_cache, cache_mask, source)
            new_caches.append(layer_cache)
            attended_layers.append(attended)
        return x, TransformerState(state.source, new_caches, state.step + tokens.shape[1]), attended_layers

    def forward(self, encoded: Encoded, target_in: Tensor) -> Decoded:
        """Target_in B,T -> logits B,T,V."""
        x, attended = self.hidden_states(encoded, target_in)
        return Decoded(self.output(x), attended)

    def hidden_states(self, encoded: Encoded, target_in: Tensor) -> tuple[Tensor, Attended]:
        """The last layer's output, normed."""
        x, _, attended = self.run_tokens(self.start(encoded), target_in)
        return x, attended

    def step(self, state: TransformerState, tokens: Tensor) -> tuple[Tensor, TransformerState, Attended]:
        """Tokens B -> log-probabilities B,V."""
        x, state, attended = self.run_tokens(state, tokens[:, None])
        return log_probs(self.output(x)[:, 0]), state, attended

    def concat_states(self, first: TransformerState, second: TransformerState) -> TransformerState:
        """Rows that have written more, and rows that have written less: padding goes before the words of these."""
        both = (first, second)
        steps = torch.cat([decoder_state.expand_scalar(state.kv_cache, state.step) for state in both])
        kv_cache = [_left_pad_concat(*each) for each in zip(first.kv_cache, second.kv_cache, strict=True)]
        return TransformerState(decoder_state.concat_states(first.source, second.source), kv_cache, steps)

    def trim_padding(self, state: TransformerState, source_length: int, target_length: int) -> TransformerState:
        """Cuts the padding before the words so far as well."""
        return decoder_state.trim_padding(
            state._replace(
                kv_cache=[layer_cache[:, layer_cache.shape[1] - target_length :] for layer_cache in state.kv_cache]
            ),
            source_length,
        )

    def alignment_heads(self) -> list[AlignmentHead]:
        """Each layer, and in it the mean of the heads and each of them."""
        layers = self.decoder_layers()
        heads: list[int | None] = [None, *range(layers[0].cross_attention.heads)]
        return [AlignmentHead(layer, head) for layer in range(len(layers)) for head in heads]

    def attention_by_head(self, encoded: Encoded, target_in: Tensor) -> list[Tensor]:
        """All of them in one pass."""
        _, _, attended_layers = self._run_layers(self.start(encoded), target_in)
        return [
            weights
            for attended in attended_layers
            for weights in (attended.weights.mean(1), *attended.weights.unbind(1))
        ]

    def vocabulary_layers(self) -> list[nn.Module]:
        """The embedding's matrix and the output's, which may be the same."""
        return [self.embedding.words, self.output]

    def fsdp_units(self) -> list[nn.Module]:
        """The layers."""
        return list(self.layers)

    def decoder_layers(self) -> list[DecoderLayer]:
        """The layers with their type."""
        return list(self.layers)  # type: ignore[arg-type]


def _left_pad_concat(first: Tensor, second: Tensor) -> Tensor:
    """The words so far B,t,· and C,u,· as B+C,max(t,u),·, the fewer behind so much padding."""
    rows, size = len(first), max(first.shape[1], second.shape[1])
    both = first.new_zeros(rows + len(second), size, first.shape[2])
    both[:rows, size - first.shape[1] :] = first
    both[rows:, size - second.shape[1] :] = second
    return both


def build(settings: TransformerSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Seq2Seq:
    """The model of the settings; `tie: all` ties the decoder alone where the two vocabularies cannot be one."""
    size = settings.size
    hidden = 4 * size if settings.feedforward is None else settings.feedforward
    residual_classes: dict[str, type[Residual]] = {"pre": PreNorm, "post": PostNorm}
    make_positions: dict[str, Callable[[], Positions]] = {
        "sinusoidal": lambda: SinusoidalPositions(size),
        "learned": lambda: LearnedPositions(size, settings.max_positions),
        "none": NoPositions,
    }

    def make_residual() -> Residual:
        return residual_classes[settings.norm](size, settings.dropout)

    def make_final_norm() -> nn.Module:
        return nn.LayerNorm(size) if settings.norm == "pre" else nn.Identity()

    def make_embedding_layer(words: nn.Embedding) -> TransformerEmbedding:
        return TransformerEmbedding(words, make_positions[settings.positions](), settings.dropout)

    target = nn.Embedding(target_size, size, padding_idx=PAD)
    shares_embedding = settings.tie == "all" and source_size == target_size
    source = target if shares_embedding else nn.Embedding(source_size, size, padding_idx=PAD)
    output = nn.Linear(size, target_size, bias=False)
    encoder_layers = [EncoderLayer(size, settings.heads, hidden, make_residual) for _ in range(settings.layers)]
    decoder_layers = [DecoderLayer(size, settings.heads, hidden, make_residual) for _ in range(settings.layers)]
    encoder = TransformerEncoder(make_embedding_layer(source), encoder_layers, make_final_norm())
    alignment_head = AlignmentHead(
        settings.align_layer - 1 if isinstance(settings.align_layer, int) else -1,
        None if settings.align_head is None else settings.align_head - 1,
        settings.align_after,
    )
    decoder = TransformerDecoder(
        make_embedding_layer(target), decoder_layers, make_final_norm(), output, alignment_head
    )
    model = Seq2Seq(encoder, decoder, criterion)
    _init_weights_(model)
    if settings.tie != "none":
        output.weight = target.weight
    return model


def _init_weights_(model: Seq2Seq) -> None:
    """Xavier for every matrix; embeddings N(0, 1/size): after the scale √size each number has variance 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
