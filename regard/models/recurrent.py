"""What the recurrent models share: the settings, the encoder, the way from its last state to the decoder's first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regard.models.checks import at_least_one, share
from regard.models.seq2seq import Encoded, Encoder
from regard.nn import (
    Alignment,
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
    mirrored,
    parts,
    prefix_mask,
)
from regard.symbols import PAD

CELLS: dict[str, type[Cell]] = {"gru": GRUCell, "lstm": LSTMCell, "elman": ElmanCell}


@dataclass(frozen=True, kw_only=True)
class DecoderSettings:
    """What a recurrent decoder has, whatever its encoder."""

    size: int = 256
    embedding: int | None = None
    layers: int = 1
    dropout: float = 0.0
    residual: bool = False
    cell: Literal["gru", "lstm", "elman"] = "gru"
    tie: bool = False

    def __post_init__(self) -> None:
        share(self, "dropout")
        at_least_one(self, "size", "layers", "embedding")

    @property
    def word_size(self) -> int:
        """Width of an embedding."""
        return self.size if self.embedding is None else self.embedding

    @property
    def memory_size(self) -> int:
        """Width of what the encoder leaves for each place of the source."""
        return self.size


@dataclass(frozen=True, kw_only=True)
class RecurrentSettings(DecoderSettings):
    """The `model` section of a recipe that is recurrent on both sides."""

    bidirectional: bool = True
    reverse: bool = False

    @property
    def memory_size(self) -> int:
        """Width of an encoder state h̄_s."""
        return self.size * (2 if self.bidirectional else 1)


@dataclass(frozen=True, kw_only=True)
class InitialisedSettings(RecurrentSettings):
    """Where the paper says how the weights begin."""

    initialisation: Literal["paper", "torch"] = "paper"


@dataclass(frozen=True, kw_only=True)
class ScoreSettings(DecoderSettings):
    """What a recurrent decoder with attention has besides."""

    score: Literal["dot", "general", "concat", "location"] = "general"
    max_source: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "max_source")


@dataclass(frozen=True, kw_only=True)
class ScoredSettings(ScoreSettings, RecurrentSettings):
    """The same over a recurrent encoder."""


@dataclass(frozen=True, kw_only=True)
class AttentiveSettings(ScoredSettings):
    """And what it has where the weights are soft: a choice of where to look."""

    alignment: Literal["global", "local-m", "local-p"] = "global"
    window: int = 10
    coverage: Literal["none", "linguistic", "neural"] = "none"
    coverage_size: int = 10
    fertility: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "window", "coverage_size")
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
        mirror = mirrored(lengths, size) if self.reverse else None
        read = source if mirror is None else source.gather(1, mirror)
        outputs, state = self.recurrent(self.dropout(self.embedding(read)), lengths)
        if mirror is not None:
            outputs = outputs.gather(1, mirror[..., None].expand_as(outputs))
        outputs = self.dropout(outputs)  # to what reads them this is one link between layers more
        return Encoded(Memory(outputs, outputs, prefix_mask(lengths, size)), state)


class Bridge(nn.Module):
    """A decoder's first state s_0 = tanh(W_s h), h the last `input_size` numbers of the encoder's last state.

    For a bidirectional encoder and `input_size` = H these are the backward direction's (Bahdanau 2015, appendix A.2.2).
    Each layer, and each of the LSTM's two tensors, has its own W_s.
    """

    def __init__(self, input_size: int, size: int, layers: int, tracks: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.tracks = tracks
        self.maps = nn.ModuleList(nn.Linear(input_size, size) for _ in range(layers * tracks))

    def forward(self, states: Sequence[State]) -> list[State]:
        """The last state of each encoder layer -> the first state of each decoder layer."""
        return [self.cross(state, layer) for layer, state in enumerate(states)]

    def cross(self, state: State, layer: int) -> State:
        """One layer."""
        return self.made([part[:, -self.input_size :] for part in parts(state)], layer)

    def of(self, summary: Tensor) -> list[State]:
        """The first states from one vector B,input_size instead of the encoder's last states."""
        return [self.made([summary] * self.tracks, layer) for layer in range(len(self.maps) // self.tracks)]

    def made(self, sources: Sequence[Tensor], layer: int) -> State:
        """tanh(W_s h) for each tensor of a layer's state."""
        first = layer * self.tracks
        made = [torch.tanh(self.maps[first + track](source)) for track, source in enumerate(sources)]
        return made[0] if self.tracks == 1 else tuple(made)


def straight(settings: RecurrentSettings) -> Callable[[Sequence[State]], list[State]]:
    """The encoder's last states as they are, or over a bridge where its two directions make them too wide."""
    if settings.memory_size == settings.size:
        return list
    return Bridge(settings.memory_size, settings.size, settings.layers, CELLS[settings.cell].tracks)


def tie(words: nn.Embedding, output: nn.Linear, what: str) -> None:
    """One matrix for the target's embeddings and the output layer; `what` is read by it, for the error.

    It begins as an output layer does: with PyTorch's embeddings, N(0, 1), the first logits would be √width too large.
    """
    if words.embedding_dim != output.in_features:
        raise ValueError(
            f"tie: embeddings have {words.embedding_dim} numbers, {what} {output.in_features}; make the two equal"
        )
    words.weight = output.weight
    nn.init.zeros_(words.weight[PAD])


def embedding(vocabulary: int, size: int) -> nn.Embedding:
    """Word vectors; PAD's gets no gradient from here."""
    return nn.Embedding(vocabulary, size, padding_idx=PAD)


def encoder(settings: RecurrentSettings, source_size: int) -> RecurrentEncoder:
    """The encoder that the settings ask for."""
    recurrent = Recurrent(
        CELLS[settings.cell],
        settings.word_size,
        settings.size,
        settings.layers,
        settings.bidirectional,
        settings.dropout,
        settings.residual,
    )
    return RecurrentEncoder(embedding(source_size, settings.word_size), recurrent, settings.dropout, settings.reverse)


def score(settings: ScoreSettings, query_size: int, key_size: int, hidden: int) -> Score:
    """The score that the settings ask for."""
    if settings.score == "dot" and query_size != key_size:
        raise ValueError(
            f"score: a dot product needs queries and keys of one size: the decoder's states have {query_size}, "
            f"the encoder's {key_size}"
        )
    makers: dict[str, Callable[[], Score]] = {
        "dot": Dot,
        "general": lambda: General(query_size, key_size),
        "concat": lambda: Concat(query_size, key_size, hidden),
        "location": lambda: Location(query_size, settings.max_source),
    }
    return makers[settings.score]()


def alignment(settings: AttentiveSettings, query_size: int) -> Alignment:
    """The alignment that the settings ask for."""
    makers: dict[str, Callable[[], Alignment]] = {
        "global": Global,
        "local-m": lambda: LocalMonotonic(settings.window),
        "local-p": lambda: LocalPredictive(query_size, settings.window, query_size),
    }
    return makers[settings.alignment]()


def attention(settings: AttentiveSettings, query_size: int, key_size: int, hidden: int) -> Attention:
    """The attention that the settings ask for; `hidden` is the width of a concat score."""
    projected = {"dot": key_size, "general": query_size, "concat": hidden, "location": key_size}[settings.score]
    makers: dict[str, Callable[[], Coverage | None]] = {
        "none": lambda: None,
        "linguistic": lambda: LinguisticCoverage(key_size, projected, settings.fertility),
        "neural": lambda: NeuralCoverage(query_size, key_size, projected, settings.coverage_size),
    }
    how = score(settings, query_size, key_size, hidden)
    return Attention(how, alignment(settings, query_size), makers[settings.coverage]())


def uniform(model: nn.Module, reach: float) -> None:
    """Every parameter U[−reach, reach] (Sutskever 2014: 0.08; Luong 2015: 0.1)."""
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -reach, reach)


def orthogonal(model: nn.Module) -> None:
    """Recurrent matrices orthogonal, the others N(0, 0.01²), biases 0 (Cho 2014; Bahdanau 2015, appendix B.1)."""
    for name, parameter in model.named_parameters():
        if name.endswith("weight_hh"):
            for gate in parameter.chunk(len(parameter) // parameter.shape[1]):
                nn.init.orthogonal_(gate)
        elif parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=0.01)
