"""Operations between the matrix products of recurrent decoders: LSTM gates, attention, tanh.

Each has a forward and a backward pass, in PyTorch here and as Triton kernels in `regard.fast.kernels.triton.rnn`,
with the same signatures and results. All write to buffers of the caller, so that results are where the next matrix
product reads them. Sums are at least fp32.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from regard.fast.gemm import products
from regard.nn import masked_softmax

sigmoid_back, tanh_back = torch.ops.aten.sigmoid_backward.grad_input, torch.ops.aten.tanh_backward.grad_input
LONGEST = 1024  # source positions; a kernel has the scores of all of them at hand


class Window(NamedTuple):
    """How far around its centre p_t a look goes (Luong 2015, section 3.2)."""

    reach: int = 0  # D, positions to each side of ⌊p_t⌋; 0: there is no window
    sigma: float = 0.0  # of the Gaussian around p_t; 0: there is none


EVERYWHERE = Window()
TINY = 1e-30  # less than a Gaussian of σ = D/2 is anywhere within its window


class Steps(Protocol):
    """What both ways offer. `kept` says what dropout leaves, None everything; `scale` makes up for the rest."""

    def lstm(
        self, pre: Tensor, c: Tensor, after: Tensor, h: Tensor, above: Tensor, kept: Tensor | None, scale: float
    ) -> None:
        """Gates B,4H before their squashing and c_{t-1} B,H -> `after` = c_t, `h`, and h as what is `above` sees it."""
        ...

    def lstm_back(
        self,
        pre: Tensor,
        c: Tensor,
        after: Tensor,
        d_above: Tensor,
        kept: Tensor | None,
        scale: float,
        d_h: Tensor,
        d_c: Tensor,
        d_pre: Tensor,
    ) -> None:
        """From what came to h from above and from step t+1, and to c_t: `d_pre`, and c_{t-1}'s in place of c_t's."""
        ...

    def look(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        weights: Tensor,
        context: Tensor,
        centre: Tensor | None = None,
        window: Window = EVERYWHERE,
    ) -> None:
        """A query B,H over keys B,S,H -> `weights` B,S, zero where the mask is, and the `context` B,V of the values.

        With a `centre` p_t B it looks through a window around it.
        """
        ...

    def look_back(
        self,
        d_context: Tensor,
        d_weights: Tensor,
        weights: Tensor,
        keys: Tensor,
        values: Tensor,
        d_query: Tensor,
        d_scores: Tensor,
        d_all: Tensor,
        centre: Tensor | None = None,
        window: Window = EVERYWHERE,
        d_centre: Tensor | None = None,
    ) -> None:
        """From what came to context and weights: `d_scores`, and in `d_all` the query's, `d_query` and theirs.

        Where there is a Gaussian, `d_centre` B, too.
        """
        ...

    def aim(self, u: Tensor, v: Tensor, lengths: Tensor, centre: Tensor) -> None:
        """U B,P and sentences' lengths S B -> `centre` p_t = S·σ(vᵀ tanh u) B."""
        ...

    def aim_back(self, d_centre: Tensor, centre: Tensor, lengths: Tensor, u: Tensor, v: Tensor, d_u: Tensor) -> None:
        """From what came to the centre: `d_u`."""
        ...

    def gather(self, weights: Tensor, x: Tensor) -> Tensor:
        """Σ_t w_ts x_t: weights B,T,S and x B,T,V -> B,S,V."""
        ...

    def squash(self, z: Tensor, out: Tensor, fed: Tensor, kept: Tensor | None, scale: float) -> None:
        """`out` = tanh z, and what the next step is fed of it."""
        ...

    def squash_back(
        self, d_out: Tensor, out: Tensor, d_fed: Tensor, kept: Tensor | None, scale: float, d_z: Tensor
    ) -> None:
        """From what came to `out` and to what was fed: `d_z`."""
        ...


