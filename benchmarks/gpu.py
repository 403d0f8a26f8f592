"""What regard does on a GPU, beside the limits of the card: `python benchmarks/gpu.py luong`, from the bare checkout.

Alternatives take turns; a figure is the median over the rounds, with the fastest and the slowest. The limits are what
the card reached here, just now, at a large matrix product and at a large copy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from regard.fast import quicken
from regard.fast.captured import Captured
from regard.fast.decoding import way as decoding
from regard.fast.decoding.board import CHUNK, Wish
from regard.fast.feeding.way import played
from regard.fast.looping import replayed
from regard.fast.output import way as output
from regard.models import build
from regard.models.luong import one_by_one
from regard.models.seq2seq import Encoded, added_up
from regard.models.stepping import one_by_one as bahdanau_loop
from regard.search import search

WARM, ROUNDS = 5, 20
ROW = 5  # steps of training in a row: nobody waits for one, and the host works ahead
OUT = 32  # tokens in and out of a search
SIZE, LAYERS, WORDS, VOCABULARY = 1000, 2, 30, 32000
LUONG: dict[str, Any] = {"config": "luong2015-global", "size": SIZE, "layers": LAYERS, "score": "general"}
TRANSFORMER: dict[str, Any] = {"config": "vaswani2017-base"}
BAHDANAU: dict[str, Any] = {"config": "bahdanau2015", "size": SIZE}


class Work(NamedTuple):
    """What one call has to do at the least."""

    tokens: int
    operations: float  # of matrix products, a multiplication and an addition each
    bytes: float  # that have to come from the card's memory, whatever it keeps nearer


def seconds(call: Callable[[], object], row: int) -> float:
    """How long a call takes on the card, of so many in a row."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    began.record()
    for _ in range(row):
        call()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / 1000 / row


def measured(calls: Mapping[str, Callable[[], object]], row: int = 1) -> dict[str, list[float]]:
    """The seconds of each in every round, after some that do not count."""
    for call in calls.values():
        for _ in range(WARM):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(seconds(call, row))
    return times


def limits() -> tuple[float, float]:
    """Operations a second of a matrix product in bf16, bytes a second of a copy (read and written)."""
    one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    many = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    other = torch.empty_like(many)
    times = measured({"product": lambda: one @ one, "copy": lambda: other.copy_(many)})
    fastest = {name: min(found) for name, found in times.items()}
    return 2 * 8192**3 / fastest["product"], 2 * 2**30 / fastest["copy"]


def table(
    title: str,
    work: Work,
    calls: Mapping[str, Callable[[], object]],
    card: tuple[float, float] | None = None,
    row: int = 1,
) -> None:
    """One line for each alternative, and the limits, where they are known."""
    print(f"\n{title}")
    print(f"| {'':<34} | {'tokens/s':>10} | {'from':>10} | {'to':>10} | {'ms':>8} |")
    print(f"|{'-' * 36}|{'-' * 11}:|{'-' * 11}:|{'-' * 11}:|{'-' * 9}:|")
    for name, times in measured(calls, row).items():
        middle, slow, fast = (work.tokens / time for time in (statistics.median(times), max(times), min(times)))
        print(f"| {name:<34} | {middle:10,.0f} | {slow:10,.0f} | {fast:10,.0f} | {1e3 * work.tokens / middle:8.2f} |")
    if card is None:
        return
    for name, time in (("limit: products", work.operations / card[0]), ("limit: memory", work.bytes / card[1])):
        print(f"| {name:<34} | {work.tokens / time:10,.0f} | {'':>10} | {'':>10} | {1e3 * time:8.2f} |")


def decoder_work(sentences: int) -> Work:
    """Of Luong's decoder over whole targets, forwards and backwards, without the output layer."""
    H, S, T = SIZE, WORDS, WORDS
    first, further = 2 * 4 * H * 3 * H, 2 * 4 * H * 2 * H  # [word; h̃; h] and [h below; h]
    each = first + (LAYERS - 1) * further + 2 * H * 2 * H + 2 * S * 2 * H + 2 * H * H * S / T
    weights = 4 * H * 3 * H + (LAYERS - 1) * 4 * H * 2 * H + 2 * H * H + H * H
    memory = 2 * 2 * sentences * S * H  # keys and values, in bf16
    states = sentences * T * H * (LAYERS * (4 * 2 + 4 + 2) + 2 * 2)  # gates, c and h of each layer, context and h̃
    # weights are read and their gradients written; of the rest this is done forwards, and once more backwards
    return Work(sentences * T, 3 * sentences * T * each, 2 * 4 * weights + 2 * (memory + states))


