"""Training of a Transformer base on a GPU: compiled `torch.nn.Transformer`, regard's reference, and packed.

    python -m benchmarks.packed_training

Forward, backward and AdamW in bf16, on sentences of one length and of many. The limit is the time of the matrix
products alone at the rate that the GPU reaches on large ones, measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.fast import accelerate
from regard.models import build
from regard.models.base import Model, Seq2Seq
from regard.nn import SinusoidalPositions

VOCABULARY = 32_000
BATCHES = ((800, 32, 32), (800, 8, 32), (100, 64, 256))  # sentences, words of the shortest and the longest
ROUNDS = 20


def make_batch(sentences: int, shortest: int, longest: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a batch of sentences of random words."""
    lengths = torch.randint(shortest, longest + 1, (sentences,))
    lengths[0] = longest
    real = torch.arange(longest) < lengths[:, None]
    source, target_in, target_out = (torch.randint(4, VOCABULARY, (sentences, longest)) * real for _ in range(3))
    return source.cuda(), lengths.cuda(), target_in.cuda(), target_out.cuda()


class TorchTransformer(Model):
    """The sizes of `vaswani2017-base`, by PyTorch's modules; one matrix for the words of both sides and the output."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 512, padding_idx=0)
        self.body = nn.Transformer(512, 8, 6, 6, 2048, 0.1, batch_first=True, norm_first=True)
        self.positions = SinusoidalPositions(512)

    def embed(self, ids: Tensor) -> Tensor:
        """Return words with positions."""
        return F.dropout(self.positions(self.words(ids) * 512**0.5), 0.1)

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
        """Return the loss of all target words; padding is masked only if there is any."""
        padding = None if int(lengths.min()) == source.shape[1] else source == 0
        mask = nn.Transformer.generate_square_subsequent_mask(target_in.shape[1], device=source.device)
        states = self.body(
            self.embed(source),
            self.embed(target_in),
            tgt_mask=mask,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        logits = F.linear(states, self.words.weight)
        return F.cross_entropy(
            logits.flatten(0, 1).float(), target_out.flatten(), ignore_index=0, reduction="sum", label_smoothing=0.1
        )


def make_update_step(model: Model, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Callable[[], None]:
    """Return a function that makes one update."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = int((batch[3] != 0).sum())

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss_sum(*batch) / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def measure_seconds(step: Callable[[], None]) -> list[float]:
    """Return the seconds of each step, after some to warm up."""
    seconds = []
    for _ in range(ROUNDS + 5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[5:]


def measure_peak_operations() -> float:
    """Return the operations per second of large matrix products."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def multiply_repeatedly() -> None:
        for _ in range(10):
            a @ a

    return 10 * 2 * 8192**3 / min(measure_seconds(multiply_repeatedly))


def count_operations_per_word(model: Seq2Seq) -> int:
    """Count the operations of products with weights for one word of each side, forward and backward."""
    weights = sum(
        weight.numel() for name, weight in model.named_parameters() if weight.dim() == 2 and "words" not in name
    )
    return 6 * (weights + (0 if any("output" in name for name, _ in model.named_parameters()) else VOCABULARY * 512))


def main() -> None:
    """Print target words per second."""
    torch.manual_seed(0)
    best = measure_peak_operations()
    print(f"large matrix products: {best / 1e12:,.0f} TFLOP/s")
    for sentences, shortest, longest in BATCHES:
        batch = make_batch(sentences, shortest, longest)
        words = int((batch[3] != 0).sum())
        for name in ("compiled torch.nn.Transformer", "reference", "packed"):
            own = build("vaswani2017-base", VOCABULARY, VOCABULARY, norm="pre").cuda().train()
            limit = best / count_operations_per_word(own)
            model: Model = own
            if name == "packed":
                accelerate(own)
            elif name != "reference":
                model = TorchTransformer().cuda().train()
                model.loss_sum = torch.compile(model, dynamic=False)
            times = measure_seconds(make_update_step(model, batch))
            print(
                f"{sentences} sentences of {shortest} to {longest} words, {name}: "
                f"{words / statistics.median(times):,.0f} target words/s "
                f"({min(times) * 1e3:.1f} to {max(times) * 1e3:.1f} ms; limit {limit:,.0f}), "
                f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB",
                flush=True,
            )
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
