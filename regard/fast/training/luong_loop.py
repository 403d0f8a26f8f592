"""Luong's decoder over whole targets as one autograd function, with the loops forward and backward written out.

h̃_t is fed to step t+1, so the steps depend on each other, and cuDNN has no kernel for it. What need not wait is
taken out of the loop: the words' part of the gates beforehand, and all gradients of weights, words and memory
afterwards, each as one product over all B·T rows. Per step there remain one product for each layer, one product for
h̃_t, and the operations of `step_ops` between them. Each product reads its input [x; h] from one buffer, to which the
operations before it have written, so that nothing is concatenated within the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.fast.gemm import EXACT, Products, dense
from regard.fast.training.step_ops import EVERYWHERE, Steps, Window, chosen, dropped


class Aim:
    """What the loop asks; as it is here, global attention: no p_t at all."""

    kept: Sequence[Tensor] = ()  # what the way back needs of the way there

    def turn(self, t: int, h: Tensor) -> None:
        """Finds p_t from the states h_t B,H."""

    def centre(self, t: int) -> Tensor | None:
        """p_t B."""
        return None

    def slope(self, t: int) -> Tensor | None:
        """Where the gradient of p_t is to be written."""
        return None

    def back(self, t: int, d_h: Tensor) -> None:
        """Adds what came to p_t to the gradient of h_t."""

    def slopes(self, h: Tensor) -> list[Tensor | None]:
        """The gradients of what it was given, all steps being done; h is B,T,H."""
        return []


class Told(Aim):
    """local-m: all p_t are known."""

    def __init__(self, p: Tensor) -> None:
        self.p = p  # B,T

    def centre(self, t: int) -> Tensor:
        """p_t."""
        return self.p[:, t]

    def slopes(self, h: Tensor) -> list[Tensor | None]:
        """It learns nothing."""
        return [None]


class Predicted(Told):
    """local-p: p_t = S·σ(v_pᵀ tanh(u_t)) with u_t = W_p h_t (Luong 2015, eq. 9), never in half precision."""

    def __init__(
        self,
        steps: Steps,
        given: Sequence[Tensor],  # S B, W_p P,H and v_p P
        kept: Sequence[Tensor],  # places for p B,T and u B,T,P
        slopes: Sequence[Tensor],  # and on the way back for their gradients
    ) -> None:
        super().__init__(kept[0])
        self.steps, self.kept, self.u, self.found = steps, kept, kept[1], slopes
        self.S, self.W_p, self.v_p = given

    @cached_property
    def turned_weight(self) -> Tensor:
        """W_pᵀ, which the way back does not need."""
        return EXACT.often(self.W_p.t())

    def turn(self, t: int, h: Tensor) -> None:
        """Equation 9."""
        torch.mm(h.to(self.W_p.dtype), self.turned_weight, out=self.u[:, t])
        self.steps.aim(self.u[:, t], self.v_p, self.S, self.p[:, t])

    def slope(self, t: int) -> Tensor:
        """That of p_t."""
        return self.found[0][:, t]

    def back(self, t: int, d_h: Tensor) -> None:
        """Through σ, tanh and W_p."""
        d_p, d_u = (one[:, t] for one in self.found)
        self.steps.aim_back(d_p, self.p[:, t], self.S, self.u[:, t], self.v_p, d_u)
        d_h.addmm_(d_u, self.W_p)

    def slopes(self, h: Tensor) -> list[Tensor | None]:
        """Of S none, of W_p and v_p from all steps at once."""
        d_p, d_u = self.found
        d_W = d_u.flatten(0, 1).t() @ h.flatten(0, 1).to(self.W_p.dtype)
        d_logits = d_p * self.p * (1 - self.p / self.S.clamp(min=1)[:, None])
        return [None, d_W, d_logits.flatten() @ self.u.tanh().flatten(0, 1)]


class Layer(NamedTuple):
    """One layer's product and where it starts from."""

    W: Tensor  # 4H,I+H: [W_ih W_hh]; of the first layer without the words' columns
    b: Tensor  # 4H
    h: Tensor  # B,H
    c: Tensor  # B,H


