"""Training a Transformer base on a GPU: the readable way and the packed one, on full and on ragged sentences.

Forward, backward and AdamW in bf16. The limit is what the matrix products alone would take at the speed that this card
reaches on large ones, measured here.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from regard.fast import quicken
from regard.fast.packed import way
from regard.models import build
from regard.models.base import Seq2Seq

VOCABULARY, SENTENCES, WORDS = 32_000, 800, 32
ROUNDS = 20


def make_batch(ragged: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sentences of 32 words, or of 8 to 32."""
    lengths = torch.randint(8, WORDS + 1, (SENTENCES,)) if ragged else torch.full((SENTENCES,), WORDS)
    lengths[0] = WORDS
    real = torch.arange(WORDS) < lengths[:, None]
    source, target_in, target_out = (torch.randint(4, VOCABULARY, (SENTENCES, WORDS)) * real for _ in range(3))
    return source.cuda(), lengths.cuda(), target_in.cuda(), target_out.cuda()


def make_update_step(model: Seq2Seq, ragged: bool) -> Callable[[], None]:
    """One update."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    given = make_batch(ragged)
    tokens = int((given[3] != 0).sum())

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss_sum(*given) / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def measure_seconds(step: Callable[[], None]) -> list[float]:
    """Of each of some updates, after some to warm up."""
    found = []
    for _ in range(ROUNDS + 5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return found[5:]


def measure_peak_operations() -> float:
    """Operations a second of large matrix products."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def many() -> None:
        for _ in range(10):
            a @ a

    return 10 * 2 * 8192**3 / min(measure_seconds(many))


def count_operations_per_word(model: Seq2Seq) -> int:
    """Of the matrix products of weights for one source and one target word, forward and backward; not of attention."""
    each = sum(weight.numel() for name, weight in model.named_parameters() if weight.dim() == 2 and "words" not in name)
    return 6 * (each + (0 if any("output" in name for name, _ in model.named_parameters()) else VOCABULARY * 512))


def main() -> None:
    """Prints target words a second."""
    torch.manual_seed(0)
    way.FIRST = 0
    best = measure_peak_operations()
    print(f"large matrix products: {best / 1e12:,.0f} TFLOP/s")
    for ragged in (False, True):
        for name in ("readable", "packed"):
            model = build("vaswani2017-base", VOCABULARY, VOCABULARY, norm="pre").cuda().train()
            if name == "packed":
                quicken(model)
            step = make_update_step(model, ragged)
            words = int((make_batch(ragged)[3] != 0).sum())
            times = measure_seconds(step)
            median = statistics.median(times)
            limit = best / count_operations_per_word(model)
            print(
                f"{'8 to 32' if ragged else '32'} words, {name}: {words / median:,.0f} target words/s "
                f"({min(times) * 1e3:.1f} to {max(times) * 1e3:.1f} ms; limit {limit:,.0f}), "
                f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB",
                flush=True,
            )
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
