"""What the recurrent models share: the settings, the encoder, the way from its last state to the decoder's first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from regard.models.base import Encoded, Encoder
from regard.models.settings_checks import check_fraction, check_positive
from regard.nn import (
    Alignment,
    Attended,
    Attention,
    Cell,
    Concat,
    Coverage,
    Dot,
    ElmanCell,
    General,
    Global,
    GRUCell,
    LinguisticCoverage,
    LocalMonotonic,
    LocalPredictive,
    Location,
    LSTMCell,
    Memory,
    NeuralCoverage,
    Recurrent,
    Score,
    State,
    concat_steps,
    prefix_mask,
    reversal_indices,
    state_tensors,
)
from regard.special_tokens import PAD

CELLS: dict[str, type[Cell]] = {"gru": GRUCell, "lstm": LSTMCell, "elman": ElmanCell}


@dataclass(frozen=True, kw_only=True)
class RecurrentDecoderSettings:
    """What a recurrent decoder has, whatever its encoder."""

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
        """Width of what the encoder leaves for each place of the source."""
        return self.size


@dataclass(frozen=True, kw_only=True)
class RecurrentSettings(RecurrentDecoderSettings):
    """The `model` section of a recipe that is recurrent on both sides."""

    bidirectional: bool = True
    reverse: bool = False

    @property
    def memory_size(self) -> int:
        """Width of an encoder state h̄_s."""
        return self.size * (2 if self.bidirectional else 1)


@dataclass(frozen=True, kw_only=True)
class RecurrentInitSettings(RecurrentSettings):
    """Where the paper says how the weights begin."""

    initialisation: Literal["paper", "torch"] = "paper"


@dataclass(frozen=True, kw_only=True)
class AttentionScoreSettings(RecurrentDecoderSettings):
    """What a recurrent decoder with attention has besides."""

    score: Literal["dot", "general", "concat", "location"] = "general"
    max_source: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "max_source")


@dataclass(frozen=True, kw_only=True)
class RecurrentAttentionSettings(AttentionScoreSettings, RecurrentSettings):
    """The same over a recurrent encoder."""


@dataclass(frozen=True, kw_only=True)
class SoftAttentionSettings(RecurrentAttentionSettings):
    """And what it has where the weights are soft: a choice of where to look."""

    alignment: Literal["global", "local-m", "local-p"] = "global"
    window: int = 10
    coverage: Literal["none", "linguistic", "neural"] = "none"
    coverage_size: int = 10
    fertility: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "window", "coverage_size")
        if self.coverage != "none" and self.score == "location":
            raise ValueError(
                f"coverage: {self.coverage} reaches the score through the keys, and score location reads none; "
                "choose dot, general or concat"
            )


class RecurrentEncoder(Encoder):
    """Embedding, then a stack of recurrent layers; each h̄_s is a key and a value.

    With `reverse` the source is read from its end, EOS first (Sutskever 2014, section 3.3); the memory is put back in
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
        """Source B,S -> memory of B,S,H·directions and the last state of each layer."""
        size = source.shape[1]
        reversal = reversal_indices(lengths, size) if self.reverse else None
        tokens = source if reversal is None else source.gather(1, reversal)
        outputs, state = self.recurrent(self.dropout(self.embedding(tokens)), lengths)
        if reversal is not None:
            outputs = outputs.gather(1, reversal[..., None].expand_as(outputs))
        outputs = self.dropout(outputs)  # to what reads them this is one link between layers more
        return Encoded(Memory(outputs, outputs, prefix_mask(lengths, size)), state)


