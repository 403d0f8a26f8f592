"""A stand-in for CUDA graphs on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.fast.cuda_graphs.buckets import copy_padded
from regard.fast.cuda_graphs.cache import ForwardBackwardGraph, TensorFunction, compute_gradients
from regard.fast.cuda_graphs.pool import StaticBuffers


class EagerGraph(ForwardBackwardGraph):
    """Calls the function itself, reading and writing the same static buffers as a captured graph."""

    def run_once(self, function: TensorFunction) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
        outputs = function(*self.inputs)
        came = [torch.zeros_like(one) if one.requires_grad else None for one in outputs]
        return outputs, compute_gradients(outputs, self.inputs, came)

    def record(self, function: TensorFunction, buffers: StaticBuffers) -> ForwardBackwardGraph:
        self.function = function
        self.forward, self.backward = self.ahead, self.back
        return self

    def ahead(self) -> None:
        with torch.enable_grad():
            self.found = self.function(*self.inputs)
        copy_padded(self.outputs, self.found)

    def back(self) -> None:
        copy_padded(self.input_grads, compute_gradients(self.found, self.inputs, self.output_grads))
