"""Common parts of the recurrent models: settings, encoder, bridge, deep output, unrolling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.config import Fraction, NumLayers, PositiveInt
from regard.models.base import Decoded, Decoder, Encoded, Encoder, log_probs
from regard.models.plugins import find_score
from regard.nn import ElmanCell, GRUCell, LSTMCell, Recurrent, State, hidden_state, state_tensors
from regard.nn.alignments import Alignment, Global, LocalMonotonic, LocalPredictive
from regard.nn.attention import Attention
from regard.nn.coverage import Coverage, LinguisticCoverage, NeuralCoverage
from regard.nn.memory import Attended, Memory, concat_steps, prefix_mask
from regard.nn.recurrent import Cell, reverse_sequences
from regard.nn.scores import Score, compute_projected_size, make_score
from regard.special_tokens import PAD

CELLS: dict[str, type[Cell]] = {"gru": GRUCell, "lstm": LSTMCell, "elman": ElmanCell}


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """Widths of hidden states and of embeddings."""

    size: PositiveInt = 256
    embedding: PositiveInt | None = None

    @property
    def embedding_size(self) -> int:
        """Width of an embedding."""
        return self.size if self.embedding is None else self.embedding

    def make_embedding(self, vocabulary_size: int) -> nn.Embedding:
        """Return token embeddings in which PAD gets no gradient."""
        return nn.Embedding(vocabulary_size, self.embedding_size, padding_idx=PAD)


@dataclass(frozen=True, kw_only=True)
class RecurrentDecoderSettings(EmbeddingSettings):
    """Keys of every recurrent decoder, whatever its encoder."""

    layers: NumLayers = 1
    dropout: Fraction = 0.0
    residual: bool = False
    cell: Literal["gru", "lstm", "elman"] = "gru"
    tie: bool = False

    @property
    def memory_size(self) -> int:
        """Width of the encoder's memory."""
        return self.size

    def make_recurrent(self, input_size: int, bidirectional: bool = False) -> Recurrent:
        """Return the recurrent layers of an encoder or a decoder."""
        cell = CELLS[self.cell]
        return Recurrent(cell, input_size, self.size, self.layers, bidirectional, self.dropout, self.residual)

    def make_bridge(self, input_size: int) -> Bridge:
        """Return the map from vectors (B, input_size) to the decoder's initial state."""
        return Bridge(input_size, self.size, self.layers, CELLS[self.cell].num_state_tensors)

    def tie_weights(self, embedding: nn.Embedding, output: nn.Linear, input_name: str) -> None:
        """Share one matrix between target embeddings and output layer, if `tie` says so.

        It keeps the initial values of the output layer: with PyTorch's embeddings, N(0, 1), the first logits would be
        √width too large. `input_name` names the output layer's input in the error.
        """
        if not self.tie:
            return
        if embedding.embedding_dim != output.in_features:
            raise ValueError(
                f"tie: embeddings have {embedding.embedding_dim} numbers, {input_name} {output.in_features}; "
                "make the two equal"
            )
        embedding.weight = output.weight
        nn.init.zeros_(embedding.weight[PAD])


@dataclass(frozen=True, kw_only=True)
class RecurrentSettings(RecurrentDecoderSettings):
    """Keys of recipes with a recurrent encoder and decoder."""

    bidirectional: bool = True
    reverse: bool = False

    @property
    def annotation_size(self) -> int:
        """Width of an encoder state h̄_s."""
        return self.size * (2 if self.bidirectional else 1)

    @property
    def memory_size(self) -> int:
        """Width of a key and of a value of the memory."""
        return self.annotation_size

    def make_state_map(self) -> Callable[[Sequence[State]], list[State]]:
        """Return the map from the encoder's last states to the decoder's initial ones.

        It is the identity, or a `Bridge` if the states of a bidirectional encoder are too wide for the decoder.
        """
        return list if self.memory_size == self.size else self.make_bridge(self.memory_size)


@dataclass(frozen=True, kw_only=True)
class RecurrentInitSettings(RecurrentSettings):
    """Keys of recipes whose paper states the weight initialisation."""

    initialisation: Literal["paper", "torch"] = "paper"


@dataclass(frozen=True, kw_only=True)
class DeepOutputSettings(RecurrentInitSettings):
    """Keys of recipes with a `DeepOutput`."""

    maxout: PositiveInt | None = None


