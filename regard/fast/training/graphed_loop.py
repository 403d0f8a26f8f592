"""The reference loop of a recurrent decoder as CUDA graphs, for decoders without a faster loop of their own.

A CUDA graph is a function of tensors: states, inputs, weights, dropout masks and the uniform numbers for hard
attention, which are drawn beforehand. While the loop runs, the decoder's dropout, sampling and weights are replaced
by these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.fast.cuda_graphs.cache import GraphedFunctionCache, ShapeSpec, get_graph_cache, swap_parameters
from regard.fast.eligibility import constants_key, dropout_rate, has_hooks_or_overrides
from regard.models.decoder_state import distinct_tensors, replace_distinct_tensors
from regard.models.rnn_common import unroll_decoder
from regard.nn import (
    Attended,
    Concat,
    Dot,
    ElmanCell,
    General,
    Global,
    GRUCell,
    Hard,
    LocalMonotonic,
    LocalPredictive,
    Location,
    LSTMCell,
)

CELLS, SCORES = (ElmanCell, LSTMCell, GRUCell), (Dot, General, Concat, Location)
ATTENDED_DIMS = {"context": "BT-", "weights": "BTS"}  # dimensions of the fields of `Attended`
WINDOWED_DIMS = {"context": "BT-", "weights": "BT-", "positions": "BT-"}
ALIGNMENT_DIMS: dict[type, dict[str, str]] = {
    Global: ATTENDED_DIMS,
    LocalMonotonic: WINDOWED_DIMS,
    LocalPredictive: WINDOWED_DIMS,
    Hard: {**ATTENDED_DIMS, "log_prob": "BT", "probabilities": "BTS"},
}
BELOW_ONE = 1 - 2**-20
LOOP_MODULES = ("recurrent", "attention", "W_c", "gate")  # submodules whose weights the loop reads


class DropoutSite(NamedTuple):
    """A place where the loop calls dropout, once per step."""

    owner: str  # path of the module with the dropout in the decoder
    width: int
    rate: float

    @property
    def scale(self) -> float:
        """Factor 1 / (1 − rate)."""
        return 1 / (1 - self.rate) if self.rate < 1 else 0.0


def run_loop(decoder: Any, state: Any, words: Tensor, drops_input: bool = False) -> tuple[Tensor, Attended]:
    """Run the reference loop of a decoder over words (B, T, ·), by CUDA graphs if it trains on a GPU and is capturable.

    `drops_input`: each step calls the decoder's own dropout on the input of the first layer. Without gradients a
    decoder in training takes the same path, so that it draws the same random numbers.
    """
    has_randomness = torch.is_grad_enabled() or decoder.training
    if words.is_cuda and words.shape[1] and has_randomness and is_capturable(decoder, state, words):
        return run_graphed(decoder, state, words, drops_input, get_graph_cache(decoder))
    return unroll_decoder(decoder, state, words)


def is_capturable(decoder: Any, state: Any, words: Tensor) -> bool:
    """Return whether the loop has known modules only, and padding changes nothing (coverage divides by zero there)."""
    attention, recurrent, mask = decoder.attention, decoder.recurrent, state.memory.mask
    return (
        attention.coverage is None
        and type(attention.score) in SCORES
        and type(attention.alignment) in ALIGNMENT_DIMS
        and "sample_or_argmax" not in vars(attention.alignment)
        and all(type(cell) in CELLS for cell in recurrent.forwards)
        and mask.shape[0] == words.shape[0]
        and mask.shape[1] > 0
        and isinstance(state.step, int)
        and {type(decoder.dropout), type(recurrent.dropout)} == {nn.Dropout}
        and not has_hooks_or_overrides(*decoder.modules())
    )


def run_graphed(
    decoder: Any, state: Any, words: Tensor, drops_input: bool, graph_cache: GraphedFunctionCache | None
) -> tuple[Tensor, Attended]:
    """Run the loop with weights, state and dropout masks as tensors."""
    weights = {name: weight for name, weight in decoder.named_parameters() if name.split(".")[0] in LOOP_MODULES}
    state_tensors, sites = distinct_tensors(state), find_dropout_sites(decoder, drops_input)
    masks, alignment = [draw_dropout_mask(words, site) for site in sites], decoder.attention.alignment
    uniforms = [draw_uniforms(words)] if _samples_positions(alignment) else []
    run = partial(_call_loop, decoder, state, tuple(weights), tuple(sites))
    tensors = [words, *state_tensors.values(), *weights.values(), *masks, *uniforms]
    state_dims = map(_dim_letters, state_tensors, state_tensors.values())
    weight_dims = ["-" * weight.dim() for weight in weights.values()]
    input_dims = ["BT-", *state_dims, *weight_dims, *["BT-"] * len(masks), *["BT"] * len(uniforms)]
    spec = ShapeSpec(input_dims, ["BT-", *ALIGNMENT_DIMS[type(alignment)].values()])
    key = state.step, tuple(sites), alignment.training, constants_key(decoder.modules())
    outputs = graph_cache(run, key, spec, tensors) if graph_cache else run(*tensors)
    return outputs[0], Attended(**dict(zip(ALIGNMENT_DIMS[type(alignment)], outputs[1:], strict=True)))


def _dim_letters(name: str, leaf: Tensor) -> str:
    return ("BS" if name.startswith("memory.") else "B").ljust(leaf.dim(), "-")


def find_dropout_sites(decoder: Any, drops_input: bool) -> list[DropoutSite]:
    """List the dropout calls of a step in their order; empty without dropout."""
    cells = decoder.recurrent.forwards
    above = [DropoutSite("recurrent", cell.input_size, dropout_rate(decoder.recurrent.dropout)) for cell in cells[1:]]
    below = [DropoutSite("", cells[0].input_size, dropout_rate(decoder.dropout))] if drops_input else []
    return [site for site in below + above if site.rate]


def draw_dropout_mask(words: Tensor, site: DropoutSite) -> Tensor:
    """Draw the masks of all steps, (B, T, width)."""
    mask = torch.empty(*words.shape[:2], site.width, dtype=torch.bool, device=words.device)
    return mask.bernoulli_(1 - site.rate)


def _call_loop(
    decoder: Any, state: Any, names: Sequence[str], sites: Sequence[DropoutSite], *tensors: Tensor
) -> tuple[Tensor, ...]:
    """Run the loop as a function of tensors: words, state, weights, dropout masks, and uniform numbers for sampling."""
    words, *rest = tensors
    uniforms = rest.pop() if _samples_positions(decoder.attention.alignment) else None
    count = len(rest) - len(names) - len(sites)
    state_tensors, weights, masks = rest[:count], rest[count : count + len(names)], rest[count + len(names) :]
    swapped = {id(decoder.get_parameter(name)): weight for name, weight in zip(names, weights, strict=True)}
    with swap_parameters(decoder, swapped), _use_drawn_numbers(decoder, sites, masks, uniforms):
        out, attended = unroll_decoder(decoder, replace_distinct_tensors(state, state_tensors), words)
    return out, *(field for field in attended if field is not None)


class PredrawnDropout(nn.Module):
    """Dropout with given masks, one per call."""

    def __init__(self, calls: Iterator[tuple[Tensor, float]]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        """Apply the next mask."""
        masks, scale = next(self.calls)
        return x * masks * scale


def draw_uniforms(words: Tensor) -> Tensor:
    """Draw one uniform number per step, (B, T)."""
    return torch.rand(words.shape[:2], device=words.device)


def _samples_positions(alignment: nn.Module) -> bool:
    return type(alignment) is Hard and alignment.training


@contextmanager
def _use_drawn_numbers(
    decoder: Any, sites: Sequence[DropoutSite], masks: Sequence[Tensor], uniforms: Tensor | None
) -> Iterator[None]:
    """Let dropout apply these masks, and hard attention sample by these uniform numbers (B, T), step after step."""
    alignment, owners = decoder.attention.alignment, {site.owner: decoder.get_submodule(site.owner) for site in sites}
    before = {name: owner.dropout for name, owner in owners.items()}
    try:
        for name, owner in owners.items():
            own = [(mask, site.scale) for mask, site in zip(masks, sites, strict=True) if site.owner == name]
            calls = [(mask[:, t], scale) for t in range(masks[0].shape[1]) for mask, scale in own]
            owner.dropout = PredrawnDropout(iter(calls))
        if uniforms is not None:
            steps = iter(uniforms.unbind(1))
            alignment.sample_or_argmax = lambda weights: sample_by_inverse_cdf(weights, next(steps)[:, None])
        yield
    finally:
        for name, owner in owners.items():
            owner.dropout = before[name]
        vars(alignment).pop("sample_or_argmax", None)


def sample_by_inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return the positions of distributions (B, T, S) at uniform numbers (B, T); their probability is positive."""
    sums = probabilities.float().cumsum(-1)
    thresholds = uniforms.clamp(max=BELOW_ONE)[..., None] * sums[..., -1:]
    return (sums <= thresholds).sum(-1)
