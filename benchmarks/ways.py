"""The faster ways on a CPU beside the readable ones: the same weights and batches, in turns, the processor's time.

    OMP_NUM_THREADS=1 python -m benchmarks.ways updates searches parts

`updates` are forward, backward and Adam; `searches` decode 32 sentences, 25 tokens in and out, with a shortlist and
without (models, lists and batches are those of benchmarks/peers/works.py); `parts` are some of what updates are made
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

from benchmarks.peers.workers.line import updating
from benchmarks.peers.workers.regard import decoding, of, training
from benchmarks.peers.works import MODELS, Work
from regard.data.batches import Batch
from regard.fast import quicken
from regard.fast.output import rows
from regard.fast.packed.lean import kept
from regard.models import Seq2Seq, build
from regard.symbols import BOS, EOS, PAD
from regard.training.optimizer import optimizer
from regard.training.settings import TrainingSettings

PAIRS, SHORTEST, LONGEST = 84, 12, 36  # of a batch with padding, which is a third of it
TOKENS, SIZE, WORDS = 2_048, 256, 8_000  # what a part is given
WEIGHTS = 10_700_000  # that Adam changes
READABLE, FAST = "readable", "fast"
Ways = dict[str, Callable[[], object]]
Times = dict[str, list[float]]


def turns(ways: Ways, rounds: int) -> Times:
    """The seconds of each, round after round; the first round does not count."""
    times: Times = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            way()
            times[name].append(time.process_time() - began)
    return {name: some[1:] for name, some in times.items()}


def ratio(times: Times, slow: str, fast: str) -> str:
    """How many times as fast the one is as the other."""
    found = [left / right for left, right in zip(times[slow], times[fast], strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f} … {max(found):.2f})"


def line(title: str, times: Times) -> None:
    """Prints milliseconds and their ratio."""
    each = " | ".join(f"{1000 * statistics.median(times[name]):,.1f}" for name in (READABLE, FAST))
    print(f"| {title} | {each} | {ratio(times, READABLE, FAST)} |", flush=True)


def batch(words: int) -> Batch:
    """Pairs of all lengths; source and target of a pair have the same."""
    lengths = torch.linspace(SHORTEST, LONGEST, PAIRS).round().long()
    ids = torch.randint(EOS + 1, words, (PAIRS, LONGEST), generator=torch.Generator().manual_seed(1))
    ids[torch.arange(LONGEST) >= lengths[:, None]] = PAD
    return Batch(ids, lengths, torch.cat((torch.full((PAIRS, 1), BOS), ids[:, :-1]), 1), ids)


def padded(model: Seq2Seq, words: int) -> Callable[[], object]:
    """An update by such a batch."""
    adam = optimizer(model.train(), TrainingSettings(optimizer="adam", learning_rate=1e-6))
    given = batch(words)
    return updating(adam, lambda: model.summed(*given) / given.tokens)


def both(model: Seq2Seq, work: Callable[[Seq2Seq], Callable[[], object]]) -> Ways:
    """The readable way and the faster one, each with weights of its own."""
    return {READABLE: work(deepcopy(model)), FAST: work(quicken(model))}


def updates(rounds: int) -> None:
    """Milliseconds of an update."""
    print("| update | readable, ms | fast, ms | times as fast |\n|---|---|---|---|")
    for name in ("rnn", "transformer"):
        work = Work("train", name)
        ways = both(of(name, work.sizes), partial(training, work=work))
        line(f"{name}, {work.tokens:,} tokens without padding", turns(ways, rounds))
    models = {
        "rnn": (of("rnn", MODELS["rnn"]), WORDS),
        "transformer": (of("transformer", MODELS["transformer"]), WORDS),
        "Transformer of two layers of 128, 1,200 words": (build("default", 1_200, 1_200, size=128, layers=2), 1_200),
        "luong2015-global": (build("luong2015-global", WORDS, WORDS, size=SIZE, layers=2, dropout=0.2), WORDS),
        "bahdanau2015": (build("bahdanau2015", WORDS, WORDS, size=SIZE), WORDS),
        "sutskever2014": (build("sutskever2014", WORDS, WORDS, size=SIZE), WORDS),
    }
    for title, (model, words) in models.items():
        ways = both(model, partial(padded, words=words))
        line(f"{title}, {batch(words).tokens:,} tokens", turns(ways, rounds))


@torch.inference_mode()
def searches(rounds: int) -> None:
    """What is gained by the faster way, without a list and with one, and by the list."""
    print("| search | fast | fast, with a list | a list, fast |\n|---|---|---|---|")
    for name in MODELS:
        plain = of(name, MODELS[name]).eval()
        models = {READABLE: plain, FAST: quicken(deepcopy(plain))}
        for beam in (1, 4):
            work = Work("decode", name, beam)
            ways = {way: decoding(model, work, listed=False) for way, model in models.items()}
            lists = {f"{way} list": decoding(model, work, listed=True) for way, model in models.items()}
            times = turns({**ways, **lists}, rounds)
            pairs = ((READABLE, FAST), (f"{READABLE} list", f"{FAST} list"), (FAST, f"{FAST} list"))
            found = " | ".join(ratio(times, *pair) for pair in pairs)
            print(f"| {name}, beam {beam} | {found} |", flush=True)


def parts(rounds: int) -> None:
    """Adam, dropout, and an output layer with its loss: milliseconds."""
    print("| part | readable, ms | fast, ms | times as fast |\n|---|---|---|---|")
    line(f"Adam, {WEIGHTS:,} weights", turns({READABLE: adam(False), FAST: adam(True)}, rounds))
    x = torch.randn(TOKENS, SIZE)
    ways: Ways = {READABLE: lambda: x + F.dropout(x, 0.1), FAST: lambda: torch.addcmul(x, x, kept(x, 0.1))}
    line(f"dropout and a sum, {TOKENS:,} × {SIZE}", turns(ways, rounds))
    line(f"output layer and loss, {TOKENS:,} tokens, {WORDS:,} words", turns(losses(), rounds))


def adam(fused: bool) -> Callable[[], object]:
    """A step of PyTorch's, by one pass or by many."""
    weight = nn.Parameter(torch.randn(WEIGHTS))
    weight.grad = torch.randn(WEIGHTS)
    return torch.optim.Adam([weight], 1e-6, fused=fused).step


def losses() -> Ways:
    """Logits of all tokens at once, or of some at a time; there and back."""
    x = torch.randn(TOKENS, SIZE, requires_grad=True)
    weight, targets = nn.Parameter(torch.randn(WORDS, SIZE) / 16), torch.randint(EOS + 1, WORDS, (TOKENS,))
    return {
        READABLE: lambda: torch.autograd.grad(F.cross_entropy(x @ weight.t(), targets, reduction="sum"), [x, weight]),
        FAST: lambda: torch.autograd.grad(rows.losses(x, weight, None, targets, 0.0), [x, weight]),
    }


TABLES: dict[str, Callable[[int], None]] = {"updates": updates, "searches": searches, "parts": parts}


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
