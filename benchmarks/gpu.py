"""Training and decoding on a GPU, beside the limits of the card: `python -m benchmarks.gpu luong`.

Alternatives run in turns; a figure is the median over the rounds, with the fastest and the slowest. The limits are what
the card reaches in the same run at a large matrix product and at a large copy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.fast import accelerate
from regard.fast.cuda_graphs.cache import GraphedFunctionCache
from regard.fast.decoding.search_trace import CHUNK_STEPS, SearchRequest
from regard.fast.training.graphed_loop import run_graphed
from regard.fast.training.luong import run_input_feeding_loop
from regard.models import build
from regard.models.base import Encoded, default_loss_sum
from regard.models.rnn_common import unroll_decoder
from regard.search import search

WARMUP_ROUNDS, ROUNDS = 5, 20
STEPS_PER_ROUND = 5  # training steps without synchronisation, so that the CPU works ahead
TARGET_LENGTH = 32  # tokens in and out of a search
SIZE, LAYERS, SENTENCE_LENGTH, VOCABULARY = 1000, 2, 30, 32000
LUONG: dict[str, Any] = {"config": "luong2015-global", "size": SIZE, "layers": LAYERS, "score": "general"}
TRANSFORMER: dict[str, Any] = {"config": "vaswani2017-base"}
BAHDANAU: dict[str, Any] = {"config": "bahdanau2015", "size": SIZE}


class Workload(NamedTuple):
    """Minimum work of one call."""

    tokens: int
    operations: float  # of matrix products, a multiplication and an addition each
    bytes: float  # that must be read from GPU memory


def measure_seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the seconds of a call on the GPU, averaged over `repeats` calls in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000 / repeats


def measure_rounds(calls: Mapping[str, Callable[[], object]], repeats: int = 1) -> dict[str, list[float]]:
    """Return the seconds of each call in every round, after warm-up."""
    for call in calls.values():
        for _ in range(WARMUP_ROUNDS):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(measure_seconds(call, repeats))
    return times


def measure_card_limits() -> tuple[float, float]:
    """Return operations per second of a matrix product in bf16, and bytes per second of a copy (read and written)."""
    one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    many = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    other = torch.empty_like(many)
    times = measure_rounds({"product": lambda: one @ one, "copy": lambda: other.copy_(many)})
    fastest = {name: min(found) for name, found in times.items()}
    return 2 * 8192**3 / fastest["product"], 2 * 2**30 / fastest["copy"]


def print_table(
    title: str,
    workload: Workload,
    calls: Mapping[str, Callable[[], object]],
    card_limits: tuple[float, float] | None = None,
    repeats: int = 1,
) -> None:
    """Print one line for each alternative, and the limits if they are known."""
    print(f"\n{title}")
    print(f"| {'':<34} | {'tokens/s':>10} | {'from':>10} | {'to':>10} | {'ms':>8} |")
    print(f"|{'-' * 36}|{'-' * 11}:|{'-' * 11}:|{'-' * 11}:|{'-' * 9}:|")
    for name, times in measure_rounds(calls, repeats).items():
        middle, slow, fast = (workload.tokens / time for time in (statistics.median(times), max(times), min(times)))
        print(
            f"| {name:<34} | {middle:10,.0f} | {slow:10,.0f} | {fast:10,.0f} | {1e3 * workload.tokens / middle:8.2f} |"
        )
    if card_limits is None:
        return
    for name, time in (
        ("limit: products", workload.operations / card_limits[0]),
        ("limit: memory", workload.bytes / card_limits[1]),
    ):
        print(f"| {name:<34} | {workload.tokens / time:10,.0f} | {'':>10} | {'':>10} | {1e3 * time:8.2f} |")


def estimate_luong_decoder(sentences: int) -> Workload:
    """Estimate Luong's decoder over whole targets, forward and backward, without the output layer."""
    H, S, T = SIZE, SENTENCE_LENGTH, SENTENCE_LENGTH
    first, further = 2 * 4 * H * 3 * H, 2 * 4 * H * 2 * H  # [word; h̃; h] and [h below; h]
    each = first + (LAYERS - 1) * further + 2 * H * 2 * H + 2 * S * 2 * H + 2 * H * H * S / T
    weights = 4 * H * 3 * H + (LAYERS - 1) * 4 * H * 2 * H + 2 * H * H + H * H
    memory = 2 * 2 * sentences * S * H  # keys and values, in bf16
    states = sentences * T * H * (LAYERS * (4 * 2 + 4 + 2) + 2 * 2)  # gates, c and h of each layer, context and h̃
    # weights are read and their gradients written; the rest is counted for the forward and for the backward pass
    return Workload(sentences * T, 3 * sentences * T * each, 2 * 4 * weights + 2 * (memory + states))


