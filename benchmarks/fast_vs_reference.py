"""The faster ways on a CPU beside the readable ones: the same weights and batches, in turns, the processor's time.

    OMP_NUM_THREADS=1 python -m benchmarks.fast_vs_reference updates searches parts

`updates` are forward, backward and Adam; `searches` decode 32 sentences, 25 tokens in and out, with a shortlist and
without (models, lists and batches: benchmarks/peers/workloads.py); `parts` are some of what updates are made
of. Weights are random. Ratios are medians over the rounds, with the lowest and the highest.
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
from regard.data.batch import Seq2SeqBatch
from regard.fast import quicken
from regard.fast.output import rows
from regard.fast.packed.lean import kept
from regard.models import Seq2Seq, build
from regard.recipes import TrainingSettings
from regard.special_tokens import BOS, EOS, PAD
from regard.training.optimizer import build_optimizer

PAIRS, SHORTEST, LONGEST = 84, 12, 36  # of a batch with padding, which is a third of it
TOKENS, SIZE, WORDS = 2_048, 256, 8_000  # what a part is given
WEIGHTS = 10_700_000  # that Adam changes
REFERENCE, FAST = "readable", "fast"
Runs = dict[str, Callable[[], object]]
Times = dict[str, list[float]]


def measure_in_turns(runs: Runs, rounds: int) -> Times:
    """The seconds of each, round after round; the first round does not count."""
    times: Times = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, way in runs.items():
            began = time.process_time()
            way()
            times[name].append(time.process_time() - began)
    return {name: some[1:] for name, some in times.items()}


def format_ratio(times: Times, slow: str, fast: str) -> str:
    """How many times as fast the one is as the other."""
    found = [left / right for left, right in zip(times[slow], times[fast], strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f} … {max(found):.2f})"


def print_row(title: str, times: Times) -> None:
    """Prints milliseconds and their ratio."""
    each = " | ".join(f"{1000 * statistics.median(times[name]):,.1f}" for name in (REFERENCE, FAST))
    print(f"| {title} | {each} | {format_ratio(times, REFERENCE, FAST)} |", flush=True)


def make_padded_batch(words: int) -> Seq2SeqBatch:
    """Pairs of all lengths; source and target of a pair have the same."""
    lengths = torch.linspace(SHORTEST, LONGEST, PAIRS).round().long()
    ids = torch.randint(EOS + 1, words, (PAIRS, LONGEST), generator=torch.Generator().manual_seed(1))
    ids[torch.arange(LONGEST) >= lengths[:, None]] = PAD
    return Seq2SeqBatch(ids, lengths, torch.cat((torch.full((PAIRS, 1), BOS), ids[:, :-1]), 1), ids)


def make_padded_update(model: Seq2Seq, words: int) -> Callable[[], object]:
    """An update by such a batch."""
    adam = build_optimizer(model.train(), TrainingSettings(optimizer="adam", learning_rate=1e-6))
    given = make_padded_batch(words)
    return make_update_run(adam, lambda: model.loss_sum(*given) / given.num_tokens)


def make_reference_and_fast_runs(model: Seq2Seq, make_run: Callable[[Seq2Seq], Callable[[], object]]) -> Runs:
    """The readable way and the faster one, each with weights of its own."""
    return {REFERENCE: make_run(deepcopy(model)), FAST: make_run(quicken(model))}


def benchmark_updates(rounds: int) -> None:
    """Milliseconds of an update."""
    print("| update | readable, ms | fast, ms | times as fast |\n|---|---|---|---|")
    for name in ("rnn", "transformer"):
        work = Workload("train", name)
        ways = make_reference_and_fast_runs(build_model(name, work.sizes), partial(make_training_run, work=work))
        print_row(f"{name}, {work.tokens:,} tokens without padding", measure_in_turns(ways, rounds))
    models = {
        "rnn": (build_model("rnn", MODELS["rnn"]), WORDS),
        "transformer": (build_model("transformer", MODELS["transformer"]), WORDS),
        "Transformer of two layers of 128, 1,200 words": (build("default", 1_200, 1_200, size=128, layers=2), 1_200),
        "luong2015-global": (build("luong2015-global", WORDS, WORDS, size=SIZE, layers=2, dropout=0.2), WORDS),
        "bahdanau2015": (build("bahdanau2015", WORDS, WORDS, size=SIZE), WORDS),
        "sutskever2014": (build("sutskever2014", WORDS, WORDS, size=SIZE), WORDS),
    }
    for title, (model, words) in models.items():
        ways = make_reference_and_fast_runs(model, partial(make_padded_update, words=words))
        print_row(f"{title}, {make_padded_batch(words).num_tokens:,} tokens", measure_in_turns(ways, rounds))


@torch.inference_mode()
def benchmark_searches(rounds: int) -> None:
    """What is gained by the faster way, without a list and with one, and by the list."""
    print("| search | fast | fast, with a list | a list, fast |\n|---|---|---|---|")
    for name in MODELS:
        plain = build_model(name, MODELS[name]).eval()
        models = {REFERENCE: plain, FAST: quicken(deepcopy(plain))}
        for beam in (1, 4):
            work = Workload("decode", name, beam)
            ways = {way: make_decoding_run(model, work, with_shortlist=False) for way, model in models.items()}
            lists = {
                f"{way} list": make_decoding_run(model, work, with_shortlist=True) for way, model in models.items()
            }
            times = measure_in_turns({**ways, **lists}, rounds)
            pairs = ((REFERENCE, FAST), (f"{REFERENCE} list", f"{FAST} list"), (FAST, f"{FAST} list"))
            found = " | ".join(format_ratio(times, *pair) for pair in pairs)
            print(f"| {name}, beam {beam} | {found} |", flush=True)


def benchmark_components(rounds: int) -> None:
    """Adam, dropout, and an output layer with its loss: milliseconds."""
    print("| part | readable, ms | fast, ms | times as fast |\n|---|---|---|---|")
    print_row(
        f"Adam, {WEIGHTS:,} weights",
        measure_in_turns({REFERENCE: make_adam_step(False), FAST: make_adam_step(True)}, rounds),
    )
    x = torch.randn(TOKENS, SIZE)
    ways: Runs = {REFERENCE: lambda: x + F.dropout(x, 0.1), FAST: lambda: torch.addcmul(x, x, kept(x, 0.1))}
    print_row(f"dropout and a sum, {TOKENS:,} × {SIZE}", measure_in_turns(ways, rounds))
    print_row(
        f"output layer and loss, {TOKENS:,} tokens, {WORDS:,} words",
        measure_in_turns(make_output_layer_losses(), rounds),
    )


def make_adam_step(fused: bool) -> Callable[[], object]:
    """A step of PyTorch's, by one pass or by many."""
    weight = nn.Parameter(torch.randn(WEIGHTS))
    weight.grad = torch.randn(WEIGHTS)
    return torch.optim.Adam([weight], 1e-6, fused=fused).step


def make_output_layer_losses() -> Runs:
    """Logits of all tokens at once, or of some at a time; there and back."""
    x = torch.randn(TOKENS, SIZE, requires_grad=True)
    weight, targets = nn.Parameter(torch.randn(WORDS, SIZE) / 16), torch.randint(EOS + 1, WORDS, (TOKENS,))
    return {
        REFERENCE: lambda: torch.autograd.grad(F.cross_entropy(x @ weight.t(), targets, reduction="sum"), [x, weight]),
        FAST: lambda: torch.autograd.grad(rows.losses(x, weight, None, targets, 0.0), [x, weight]),
    }


TABLES: dict[str, Callable[[int], None]] = {
    "updates": benchmark_updates,
    "searches": benchmark_searches,
    "parts": benchmark_components,
}


def main() -> None:
    """Prints the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    unknown = set(given.tables) - set(TABLES)
    if unknown:
        parser.error(f"there is no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    torch.manual_seed(0)
    for name in given.tables or TABLES:
        TABLES[name](given.rounds)


if __name__ == "__main__":
    main()