@dataclass(frozen=True, kw_only=True)
class AttentionScoreSettings(RecurrentDecoderSettings):
    """Keys of recurrent decoders with attention."""

    score: str = "general"  # a key of `nn.SCORES`, or a plug-in's class
    max_source: PositiveInt = 100

    @property
    def score_hidden_size(self) -> int:
        """Number of hidden units of a concat score."""
        return self.size

    def make_score(self) -> Score:
        """Return the attention score of decoder states with the keys of the memory."""
        key_size = self.memory_size
        if self.score == "dot" and self.size != key_size:
            raise ValueError(
                f"score: a dot product needs queries and keys of one size: the decoder's states have {self.size}, "
                f"the encoder's {key_size}"
            )
        sizes = {"query_size": self.size, "key_size": key_size, "size": self.score_hidden_size}
        return make_score(find_score(self.score), **sizes, max_source=self.max_source)


@dataclass(frozen=True, kw_only=True)
class AdditiveScoreSettings(AttentionScoreSettings):
    """Keys of decoders with an additive score (`concat`) and its number n' of hidden units."""

    score: str = "concat"
    attention: PositiveInt | None = None

    @property
    def score_hidden_size(self) -> int:
        """Number of hidden units of a concat score."""
        return self.size if self.attention is None else self.attention


@dataclass(frozen=True, kw_only=True)
class SoftAttentionSettings(AttentionScoreSettings, RecurrentSettings):
    """Keys of soft attention over a recurrent encoder: window and coverage."""

    alignment: Literal["global", "local-m", "local-p"] = "global"
    window: PositiveInt = 10
    coverage: Literal["none", "linguistic", "neural"] = "none"
    coverage_size: PositiveInt = 10
    fertility: float = 2.0

    def make_attention(self) -> Attention:
        """Return the attention of decoder states to the memory."""
        score = self.make_score()
        if self.coverage != "none" and not getattr(score, "uses_keys", True):
            raise ValueError(
                f"coverage: {self.coverage} is added to the keys, which score {self.score} does not use; "
                "choose score dot, general or concat"
            )
        make_alignment: dict[str, Callable[[], Alignment]] = {
            "global": Global,
            "local-m": lambda: LocalMonotonic(self.window),
            "local-p": lambda: LocalPredictive(self.size, self.window, self.size),
        }
        size = compute_projected_size(score, self.memory_size)
        make_coverage: dict[str, Callable[[], Coverage | None]] = {
            "none": lambda: None,
            "linguistic": lambda: LinguisticCoverage(self.memory_size, size, self.fertility),
            "neural": lambda: NeuralCoverage(self.size, self.memory_size, size, self.coverage_size),
        }
        return Attention(score, make_alignment[self.alignment](), make_coverage[self.coverage]())


class RecurrentEncoder(Encoder):
    """Embedding and a stack of recurrent layers; each h̄_s is a key and a value.

    With `reverse` the source is read from its end, EOS first (Sutskever 2014, section 3.3); the memory is in source
    order.
    """

    def __init__(self, settings: RecurrentSettings, source_size: int) -> None:
        super().__init__()
        # This order decides the weights of a seed.
        recurrent = settings.make_recurrent(settings.embedding_size, settings.bidirectional)
        self.embedding = settings.make_embedding(source_size)
        self.recurrent = recurrent
        self.dropout = nn.Dropout(settings.dropout)
        self.reverse = settings.reverse

    def forward(self, source: Tensor, lengths: Tensor) -> Encoded:
        """Encode source ids (B, S) as a memory (B, S, H·directions), with the last state of each layer."""
        tokens = reverse_sequences(source, lengths) if self.reverse else source
        outputs, state = self.recurrent(self.dropout(self.embedding(tokens)), lengths)
        if self.reverse:
            outputs = reverse_sequences(outputs, lengths)
        outputs = self.dropout(outputs)  # the decoder is one more layer on top, so its input gets inter-layer dropout
        return Encoded(Memory(outputs, outputs, prefix_mask(lengths, source.shape[1])), state)


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
        return self._project([tensor[:, -self.input_size :] for state in states for tensor in state_tensors(state)])

    def from_vector(self, vector: Tensor) -> list[State]:
        """Return the initial states computed from one vector (B, input_size) instead of the encoder's last states."""
        return self._project([vector] * len(self.maps))

    def _project(self, sources: Sequence[Tensor]) -> list[State]:
        """Return tanh(W_s h) of each source, one after the other for each state tensor of each layer."""
        projected = [torch.tanh(W_s(h)) for W_s, h in zip(self.maps, sources, strict=True)]
        n = self.num_state_tensors
        return list(projected) if n == 1 else [tuple(projected[i : i + n]) for i in range(0, len(projected), n)]


