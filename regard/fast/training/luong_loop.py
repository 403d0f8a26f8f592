"""Luong's decoder over whole targets as one autograd function, with the loops forward and backward written out.

h̃_t is fed to step t+1, so the steps depend on each other, and cuDNN has no kernel for it. What need not wait is
taken out of the loop: the words' part of the gates beforehand, and all gradients of weights, words and memory
afterwards, each as one product over all B·T rows. Per step there remain one product for each layer, one product for
h̃_t, and the operations of `step_ops` between them. Each product reads its input [x; h] from one buffer, to which the
operations before it have written, so that nothing is concatenated within the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.fast.gemm import TORCH_GEMM, Gemm, to_contiguous_rows
from regard.fast.training.step_ops import (
    NO_WINDOW,
    AttentionGrads,
    AttentionStep,
    LSTMStep,
    StepOps,
    Window,
    apply_dropout,
    select_step_ops,
)


class LayerWeights(NamedTuple):
    """Weights and initial state of a layer."""

    W: Tensor  # (4H, I+H), [W_ih W_hh]; in the first layer without the columns of words
    b: Tensor  # (4H,)
    h: Tensor  # (B, H)
    c: Tensor  # (B, H)


class LoopInputs(NamedTuple):
    """Tensors that the loop reads; F is the size of h̃."""

    words: Tensor  # (B, T, E)
    attentional: Tensor  # (B, F)
    keys: Tensor  # (B, S, H)
    values: Tensor  # (B, S, V)
    mask: Tensor  # (B, S)
    W_w: Tensor  # (4H, E), the columns of words of the first W_ih
    W_c: Tensor  # (F, V+H)
    layers: list[LayerWeights]
    center_inputs: list[Tensor]  # local-m: p_t (B, T); local-p: S (B,), W_p (P, H), v_p (P,)
    dropout_masks: list[Tensor]  # of h̃ (B, T, F) and between layers (B, T, H); or empty


class LoopConfig(NamedTuple):
    """Configuration of the loop besides tensors."""

    layers: int
    scales: tuple[float, ...]  # dropout scales of `dropout_masks`
    window: Window = NO_WINDOW
    gemm: Gemm = TORCH_GEMM

    @property
    def num_center_inputs(self) -> int:
        """Number of tensors in `center_inputs`."""
        return 3 if self.window.sigma else 1 if self.window.radius else 0


class SavedActivations(NamedTuple):
    """Activations for the backward pass."""

    pre: list[Tensor]  # of each layer (B, T, 4H), gates
    c: list[Tensor]  # (B, T, H)
    inputs: list[Tensor]  # of each layer (B, T, I+H), [x; h_{t-1}]
    context_and_h: Tensor  # (B, T, V+H), [c_t; h_t]
    out: Tensor  # (B, T, F), h̃_t
    weights: Tensor  # (B, T, S)
    centers: Sequence[Tensor]  # local-p: p_t (B, T) and W_p h_t (B, T, P)


def run_input_feeding(config: LoopConfig, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Run the loop over prepared inputs.

    Returns:
        h̃ (B, T, F), contexts (B, T, V), weights (B, T, S), and for local attention p_t (B, T).
    """
    found: tuple[Tensor, ...] = InputFeedingFunction.apply(config, *tensors)  # type: ignore[no-untyped-call]
    return found


def flatten_inputs(inputs_: LoopInputs) -> list[Tensor]:
    """Return the inputs as a list of tensors."""
    return [
        *inputs_[:7],
        *(tensor for layer in inputs_.layers for tensor in layer),
        *inputs_.center_inputs,
        *inputs_.dropout_masks,
    ]


def _restore_inputs(config: LoopConfig, tensors: Sequence[Tensor]) -> LoopInputs:
    remaining = iter(tensors)
    words, attentional, keys, values, mask, W_w, W_c = islice(remaining, 7)
    layers = [LayerWeights(*islice(remaining, 4)) for _ in range(config.layers)]
    centers = [*islice(remaining, config.num_center_inputs)]
    return LoopInputs(words, attentional, keys, values, mask, W_w, W_c, layers, centers, [*remaining])