class Plain:
    """All of them in PyTorch's own operations, on any device."""

    def lstm(
        self, pre: Tensor, c: Tensor, after: Tensor, h: Tensor, above: Tensor, kept: Tensor | None, scale: float
    ) -> None:
        """See `Steps`."""
        i, f, g, o = pre.to(c.dtype).chunk(4, -1)
        torch.add(torch.sigmoid(f) * c, torch.sigmoid(i) * torch.tanh(g), out=after)
        shown = torch.sigmoid(o) * torch.tanh(after)
        h.copy_(shown)
        above.copy_(dropped(shown, kept, scale))

    def lstm_back(
        self,
        pre: Tensor,
        c: Tensor,
        after: Tensor,
        d_above: Tensor,
        kept: Tensor | None,
        scale: float,
        d_h: Tensor,
        d_c: Tensor,
        d_pre: Tensor,
    ) -> None:
        """See `Steps`."""
        i, f, g, o = pre.to(c.dtype).chunk(4, -1)
        i, f, g, o, seen = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o), torch.tanh(after)
        came = dropped(d_above.to(c.dtype), kept, scale) + d_h
        d_c += came * o * (1 - seen * seen)
        parts = (d_c * g * i * (1 - i), d_c * c * f * (1 - f), d_c * i * (1 - g * g), came * seen * o * (1 - o))
        d_pre.copy_(torch.cat(parts, -1))
        d_c *= f

    def look(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        weights: Tensor,
        context: Tensor,
        centre: Tensor | None = None,
        window: Window = EVERYWHERE,
    ) -> None:
        """See `Steps`."""
        scores = products(query[:, None], keys.transpose(1, 2)).squeeze(1).to(weights.dtype)
        if centre is not None:
            mask = mask & (away(centre.floor(), mask.shape[1]).abs() <= window.reach)
        weights.copy_(masked_softmax(scores, mask))
        if centre is not None and window.sigma:
            weights *= bell(away(centre, mask.shape[1]), window)
        context.copy_(products(weights.to(values.dtype)[:, None], values).squeeze(1))

    def look_back(
        self,
        d_context: Tensor,
        d_weights: Tensor,
        weights: Tensor,
        keys: Tensor,
        values: Tensor,
        d_query: Tensor,
        d_scores: Tensor,
        d_all: Tensor,
        centre: Tensor | None = None,
        window: Window = EVERYWHERE,
        d_centre: Tensor | None = None,
    ) -> None:
        """See `Steps`."""
        came = products(d_context[:, None], values.transpose(1, 2)).squeeze(1) + d_weights
        each, shares = weights * came, weights
        if centre is not None and d_centre is not None:
            far = away(centre, weights.shape[1])
            d_centre.copy_((each * far).sum(-1) / window.sigma**2)
            shares = weights / bell(far, window).clamp(min=TINY)  # those of the softmax
        d_scores.copy_(each - shares * each.sum(-1, keepdim=True))
        torch.add(products(d_scores[:, None], keys).squeeze(1), d_query, out=d_all)

    def aim(self, u: Tensor, v: Tensor, lengths: Tensor, centre: Tensor) -> None:
        """See `Steps`."""
        torch.mul(lengths, torch.sigmoid(torch.tanh(u) @ v), out=centre)

    def aim_back(self, d_centre: Tensor, centre: Tensor, lengths: Tensor, u: Tensor, v: Tensor, d_u: Tensor) -> None:
        """See `Steps`."""
        slope = d_centre * centre * (1 - centre / lengths.clamp(min=1))  # S σ' = p (1 − p/S)
        torch.mul(slope[:, None] * v, 1 - torch.tanh(u) ** 2, out=d_u)

    def gather(self, weights: Tensor, x: Tensor) -> Tensor:
        """See `Steps`."""
        return products(weights.transpose(1, 2), x)

    def squash(self, z: Tensor, out: Tensor, fed: Tensor, kept: Tensor | None, scale: float) -> None:
        """See `Steps`."""
        out.copy_(torch.tanh(z))
        fed.copy_(dropped(out, kept, scale))

    def squash_back(
        self, d_out: Tensor, out: Tensor, d_fed: Tensor, kept: Tensor | None, scale: float, d_z: Tensor
    ) -> None:
        """See `Steps`."""
        d_z.copy_((d_out + dropped(d_fed, kept, scale)) * (1 - out * out))


class Squashing(Plain):
    """The same with fewer passes, where all is in one precision: gates are squashed in place, and left like that.

    So the way back reads them as they are, and each of its lines is one of PyTorch's own operations.
    """

    def lstm(
        self, pre: Tensor, c: Tensor, after: Tensor, h: Tensor, above: Tensor, kept: Tensor | None, scale: float
    ) -> None:
        """See `Steps`; after this `pre` are gates."""
        in_and_forget, g, o = pre.tensor_split([pre.shape[1] // 2, pre.shape[1] // 4 * 3], 1)
        i, f = in_and_forget.sigmoid_().chunk(2, 1)
        torch.mul(i, g.tanh_(), out=after).addcmul_(f, c)
        torch.mul(o.sigmoid_(), after.tanh(), out=h)
        if above is not h:
            above.copy_(dropped(h, kept, scale))

    def lstm_back(
        self,
        pre: Tensor,
        c: Tensor,
        after: Tensor,
        d_above: Tensor,
        kept: Tensor | None,
        scale: float,
        d_h: Tensor,
        d_c: Tensor,
        d_pre: Tensor,
    ) -> None:
        """See `Steps`; `pre` are gates."""
        (i, f, g, o), (d_i, d_f, d_g, d_o) = pre.chunk(4, 1), d_pre.chunk(4, 1)
        seen, came = after.tanh(), dropped(d_above, kept, scale) + d_h
        sigmoid_back(came * seen, o, grad_input=d_o)
        d_c += tanh_back(came.mul_(o), seen, grad_input=came)
        sigmoid_back(d_c * g, i, grad_input=d_i)
        sigmoid_back(d_c * c, f, grad_input=d_f)
        tanh_back(d_c * i, g, grad_input=d_g)
        d_c *= f


def away(centre: Tensor, source: int) -> Tensor:
    """How far each position is from centres B: B,S."""
    return torch.arange(source, device=centre.device) - centre[:, None]


def bell(far: Tensor, window: Window) -> Tensor:
    """exp(−(s − p_t)² / 2σ²) (eq. 10)."""
    return torch.exp(-(far**2) / (2 * window.sigma**2))


def dropped(x: Tensor, kept: Tensor | None, scale: float) -> Tensor:
    """What dropout leaves of x."""
    return x if kept is None else x * kept * scale


def chosen(words: Tensor, source: int) -> Steps:
    """Kernels on a GPU with Triton, in single or half precision, for sources that are not too long."""
    if words.is_cuda and words.dtype != torch.float64 and 0 < source <= LONGEST:
        return kernels()
    one = words.device.type == "cpu" and words.dtype in (torch.float32, torch.float64)
    return Squashing() if one else Plain()


@cache
def kernels() -> Steps:
    """Triton's, where it is there; the import takes a while."""
    if find_spec("triton") is None:
        return Plain()
    from regard.fast.kernels.triton.rnn import Kernels

    return cast(Steps, Kernels())
