"""Common parts of the recurrent models: settings, encoder, bridge, attention builders, deep output, unrolling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from regard.models.base import Encoded, Encoder
from regard.models.plugins import find_score
from regard.models.settings_checks import check_fraction, check_positive
from regard.nn import (
    Alignment,
    Attended,
    Attention,
    Cell,
    Coverage,
    ElmanCell,
    Global,
    GRUCell,
    LinguisticCoverage,
    LocalMonotonic,
    LocalPredictive,
    LSTMCell,
    Memory,
    NeuralCoverage,
    Recurrent,
    Score,
    State,
    compute_projected_size,
    concat_steps,
    make_score,
    prefix_mask,
    reversal_indices,
    state_tensors,
)
from regard.special_tokens import PAD

CELLS: dict[str, type[Cell]] = {"gru": GRUCell, "lstm": LSTMCell, "elman": ElmanCell}


@dataclass(frozen=True, kw_only=True)
class RecurrentDecoderSettings:
    """Keys of every recurrent decoder, whatever its encoder."""

    size: int = 256
    embedding: int | None = None
    layers: int = 1
    dropout: float = 0.0
    residual: bool = False
    cell: Literal["gru", "lstm", "elman"] = "gru"
    tie: bool = False

    def __post_init__(self) -> None:
        check_fraction(self, "dropout")
        check_positive(self, "size", "layers", "embedding")

    @property
    def embedding_size(self) -> int:
        """Width of an embedding."""
        return self.size if self.embedding is None else self.embedding

    @property
    def memory_size(self) -> int:
        """Width of the encoder's memory."""
        return self.size


@dataclass(frozen=True, kw_only=True)
class RecurrentSettings(RecurrentDecoderSettings):
    """Keys of recipes with a recurrent encoder and decoder."""

    bidirectional: bool = True
    reverse: bool = False

    @property
    def memory_size(self) -> int:
        """Width of an encoder state h̄_s."""
        return self.size * (2 if self.bidirectional else 1)


@dataclass(frozen=True, kw_only=True)
class RecurrentInitSettings(RecurrentSettings):
    """Keys of recipes whose paper states the weight initialisation."""

    initialisation: Literal["paper", "torch"] = "paper"


@dataclass(frozen=True, kw_only=True)
class AttentionScoreSettings(RecurrentDecoderSettings):
    """Keys of recurrent decoders with attention."""

    score: str = "general"  # a key of `nn.SCORES`, or a plug-in's class
    max_source: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "max_source")


@dataclass(frozen=True, kw_only=True)
class RecurrentAttentionSettings(AttentionScoreSettings, RecurrentSettings):
    """Keys of attention over a recurrent encoder."""


@dataclass(frozen=True, kw_only=True)
class SoftAttentionSettings(RecurrentAttentionSettings):
    """Keys of soft attention over a recurrent encoder: window and coverage."""

    alignment: Literal["global", "local-m", "local-p"] = "global"
    window: int = 10
    coverage: Literal["none", "linguistic", "neural"] = "none"
    coverage_size: int = 10
    fertility: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "window", "coverage_size")