class Given(NamedTuple):
    """All that the loop reads; F is the width of h̃."""

    words: Tensor  # B,T,E
    fed: Tensor  # B,F
    keys: Tensor  # B,S,H
    values: Tensor  # B,S,V
    mask: Tensor  # B,S
    W_w: Tensor  # 4H,E: the words' columns of the first layer's W_ih
    W_c: Tensor  # F,V+H
    layers: list[Layer]
    aim: list[Tensor]  # of local-m p_t B,T; of local-p S B, W_p P,H and v_p P; of global attention nothing
    kept: list[Tensor]  # what dropout leaves of h̃ B,T,F and between layers B,T,H, each after the other; or nothing


class Plan(NamedTuple):
    """What is not a tensor."""

    layers: int
    scales: tuple[float, ...]  # what makes up for dropout, of each of `kept`
    window: Window = EVERYWHERE
    by: Products = EXACT

    @property
    def aims(self) -> int:
        """How many tensors say where to look."""
        return 3 if self.window.sigma else 1 if self.window.reach else 0


class Tape(NamedTuple):
    """What the way back needs."""

    pre: list[Tensor]  # of each layer B,T,4H: the gates before their squashing
    c: list[Tensor]  # B,T,H
    inputs: list[Tensor]  # B,T,I+H: [x; h_{t-1}] of each layer
    seen: Tensor  # B,T,V+H: [c_t; h_t]
    out: Tensor  # B,T,F: h̃_t
    weights: Tensor  # B,T,S
    aim: Sequence[Tensor]  # of local-p p_t B,T and W_p h_t B,T,P


def fed(plan: Plan, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The loop over what was prepared: h̃ B,T,F, contexts B,T,V, weights B,T,S, and where there are any p_t B,T."""
    found: tuple[Tensor, ...] = Feeding.apply(plan, *tensors)  # type: ignore[no-untyped-call]
    return found


def flat(given: Given) -> list[Tensor]:
    """As a list of tensors."""
    return [*given[:7], *(tensor for layer in given.layers for tensor in layer), *given.aim, *given.kept]


def folded(plan: Plan, tensors: Sequence[Tensor]) -> Given:
    """The inverse of `flat`."""
    words, fed, keys, values, mask, W_w, W_c, *rest = tensors
    layers = [Layer(*rest[4 * number : 4 * number + 4]) for number in range(plan.layers)]
    aim, kept = rest[4 * plan.layers :][: plan.aims], rest[4 * plan.layers + plan.aims :]
    return Given(words, fed, keys, values, mask, W_w, W_c, layers, aim, kept)


def aiming(plan: Plan, given: Given, steps: Steps, kept: Sequence[Tensor] = ()) -> Aim:
    """Where the steps look; on the way back with what was kept."""
    if plan.window.sigma:
        (B, T, _), W_p = given.words.shape, given.aim[1]
        slopes = [torch.empty_like(one) for one in kept]
        kept = kept or (W_p.new_empty(B, T), W_p.new_empty(B, T, len(W_p)))
        return Predicted(steps, given.aim, kept, slopes)
    return Told(*given.aim) if plan.window.reach else Aim()


class Feeding(torch.autograd.Function):
    """The loop: h̃ B,T,F, contexts B,T,V, weights B,T,S and, of a window, its centres p_t B,T.

    All tensors come in the precision that they are to be counted in, so that autocast has no say, whether the way back
    is within it, as in a recording, or not.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: Tensor) -> tuple[Tensor, ...]:
        """All steps, one after the other."""
        given = folded(plan, tensors)
        with torch.autocast(given.words.device.type, enabled=False):
            tape = forwards(plan, given)
        ctx.plan, ctx.count = plan, len(tensors)
        ctx.save_for_backward(*tensors, *tape.pre, *tape.c, *tape.inputs, tape.seen, tape.out, tape.weights, *tape.aim)
        context = tape.seen[..., : given.values.shape[2]].clone(memory_format=torch.contiguous_format)
        if not plan.aims:
            return tape.out, context, tape.weights
        centre = (*tape.aim, *given.aim)[0].clone()
        ctx.mark_non_differentiable(centre)
        return tape.out, context, tape.weights, centre

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_out: Tensor, d_context: Tensor, d_weights: Tensor, *of_centre: Tensor
    ) -> tuple[Tensor | None, ...]:
        """All steps in reverse, then what was put off."""
        tensors, saved, L = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :], ctx.plan.layers
        seen, out, weights, *aim = saved[3 * L :]
        tape = Tape(list(saved[:L]), list(saved[L : 2 * L]), list(saved[2 * L : 3 * L]), seen, out, weights, aim)
        given = folded(ctx.plan, tensors)
        with torch.autocast(given.words.device.type, enabled=False):
            return None, *backwards(ctx.plan, given, tape, (d_out, d_context, d_weights))


