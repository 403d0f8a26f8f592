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

from regard.export.onnx.decoder_states import ENCODER, SHARED, STEP, Mould, laid, sample
from regard.models import Seq2Seq
from regard.nn import Attended

Array = npt.NDArray[Any]
State = dict[str, Array]


class OnnxModel:
    """Reads sources, as a `Seq2Seq` does; its decoder is an `OnnxDecoder`."""

    def __init__(self, model: Seq2Seq, folder: Path, threads: int | None = None) -> None:
        """`model` is the readable one that the graphs in the folder were made of."""
        self.made_of = model, folder
        model = laid(model)
        self.shape = Mould(sample(model))
        self.step = folder / STEP
        self.threads = threads
        self.encoder = session(folder / ENCODER, threads)
        self.decoder = OnnxDecoder(model.decoder, self.shape, session(self.step, threads))

    @cached_property
    def single(self) -> OnnxModel:
        """The same on one thread, for several searches at a time."""
        return self if self.threads == 1 else OnnxModel(*self.made_of, threads=1)

    def encode(self, source: Tensor, lengths: Tensor) -> State:
        """The state before the first token of sources B,S."""
        found = self.encoder.run(None, {"source": source.numpy(), "lengths": lengths.numpy()})
        return dict(zip(self.shape.names, found, strict=True))

    def narrowed(self, words: Sequence[int]) -> OnnxModel:
        """The same model, which reads and writes the given target ids only, and calls them 0, 1, …"""
        step, rows = self.opened
        other = copy.copy(self)
        given = {name: some.of(words) for name, some in rows.items()}
        other.decoder = OnnxDecoder(self.decoder.decoder, self.shape, step, given, torch.tensor(words))
        return other

    @cached_property
    def opened(self) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
        """A step to which its output layer is given, and all rows of that."""
        from regard.export.onnx.graph_passes import opened

        graph, rows = opened(self.step)
        return session(graph, self.threads), rows


class OnnxDecoder:
    """The face of every decoder towards a search; its states are the arrays of the readable one's, by their names.

    They are NumPy's, as onnxruntime gives and takes them: tensors made of them, and back, would take a while in each
    step. What the hypotheses of a source share stays where it is when they change places, as the graph's inputs say.
    What is `given` goes into every step. Where tokens are those of some words alone, `words` are what the graph calls
    them.
    """

    supports_shared_memory = True

    def __init__(
        self,
        decoder: Any,
        shape: Mould,
        step: onnxruntime.InferenceSession,
        given: Mapping[str, Any] | None = None,
        words: Tensor | None = None,
    ) -> None:
        self.decoder = decoder
        self.alignment_head = decoder.alignment_head
        self.shape = shape
        self.session = step
        self.given = given or {}
        self.words = words
        self.outputs = [one.name for one in step.get_outputs()]
        self.staying = {one.name for one in step.get_inputs() if one.shape and one.shape[0] == SHARED}

    def start(self, encoded: State) -> State:
        """What was read is the first state already."""
        return encoded

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, State, Attended | None]:
        """Tokens B -> log-probabilities B,V, the new state, attention over the source."""
        read = tokens if self.words is None else self.words[tokens]
        given = {"tokens": read.numpy(), **self.given, **state}
        found = dict(zip(self.outputs, self.session.run(None, given), strict=True))
        log_probs, look = torch.from_numpy(found.pop("log_probs")), found.pop("attention", None)
        after = state | {name.removeprefix("new."): leaf for name, leaf in found.items()}
        if look is None:
            return log_probs, after, None
        weights = torch.from_numpy(look)[:, None]
        return log_probs, after, Attended(weights[..., :0], weights)

    def select(self, state: State, rows: Tensor) -> State:
        """The rows of a state, in any order."""
        return {name: leaf.take(rows.numpy(), 0) for name, leaf in state.items()}

    def expand_beams(self, state: State, width: int) -> State:
        """Every row so many times, but for what they share."""
        return self.moved(state, lambda leaf: leaf.repeat(width, 0))

    def reorder_beams(self, state: State, rows: Tensor) -> State:
        """The rows in another order, in which each stays within its source."""
        return self.moved(state, lambda leaf: leaf.take(rows.numpy(), 0))

    def keep_rows(self, state: State, rows: Tensor, sources: Tensor) -> State:
        """Some rows, and what is shared of the sources that are left."""
        return {name: leaf.take((sources if name in self.staying else rows).numpy(), 0) for name, leaf in state.items()}

    def moved(self, state: State, change: Callable[[Array], Array]) -> State:
        """A state with other rows of all that is not shared."""
        return {name: leaf if name in self.staying else change(leaf) for name, leaf in state.items()}

    def concat_states(self, state: State, other: State) -> State:
        """The rows of a state, and behind them those of another."""
        return self.named(self.decoder.concat_states(self.spelt(state), self.spelt(other)))

    def trim_padding(self, state: State, source: int, target: int) -> State:
        """A state without padding: no row has more source positions, or tokens behind it, than this."""
        return self.named(self.decoder.trim_padding(self.spelt(state), source, target))

    def spelt(self, state: State) -> Any:
        """As the readable decoder knows it."""
        return self.shape.spelt({name: torch.from_numpy(leaf) for name, leaf in state.items()})

    def named(self, state: Any) -> State:
        """And back."""
        return {name: leaf.numpy() for name, leaf in self.shape.named(state).items()}


def session(graph: Path | bytes, threads: int | None) -> onnxruntime.InferenceSession:
    """A graph, ready to run, on so many threads; None: as many as PyTorch uses."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    # Between two steps the search is PyTorch's, whose threads want the cores that waiting ones would keep busy.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