def luong() -> None:
    """Luong's decoder with input feeding, 2 × 1000, the general score, 30 words in and out, bf16."""
    output.FIRST = 0  # what is measured comes later
    card = limits()
    print(f"{torch.cuda.get_device_name()}: {card[0] / 1e12:.0f} TFLOP/s in bf16, {card[1] / 1e12:.2f} TB/s")
    for sentences in (128, 512):
        loops = {
            "readable loop": one_by_one,
            "fast, without graphs": partial(played, captured=None),
            "fast": partial(played, captured=Captured()),
        }
        decoding = {name: decoding_step(model(LUONG, loop, 0.0), sentences) for name, loop in loops.items()}
        table(f"decoder, {sentences} sentences, forwards and backwards", decoder_work(sentences), decoding, card, ROW)
        training = {
            "readable": training_step(model(LUONG, one_by_one, 0.2, added_up), sentences),
            "fast loop, readable loss": training_step(model(LUONG, loops["fast"], 0.2, added_up), sentences),
            "fast": training_step(model(LUONG, partial(played, captured=Captured()), 0.2), sentences),
        }
        table(
            f"whole model with dropout, {sentences} sentences, forwards, backwards and Adam",
            model_work(sentences),
            training,
            card,
            ROW,
        )


def bahdanau() -> None:
    """Bahdanau's decoder, a GRU of 1000, 30 words in and out, bf16: the readable loop, and the same by graphs."""
    card = limits()
    for sentences in (128, 512):
        plain = bahdanau_loop
        graphed = partial(replayed, plain, drops_input=False, captured=Captured())
        calls = {
            name: decoding_step(model(BAHDANAU, loop, 0.0), sentences)
            for name, loop in (("readable loop", plain), ("readable loop, by graphs", graphed))
        }
        table(f"decoder, {sentences} sentences, forwards and backwards", bahdanau_work(sentences), calls, card, ROW)


def bahdanau_work(sentences: int) -> Work:
    """Of Bahdanau's decoder over whole targets, forwards and backwards, without the deep output."""
    H, S, T = SIZE, WORDS, WORDS
    each = 2 * 3 * H * 4 * H + 2 * H * H + 2 * S * 3 * H + 2 * 2 * H * H * S / T  # gates, query, look, keys
    weights = 3 * H * 4 * H + H * H + 2 * H * H
    memory = 2 * sentences * S * 3 * H
    states = sentences * T * H * (3 * 2 + 2 + 2 * 2)
    return Work(sentences * T, 3 * sentences * T * each, 2 * 4 * weights + 2 * (memory + states))


def model(form: dict[str, Any], loop: Any, dropout: float, way: Any = None) -> Any:
    """A model, its decoder with this loop, its loss added up in this way."""
    torch.manual_seed(0)
    made: Any = quicken(build(source_size=VOCABULARY, target_size=VOCABULARY, dropout=dropout, **form)).cuda()
    made.decoder.loop = loop
    made.way = way or made.way
    return made