def init_uniform_(model: nn.Module, bound: float) -> None:
    """Initialise every parameter from U[−bound, bound] (Sutskever 2014: 0.08; Luong 2015: 0.1)."""
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -bound, bound)


def init_orthogonal_(model: nn.Module) -> None:
    """Initialise recurrent matrices as orthogonal, others from N(0, 0.01²), biases as 0 (Bahdanau 2015, B.1)."""
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

    def __init__(self, settings: DeepOutputSettings, context_size: int, vocabulary_size: int) -> None:
        super().__init__()
        maxout = max(1, settings.size // 2) if settings.maxout is None else settings.maxout
        self.U_o = nn.Linear(settings.size, 2 * maxout)
        self.V_o = nn.Linear(settings.embedding_size, 2 * maxout, bias=False)
        self.C_o = nn.Linear(context_size, 2 * maxout, bias=False)
        self.W_o = nn.Linear(maxout, vocabulary_size)
        self.dropout = nn.Dropout(settings.dropout)

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


class RecurrentDecoder(Decoder):
    """Base class of recurrent decoders; a state has the field `recurrent`, the state of each layer."""

    def plot_state(self, state: Any) -> Tensor:
        """Return h of the top layer."""
        return hidden_state(state.recurrent[-1])


class StepwiseDecoder(RecurrentDecoder):
    """Base class of decoders that attend before the recurrent step, token by token; the output layer runs in one batch.

    A subclass builds the modules that are annotated here, and has `start`, `step_from_embedding` and `compute_logits`;
    a state has the field `memory`.
    """

    supports_shared_memory = True
    computation_order = ("h_{t-1}", "a_t", "c_t", "h_t")
    embedding: nn.Embedding
    attention: Attention
    recurrent: Recurrent
    dropout: nn.Dropout

    def __init__(self) -> None:
        super().__init__()
        self.unroll: DecoderUnroller = unroll_decoder  # replaced by a faster implementation if there is one

    def step_from_embedding(self, state: Any, word: Tensor) -> tuple[Any, Attended, Tensor]:
        """Run one step on an embedded token (B, m).

        Returns:
            The new state, the attention (T = 1), and features (B, ·) for `compute_logits`.
        """
        raise NotImplementedError

    def compute_logits(self, features: Tensor, words: Tensor, attended: Attended, memory: Memory) -> Tensor:
        """Return logits (B, T, V).

        Args:
            features: those of `step_from_embedding`, (B, T, ·).
            words: embedded tokens (B, T, m).
            attended: attention of the T steps.
            memory: encoder memory that the steps started with.
        """
        raise NotImplementedError

    def run_steps(self, state: Any, target_in: Tensor) -> tuple[Tensor, Tensor, Attended]:
        """Run all steps on target_in (B, T); return their features, the embedded tokens and the attention."""
        words = self.dropout(self.embedding(target_in))
        features, attended = self.unroll(self, state, words)
        return features, words, attended

    def decode_from_state(self, state: Any, target_in: Tensor) -> Decoded:
        """Run teacher forcing from a state: steps run one by one, the output layer in one batch."""
        features, words, attended = self.run_steps(state, target_in)
        return Decoded(self.compute_logits(features, words, attended, state.memory), attended)

    def forward(self, encoded: Encoded, target_in: Tensor) -> Decoded:
        """Return logits (B, T, V) of target_in (B, T)."""
        return self.decode_from_state(self.start(encoded), target_in)

    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, Any, Attended]:
        """Feed tokens (B,); return log-probabilities (B, V), the new state and the attention."""
        word = self.dropout(self.embedding(tokens))
        new_state, attended, features = self.step_from_embedding(state, word)
        logits = self.compute_logits(features[:, None], word[:, None], attended, state.memory)
        return log_probs(logits[:, 0]), new_state, attended


DecoderUnroller = Callable[[Any, Any, Tensor], tuple[Tensor, Attended]]


def unroll_decoder(decoder: Any, state: Any, words: Tensor) -> tuple[Tensor, Attended]:
    """Run `decoder.step_from_embedding` on each of the embedded tokens (B, T, m).

    Return the features (B, T, ·) of all steps, and their attention.
    """
    attended_steps, features = [], []
    for word in words.unbind(1):
        state, attended, step_features = decoder.step_from_embedding(state, word)
        attended_steps.append(attended)
        features.append(step_features)
    return torch.stack(features, 1), concat_steps(attended_steps)
