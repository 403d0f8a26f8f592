"""Decoding with onnxruntime, by the graphs that `regard.export.onnx` writes.

States are named tensors, and Transformers have a head-major KV cache: the reference Transformer decoder keeps keys and
values as they were projected, and each step splits all of them into heads; here they are stored by heads, as the matrix
products read them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
import onnxruntime
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.fast.decoding.kv_cache import additive_mask, run_decoder_layers, split_heads
from regard.fast.eligibility import TRANSFORMER_MODULES
from regard.models import Seq2Seq, decoder_state
from regard.models.base import Decoder, Encoded
from regard.models.vaswani2017 import TransformerDecoder
from regard.nn import Attended, Memory

Array = npt.NDArray[Any]
State = dict[str, Array]
ENCODER, STEP = "encoder.onnx", "step.onnx"
SHARED = "sources"  # name of the first dimension of tensors that hypotheses of a source share
B, S, W = 2, 3, 4  # sizes of the traced example: distinct, and not 1, which would be static


def initial_state(model: Any, source: Tensor, lengths: Tensor) -> Any:
    """Return the state before the first token, with step indices per row."""
    return decoder_state.steps_per_row(model.decoder.start(model.encode(source, lengths)))


class StateTemplate:
    """Structure of a decoder state, to build states from arrays by name."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.names = list(decoder_state.distinct_tensors(state))

    def from_arrays(self, arrays: State) -> Any:
        """Return the state of the reference decoder."""
        return decoder_state.replace_distinct_tensors(self.state, [torch.from_numpy(arrays[n]) for n in self.names])

    def to_arrays(self, state: Any) -> State:
        """Return the arrays of a state by name; shared tensors have one name."""
        tensors_by_name = dict(decoder_state.named_tensors(state))
        return {name: tensors_by_name[name].numpy() for name in self.names}

    @cached_property
    def shared_names(self) -> set[str]:
        """Names of the tensors that hypotheses of a source share, which do not move when beams are reordered."""
        reordered = decoder_state.reorder_beams(self.state, torch.arange(B))
        pairs = zip(decoder_state.named_tensors(self.state), decoder_state.named_tensors(reordered), strict=True)
        return {name for (name, before), (_, after) in pairs if before is after}


def make_example_state(model: Any, source_length: int = S, num_tokens: int = W) -> Any:
    """Return a state to trace with."""
    with torch.no_grad():
        state = initial_state(model, torch.full((B, source_length), 4), torch.full((B,), source_length))
        for _ in range(num_tokens):
            _, state, _ = model.decoder.step(state, torch.full((B,), 4))
    return state


def make_head_major(model: Seq2Seq) -> Seq2Seq:
    """Return the model with a head-major KV cache if it is a Transformer, else the model itself."""
    decoder = model.decoder
    if (
        type(decoder) is not TransformerDecoder
        or not {type(part) for part in decoder.layers.modules()} <= TRANSFORMER_MODULES
    ):
        return model
    return Seq2Seq(model.encoder, HeadMajorDecoder(decoder), model.criterion)


class PastKV(NamedTuple):
    """Previous target positions of one layer."""

    keys: Tensor  # (B, heads, t, d_k)
    values: Tensor  # (B, heads, t, d_k)


class HeadMajorState(NamedTuple):
    """State between two steps, of B rows, which are hypotheses of A sources."""

    source: list[Memory]  # per layer; keys and values are (A, heads, S, d_k)
    past: list[PastKV]  # shorter rows are right-aligned
    step: int | Tensor  # number of previous positions, of all rows or (B,)

    def sizes(self) -> tuple[int, int]:
        """Return source length and number of previous positions."""
        return self.source[0].mask.shape[1], self.past[0].keys.shape[2]