def forwards(plan: Plan, given: Given) -> Tape:
    """Every step of every layer."""
    words, values, by = given.words, given.values, plan.by
    steps: Steps = by.between or chosen(words, given.mask.shape[1])
    (B, T, E), V, L, F = words.shape, values.shape[2], plan.layers, given.W_c.shape[0]
    H, wide = given.layers[0].h.shape[1], given.layers[0].c.dtype
    first = by.affine(words.reshape(B * T, E), given.W_w.t(), given.layers[0].b).view(B, T, 4 * H)
    pre = [first, *(layer.b.repeat(B, T, 1) for layer in given.layers[1:])]
    inputs = [words.new_empty(B, T, layer.W.shape[1]) for layer in given.layers]
    beyond = [words.new_empty(B, layer.W.shape[1]) for layer in given.layers]  # where the last step's go
    c = [words.new_empty(B, T, H, dtype=wide) for _ in range(L)]
    seen, out, z = words.new_empty(B, T, V + H), words.new_empty(B, T, F), words.new_empty(B, F)
    weights = words.new_empty(B, T, given.mask.shape[1], dtype=wide)
    aim, W_c = aiming(plan, given, steps), by.often(given.W_c.t())
    W = [by.often(layer.W.t()) for layer in given.layers]
    inputs[0][:, 0, :F] = dropped(given.fed, *left(plan, given, 0, 0))
    for layer, into in zip(given.layers, inputs, strict=True):
        into[:, 0, -H:] = layer.h
    for t in range(T):
        after = [into[:, t + 1] if t + 1 < T else spare for into, spare in zip(inputs, beyond, strict=True)]
        for number, layer in enumerate(given.layers):
            above = seen[:, t, V:] if number + 1 == L else inputs[number + 1][:, t, :H]
            by.add(pre[number][:, t], inputs[number][:, t], W[number])
            before = c[number][:, t - 1] if t else layer.c
            mask, scale = left(plan, given, number + 1, t)
            steps.lstm(pre[number][:, t], before, c[number][:, t], after[number][:, -H:], above, mask, scale)
        context, h = seen[:, t].tensor_split([V], 1)
        aim.turn(t, h)
        steps.look(h, given.keys, values, given.mask, weights[:, t], context, aim.centre(t), plan.window)
        by.mm(seen[:, t], W_c, out=z)
        steps.squash(z, out[:, t], after[0][:, :F], *left(plan, given, 0, t + 1))
    return Tape(pre, c, inputs, seen, out, weights, aim.kept)


def left(plan: Plan, given: Given, link: int, t: int) -> tuple[Tensor | None, float]:
    """What dropout leaves at a step of link 0, h̃, or of that from a layer up; and the scale that makes up for it."""
    if link >= len(given.kept) or t >= given.kept[link].shape[1]:
        return None, 1.0
    return given.kept[link][:, t], plan.scales[link]


class Slopes(NamedTuple):
    """Gradients of all steps, which those of weights are made of."""

    pre: list[Tensor]  # of each layer B,T,4H
    z: Tensor  # B,T,F
    seen: Tensor  # B,T,V+H
    scores: Tensor  # B,T,S
    inputs: list[Tensor]  # of each layer B,I+H, at the first step
    c: list[Tensor]  # B,H, before the first step
    aim: Aim


