"""The largest of many numbers on a CPU: first in which blocks they are, then which they are."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.fast.switch import wanted

BLOCK = 64  # numbers whose maximum is found at once
FEW = 30_000  # numbers in all below which finding the blocks costs more than it spares


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of x R,V, the largest first, and their places: R,k each, as `Tensor.topk` has them.

    `Tensor.topk` on a CPU looks at one number after the other; a maximum is found in steps of many. Whatever is among
    the k largest is in one of the k blocks with the largest maxima.
    """
    rows, size = x.shape
    blocks = size // BLOCK
    if x.device.type != "cpu" or x.numel() < FEW or blocks <= 4 * k or not wanted():
        return tuple(x.topk(k, -1))  # type: ignore[return-value]
    whole = x[:, : blocks * BLOCK].view(rows, blocks, BLOCK)
    likely = whole.amax(-1).topk(k, -1).indices[..., None]  # R,k,1
    values = whole.gather(1, likely.expand(-1, -1, BLOCK)).flatten(1)
    places = (likely * BLOCK + torch.arange(BLOCK)).flatten(1)
    if blocks * BLOCK < size:
        values = torch.cat((values, x[:, blocks * BLOCK :]), 1)
        places = torch.cat((places, torch.arange(blocks * BLOCK, size).expand(rows, -1)), 1)
    largest, chosen = values.topk(k, -1)
    return largest, places.gather(1, chosen)