def decoding_step(whole: Any, sentences: int) -> Callable[[], None]:
    """From the encoder's states to what the output layer reads, and back."""
    decoder, (source, lengths, target) = whole.decoder, batch(sentences)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        memory, state = whole.encode(source, lengths)
    states = memory.keys.requires_grad_()
    encoded = Encoded(memory._replace(keys=states, values=states), state)
    came = torch.randn(sentences, WORDS, SIZE, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        decoder.zero_grad()
        states.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            out, _ = decoder.loop(decoder, decoder.start(encoded), decoder.embedding(target))
        out.backward(came)

    return step


def training_step(whole: Any, sentences: int) -> Callable[[], None]:
    """Loss, gradients and Adam."""
    source, lengths, target = batch(sentences)
    optimizer = torch.optim.Adam(whole.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = whole.loss(source, lengths, target, target)
        loss.backward()
        optimizer.step()

    return step


def model_work(sentences: int) -> Work:
    """The same with encoder and output layer, and the optimizer's numbers."""
    decoder, H = decoder_work(sentences), SIZE
    encoder, output = LAYERS * 2 * 4 * H * 2 * H, 2 * H * VOCABULARY
    weights = LAYERS * 2 * 4 * H * 2 * H + 4 * H * H + 3 * H * VOCABULARY
    return decoder._replace(
        operations=decoder.operations + 3 * decoder.tokens * (encoder + output),
        bytes=decoder.bytes + 7 * 4 * weights + 3 * 2 * decoder.tokens * VOCABULARY,
    )


def batch(sentences: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random words, all sentences of one length."""
    source, target = (torch.randint(4, VOCABULARY, (sentences, WORDS), device="cuda") for _ in range(2))
    return source, torch.full((sentences,), WORDS, device="cuda"), target


def searching(form: dict[str, Any]) -> Any:
    """A model with random weights, which takes the way on the device from the first search on."""
    torch.manual_seed(0)
    decoding.FIRST = 0
    return quicken(build(source_size=VOCABULARY, target_size=VOCABULARY, **form)).cuda().eval()


def searches(whole: Any, sentences: int, beam: int) -> dict[str, Callable[[], object]]:
    """The readable search and the one on the device, in bf16; targets of `OUT` tokens, whatever EOS's chance."""
    source = torch.randint(4, VOCABULARY, (sentences, OUT), device="cuda")
    lengths = torch.full((sentences,), OUT, device="cuda")
    shortcut = whole.shortcut

    def run(way: Any) -> None:
        whole.shortcut = way
        with torch.autocast("cuda", torch.bfloat16):
            search(whole, source, lengths, beam=beam, min_length=OUT, max_length=OUT, attention=False)
        whole.shortcut = shortcut

    return {"readable search": partial(run, None), "on the device": partial(run, shortcut)}


def steps_alone(whole: Any, beam: int, sentences: int) -> Callable[[], object]:
    """The same steps without encoder and host: chunks, one behind the other."""
    rooms = whole.shortcut.finders[torch.bfloat16].rooms
    room = next(room for (size, _), room in rooms.items() if (size.width, size.sentences) == (beam, sentences))

    @torch.inference_mode()
    def run() -> None:
        room.board.taken.zero_()
        for _ in range(OUT // CHUNK):
            room.advance()

    return run


def of_a_file(whole: Any, sentences: int, beam: int) -> tuple[Callable[[], object], int]:
    """Sentences of 13 ± 4 words, each target as long as its source; and how many tokens these are."""
    torch.manual_seed(1)
    lengths = (13 + 4 * torch.randn(sentences)).round().clamp(3, 30).long()
    source = torch.randint(4, VOCABULARY, (sentences, int(lengths.max())), device="cuda")
    most = lengths.tolist()
    wish = Wish(beam, 1, OUT, most, [((5 + n) / 6) ** 0.6 for n in range(max(most) + 1)], False, most)
    there = lengths.cuda()

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            assert whole.shortcut(whole, source, there, wish)

    return run, sum(most)


def searched(title: str, form: dict[str, Any], work: Callable[[int, int], Work], sizes: list[tuple[int, int]]) -> None:
    """Searches of so many sentences with so wide a beam."""
    card, whole = limits(), searching(form)
    for sentences, beam in sizes:
        calls = searches(whole, sentences, beam)
        for _ in range(3):
            calls["on the device"]()
        calls["on the device, steps alone"] = steps_alone(whole, beam, sentences)
        table(f"{title}, {sentences} sentences, beam {beam}, {OUT} tokens out", work(sentences, beam), calls, card)
        run, tokens = of_a_file(whole, sentences, beam)
        least = work(sentences, beam)._replace(tokens=tokens)
        table(f"{title}, {sentences} sentences of 13 ± 4 words, beam {beam}", least, {"on the device": run})


def decode_transformer() -> None:
    """Transformer base, 32,000 words, bf16: greedy and by a beam of 4."""
    searched("Transformer base", TRANSFORMER, transformer_work, [(512, 1), (512, 4), (1, 4)])


def decode_luong() -> None:
    """Luong's model, 2 × 1000, general, input feeding, bf16: one sentence greedily, and many by a beam of 4."""
    searched("Luong 2 × 1000", LUONG, luong_work, [(1, 1), (1, 4), (512, 1), (512, 4)])


def transformer_work(sentences: int, beam: int) -> Work:
    """A search by Transformer base, the encoder included."""
    D, L, rows = 512, 6, sentences * beam
    written = 4 * D * D + 2 * D * D + 2 * D * 4 * D  # weights of a decoder's layer that a step reads …
    read = 4 * D * D + 2 * D * 4 * D + 2 * D * D  # … and of an encoder's, with keys and values for the decoder
    each = 2 * L * written + L * 2 * 2 * D * (OUT / 2 + OUT) + 2 * D * VOCABULARY
    there = 2 * L * read + L * 2 * 2 * D * OUT
    caches = L * 2 * D * (rows * OUT / 2 + sentences * OUT)
    moved = 2 * OUT * (L * written + D * VOCABULARY + caches)
    return Work(sentences * OUT, rows * OUT * each + sentences * OUT * there, moved)


def luong_work(sentences: int, beam: int) -> Work:
    """A search by Luong's model, the encoder included."""
    H, rows = SIZE, sentences * beam
    written = 4 * H * 3 * H + (LAYERS - 1) * 4 * H * 2 * H + 2 * H * H + H * VOCABULARY
    read = LAYERS * 4 * H * 2 * H + H * H
    each, there = 2 * written + 2 * 2 * H * OUT, 2 * read
    moved = 2 * OUT * (written + read + 2 * sentences * OUT * H)
    return Work(sentences * OUT, rows * OUT * each + sentences * OUT * there, moved)


TABLES: dict[str, Callable[[], None]] = {
    "luong": luong,
    "bahdanau": bahdanau,
    "decode-transformer": decode_transformer,
    "decode-luong": decode_luong,
}


def main() -> None:
    """Prints the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all if none is named")
    asked = parser.parse_args().tables
    unknown = set(asked) - set(TABLES)
    if unknown:
        parser.error(f"there is no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    if not torch.cuda.is_available():
        sys.exit("this machine has no CUDA GPU")
    for name in asked or TABLES:
        TABLES[name]()


if __name__ == "__main__":
    main()
