"""Schuster & Paliwal 1997, Bidirectional recurrent neural networks.

And the networks that the paper compares: RNN, TDNN, MLP.

Tagging: each word gets one of a few classes, y_t = g(V h_t + c), g the softmax. The networks differ in the words that
h_t depends on. The same networks also do regression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Fraction, NonNegativeInt, NumLayers, PositiveInt
from regard.models.base import CrossEntropy, Model
from regard.models.rnn_common import CELLS, EmbeddingSettings
from regard.nn import LinearChainCRF, LSTMCell, Recurrent, prefix_mask
from regard.nn.recurrent import reverse_sequences


@dataclass(frozen=True, kw_only=True)
class SequenceNetworkSettings:
    """Keys of a sequence network; the `model` section of `schuster1997-regression`."""

    network: Literal["brnn", "stacked", "rnn", "tdnn", "mlp"] = "brnn"
    cell: Literal["gru", "lstm", "elman"] = "lstm"
    size: PositiveInt = 128
    layers: NumLayers = 1
    dropout: Fraction = 0.0
    residual: bool = False
    delay: NonNegativeInt = 0
    window: NonNegativeInt = 2


@dataclass(frozen=True, kw_only=True)
class SchusterSettings(SequenceNetworkSettings, EmbeddingSettings):
    """The `model` section of `schuster1997`."""

    transitions: bool | None = False
    members: PositiveInt = 1


class BiRNN(nn.Module):
    """Bidirectional RNN: h_t = [h^f_t; h^b_t], from all words up to t and all words from t on.

    h^f_t = f(W^f x_t + U^f h^f_{t-1} + b^f) and h^b_t = f(W^b x_t + U^b h^b_{t+1} + b^b), so that with V = [V^f V^b]
    the output is the paper's y_t = g(V^f h^f_t + V^b h^b_t + c). The two directions are connected only there, whatever
    the number of layers. Initial states are 0.
    """

    def __init__(self, settings: SequenceNetworkSettings, input_size: int) -> None:
        super().__init__()
        self.ahead, self.back = _make_rnn(settings, input_size), _make_rnn(settings, input_size)
        self.output_size = 2 * settings.size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map x (B, S, I) to (B, S, 2H)."""
        forwards, _ = self.ahead(x, lengths)
        backwards, _ = self.back(reverse_sequences(x, lengths), lengths)
        return torch.cat((forwards, reverse_sequences(backwards, lengths)), -1)


class StackedBiRNN(nn.Module):
    """Bidirectional RNN whose layers above the first read both directions of the layer below."""

    def __init__(self, settings: SequenceNetworkSettings, input_size: int) -> None:
        super().__init__()
        cell, sizes = CELLS[settings.cell], (input_size, settings.size, settings.layers)
        self.recurrent = Recurrent(cell, *sizes, True, settings.dropout, settings.residual)
        self.output_size = self.recurrent.output_size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map x (B, S, I) to (B, S, 2H)."""
        outputs: Tensor = self.recurrent(x, lengths)[0]
        return outputs


class DelayedRNN(nn.Module):
    """RNN with delayed output: h_t is the state after word t + delay. Sentences are zero-padded at the end."""

    def __init__(self, settings: SequenceNetworkSettings, input_size: int) -> None:
        super().__init__()
        self.ahead = _make_rnn(settings, input_size)
        self.delay = settings.delay
        self.output_size = settings.size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map x (B, S, I) to (B, S, H)."""
        states, _ = self.ahead(F.pad(x, (0, 0, 0, self.delay)), lengths + self.delay)
        delayed: Tensor = states[:, self.delay :]
        return delayed


