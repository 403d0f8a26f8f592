"""The reference loop of a recurrent decoder as CUDA graphs, for decoders without a faster loop of their own.

A CUDA graph is a function of tensors: states, inputs, weights, dropout masks and the uniform numbers for hard
attention, which are drawn beforehand. While the loop runs, the decoder's dropout, sampling and weights are replaced
by these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.fast.cuda_graphs.cache import Captured, graphs
from regard.fast.cuda_graphs.function import Form
from regard.fast.eligibility import constants, heard, rate
from regard.models.decoder_state import distinct_tensors, replace_distinct_tensors
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

Plain = Callable[[Any, Any, Tensor], tuple[Tensor, Attended]]
CELLS, SCORES = (ElmanCell, LSTMCell, GRUCell), (Dot, General, Concat, Location)
GIVEN = {"context": "BT-", "weights": "BTS"}  # what is told of a look
IN_A_WINDOW = {"context": "BT-", "weights": "BT-", "positions": "BT-"}
TOLD: dict[type, dict[str, str]] = {
    Global: GIVEN,
    LocalMonotonic: IN_A_WINDOW,
    LocalPredictive: IN_A_WINDOW,
    Hard: {**GIVEN, "log_prob": "BT", "probabilities": "BTS"},
}
BELOW_ONE = 1 - 2**-20
PARTS = ("recurrent", "attention", "W_c", "gate")  # whose weights loops read


class Link(NamedTuple):
    """A place where the loop calls dropout, once a step."""

    owner: str  # the module whose dropout it is, by its path in the decoder
    width: int
    rate: float

    @property
    def scale(self) -> float:
        """What makes up for what is dropped."""
        return 1 / (1 - self.rate) if self.rate < 1 else 0.0


def recorded(
    plain: Plain, decoder: Any, state: Any, words: Tensor, drops_input: bool = False
) -> tuple[Tensor, Attended]:
    """The plain loop over words B,T,·; by graphs where it learns on a GPU, in a form that is known to go.

    `drops_input`: each step calls the decoder's own dropout, on what the first layer reads. Without gradients a decoder
    in training goes the same way, so that it draws the same numbers.
    """
    learns = torch.is_grad_enabled() or decoder.training
    if words.is_cuda and words.shape[1] and learns and records(decoder, state, words):
        return replayed(plain, decoder, state, words, drops_input, graphs(decoder))
    return plain(decoder, state, words)


def records(decoder: Any, state: Any, words: Tensor) -> bool:
    """Whether nothing in the loop is somebody else's, and padding changes nothing: coverage divides by its zeros."""
    attention, recurrent, mask = decoder.attention, decoder.recurrent, state.memory.mask
    return (
        attention.coverage is None
        and type(attention.score) in SCORES
        and type(attention.alignment) in TOLD
        and "sample_or_argmax" not in vars(attention.alignment)
        and all(type(cell) in CELLS for cell in recurrent.forwards)
        and mask.shape[0] == words.shape[0]
        and mask.shape[1] > 0
        and isinstance(state.step, int)
        and {type(decoder.dropout), type(recurrent.dropout)} == {nn.Dropout}
        and not heard(*decoder.modules())
    )


def replayed(
    plain: Plain, decoder: Any, state: Any, words: Tensor, drops_input: bool, captured: Captured | None
) -> tuple[Tensor, Attended]:
    """The same with weights, state and dropout handed in as tensors."""
    weights = {name: weight for name, weight in decoder.named_parameters() if name.split(".")[0] in PARTS}
    leaves, links = distinct_tensors(state), dropped(decoder, drops_input)
    kept, alignment = [drawn(words, link) for link in links], decoder.attention.alignment
    lots = [shuffled(words)] if draws(alignment) else []
    run = partial(looped, plain, decoder, state, tuple(weights), tuple(links))
    tensors = [words, *leaves.values(), *weights.values(), *kept, *lots]
    form = Form(
        ["BT-", *map(letters, leaves, leaves.values()), *("-" * weight.dim() for weight in weights.values())]
        + ["BT-"] * len(kept)
        + ["BT"] * len(lots),
        ["BT-", *TOLD[type(alignment)].values()],
    )
    key = plain, state.step, tuple(links), alignment.training, constants(decoder.modules())
    found = captured(run, key, form, tensors) if captured else run(*tensors)
    return found[0], Attended(**dict(zip(TOLD[type(alignment)], found[1:], strict=True)))