class RecurrentEncoder(Encoder):
    """Embedding and a stack of recurrent layers; each h̄_s is a key and a value.

    With `reverse` the source is read from its end, EOS first (Sutskever 2014, section 3.3); the memory is in source
    order.
    """

    def __init__(
        self, embedding: nn.Embedding, recurrent: Recurrent, dropout: float = 0.0, reverse: bool = False
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.recurrent = recurrent
        self.dropout = nn.Dropout(dropout)
        self.reverse = reverse

    def forward(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Encode source ids (B, S) as a memory (B, S, H·directions), with the last state of each layer."""
        size = source.shape[1]
        reversal = reversal_indices(lengths, size) if self.reverse else None
        tokens = source if reversal is None else source.gather(1, reversal)
        outputs, state = self.recurrent(self.dropout(self.embedding(tokens)), lengths)
        if reversal is not None:
            outputs = outputs.gather(1, reversal[..., None].expand_as(outputs))
        outputs = self.dropout(outputs)  # the decoder is one more layer on top, so its input gets inter-layer dropout
        return Encoded(Memory(outputs, outputs, prefix_mask(lengths, size)), state)


class Bridge(nn.Module):
    """Initial decoder state s_0 = tanh(W_s h), h the last `input_size` dimensions of the encoder's last state.

    For a bidirectional encoder and `input_size` = H these are the backward direction's (Bahdanau 2015, appendix A.2.2).
    Each layer, and each of the LSTM's two tensors, has its own W_s.
    """

    def __init__(self, input_size: int, size: int, layers: int, num_state_tensors: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.num_state_tensors = num_state_tensors
        self.maps = nn.ModuleList(nn.Linear(input_size, size) for _ in range(layers * num_state_tensors))

    def forward(self, states: Sequence[State]) -> list[State]:
        """Map the last state of each encoder layer to the initial state of each decoder layer."""
        return [self._map_layer(state, layer) for layer, state in enumerate(states)]

    def _map_layer(self, state: State, layer: int) -> State:
        return self._project_layer([tensor[:, -self.input_size :] for tensor in state_tensors(state)], layer)

    def from_vector(self, vector: Tensor) -> list[State]:
        """Return the initial states computed from one vector (B, input_size) instead of the encoder's last states."""
        return [
            self._project_layer([vector] * self.num_state_tensors, layer)
            for layer in range(len(self.maps) // self.num_state_tensors)
        ]

    def _project_layer(self, tensors: Sequence[Tensor], layer: int) -> State:
        """Return tanh(W_s h) for each tensor of a layer's state."""
        first = layer * self.num_state_tensors
        projected = [torch.tanh(self.maps[first + index](source)) for index, source in enumerate(tensors)]
        return projected[0] if self.num_state_tensors == 1 else tuple(projected)


def make_bridge(settings: RecurrentSettings) -> Callable[[Sequence[State]], list[State]]:
    """Return the identity, or a `Bridge` if the states of a bidirectional encoder are too wide for the decoder."""
    if settings.memory_size == settings.size:
        return list
    return Bridge(settings.memory_size, settings.size, settings.layers, CELLS[settings.cell].num_state_tensors)


def tie_weights(embedding: nn.Embedding, output: nn.Linear, input_name: str) -> None:
    """Share one matrix between target embeddings and output layer; `input_name` names the output's input in the error.

    It keeps the initial values of the output layer: with PyTorch's embeddings, N(0, 1), the first logits would be
    √width too large.
    """
    if embedding.embedding_dim != output.in_features:
        raise ValueError(
            f"tie: embeddings have {embedding.embedding_dim} numbers, {input_name} {output.in_features}; "
            "make the two equal"
        )
    embedding.weight = output.weight
    nn.init.zeros_(embedding.weight[PAD])


def make_embedding(vocabulary_size: int, size: int) -> nn.Embedding:
    """Return token embeddings in which PAD gets no gradient."""
    return nn.Embedding(vocabulary_size, size, padding_idx=PAD)


def build_encoder(settings: RecurrentSettings, source_size: int) -> RecurrentEncoder:
    """Build the recurrent encoder from its settings."""
    recurrent = Recurrent(
        CELLS[settings.cell],
        settings.embedding_size,
        settings.size,
        settings.layers,
        settings.bidirectional,
        settings.dropout,
        settings.residual,
    )
    return RecurrentEncoder(
        make_embedding(source_size, settings.embedding_size), recurrent, settings.dropout, settings.reverse
    )


def build_score(settings: AttentionScoreSettings, query_size: int, key_size: int, hidden_size: int) -> Score:
    """Build the attention score from its settings."""
    if settings.score == "dot" and query_size != key_size:
        raise ValueError(
            f"score: a dot product needs queries and keys of one size: the decoder's states have {query_size}, "
            f"the encoder's {key_size}"
        )
    return make_score(
        find_score(settings.score),
        query_size=query_size,
        key_size=key_size,
        size=hidden_size,
        max_source=settings.max_source,
    )


def _build_alignment(settings: SoftAttentionSettings, query_size: int) -> Alignment:
    """Build the alignment (global, local-m, local-p) from its settings."""
    makers: dict[str, Callable[[], Alignment]] = {
        "global": Global,
        "local-m": lambda: LocalMonotonic(settings.window),
        "local-p": lambda: LocalPredictive(query_size, settings.window, query_size),
    }
    return makers[settings.alignment]()


def build_attention(settings: SoftAttentionSettings, query_size: int, key_size: int, hidden_size: int) -> Attention:
    """Build the attention from its settings; `hidden_size` is the number of hidden units of its score."""
    score = build_score(settings, query_size, key_size, hidden_size)
    if settings.coverage != "none" and not getattr(score, "uses_keys", True):
        raise ValueError(
            f"coverage: {settings.coverage} is added to the keys, which score {settings.score} does not use; "
            "choose score dot, general or concat"
        )
    size = compute_projected_size(score, key_size)
    makers: dict[str, Callable[[], Coverage | None]] = {
        "none": lambda: None,
        "linguistic": lambda: LinguisticCoverage(key_size, size, settings.fertility),
        "neural": lambda: NeuralCoverage(query_size, key_size, size, settings.coverage_size),
    }
    return Attention(score, _build_alignment(settings, query_size), makers[settings.coverage]())


def init_uniform_(model: nn.Module, bound: float) -> None:
    """Initialise every parameter from U[−bound, bound] (Sutskever 2014: 0.08; Luong 2015: 0.1)."""
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -bound, bound)


def init_orthogonal_(model: nn.Module) -> None:
    """Initialise recurrent matrices as orthogonal, others from N(0, 0.01²), biases as 0 (Cho 2014.

    Bahdanau 2015, B.1).
    """
    for name, parameter in model.named_parameters():
        if name.endswith("weight_hh"):
            for gate in parameter.chunk(len(parameter) // parameter.shape[1]):
                nn.init.orthogonal_(gate)
        elif parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=0.01)


class DeepOutput(nn.Module):
    """Deep output with maxout: t_i = maxout(U_o s + V_o E y_{i-1} + C_o c_i), logits W_o t_i (Bahdanau 2015, A.2.2)."""

    def __init__(
        self,
        state_size: int,
        embedding_size: int,
        context_size: int,
        maxout: int,
        vocabulary_size: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.U_o = nn.Linear(state_size, 2 * maxout)
        self.V_o = nn.Linear(embedding_size, 2 * maxout, bias=False)
        self.C_o = nn.Linear(context_size, 2 * maxout, bias=False)
        self.W_o = nn.Linear(maxout, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        """Return logits (B, T, V).

        Args:
            state: decoder states (B, T, n).
            word: embedded tokens (B, T, m).
            context: contexts (B, T, ·).
        """
        logits: Tensor = self.W_o(self.compute_maxout(state, word, context))
        return logits

    def compute_maxout(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        """Return t_i (B, T, ·) after dropout; arguments as of `forward`."""
        t = (self.U_o(state) + self.V_o(word) + self.C_o(context)).unflatten(-1, (-1, 2)).amax(-1)
        dropped: Tensor = self.dropout(t)
        return dropped


DecoderUnroller = Callable[[Any, Any, Tensor], tuple[Tensor, Attended]]


class StepwiseDecoder(Protocol):
    """Interface of a decoder that runs token by token."""

    def step_from_embedding(self, state: Any, word: Tensor) -> tuple[Any, Attended, Tensor]:
        """Run one step on an embedded token; return the new state, the attention, and the input of the output layer."""
        ...


def unroll_decoder(decoder: StepwiseDecoder, state: Any, words: Tensor) -> tuple[Tensor, Attended]:
    """Run a decoder step by step on embedded tokens (B, T, m).

    Return the output layer's inputs (B, T, ·) and the attention.
    """
    attended_steps, outputs = [], []
    for word in words.unbind(1):
        state, attended, output = decoder.step_from_embedding(state, word)
        attended_steps.append(attended)
        outputs.append(output)
    return torch.stack(outputs, 1), concat_steps(attended_steps)
