"""Faster implementations on a CPU beside the reference: the same weights and batches, in turns, processor time.

    OMP_NUM_THREADS=1 python -m benchmarks.fast_vs_reference updates searches parts

`updates` are forward, backward and Adam; `searches` decode 32 sentences, 25 tokens in and out, with a shortlist and
without (models, lists and batches: benchmarks/peers/workloads.py); `parts` are parts of an update. Weights are random.
Ratios are medians over the rounds, with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.peers.workers.regard import build_model, make_decoding_run, make_training_run
from benchmarks.peers.workers.worker_protocol import make_update_run
from benchmarks.peers.workloads import MODELS, Workload
from benchmarks.timing import Runs, measure_in_turns
from regard.data.dataset import Seq2SeqBatch
from regard.fast import accelerate
from regard.fast.training import linear_cross_entropy
from regard.fast.training.packed.ops import dropout_mask
from regard.models import Seq2Seq, build
from regard.recipes.recipe import TrainingSettings
from regard.special_tokens import BOS, EOS, PAD
from regard.training.optimizer import build_optimizer

PAIRS, SHORTEST, LONGEST = 84, 12, 36  # sentence pairs of a batch, a third of which is padding
TOKENS, SIZE, WORDS = 2_048, 256, 8_000  # sizes of the parts
WEIGHTS = 10_700_000  # that Adam updates
REFERENCE, FAST = "reference", "fast"
Times = dict[str, list[float]]


def measure_runs(runs: Runs, rounds: int) -> Times:
    """Return the processor seconds of each run in each round."""
    return measure_in_turns(runs, rounds, time.process_time)


def format_ratio(times: Times, slow: str, fast: str) -> str:
    """Format how many times as fast one run is as another."""
    ratios = [left / right for left, right in zip(times[slow], times[fast], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})"


def print_row(title: str, times: Times) -> None:
    """Print milliseconds and their ratio."""
    milliseconds = " | ".join(f"{1000 * statistics.median(times[name]):,.1f}" for name in (REFERENCE, FAST))
    print(f"| {title} | {milliseconds} | {format_ratio(times, REFERENCE, FAST)} |", flush=True)


def make_padded_batch(words: int) -> Seq2SeqBatch:
    """Return pairs of all lengths; source and target of a pair have the same."""
    lengths = torch.linspace(SHORTEST, LONGEST, PAIRS).round().long()
    ids = torch.randint(EOS + 1, words, (PAIRS, LONGEST), generator=torch.Generator().manual_seed(1))
    ids[torch.arange(LONGEST) >= lengths[:, None]] = PAD
    return Seq2SeqBatch(ids, lengths, torch.cat((torch.full((PAIRS, 1), BOS), ids[:, :-1]), 1), ids)


def make_padded_update(model: Seq2Seq, words: int) -> Callable[[], object]:
    """Return a function that makes one update on a batch with padding."""
    adam = build_optimizer(model.train(), TrainingSettings(optimizer="adam", learning_rate=1e-6))
    batch = make_padded_batch(words)
    return make_update_run(adam, lambda: model.loss_sum(*batch) / batch.num_tokens)


def make_reference_and_fast_runs(model: Seq2Seq, make_run: Callable[[Seq2Seq], Callable[[], object]]) -> Runs:
    """Return runs of the reference and of the faster implementation, each with weights of its own."""
    return {REFERENCE: make_run(deepcopy(model)), FAST: make_run(accelerate(model))}


def benchmark_updates(rounds: int) -> None:
    """Print milliseconds of an update."""
    print("| update | reference, ms | fast, ms | times as fast |\n|---|---|---|---|")
    for name in ("rnn", "transformer"):
        work = Workload("train", name)
        runs = make_reference_and_fast_runs(build_model(name, work.sizes), partial(make_training_run, work=work))
        print_row(f"{name}, {work.tokens:,} tokens without padding", measure_runs(runs, rounds))
    models = {
        "rnn": (build_model("rnn", MODELS["rnn"]), WORDS),
        "transformer": (build_model("transformer", MODELS["transformer"]), WORDS),
        "Transformer of two layers of 128, 1,200 words": (build("default", 1_200, 1_200, size=128, layers=2), 1_200),
        "luong2015-global": (build("luong2015-global", WORDS, WORDS, size=SIZE, layers=2, dropout=0.2), WORDS),
        "bahdanau2015": (build("bahdanau2015", WORDS, WORDS, size=SIZE), WORDS),
        "sutskever2014": (build("sutskever2014", WORDS, WORDS, size=SIZE), WORDS),
    }
    for title, (model, words) in models.items():
        runs = make_reference_and_fast_runs(model, partial(make_padded_update, words=words))
        print_row(f"{title}, {make_padded_batch(words).num_tokens:,} tokens", measure_runs(runs, rounds))


@torch.inference_mode()
def benchmark_searches(rounds: int) -> None:
    """Print the speed-up of the faster implementation, without and with a shortlist, and that of the shortlist."""
    print("| search | fast | fast, with a list | a list, fast |\n|---|---|---|---|")
    for name in MODELS:
        plain = build_model(name, MODELS[name]).eval()
        models = {REFERENCE: plain, FAST: accelerate(deepcopy(plain))}
        for beam in (1, 4):
            work = Workload("decode", name, beam)
            runs = {kind: make_decoding_run(model, work, with_shortlist=False) for kind, model in models.items()}
            lists = {
                f"{kind} list": make_decoding_run(model, work, with_shortlist=True) for kind, model in models.items()
            }
            times = measure_runs({**runs, **lists}, rounds)
            pairs = ((REFERENCE, FAST), (f"{REFERENCE} list", f"{FAST} list"), (FAST, f"{FAST} list"))
            ratios = " | ".join(format_ratio(times, *pair) for pair in pairs)
            print(f"| {name}, beam {beam} | {ratios} |", flush=True)


def benchmark_components(rounds: int) -> None:
    """Print milliseconds of Adam, of dropout, and of an output layer with its loss."""
    print("| part | reference, ms | fast, ms | times as fast |\n|---|---|---|---|")
    print_row(
        f"Adam, {WEIGHTS:,} weights",
        measure_runs({REFERENCE: make_adam_step(False), FAST: make_adam_step(True)}, rounds),
    )
    x = torch.randn(TOKENS, SIZE)
    runs: Runs = {REFERENCE: lambda: x + F.dropout(x, 0.1), FAST: lambda: torch.addcmul(x, x, dropout_mask(x, 0.1))}
    print_row(f"dropout and a sum, {TOKENS:,} × {SIZE}", measure_runs(runs, rounds))
    print_row(
        f"output layer and loss, {TOKENS:,} tokens, {WORDS:,} words",
        measure_runs(make_output_layer_losses(), rounds),
    )


def make_adam_step(fused: bool) -> Callable[[], object]:
    """Return a step of PyTorch's Adam, fused or not."""
    weight = nn.Parameter(torch.randn(WEIGHTS))
    weight.grad = torch.randn(WEIGHTS)
    return torch.optim.Adam([weight], 1e-6, fused=fused).step


def make_output_layer_losses() -> Runs:
    """Return runs of the loss and its gradients with the logits of all tokens at once, or of some at a time."""
    x = torch.randn(TOKENS, SIZE, requires_grad=True)
    weight, targets = nn.Parameter(torch.randn(WORDS, SIZE) / 16), torch.randint(EOS + 1, WORDS, (TOKENS,))
    return {
        REFERENCE: lambda: torch.autograd.grad(F.cross_entropy(x @ weight.t(), targets, reduction="sum"), [x, weight]),
        FAST: lambda: torch.autograd.grad(
            linear_cross_entropy.cross_entropy_in_chunks(x, weight, None, targets, 0.0), [x, weight]
        ),
    }


TABLES: dict[str, Callable[[int], None]] = {
    "updates": benchmark_updates,
    "searches": benchmark_searches,
    "parts": benchmark_components,
}


def main() -> None:
    """Print the requested tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    unknown = set(options.tables) - set(TABLES)
    if unknown:
        parser.error(f"unknown table {', '.join(sorted(unknown))}; choose from {', '.join(TABLES)}")
    torch.manual_seed(0)
    for name in options.tables or TABLES:
        TABLES[name](options.rounds)


if __name__ == "__main__":
    main()