def letters(name: str, leaf: Tensor) -> str:
    """Which dimensions of a state's tensor are B and S."""
    return ("BS" if name.startswith("memory.") else "B").ljust(leaf.dim(), "-")


def dropped(decoder: Any, drops_input: bool) -> list[Link]:
    """Where the loop calls dropout, in the order of its calls; nowhere where nothing is dropped."""
    cells = decoder.recurrent.forwards
    above = [Link("recurrent", cell.input_size, rate(decoder.recurrent.dropout)) for cell in cells[1:]]
    below = [Link("", cells[0].input_size, rate(decoder.dropout))] if drops_input else []
    return [link for link in below + above if link.rate]


def drawn(words: Tensor, link: Link) -> Tensor:
    """What dropout leaves of a link, at every step: B,T,width."""
    left = torch.empty(*words.shape[:2], link.width, dtype=torch.bool, device=words.device)
    return left.bernoulli_(1 - link.rate)


def looped(
    plain: Plain, decoder: Any, like: Any, names: Sequence[str], links: Sequence[Link], *tensors: Tensor
) -> tuple[Tensor, ...]:
    """The loop as a function of tensors: words, a state's, weights, what dropout leaves, and lots for a draw."""
    words, *rest = tensors
    lots = rest.pop() if draws(decoder.attention.alignment) else None
    count = len(rest) - len(names) - len(links)
    leaves, weights, kept = rest[:count], rest[count : count + len(names)], rest[count + len(names) :]
    named = {f"decoder.{name}": weight for name, weight in zip(names, weights, strict=True)}
    with dropping(decoder, links, kept), drawing(decoder.attention.alignment, lots):
        out, attended = functional_call(Loop(plain, decoder), named, (replace_distinct_tensors(like, leaves), words))
    return out, *(field for field in attended if field is not None)


class Loop(nn.Module):
    """A loop as a module, so that its weights can be others."""

    def __init__(self, plain: Plain, decoder: nn.Module) -> None:
        super().__init__()
        self.plain, self.decoder = plain, decoder

    def forward(self, state: Any, words: Tensor) -> tuple[Tensor, Attended]:
        """Runs it."""
        return self.plain(self.decoder, state, words)


class Kept(nn.Module):
    """Dropout that was drawn beforehand: one call after the other."""

    def __init__(self, calls: Iterator[tuple[Tensor, float]]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        """What is left of x."""
        kept, scale = next(self.calls)
        return x * kept * scale


@contextmanager
def dropping(decoder: nn.Module, links: Sequence[Link], kept: Sequence[Tensor]) -> Iterator[None]:
    """A decoder with this dropout meanwhile."""
    owners = {link.owner: decoder.get_submodule(link.owner) for link in links}
    before = {name: owner.dropout for name, owner in owners.items()}
    try:
        for name, owner in owners.items():
            own = [(mask, link.scale) for mask, link in zip(kept, links, strict=True) if link.owner == name]
            owner.dropout = Kept(iter([(mask[:, t], scale) for t in range(kept[0].shape[1]) for mask, scale in own]))
        yield
    finally:
        for name, owner in owners.items():
            owner.dropout = before[name]


def shuffled(words: Tensor) -> Tensor:
    """A lot for each step, B,T."""
    return torch.rand(words.shape[:2], device=words.device)


def draws(alignment: nn.Module) -> bool:
    """Whether each step draws a place."""
    return type(alignment) is Hard and alignment.training


@contextmanager
def drawing(alignment: Any, lots: Tensor | None) -> Iterator[None]:
    """An alignment that draws its places by lots B,T, if any: one step after the other."""
    if lots is None:
        yield
        return
    one_after_the_other = iter(lots.unbind(1))
    alignment.sample_or_argmax = lambda probabilities: placed(probabilities, next(one_after_the_other)[:, None])
    try:
        yield
    finally:
        del alignment.sample_or_argmax


def placed(probabilities: Tensor, lots: Tensor) -> Tensor:
    """The place of distributions B,T,S that a lot B,T, from 0 up to 1, falls on; one that has a share."""
    sums = probabilities.float().cumsum(-1)
    at = lots.clamp(max=BELOW_ONE)[..., None] * sums[..., -1:]
    return (sums <= at).sum(-1)
