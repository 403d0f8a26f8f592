"""Growth of time and memory with the lengths of sentences, beam, batch and vocabulary.

    python -m benchmarks.scaling [--draw FILE]

Models are small and have one layer, so that growth shows early. Time is processor time, the minimum of several runs.
Memory is what training stores for the backward pass, and the decoder state between two steps, counted byte for byte.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.timing import measure_in_turns
from regard.models import build
from regard.models.base import Seq2Seq
from regard.search import search

VOCABULARY, SIZE, ROUNDS = 1000, 64, 3
MODELS: dict[str, dict[str, Any]] = {
    "sutskever2014": {},
    "bahdanau2015": {},
    "luong2015-global": {},
    "luong2015-local-m": {"window": 5},
    "luong2015-local-p": {"window": 5},
    "vaswani2017-base": {"heads": 4},
}


class Measurement(NamedTuple):
    """One measurement."""

    seconds: float
    bytes: int | None = None


Measure = Callable[[str, int], Measurement]


def build_small_model(name: str, vocabulary: int = VOCABULARY) -> Seq2Seq:
    """Build a small model."""
    torch.manual_seed(0)
    model = build(name, vocabulary, vocabulary, size=SIZE, layers=1, dropout=0.0, **MODELS[name])
    assert isinstance(model, Seq2Seq)
    return model


def make_sentences(rows: int, words: int, vocabulary: int = VOCABULARY) -> tuple[Tensor, Tensor]:
    """Return random ids and their lengths."""
    return torch.randint(4, vocabulary, (rows, words)), torch.full((rows,), words)


def measure_seconds(run: Callable[[], object]) -> float:
    """Return the minimum processor seconds of several runs."""
    return min(measure_in_turns({"run": run}, ROUNDS, time.process_time, warmup=0)["run"])


@contextmanager
def record_saved_storages() -> Iterator[dict[int, int]]:
    """Record the storages that are saved for the backward pass: bytes by address."""
    held: dict[int, int] = {}

    def record_storage(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record_storage, lambda tensor: tensor):
        yield held


def make_training_run(model: Seq2Seq, source: int, target: int) -> tuple[Callable[[], None], Callable[[], int]]:
    """Return functions that compute loss and gradients of one pair, and their memory without the weights."""
    (ids, lengths), (words, _) = make_sentences(1, source), make_sentences(1, target)

    def run() -> None:
        model.zero_grad()
        model.loss(ids, lengths, words, words).backward()  # type: ignore[no-untyped-call]

    def measure_memory() -> int:
        own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        with record_saved_storages() as held:
            loss = model.loss(ids, lengths, words, words)  # while it exists, saved tensors keep their addresses
            found = sum(size for address, size in held.items() if address not in own)
        del loss
        return found

    return run, measure_memory


def measure_training(name: str, words: int) -> Measurement:
    """Measure training on a pair of sentences of `words` words each."""
    run, memory = make_training_run(build_small_model(name), words, words)
    return Measurement(measure_seconds(run), memory())


def measure_training_by_source(name: str, words: int) -> Measurement:
    """Measure training on a source of `words` words and a target of 16."""
    run, memory = make_training_run(build_small_model(name), words, 16)
    return Measurement(measure_seconds(run), memory())


def measure_decoder_steps(name: str, words: int) -> Measurement:
    """Measure eight steps of a decoder after an encoded source of `words` words; memory is that of its state."""
    model = build_small_model(name).eval()
    with torch.no_grad():
        state = model.decoder.start(model.encode(*make_sentences(4, words)))

        def run() -> None:
            now = state
            for token in range(8):
                now = model.decoder.step(now, torch.full((4,), 5 + token))[1]

        return Measurement(measure_seconds(run), sum(tensor.nbytes for tensor in list_distinct_tensors(state)))


def list_distinct_tensors(state: Any) -> list[Tensor]:
    """Return the tensors of a state, each once."""
    found: dict[int, Tensor] = {}

    def walk(part: Any) -> None:
        if isinstance(part, Tensor):
            found[part.data_ptr()] = part
        elif isinstance(part, list | tuple):
            for each in part:
                walk(each)

    walk(state)
    return list(found.values())


def make_search_measure(rows: int = 4, beam: int = 4, vocabulary: int = VOCABULARY) -> Callable[[str], Measurement]:
    """Return a function that measures a search of 16 words."""

    def measure_search(name: str) -> Measurement:
        model = build_small_model(name, vocabulary).eval()
        source, lengths = make_sentences(rows, 16, vocabulary)
        with torch.no_grad():
            return Measurement(measure_seconds(lambda: search(model, source, lengths, beam=beam, max_length=16)))

    return measure_search


AXES: dict[str, tuple[Measure, Sequence[int]]] = {
    "words on both sides, training": (measure_training, (16, 64, 256, 1024)),
    "source words, training, 16 target words": (measure_training_by_source, (16, 64, 256, 1024, 4096)),
    "source words, eight steps": (measure_decoder_steps, (16, 64, 256, 1024, 4096)),
    "beam": (lambda name, n: make_search_measure(beam=n)(name), (1, 4, 16, 64)),
    "sentences at once": (lambda name, n: make_search_measure(rows=n)(name), (1, 4, 16, 64)),
    "vocabulary": (lambda name, n: make_search_measure(vocabulary=n)(name), (1000, 4000, 16_000, 64_000)),
}


def compute_growth_exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the exponent between the last two points: 0 is constant, 1 linear, 2 quadratic."""
    return math.log(max(values[-1], 1e-9) / max(values[-2], 1e-9)) / math.log(sizes[-1] / sizes[-2])


def main() -> None:
    """Print a table for each axis, and draw them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draw", type=Path)
    drawn = parser.parse_args().draw
    torch.set_num_threads(1)
    found = {
        title: {name: [measure(name, size) for size in sizes] for name in MODELS}
        for title, (measure, sizes) in AXES.items()
    }
    for title, rows in found.items():
        sizes = AXES[title][1]
        print(f"\n{title}: milliseconds, and memory in KB, at {', '.join(f'{size:,}' for size in sizes)}")
        for name, points in rows.items():
            times, memory = [point.seconds for point in points], [point.bytes for point in points if point.bytes]
            held = f"  |{' '.join(f'{each / 1e3:10,.0f}' for each in memory)}" if memory else ""
            grows = f"  ^{compute_growth_exponent(sizes, memory):4.1f}" if memory else ""
            print(
                f"  {name:<20} {' '.join(f'{1e3 * each:9,.1f}' for each in times)}"
                f"  ^{compute_growth_exponent(sizes, times):4.1f}"
                f"{held}{grows}"
            )
    if drawn:
        plot_growth(found, drawn)


def plot_growth(measurements: dict[str, dict[str, list[Measurement]]], path: Path) -> None:
    """Plot time above and memory below, one column for each axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(measurements), 7), layout="constrained")
    axes = figure.subplots(2, len(measurements), squeeze=False)
    for column, (title, rows) in enumerate(measurements.items()):
        for name, points in rows.items():
            axes[0][column].loglog(AXES[title][1], [1e3 * point.seconds for point in points], marker="o", label=name)
            held = [point.bytes / 1e6 for point in points if point.bytes]
            axes[1][column].set_visible(bool(held))
            if held:
                axes[1][column].loglog(AXES[title][1], held, marker="o", label=name)
        axes[0][column].set(title=title, ylabel="milliseconds" if not column else "")
        axes[1][column].set(ylabel="MB" if not column else "")
    axes[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