def backwards(plan: Plan, given: Given, tape: Tape, came: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients of `flat(given)`."""
    slopes = reverse(plan, given, tape, came)
    V, F, H = given.values.shape[2], given.fed.shape[1], given.layers[0].h.shape[1]
    mask, scale = left(plan, given, 0, 0)
    first, by = slopes.pre[0].flatten(0, 1), plan.by
    steps: Steps = by.between or chosen(given.words, given.mask.shape[1])
    whole = (
        by.mm(first, given.W_w).view_as(given.words),
        dropped(slopes.inputs[0][:, :F], mask, scale),
        steps.gather(slopes.scores, tape.seen[..., V:]),
        steps.gather(tape.weights.to(given.values.dtype), slopes.seen[..., :V]),
        None,
        by.mm(first.t(), given.words.flatten(0, 1)),
        by.mm(slopes.z.flatten(0, 1).t(), tape.seen.flatten(0, 1)),
    )
    of_layers = (
        (*by.slopes(pre.flatten(0, 1), read.flatten(0, 1)), d_input[:, -H:], d_c)
        for pre, read, d_input, d_c in zip(slopes.pre, tape.inputs, slopes.inputs, slopes.c, strict=True)
    )
    of_aim = slopes.aim.slopes(tape.seen[..., V:])
    return *whole, *(slope for layer in of_layers for slope in layer), *of_aim, *[None] * len(given.kept)


def reverse(plan: Plan, given: Given, tape: Tape, came: tuple[Tensor, Tensor, Tensor]) -> Slopes:
    """The loop, last step first."""
    d_out, d_context, d_weights = came
    words, L, F, V = given.words, plan.layers, given.fed.shape[1], given.values.shape[2]
    H, T = given.layers[0].h.shape[1], words.shape[1]
    steps: Steps = plan.by.between or chosen(words, given.mask.shape[1])
    d_out, d_weights = dense(d_out), dense(d_weights)
    slopes = Slopes(
        [torch.empty_like(pre) for pre in tape.pre],
        torch.empty_like(tape.out),
        torch.zeros_like(tape.seen),
        words.new_empty(tape.weights.shape),
        [torch.zeros_like(into[:, 0]) for into in tape.inputs],
        [torch.zeros_like(layer.c) for layer in given.layers],
        aiming(plan, given, steps, tape.aim),
    )
    slopes.seen[..., :V] = d_context
    d_h, by = torch.empty_like(given.layers[0].c), plan.by
    W, W_c = [by.often(layer.W) for layer in given.layers], by.often(given.W_c)
    for t in reversed(range(T)):
        mask, scale = left(plan, given, 0, t + 1)
        steps.squash_back(d_out[:, t], tape.out[:, t], slopes.inputs[0][:, :F], mask, scale, slopes.z[:, t])
        d_seen = by.add(slopes.seen[:, t], slopes.z[:, t], W_c)
        steps.look_back(
            d_seen[:, :V],
            d_weights[:, t],
            tape.weights[:, t],
            given.keys,
            given.values,
            d_seen[:, V:],
            slopes.scores[:, t],
            d_h,
            slopes.aim.centre(t),
            plan.window,
            slopes.aim.slope(t),
        )
        slopes.aim.back(t, d_h)
        for number in reversed(range(L)):
            layer = given.layers[number]
            d_above = d_h if number + 1 == L else slopes.inputs[number + 1][:, :H]
            mask, scale = left(plan, given, number + 1, t)
            steps.lstm_back(
                tape.pre[number][:, t],
                tape.c[number][:, t - 1] if t else layer.c,
                tape.c[number][:, t],
                d_above,
                mask,
                scale,
                slopes.inputs[number][:, -H:],
                slopes.c[number],
                slopes.pre[number][:, t],
            )
            by.mm(slopes.pre[number][:, t], W[number], out=slopes.inputs[number])
    return slopes