class Bridge(nn.Module):
    """A decoder's first state s_0 = tanh(W_s h), h the last `input_size` numbers of the encoder's last state.

    For a bidirectional encoder and `input_size` = H these are the backward direction's (Bahdanau 2015, appendix A.2.2).
    Each layer, and each of the LSTM's two tensors, has its own W_s.
    """

    def __init__(self, input_size: int, size: int, layers: int, num_state_tensors: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.num_state_tensors = num_state_tensors
        self.maps = nn.ModuleList(nn.Linear(input_size, size) for _ in range(layers * num_state_tensors))

    def forward(self, states: Sequence[State]) -> list[State]:
        """The last state of each encoder layer -> the first state of each decoder layer."""
        return [self._map_layer(state, layer) for layer, state in enumerate(states)]

    def _map_layer(self, state: State, layer: int) -> State:
        """One layer."""
        return self._project_layer([part[:, -self.input_size :] for part in state_tensors(state)], layer)

    def from_vector(self, vector: Tensor) -> list[State]:
        """The first states from one vector B,input_size instead of the encoder's last states."""
        return [
            self._project_layer([vector] * self.num_state_tensors, layer)
            for layer in range(len(self.maps) // self.num_state_tensors)
        ]

    def _project_layer(self, tensors: Sequence[Tensor], layer: int) -> State:
        """tanh(W_s h) for each tensor of a layer's state."""
        first = layer * self.num_state_tensors
        projected = [torch.tanh(self.maps[first + track](source)) for track, source in enumerate(tensors)]
        return projected[0] if self.num_state_tensors == 1 else tuple(projected)


def make_bridge(settings: RecurrentSettings) -> Callable[[Sequence[State]], list[State]]:
    """The encoder's last states as they are, or over a bridge where its two directions make them too wide."""
    if settings.memory_size == settings.size:
        return list
    return Bridge(settings.memory_size, settings.size, settings.layers, CELLS[settings.cell].num_state_tensors)


def tie_weights(embedding: nn.Embedding, output: nn.Linear, input_name: str) -> None:
    """One matrix for the target's embeddings and the output layer; `what` is read by it, for the error.

    It begins as an output layer does: with PyTorch's embeddings, N(0, 1), the first logits would be √width too large.
    """
    if embedding.embedding_dim != output.in_features:
        raise ValueError(
            f"tie: embeddings have {embedding.embedding_dim} numbers, {input_name} {output.in_features}; make the two equal"
        )
    embedding.weight = output.weight
    nn.init.zeros_(embedding.weight[PAD])


def make_embedding(vocabulary_size: int, size: int) -> nn.Embedding:
    """Word vectors; PAD's gets no gradient from here."""
    return nn.Embedding(vocabulary_size, size, padding_idx=PAD)


def build_encoder(settings: RecurrentSettings, source_size: int) -> RecurrentEncoder:
    """The encoder that the settings ask for."""
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
    """The score that the settings ask for."""
    if settings.score == "dot" and query_size != key_size:
        raise ValueError(
            f"score: a dot product needs queries and keys of one size: the decoder's states have {query_size}, "
            f"the encoder's {key_size}"
        )
    makers: dict[str, Callable[[], Score]] = {
        "dot": Dot,
        "general": lambda: General(query_size, key_size),
        "concat": lambda: Concat(query_size, key_size, hidden_size),
        "location": lambda: Location(query_size, settings.max_source),
    }
    return makers[settings.score]()


def _build_alignment(settings: SoftAttentionSettings, query_size: int) -> Alignment:
    """The alignment that the settings ask for."""
    makers: dict[str, Callable[[], Alignment]] = {
        "global": Global,
        "local-m": lambda: LocalMonotonic(settings.window),
        "local-p": lambda: LocalPredictive(query_size, settings.window, query_size),
    }
    return makers[settings.alignment]()


def build_attention(settings: SoftAttentionSettings, query_size: int, key_size: int, hidden_size: int) -> Attention:
    """The attention that the settings ask for; `hidden` is the width of a concat score."""
    projected_size = {"dot": key_size, "general": query_size, "concat": hidden_size, "location": key_size}[
        settings.score
    ]
    makers: dict[str, Callable[[], Coverage | None]] = {
        "none": lambda: None,
        "linguistic": lambda: LinguisticCoverage(key_size, projected_size, settings.fertility),
        "neural": lambda: NeuralCoverage(query_size, key_size, projected_size, settings.coverage_size),
    }
    attention_score = build_score(settings, query_size, key_size, hidden_size)
    return Attention(attention_score, _build_alignment(settings, query_size), makers[settings.coverage]())


def init_uniform_(model: nn.Module, bound: float) -> None:
    """Every parameter U[−reach, reach] (Sutskever 2014: 0.08; Luong 2015: 0.1)."""
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -bound, bound)


def init_orthogonal_(model: nn.Module) -> None:
    """Recurrent matrices orthogonal, the others N(0, 0.01²), biases 0 (Cho 2014; Bahdanau 2015, appendix B.1)."""
    for name, parameter in model.named_parameters():
        if name.endswith("weight_hh"):
            for gate in parameter.chunk(len(parameter) // parameter.shape[1]):
                nn.init.orthogonal_(gate)
        elif parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=0.01)


class DeepOutput(nn.Module):
    """t_i = maxout(U_o s + V_o E y_{i-1} + C_o c_i) and the logits W_o t_i (appendix A.2.2)."""

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
        """States B,T,n, embedded words B,T,m, contexts B,T,· -> logits B,T,V."""
        logits: Tensor = self.W_o(self.compute_maxout(state, word, context))
        return logits

    def compute_maxout(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        """The same -> t_i B,T,·, with dropout."""
        t = (self.U_o(state) + self.V_o(word) + self.C_o(context)).unflatten(-1, (-1, 2)).amax(-1)
        dropped: Tensor = self.dropout(t)
        return dropped


DecoderUnroller = Callable[[Any, Any, Tensor], tuple[Tensor, Attended]]


class StepwiseDecoder(Protocol):
    """A decoder that goes word by word."""

    def step_from_embedding(self, state: Any, word: Tensor) -> tuple[Any, Attended, Tensor]:
        """One step on an embedded word: the new state, what was attended to, and what the output reads."""
        ...


def unroll_decoder(decoder: StepwiseDecoder, state: Any, words: Tensor) -> tuple[Tensor, Attended]:
    """Each step waits for the one before: words B,T,m -> what the output reads B,T,·, and the looks."""
    attended_steps, outputs = [], []
    for word in words.unbind(1):
        state, attended, output = decoder.step_from_embedding(state, word)
        attended_steps.append(attended)
        outputs.append(output)
    return torch.stack(outputs, 1), concat_steps(attended_steps)
