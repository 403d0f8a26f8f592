"""A stand-in for CUDA graphs on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.fast.cuda_graphs.function import Graph, TensorFunction, differentiated, keep
from regard.fast.cuda_graphs.pool import Places


class EagerGraph(Graph):
    """Calls the function itself, reading and writing the same static buffers as a captured graph."""

    def tried(self, function: TensorFunction) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
        outputs = function(*self.inputs)
        came = [torch.zeros_like(one) if one.requires_grad else None for one in outputs]
        return outputs, differentiated(outputs, self.inputs, came)

    def record(self, function: TensorFunction, places: Places) -> Graph:
        self.function = function
        self.forward, self.backward = self.ahead, self.back
        return self

    def ahead(self) -> None:
        with torch.enable_grad():
            self.found = self.function(*self.inputs)
        keep(self.outputs, self.found)

    def back(self) -> None:
        keep(self.slopes, differentiated(self.found, self.inputs, self.came))