def benchmark_luong_training() -> None:
    """Measure Luong's decoder with input feeding, 2 × 1000, the general score, 30 words in and out, bf16."""
    card = measure_card_limits()
    print(f"{torch.cuda.get_device_name()}: {card[0] / 1e12:.0f} TFLOP/s in bf16, {card[1] / 1e12:.2f} TB/s")
    for sentences in (128, 512):
        loops = {
            "reference loop": unroll_decoder,
            "fast, without graphs": partial(run_input_feeding_loop, graph_cache=None),
            "fast": partial(run_input_feeding_loop, graph_cache=GraphedFunctionCache()),
        }
        decoding = {
            name: make_decoder_step(build_training_model(LUONG, loop, 0.0), sentences) for name, loop in loops.items()
        }
        print_table(
            f"decoder, {sentences} sentences, forward and backward",
            estimate_luong_decoder(sentences),
            decoding,
            card,
            STEPS_PER_ROUND,
        )
        training = {
            "reference": make_training_step(
                build_training_model(LUONG, unroll_decoder, 0.2, default_loss_sum), sentences
            ),
            "fast loop, reference loss": make_training_step(
                build_training_model(LUONG, loops["fast"], 0.2, default_loss_sum), sentences
            ),
            "fast": make_training_step(
                build_training_model(LUONG, partial(run_input_feeding_loop, graph_cache=GraphedFunctionCache()), 0.2),
                sentences,
            ),
        }
        print_table(
            f"whole model with dropout, {sentences} sentences, forward, backward and Adam",
            estimate_luong_training(sentences),
            training,
            card,
            STEPS_PER_ROUND,
        )


def benchmark_bahdanau_training() -> None:
    """Measure Bahdanau's decoder, a GRU of 1000, 30 words in and out, bf16: the reference loop and CUDA graphs."""
    card = measure_card_limits()
    for sentences in (128, 512):
        graphed = partial(run_graphed, drops_input=False, graph_cache=GraphedFunctionCache())
        calls = {
            name: make_decoder_step(build_training_model(BAHDANAU, loop, 0.0), sentences)
            for name, loop in (("reference loop", unroll_decoder), ("reference loop, CUDA graphs", graphed))
        }
        print_table(
            f"decoder, {sentences} sentences, forward and backward",
            estimate_bahdanau_decoder(sentences),
            calls,
            card,
            STEPS_PER_ROUND,
        )


def estimate_bahdanau_decoder(sentences: int) -> Workload:
    """Estimate Bahdanau's decoder over whole targets, forward and backward, without the deep output."""
    H, S, T = SIZE, SENTENCE_LENGTH, SENTENCE_LENGTH
    each = 2 * 3 * H * 4 * H + 2 * H * H + 2 * S * 3 * H + 2 * 2 * H * H * S / T  # gates, query, attention, keys
    weights = 3 * H * 4 * H + H * H + 2 * H * H
    memory = 2 * sentences * S * 3 * H
    states = sentences * T * H * (3 * 2 + 2 + 2 * 2)
    return Workload(sentences * T, 3 * sentences * T * each, 2 * 4 * weights + 2 * (memory + states))


def build_training_model(options: dict[str, Any], loop: Any, dropout: float, loss_function: Any = None) -> Any:
    """Build a model with a decoder loop and a loss function."""
    torch.manual_seed(0)
    made: Any = accelerate(build(source_size=VOCABULARY, target_size=VOCABULARY, dropout=dropout, **options)).cuda()
    made.decoder.unroll = loop
    made.acceleration.loss_sum = loss_function or made.acceleration.loss_sum
    return made


