"""Schuster & Paliwal 1997, Bidirectional recurrent neural networks, and what the paper compares them with.

Each word gets one of a few classes: y_t = g(V h_t + c), g the softmax. The networks differ in what h_t has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models.checks import at_least_one, not_negative, share
from regard.models.criterion import CrossEntropy
from regard.models.model import Model
from regard.models.recurrent import CELLS, embedding
from regard.nn import LSTMCell, Recurrent, mirrored, prefix_mask


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """What reads, whatever it reads and whatever is made of it: the `model` section of `schuster1997-regression`."""

    network: Literal["brnn", "rnn", "tdnn", "mlp"] = "brnn"
    cell: Literal["gru", "lstm", "elman"] = "lstm"
    size: int = 128
    layers: int = 1
    dropout: float = 0.0
    residual: bool = False
    delay: int = 0
    window: int = 2

    def __post_init__(self) -> None:
        share(self, "dropout")
        at_least_one(self, "size", "layers")
        not_negative(self, "delay", "window")


@dataclass(frozen=True, kw_only=True)
class SchusterSettings(NetworkSettings):
    """The `model` section of `schuster1997`."""

    embedding: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "embedding")

    @property
    def word_size(self) -> int:
        """Width of an embedding."""
        return self.size if self.embedding is None else self.embedding


class Network(Protocol):
    """What reads a sentence, or numbers over time."""

    output_size: int

    def __call__(self, x: Tensor, lengths: Tensor) -> Tensor:
        """X B,S,I, zero past each end, with `lengths` B -> h B,S,output_size."""
        ...


class Brnn(nn.Module):
    """h_t = [h^f_t; h^b_t]: all words up to t, and all from t on; no link leads from one direction to the other.

    h^f_t = f(W^f x_t + U^f h^f_{t-1} + b^f) and h^b_t = f(W^b x_t + U^b h^b_{t+1} + b^b), so that with V = [V^f V^b]
    the output is the paper's y_t = g(V^f h^f_t + V^b h^b_t + c). The directions meet there and nowhere else, however
    many layers they have. States begin at 0.
    """

    def __init__(self, settings: NetworkSettings, width: int) -> None:
        super().__init__()
        self.ahead, self.back = recurrent(settings, width), recurrent(settings, width)
        self.output_size = 2 * settings.size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """X B,S,I -> B,S,2H."""
        mirror = mirrored(lengths, x.shape[1])[..., None]
        forwards, _ = self.ahead(x, lengths)
        backwards, _ = self.back(x.gather(1, mirror.expand_as(x)), lengths)
        return torch.cat((forwards, backwards.gather(1, mirror.expand_as(backwards))), -1)


class Rnn(nn.Module):
    """h_t is the state after word t + delay: all words up to there, none beyond. After its end a sentence is zeros."""

    def __init__(self, settings: NetworkSettings, width: int) -> None:
        super().__init__()
        self.ahead = recurrent(settings, width)
        self.delay = settings.delay
        self.output_size = settings.size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """X B,S,I -> B,S,H."""
        states, _ = self.ahead(F.pad(x, (0, 0, 0, self.delay)), lengths + self.delay)
        late: Tensor = states[:, self.delay :]
        return late


class Layers(nn.Module):
    """Tanh units over windows, the same at every place: h^l_t = tanh(W^l [h^{l-1}_{t-w}; …; h^{l-1}_{t+w}] + b^l).

    `windows` has a window for each layer, so many words to each side. Beyond its ends a sentence is zeros.
    """

    def __init__(self, settings: NetworkSettings, width: int, windows: list[int]) -> None:
        super().__init__()
        widths = [width] + [settings.size] * (settings.layers - 1)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, settings.size, 2 * window + 1, padding=window)
            for width, window in zip(widths, windows, strict=True)
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.residual = settings.residual
        self.output_size = settings.size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """X B,S,I -> B,S,H."""
        real = prefix_mask(lengths, x.shape[1])[..., None]
        for layer, convolution in enumerate(self.convolutions):
            read = self.dropout(x) if layer else x
            given = torch.tanh(convolution(read.transpose(1, 2)).transpose(1, 2)) * real
            x = given + x if self.residual and layer else given
        return x


class Tagger(Model):
    """What is known of a word is a sum of embeddings; a network reads the words, and a class is chosen for each."""

    def __init__(
        self, embedding: nn.Embedding, network: Network, output: nn.Linear, criterion: CrossEntropy, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.network = network
        self.output = output
        self.criterion = criterion
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Features B,S,F of words, 0 adds nothing, and lengths B -> logits B,S,V; V counts PAD, which is no class."""
        real = prefix_mask(lengths, source.shape[1])[..., None]
        words = self.dropout(self.embedding(source).sum(2)) * real
        logits: Tensor = self.output(self.dropout(self.network(words, lengths)))
        return logits

    def summed(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy with the classes B,S, summed up over a batch; PAD counts for nothing."""
        return self.criterion(self(source, lengths), target)

    def count(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """What that sum is divided by."""
        return self.criterion.count(target)


def recurrent(settings: NetworkSettings, width: int) -> Recurrent:
    """One direction."""
    return Recurrent(
        CELLS[settings.cell],
        width,
        settings.size,
        settings.layers,
        dropout=settings.dropout,
        residual=settings.residual,
    )


def network(settings: NetworkSettings, width: int) -> Network:
    """What the settings ask for, for vectors of a width. All layers of a TDNN have the window, an MLP's first alone."""
    window, above = settings.window, settings.layers - 1
    makers: dict[str, Callable[[], Network]] = {
        "brnn": lambda: Brnn(settings, width),
        "rnn": lambda: Rnn(settings, width),
        "tdnn": lambda: Layers(settings, width, [window] * settings.layers),
        "mlp": lambda: Layers(settings, width, [window] + [0] * above),
    }
    return makers[settings.network]()


def build(settings: SchusterSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Tagger:
    """The model of the settings. Embeddings begin small, several are added up for a word; forget gates begin open."""
    if criterion.settings.guided or criterion.settings.r_drop:
        raise ValueError("loss.guided and loss.r_drop are of models that translate; one that tags has neither")
    words = embedding(source_size, settings.word_size)
    reader = network(settings, settings.word_size)
    nn.init.normal_(words.weight, std=settings.word_size**-0.5)
    output = nn.Linear(reader.output_size, target_size)
    model = Tagger(words, reader, output, criterion, settings.dropout)
    open_gates(model)
    return model


def open_gates(model: nn.Module) -> None:
    """Forget gates begin open."""
    for module in model.modules():
        if isinstance(module, LSTMCell):
            nn.init.constant_(module.bias_ih.chunk(4)[1], 1.0)
