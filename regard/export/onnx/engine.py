"""Decoding with onnxruntime, by the graphs that `regard.export.onnx.export` writes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime
import torch
from torch import Tensor

from regard.export.onnx.decoder_states import ENCODER, SHARED, STEP, StateTemplate, make_example_state, make_head_major
from regard.models import Seq2Seq
from regard.nn import Attended

Array = npt.NDArray[Any]
State = dict[str, Array]


class OnnxModel:
    """Encoder and decoder in onnxruntime, with the interface of a `Seq2Seq`."""

    def __init__(self, model: Seq2Seq, folder: Path, threads: int | None = None) -> None:
        """`model` is the one that the graphs in the folder were exported from."""
        self.source = model, folder
        model = make_head_major(model)
        self.template = StateTemplate(make_example_state(model))
        self.step, self.threads = folder / STEP, threads
        self.encoder = _make_session(folder / ENCODER, threads)
        self.decoder = OnnxDecoder(model.decoder, self.template, _make_session(self.step, threads))

    @cached_property
    def single(self) -> OnnxModel:
        """This model on one thread, for parallel searches."""
        return self if self.threads == 1 else OnnxModel(*self.source, threads=1)

    def encode(self, source: Tensor, lengths: Tensor) -> State:
        """Return the state before the first token of sources (B, S)."""
        outputs = self.encoder.run(None, {"source": source.numpy(), "lengths": lengths.numpy()})
        return dict(zip(self.template.names, outputs, strict=True))

    def restrict_vocabulary(self, token_ids: Sequence[int]) -> OnnxModel:
        """Return a model that reads and writes the given target ids only, numbered from 0."""
        step, output_rows = self.open_step
        other = copy.copy(self)
        inputs = {name: some.select(token_ids) for name, some in output_rows.items()}
        other.decoder = OnnxDecoder(self.decoder.decoder, self.template, step, inputs, torch.tensor(token_ids))
        return other

    @cached_property
    def open_step(self) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
        """Session of the step graph with its output layer as inputs, and the weights of these inputs."""
        from regard.export.onnx.graph_passes import open_output_layer

        graph, output_rows = open_output_layer(self.step)
        return _make_session(graph, self.threads), output_rows


class OnnxDecoder:
    """Decoder interface for searches; its states are NumPy arrays by name.

    Converting them to tensors and back would take a while in each step. Arrays that hypotheses of a source share stay
    where they are when beams are reordered. `output_layer` is passed to every step. `token_ids` are the ids of a
    restricted vocabulary.
    """

    supports_shared_memory = True

    def __init__(
        self,
        decoder: Any,
        template: StateTemplate,
        step: onnxruntime.InferenceSession,
        inputs: Mapping[str, Any] | None = None,
        token_ids: Tensor | None = None,
    ) -> None:
        self.decoder, self.alignment_head, self.template = decoder, decoder.alignment_head, template
        self.session, self.output_layer, self.token_ids = step, inputs or {}, token_ids
        self.outputs = [output.name for output in step.get_outputs()]
        self.shared_names = {read.name for read in step.get_inputs() if read.shape and read.shape[0] == SHARED}

    def start(self, encoded: State) -> State:
        """Return the encoder's state, which is the initial one."""
        return encoded

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, State, Attended | None]:
        """Take one step: tokens (B,) -> log-probabilities (B, V), the new state, and attention."""
        token_ids = tokens if self.token_ids is None else self.token_ids[tokens]
        inputs = {"tokens": token_ids.numpy(), **self.output_layer, **state}
        outputs = dict(zip(self.outputs, self.session.run(None, inputs), strict=True))
        log_probs, attention = torch.from_numpy(outputs.pop("log_probs")), outputs.pop("attention", None)
        new_state = state | {name.removeprefix("new."): array for name, array in outputs.items()}
        if attention is None:
            return log_probs, new_state, None
        weights = torch.from_numpy(attention)[:, None]
        return log_probs, new_state, Attended(weights[..., :0], weights)

    def select(self, state: State, rows: Tensor) -> State:
        """Select rows of a state."""
        return {name: array.take(rows.numpy(), 0) for name, array in state.items()}

    def expand_beams(self, state: State, width: int) -> State:
        """Repeat each row, except for shared arrays."""
        return self._map_unshared(state, lambda array: array.repeat(width, 0))

    def reorder_beams(self, state: State, rows: Tensor) -> State:
        """Reorder rows within their sources."""
        return self._map_unshared(state, lambda array: array.take(rows.numpy(), 0))

    def keep_rows(self, state: State, rows: Tensor, sources: Tensor) -> State:
        """Keep some rows, and the given sources."""
        return {
            name: array.take((sources if name in self.shared_names else rows).numpy(), 0)
            for name, array in state.items()
        }

    def _map_unshared(self, state: State, change: Callable[[Array], Array]) -> State:
        return {name: array if name in self.shared_names else change(array) for name, array in state.items()}

    def concat_states(self, state: State, other: State) -> State:
        """Concatenate two states."""
        return self._from_state(self.decoder.concat_states(self._to_state(state), self._to_state(other)))

    def trim_padding(self, state: State, source: int, target: int) -> State:
        """Trim the padding behind sources and before targets."""
        return self._from_state(self.decoder.trim_padding(self._to_state(state), source, target))

    def _to_state(self, state: State) -> Any:
        """Return the state of the reference decoder."""
        return self.template.from_names({name: torch.from_numpy(array) for name, array in state.items()})

    def _from_state(self, state: Any) -> State:
        return {name: array.numpy() for name, array in self.template.to_names(state).items()}


def _make_session(graph: Path | bytes, threads: int | None) -> onnxruntime.InferenceSession:
    """Return a session on some threads, or on as many as PyTorch uses."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    # Between steps the search runs in PyTorch, whose threads need the cores that spinning threads would occupy.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