class InputFeedingFunction(torch.autograd.Function):
    """The loop as an autograd function.

    All inputs are already cast, so that autocast has no effect, whether the backward pass runs within it (as in a
    capture) or not.
    """

    @staticmethod
    def forward(ctx: Any, config: LoopConfig, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run all steps."""
        loop = _Loop(config, tensors)
        with torch.autocast(loop.inputs.words.device.type, enabled=False):
            activations = loop.forward()
        ctx.plan, ctx.count = config, len(tensors)
        ctx.save_for_backward(*tensors, *chain(*activations[:3]), *activations[3:6], *activations.centers)
        context = activations.context_and_h[..., : loop.V].clone(memory_format=torch.contiguous_format)
        if not config.num_center_inputs:
            return activations.out, context, activations.weights
        centre = (*activations.centers, *loop.inputs.center_inputs)[0].clone()
        ctx.mark_non_differentiable(centre)
        return activations.out, context, activations.weights, centre

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_out: Tensor, d_context: Tensor, d_weights: Tensor, *center_grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Run all steps in reverse, then the products over all steps."""
        remaining = iter(ctx.saved_tensors)
        loop = _Loop(ctx.plan, [*islice(remaining, ctx.count)])
        pre, c, layer_inputs = ([*islice(remaining, ctx.plan.layers)] for _ in range(3))
        context_and_h, out, weights, *centers = remaining
        activations = SavedActivations(pre, c, layer_inputs, context_and_h, out, weights, centers)
        with torch.autocast(loop.inputs.words.device.type, enabled=False):
            return None, *loop.backward(activations, d_out, d_context, d_weights)


class _Loop:
    """The loop over one batch; each pass sets its activations.

    The window centres p_t of local-m are given. Those of local-p are p_t = S·σ(v_pᵀ tanh(u_t)) with u_t = W_p h_t
    (Luong 2015, eq. 9), at least in fp32.
    """

    activations: SavedActivations

    def __init__(self, config: LoopConfig, tensors: Sequence[Tensor]) -> None:
        self.config, self.gemm, self.inputs = config, config.gemm, _restore_inputs(config, tensors)
        self.steps: StepOps = self.gemm.elementwise or select_step_ops(self.inputs.words, self.inputs.mask.shape[1])
        self.T, self.F, self.V = self.inputs.words.shape[1], self.inputs.W_c.shape[0], self.inputs.values.shape[2]
        self.H = self.inputs.layers[0].h.shape[1]
        self.predicts_centers = bool(config.window.sigma)

    def forward(self) -> SavedActivations:
        """Run all steps."""
        inputs, words, layers, gemm, steps = self.inputs, self.inputs.words, self.inputs.layers, self.gemm, self.steps
        (B, T, E), F, V, H, L, wide = words.shape, self.F, self.V, self.H, len(layers), layers[0].c.dtype
        first = gemm.linear(words.reshape(B * T, E), inputs.W_w.t(), layers[0].b).view(B, T, 4 * H)
        pre = [first, *(layer.b.repeat(B, T, 1) for layer in layers[1:])]
        layer_inputs = [words.new_empty(B, T, layer.W.shape[1]) for layer in layers]
        last_outputs = [words.new_empty(B, layer.W.shape[1]) for layer in layers]  # outputs of the last step
        c = [words.new_empty(B, T, H, dtype=wide) for _ in range(L)]
        context_and_h, out, z = words.new_empty(B, T, V + H), words.new_empty(B, T, F), words.new_empty(B, F)
        weights = words.new_empty(B, T, inputs.mask.shape[1], dtype=wide)
        centers = []
        if self.predicts_centers:
            S, W_p, v_p = inputs.center_inputs
            W_p_t, centers = TORCH_GEMM.prepack(W_p.t()), [W_p.new_empty(B, T), W_p.new_empty(B, T, len(W_p))]
        self.activations = SavedActivations(pre, c, layer_inputs, context_and_h, out, weights, centers)
        W_c = gemm.prepack(inputs.W_c.t())
        W = [gemm.prepack(layer.W.t()) for layer in layers]
        layer_inputs[0][:, 0, :F] = apply_dropout(inputs.attentional, *self._dropout_at(0, 0))
        for layer, layer_input in zip(layers, layer_inputs, strict=True):
            layer_input[:, 0, -H:] = layer.h
        for t in range(T):
            after = [
                layer_input[:, t + 1] if t + 1 < T else last_output
                for layer_input, last_output in zip(layer_inputs, last_outputs, strict=True)
            ]
            for number in range(L):
                above = context_and_h[:, t, V:] if number + 1 == L else layer_inputs[number + 1][:, t, :H]
                gemm.add_mm(pre[number][:, t], layer_inputs[number][:, t], W[number])
                steps.lstm_gates(self._lstm_step(number, t), after[number][:, -H:], above)
            context, h = context_and_h[:, t].tensor_split([V], 1)
            if self.predicts_centers:
                p, u = (buffer[:, t] for buffer in centers)
                torch.mm(h.to(W_p.dtype), W_p_t, out=u)
                steps.predict_center(u, v_p, S, p)
            steps.attention(self._attention_step(t), h, context)
            gemm.mm(context_and_h[:, t], W_c, out=z)
            steps.attentional_tanh(z, out[:, t], after[0][:, :F], *self._dropout_at(0, t + 1))
        return self.activations

    def _lstm_step(self, number: int, t: int) -> LSTMStep:
        """Return step t of a layer."""
        pre, c = self.activations.pre[number], self.activations.c[number]
        before = c[:, t - 1] if t else self.inputs.layers[number].c
        return LSTMStep(pre[:, t], before, c[:, t], *self._dropout_at(number + 1, t))

    def _attention_step(self, t: int) -> AttentionStep:
        inputs, p = self.inputs, (*self.activations.centers, *self.inputs.center_inputs)[:1]
        center, weights = (p[0][:, t] if p else None), self.activations.weights[:, t]
        return AttentionStep(inputs.keys, inputs.values, inputs.mask, weights, center, self.config.window)

    def _dropout_at(self, site: int, t: int) -> tuple[Tensor | None, float]:
        """Return mask and scale of dropout at step t: site 0 is h̃, the others are the layers from below."""
        masks = self.inputs.dropout_masks
        if site >= len(masks) or t >= masks[site].shape[1]:
            return None, 1.0
        return masks[site][:, t], self.config.scales[site]

    def backward(
        self, activations: SavedActivations, d_out: Tensor, d_context: Tensor, d_weights: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of `flatten_inputs`."""
        self.activations, inputs, layers = activations, self.inputs, self.inputs.layers
        gemm, steps = self.gemm, self.steps
        F, V, H, L = self.F, self.V, self.H, len(self.inputs.layers)
        center_grads = [torch.empty_like(one) for one in activations.centers]
        d_out, d_weights = to_contiguous_rows(d_out), to_contiguous_rows(d_weights)
        d_pre, d_z = [torch.empty_like(pre) for pre in activations.pre], torch.empty_like(activations.out)
        d_context_and_h = torch.zeros_like(activations.context_and_h)
        d_context_and_h[..., :V] = d_context
        d_scores = inputs.words.new_empty(activations.weights.shape)
        d_inputs = [torch.zeros_like(layer_input[:, 0]) for layer_input in activations.inputs]  # of one step
        d_c, d_h = [torch.zeros_like(layer.c) for layer in layers], torch.empty_like(layers[0].c)
        W, W_c = [gemm.prepack(layer.W) for layer in layers], gemm.prepack(inputs.W_c)
        for t in reversed(range(self.T)):
            mask, scale = self._dropout_at(0, t + 1)
            steps.attentional_tanh_backward(
                d_out[:, t], activations.out[:, t], d_inputs[0][:, :F], mask, scale, d_z[:, t]
            )
            d_context, d_query = gemm.add_mm(d_context_and_h[:, t], d_z[:, t], W_c).tensor_split([V], 1)
            step, d_p = self._attention_step(t), center_grads[0][:, t] if center_grads else None
            grads = AttentionGrads(d_context, d_weights[:, t], d_query, d_scores[:, t], d_h, d_p)
            steps.attention_backward(step, grads)
            if d_p is not None and step.center is not None:
                S, W_p, v_p = inputs.center_inputs
                u, d_u = activations.centers[1][:, t], center_grads[1][:, t]
                steps.predict_center_backward(d_p, step.center, S, u, v_p, d_u)
                d_h.addmm_(d_u, W_p)
            for number in reversed(range(L)):
                d_above = d_h if number + 1 == L else d_inputs[number + 1][:, :H]
                d_gates, d_recurrent = d_pre[number][:, t], d_inputs[number][:, -H:]
                steps.lstm_gates_backward(self._lstm_step(number, t), d_above, d_recurrent, d_c[number], d_gates)
                gemm.mm(d_gates, W[number], out=d_inputs[number])
        first, h = d_pre[0].flatten(0, 1), activations.context_and_h[..., V:]
        return (
            gemm.mm(first, inputs.W_w).view_as(inputs.words),
            apply_dropout(d_inputs[0][:, :F], *self._dropout_at(0, 0)),
            steps.attention_weighted_sum(d_scores, h),
            steps.attention_weighted_sum(activations.weights.to(inputs.values.dtype), d_context_and_h[..., :V]),
            None,
            gemm.mm(first.t(), inputs.words.flatten(0, 1)),
            gemm.mm(d_z.flatten(0, 1).t(), activations.context_and_h.flatten(0, 1)),
            *chain.from_iterable(
                (*gemm.linear_grads(d_gates.flatten(0, 1), x.flatten(0, 1)), d_input[:, -H:], d_c_0)
                for d_gates, x, d_input, d_c_0 in zip(d_pre, activations.inputs, d_inputs, d_c, strict=True)
            ),
            *self._center_input_grads(center_grads, h),
            *[None] * len(inputs.dropout_masks),
        )

    def _center_input_grads(self, center_grads: Sequence[Tensor], h: Tensor) -> list[Tensor | None]:
        """Return the gradients of `center_inputs`, those of W_p and v_p from all steps at once, given h (B, T, H)."""
        if not center_grads:
            return [None] * len(self.inputs.center_inputs)
        (S, W_p, _), (p, u), (d_p, d_u) = self.inputs.center_inputs, self.activations.centers, center_grads
        d_W = d_u.flatten(0, 1).t() @ h.flatten(0, 1).to(W_p.dtype)
        d_logits = d_p * p * (1 - p / S.clamp(min=1)[:, None])
        return [None, d_W, d_logits.flatten() @ u.tanh().flatten(0, 1)]