class WindowedMLP(nn.Module):
    """Tanh units over windows, the same at every position: h^l_t = tanh(W^l [h^{l-1}_{t-w}; …; h^{l-1}_{t+w}] + b^l).

    In a TDNN every layer has the window of w words to each side, in an MLP only the first one. Sentences are
    zero-padded at both ends.
    """

    def __init__(self, settings: SequenceNetworkSettings, input_size: int) -> None:
        super().__init__()
        width, window = input_size, settings.window
        self.convolutions = nn.ModuleList()
        for _ in range(settings.layers):
            self.convolutions.append(nn.Conv1d(width, settings.size, 2 * window + 1, padding=window))
            width, window = settings.size, settings.window if settings.network == "tdnn" else 0
        self.dropout = nn.Dropout(settings.dropout)
        self.residual = settings.residual
        self.output_size = settings.size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map x (B, S, I) to (B, S, H)."""
        real = prefix_mask(lengths, x.shape[1])[..., None]
        for layer, convolution in enumerate(self.convolutions):
            inputs = self.dropout(x) if layer else x
            outputs = torch.tanh(convolution(inputs.transpose(1, 2)).transpose(1, 2)) * real
            x = outputs + x if self.residual and layer else outputs
        return x


# Each is called with x (B, S, I), zero after each end, and lengths (B,), and returns h (B, S, output_size).
NETWORKS: dict[str, type[BiRNN | StackedBiRNN | DelayedRNN | WindowedMLP]] = {
    "brnn": BiRNN,
    "stacked": StackedBiRNN,
    "rnn": DelayedRNN,
    "tdnn": WindowedMLP,
    "mlp": WindowedMLP,
}


class Tagger(Model):
    """Sequence tagger: a network reads words, each a sum of feature embeddings, and predicts a class for each."""

    def __init__(self, settings: SchusterSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> None:
        criterion.require_plain("tagger")
        super().__init__()
        self.embedding = settings.make_embedding(source_size)
        self.network = NETWORKS[settings.network](settings, settings.embedding_size)
        nn.init.normal_(self.embedding.weight, std=settings.embedding_size**-0.5)  # several are added up for a word
        self.output = nn.Linear(self.network.output_size, target_size)
        self.criterion = criterion
        self.dropout = nn.Dropout(settings.dropout)
        self.crf = LinearChainCRF(target_size) if settings.transitions else None
        init_forget_bias_(self)

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return logits (B, S, V) for word features (B, S, F) with lengths (B,).

        Feature 0 adds nothing; V includes PAD, which is never predicted.
        """
        scores = self.compute_scores(source, lengths)
        return scores if self.crf is None else self.crf(scores, lengths)

    def compute_scores(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores of the classes of each word (B, S, V), without those of neighbouring classes."""
        real = prefix_mask(lengths, source.shape[1])[..., None]
        words = self.dropout(self.embedding(source).sum(2)) * real
        logits: Tensor = self.output(self.dropout(self.network(words, lengths)))
        return logits

    def loss_sum(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the summed cross-entropy with the classes (B, S), where PAD is ignored, or of all jointly."""
        if self.crf is not None:
            return self.crf.loss_sum(self.compute_scores(source, lengths), lengths, target)
        return self.criterion(self(source, lengths), target)

    def loss_count(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the number of tagged words, or of sentences."""
        return self.criterion.loss_count(target)


class TaggerEnsemble(Model):
    """Taggers that learn one by one from the same batches; their probabilities are averaged."""

    def __init__(self, settings: SchusterSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            Tagger(settings, source_size, target_size, criterion) for _ in range(settings.members)
        )

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the logarithm of mean probabilities (B, S, V); arguments as of `Tagger.forward`."""
        logits = torch.stack([member(source, lengths) for member in self.members])
        return logits.log_softmax(-1).logsumexp(0) - math.log(len(self.members))

    def loss_sum(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the mean of the members' losses."""
        losses = [member.loss_sum(source, lengths, target) for member in self._list_members()]
        return torch.stack(losses).mean()

    def loss_count(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the number of tagged words, or of sentences."""
        return self._list_members()[0].loss_count(source, lengths, target)

    def _list_members(self) -> list[Tagger]:
        return [member for member in self.members if isinstance(member, Tagger)]


def build_tagger(
    settings: SchusterSettings, source_size: int, target_size: int, criterion: CrossEntropy
) -> Tagger | TaggerEnsemble:
    """Build a tagger, or an ensemble if `members` is more than 1."""
    kind = TaggerEnsemble if settings.members > 1 else Tagger
    return kind(settings, source_size, target_size, criterion)


def _make_rnn(settings: SequenceNetworkSettings, input_size: int) -> Recurrent:
    """Build an RNN of one direction."""
    cell, dropout = CELLS[settings.cell], settings.dropout
    return Recurrent(cell, input_size, settings.size, settings.layers, dropout=dropout, residual=settings.residual)


def init_forget_bias_(model: nn.Module) -> None:
    """Set the bias of LSTM forget gates to 1, so that they start open."""
    for module in model.modules():
        if isinstance(module, LSTMCell):
            nn.init.constant_(module.bias_ih.chunk(4)[1], 1.0)


class Regressor(Model):
    """Sequence regression: a network reads a time series, and a linear layer maps its states to outputs.

    It has `source_size` inputs and `target_size` outputs; `criterion` is unused.
    """

    def __init__(
        self, settings: SequenceNetworkSettings, source_size: int, target_size: int, criterion: CrossEntropy
    ) -> None:
        super().__init__()
        self.network = NETWORKS[settings.network](settings, source_size)
        self.output = nn.Linear(self.network.output_size, target_size)
        self.dropout = nn.Dropout(settings.dropout)
        init_forget_bias_(self)

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return outputs (B, S, O) for inputs (B, S, I) with lengths (B,).

        Outputs after a row's end are meaningless.
        """
        real = prefix_mask(lengths, source.shape[1])[..., None]
        outputs: Tensor = self.output(self.dropout(self.network(source * real, lengths)))
        return outputs

    def loss_sum(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return Σ (y − ŷ)² over all real steps and outputs of a batch."""
        real = prefix_mask(lengths, source.shape[1])[..., None]
        errors: Tensor = (self(source, lengths).to(target.dtype) - target) * real
        return errors.square().sum()

    def loss_count(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the number of squared errors in the sum."""
        return lengths.sum() * target.shape[2]
