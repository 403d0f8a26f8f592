"""Schuster & Paliwal 1997, the other use of their networks: numbers for each step of time, y_t = V h_t + c."""

from __future__ import annotations

from torch import Tensor, nn

from regard.models.criterion import CrossEntropy
from regard.models.model import Model
from regard.models.schuster import Network, NetworkSettings, network, open_gates
from regard.nn import prefix_mask


class Regressor(Model):
    """A network reads numbers over time, and a linear layer makes numbers of its states."""

    def __init__(self, network: Network, output: nn.Linear, dropout: float) -> None:
        super().__init__()
        self.network = network
        self.output = output
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Inputs B,S,I and the numbers of real steps B -> outputs B,S,O; those past an end mean nothing."""
        real = prefix_mask(lengths, source.shape[1])[..., None]
        outputs: Tensor = self.output(self.dropout(self.network(source * real, lengths)))
        return outputs

    def summed(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Σ (y − ŷ)² over all real steps and all outputs of a batch."""
        real = prefix_mask(lengths, source.shape[1])[..., None]
        errors: Tensor = (self(source, lengths).to(target.dtype) - target) * real
        return errors.square().sum()

    def count(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """How many numbers that is a sum over."""
        return lengths.sum() * target.shape[2]


def build(settings: NetworkSettings, source_size: int, target_size: int, criterion: CrossEntropy) -> Regressor:
    """The model that reads `source_size` numbers a step and gives `target_size`; `criterion` is for labels."""
    reader = network(settings, source_size)
    model = Regressor(reader, nn.Linear(reader.output_size, target_size), settings.dropout)
    open_gates(model)
    return model