class HeadMajorDecoder(Decoder):
    """The steps of `TransformerDecoder` with a head-major KV cache."""

    supports_shared_memory = True

    def __init__(self, decoder: TransformerDecoder) -> None:
        super().__init__()
        self.decoder = decoder
        self.alignment_head = decoder.alignment_head

    def start(self, encoded: Encoded) -> HeadMajorState:
        """Project the memory once for each layer."""
        memory = encoded.memory
        source = []
        for layer in self.decoder.decoder_layers():
            attention = layer.cross_attention
            both = attention.project(memory.keys, memory.values).chunk(2, -1)
            keys, values = (attention.split_heads(part).contiguous() for part in both)
            source.append(Memory(keys, values, memory.mask))
        nothing = [PastKV(one.keys[:, :, :0], one.values[:, :, :0]) for one in source]
        return HeadMajorState(source, nothing, 0)

    def step(self, state: HeadMajorState, tokens: Tensor) -> tuple[Tensor, HeadMajorState, Attended]:
        """Take one step: tokens (B,) -> log-probabilities (B, V)."""
        mask, past, heads = state.source[0].mask, list[PastKV](), self.decoder.decoder_layers()[0].attention.heads
        past_mask = _past_mask(state, tokens.shape[0])
        source_mask = additive_mask(mask[:, None, None], past_mask.dtype)

        def attend_past(index: int, projected: Tensor) -> Tensor:
            q, k, v = split_heads(projected, 3, tokens.shape[0], heads)
            keys, values = state.past[index]
            past.append(PastKV(torch.cat((keys, k), 2), torch.cat((values, v), 2)))
            return _attend(q, *past[index], past_mask)[0]

        def attend_source(index: int, projected: Tensor) -> tuple[Tensor, Tensor]:
            [q] = split_heads(projected, 1, mask.shape[0], heads)
            return _attend(q, state.source[index].keys, state.source[index].values, source_mask)

        found, attended = run_decoder_layers(self.decoder, tokens, state.step, mask.any(1), attend_past, attend_source)
        return found, HeadMajorState(state.source, past, state.step + 1), attended

    def concat_states(self, first: HeadMajorState, second: HeadMajorState) -> HeadMajorState:
        """Concatenate two states: padding goes behind shorter sources, and before shorter targets."""
        places, words = (max(sizes) for sizes in zip(first.sizes(), second.sizes(), strict=True))
        return decoder_state.concat_states(
            self.trim_padding(first, places, words), self.trim_padding(second, places, words)
        )

    def trim_padding(self, state: HeadMajorState, source_length: int, target_length: int) -> HeadMajorState:
        """Trim or add padding behind sources and before targets."""
        places, words = state.sizes()
        behind, before = (0, 0, 0, source_length - places), (0, 0, target_length - words, 0)
        mask = F.pad(state.source[0].mask, behind[2:])
        sources = [Memory(F.pad(one.keys, behind), F.pad(one.values, behind), mask) for one in state.source]
        past = [PastKV(F.pad(one.keys, before), F.pad(one.values, before)) for one in state.past]
        return HeadMajorState(sources, past, state.step)


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attend with queries (A, heads, T, d_k) over keys and values (A, heads, S, d_k).

    Returns:
        contexts (A·T, size) and weights (A, heads, T, S).
    """
    weights = (q @ keys.transpose(2, 3) * (1 / math.sqrt(q.shape[3])) + mask).softmax(-1)
    return (weights @ values).transpose(1, 2).flatten(2).flatten(0, 1), weights


def _past_mask(state: HeadMajorState, rows: int) -> Tensor:
    """Return the additive mask (B, 1, 1, t+1) of previous positions and the newest."""
    words = state.sizes()[1]
    steps = torch.as_tensor(state.step).expand(rows)
    return additive_mask(torch.arange(words + 1) >= words - steps[:, None], state.past[0].keys.dtype)[:, None, None]


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
        from regard.export.onnx import open_output_layer

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
        both = map(self.template.from_arrays, (state, other))
        return self.template.to_arrays(self.decoder.concat_states(*both))

    def trim_padding(self, state: State, source: int, target: int) -> State:
        """Trim the padding behind sources and before targets."""
        return self.template.to_arrays(self.decoder.trim_padding(self.template.from_arrays(state), source, target))


def _make_session(graph: Path | bytes, threads: int | None) -> onnxruntime.InferenceSession:
    """Return a session on some threads, or on as many as PyTorch uses."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    # Between steps the search runs in PyTorch, whose threads need the cores that spinning threads would occupy.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