def make_decoder_step(model: Any, sentences: int) -> Callable[[], None]:
    """Return a step of the decoder, from encoder states to the input of the output layer, forward and backward."""
    decoder, (source, lengths, target) = model.decoder, make_batch(sentences)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        memory, state = model.encode(source, lengths)
    states = memory.keys.requires_grad_()
    encoded = Encoded(memory._replace(keys=states, values=states), state)
    came = torch.randn(sentences, SENTENCE_LENGTH, SIZE, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        decoder.zero_grad()
        states.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            out, _ = decoder.unroll(decoder, decoder.start(encoded), decoder.embedding(target))
        out.backward(came)

    return step


def make_training_step(model: Any, sentences: int) -> Callable[[], None]:
    """Return a training step: loss, gradients and Adam."""
    source, lengths, target = make_batch(sentences)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss(source, lengths, target, target)
        loss.backward()
        optimizer.step()

    return step


def estimate_luong_training(sentences: int) -> Workload:
    """Estimate the whole model: decoder, encoder, output layer, and optimizer state."""
    decoder, H = estimate_luong_decoder(sentences), SIZE
    encoder, output = LAYERS * 2 * 4 * H * 2 * H, 2 * H * VOCABULARY
    weights = LAYERS * 2 * 4 * H * 2 * H + 4 * H * H + 3 * H * VOCABULARY
    return decoder._replace(
        operations=decoder.operations + 3 * decoder.tokens * (encoder + output),
        bytes=decoder.bytes + 7 * 4 * weights + 3 * 2 * decoder.tokens * VOCABULARY,
    )


def make_batch(sentences: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch of random words, all sentences of one length."""
    source, target = (torch.randint(4, VOCABULARY, (sentences, SENTENCE_LENGTH), device="cuda") for _ in range(2))
    return source, torch.full((sentences,), SENTENCE_LENGTH, device="cuda"), target


def build_search_model(options: dict[str, Any]) -> Any:
    """Build a model with random weights that uses device search from the first search on."""
    torch.manual_seed(0)
    return accelerate(build(source_size=VOCABULARY, target_size=VOCABULARY, **options)).cuda().eval()


def make_searches(model: Any, sentences: int, beam: int) -> dict[str, Callable[[], object]]:
    """Return the reference search and device search, in bf16, both with targets of TARGET_LENGTH tokens."""
    source = torch.randint(4, VOCABULARY, (sentences, TARGET_LENGTH), device="cuda")
    lengths = torch.full((sentences,), TARGET_LENGTH, device="cuda")
    device_search = model.acceleration.search

    def run(search_function: Any) -> None:
        model.acceleration.search = search_function
        with torch.autocast("cuda", torch.bfloat16):
            search(
                model, source, lengths, beam=beam, min_length=TARGET_LENGTH, max_length=TARGET_LENGTH, attention=False
            )
        model.acceleration.search = device_search

    return {"reference search": partial(run, None), "on the device": partial(run, device_search)}


def make_decoder_steps_run(model: Any, beam: int, sentences: int) -> Callable[[], object]:
    """Return a run of the decoder steps of device search alone, without the encoder and the CPU."""
    workspaces = model.acceleration.search.searchers[torch.bfloat16].workspaces
    workspace = next(one for (size, _), one in workspaces.items() if (size.width, size.sentences) == (beam, sentences))

    @torch.inference_mode()
    def run() -> None:
        workspace.state.steps_done.zero_()
        for _ in range(TARGET_LENGTH // CHUNK_STEPS):
            workspace.advance()

    return run


def make_mixed_length_search(model: Any, sentences: int, beam: int) -> tuple[Callable[[], object], int]:
    """Return a device search over sentences of 13 ± 4 words, with targets as long as their sources, and its tokens."""
    torch.manual_seed(1)
    lengths = (13 + 4 * torch.randn(sentences)).round().clamp(3, 30).long()
    source = torch.randint(4, VOCABULARY, (sentences, int(lengths.max())), device="cuda")
    most = lengths.tolist()
    request = SearchRequest(
        beam, 1, TARGET_LENGTH, most, [((5 + n) / 6) ** 0.6 for n in range(max(most) + 1)], False, most
    )
    there = lengths.cuda()

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            assert model.acceleration.search(model, source, there, request)

    return run, sum(most)


def benchmark_search(
    title: str, options: dict[str, Any], estimate: Callable[[int, int], Workload], sizes: list[tuple[int, int]]
) -> None:
    """Measure searches for each number of sentences and beam size."""
    card, whole = measure_card_limits(), build_search_model(options)
    for sentences, beam in sizes:
        calls = make_searches(whole, sentences, beam)
        for _ in range(3):
            calls["on the device"]()
        calls["on the device, steps alone"] = make_decoder_steps_run(whole, beam, sentences)
        print_table(
            f"{title}, {sentences} sentences, beam {beam}, {TARGET_LENGTH} tokens out",
            estimate(sentences, beam),
            calls,
            card,
        )
        run, tokens = make_mixed_length_search(whole, sentences, beam)
        least = estimate(sentences, beam)._replace(tokens=tokens)
        print_table(f"{title}, {sentences} sentences of 13 ± 4 words, beam {beam}", least, {"on the device": run})


def benchmark_transformer_decoding() -> None:
    """Measure Transformer base, 32,000 words, bf16: greedy search and beam 4."""
    benchmark_search("Transformer base", TRANSFORMER, estimate_transformer_search, [(512, 1), (512, 4), (1, 4)])


def benchmark_luong_decoding() -> None:
    """Measure Luong's model, 2 × 1000, general, input feeding, bf16: greedy search and beam 4."""
    benchmark_search("Luong 2 × 1000", LUONG, estimate_luong_search, [(1, 1), (1, 4), (512, 1), (512, 4)])


def estimate_transformer_search(sentences: int, beam: int) -> Workload:
    """Estimate a search of Transformer base with its encoder."""
    D, L, rows = 512, 6, sentences * beam
    written = 4 * D * D + 2 * D * D + 2 * D * 4 * D  # weights of a decoder layer that a step reads
    read = 4 * D * D + 2 * D * 4 * D + 2 * D * D  # weights of an encoder layer, with keys and values for the decoder
    each = 2 * L * written + L * 2 * 2 * D * (TARGET_LENGTH / 2 + TARGET_LENGTH) + 2 * D * VOCABULARY
    there = 2 * L * read + L * 2 * 2 * D * TARGET_LENGTH
    caches = L * 2 * D * (rows * TARGET_LENGTH / 2 + sentences * TARGET_LENGTH)
    moved = 2 * TARGET_LENGTH * (L * written + D * VOCABULARY + caches)
    return Workload(sentences * TARGET_LENGTH, rows * TARGET_LENGTH * each + sentences * TARGET_LENGTH * there, moved)


def estimate_luong_search(sentences: int, beam: int) -> Workload:
    """Estimate a search of Luong's model with its encoder."""
    H, rows = SIZE, sentences * beam
    written = 4 * H * 3 * H + (LAYERS - 1) * 4 * H * 2 * H + 2 * H * H + H * VOCABULARY
    read = LAYERS * 4 * H * 2 * H + H * H
    each, there = 2 * written + 2 * 2 * H * TARGET_LENGTH, 2 * read
    moved = 2 * TARGET_LENGTH * (written + read + 2 * sentences * TARGET_LENGTH * H)
    return Workload(sentences * TARGET_LENGTH, rows * TARGET_LENGTH * each + sentences * TARGET_LENGTH * there, moved)


TABLES: dict[str, Callable[[], None]] = {
    "luong": benchmark_luong_training,
    "bahdanau": benchmark_bahdanau_training,
    "decode-transformer": benchmark_transformer_decoding,
    "decode-luong": benchmark_luong_decoding,
}


def main() -> None:
    """Print the requested tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all if none is named")
    names = parser.parse_args().tables
    unknown = set(names) - set(TABLES)
    if unknown:
        parser.error(f"unknown table {', '.join(sorted(unknown))}; choose from {', '.join(TABLES)}")
    if not torch.cuda.is_available():
        sys.exit("this machine has no CUDA GPU")
    for name in names or TABLES:
        TABLES[name]()


if __name__ == "__main__":
    main()
