"""The HTTP service under load, with batching and without, over loopback.

    python -m benchmarks.serve [RUN] [--minutes 10 | --attacks]

Prints ratios of alternatives that ran interleaved. With --minutes it loads the server for that long, and prints wrong
answers and memory. With --attacks it sends requests that are as expensive as the limits allow, and prints the longest
stall of the event loop during each: how long /health is not answered.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from regard.synthetic.translation import write_translation_corpus

CLIENTS = 64
SECONDS = 8.0  # of each measurement
ROUNDS = 3


class Client:
    """A minimal client with one connection, so that the server is measured and not the client."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()

    async def translate(self, text: str) -> str:
        """Return the translation of a text."""
        body = f"q={quote(text)}&source=en&target=de".encode()
        head = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.startswith(b"content-length"))
        found = json.loads(await self.reader.readexactly(length))
        if "translatedText" not in found:
            raise RuntimeError(f"{answer!r} {found}")
        return str(found["translatedText"])


@dataclass
class LoadResult:
    """Latencies and errors of a server under load."""

    seconds: list[float] = field(default_factory=list)  # of each response
    texts: list[str] = field(default_factory=list)  # request of each response
    wrong_answers: int = 0
    duration: float = 0.0

    @property
    def rate(self) -> float:
        """Responses per second."""
        return len(self.seconds) / self.duration

    def quantile(self, fraction: float) -> float:
        """Return a quantile of the latencies."""
        return compute_quantile(self.seconds, fraction)

    def compute_slowdowns(self, unloaded: LoadResult) -> list[float]:
        """Return how many times as long each text took as in a run without load, for the texts of that run."""
        known = dict(zip(unloaded.texts, unloaded.seconds, strict=True))
        return [time / known[text] for text, time in zip(self.texts, self.seconds, strict=True) if text in known]


def compute_quantile(values: Sequence[float], fraction: float) -> float:
    """Return the value below which a fraction of the values is."""
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


@contextmanager
def run_server(run: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Run a server process; yield its port and process id."""
    command = [sys.executable, "-m", "regard", "serve", str(run), "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "running on" in line:
                break
        port = int(json.loads(line)["event"].split("127.0.0.1:")[1].split()[0])
        asyncio.get_running_loop().run_in_executor(None, drain_output, process)
        try:
            yield port, process.pid
        finally:
            process.terminate()


def drain_output(process: subprocess.Popen[str]) -> None:
    """Read the output of the server, so that its pipe never fills."""
    assert process.stderr is not None
    with suppress(ValueError):  # it is closed when the server has ended
        for _ in process.stderr:
            pass


async def run_load(
    port: int, texts: Sequence[str], expected: dict[str, str], clients: int, seconds: float, rate: float | None = None
) -> LoadResult:
    """Send texts from several clients, each one after the other, or as a Poisson process with a total rate.

    With a rate, a request waits for a free client, and its latency includes this wait.
    """
    load, started = LoadResult(), time.perf_counter()
    end, random_source = started + seconds, random.Random(0)

    async def send_random_text(one: Client, since: float) -> None:
        text = random_source.choice(texts)
        found = await one.translate(text)
        load.seconds.append(time.perf_counter() - since)
        load.texts.append(text)
        load.wrong_answers += expected.setdefault(text, found) != found

    async with AsyncExitStack() as held:
        free: asyncio.Queue[Client] = asyncio.Queue()
        for _ in range(clients):
            free.put_nowait(await held.enter_async_context(Client(port)))

        async def run_closed_loop_client() -> None:
            one = await free.get()
            while time.perf_counter() < end:
                await send_random_text(one, time.perf_counter())

        async def send_when_client_is_free(since: float) -> None:
            one = await free.get()
            await send_random_text(one, since)
            free.put_nowait(one)

        async with asyncio.TaskGroup() as group:
            if rate is None:
                for _ in range(clients):
                    group.create_task(run_closed_loop_client())
            else:
                when = time.perf_counter() + random_source.expovariate(rate)
                while when < end:
                    await asyncio.sleep(max(0.0, when - time.perf_counter()))
                    group.create_task(send_when_client_is_free(when))
                    when += random_source.expovariate(rate)
    load.duration = time.perf_counter() - started
    return load


def read_resident_megabytes(pid: int) -> float:
    """Return the resident megabytes of a process and its children; shared pages count for each."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for each in threads for child in each.read_text(encoding="utf-8").split()]
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6 + sum(read_resident_megabytes(int(child)) for child in children)


async def compare_batching(run: Path, texts: Sequence[str]) -> None:
    """Compare batching with none, and print the latency at half of the highest load."""
    expected: dict[str, str] = {}
    with run_server(run) as (batched, _), run_server(run, "--batch-pieces", "1") as (single, _):
        for port in (batched, single):
            await run_load(port, texts, expected, 4, 2.0)
        gains, waits, slower = [], [], []
        for _ in range(ROUNDS):
            unloaded = await run_load(batched, texts, expected, 1, SECONDS)
            together = await run_load(batched, texts, expected, CLIENTS, SECONDS)
            one_by_one = await run_load(single, texts, expected, CLIENTS, SECONDS)
            half = await run_load(
                batched, sorted(set(unloaded.texts)), expected, CLIENTS, SECONDS, rate=together.rate / 2
            )
            gains.append(together.rate / one_by_one.rate)
            waits.append(half.quantile(0.99) / statistics.median(unloaded.seconds))
            slower.append(compute_quantile(half.compute_slowdowns(unloaded), 0.99))
            wrong = unloaded.wrong_answers + together.wrong_answers + one_by_one.wrong_answers + half.wrong_answers
            median, late = statistics.median(unloaded.seconds), half.quantile(0.99)
            print(
                f"{CLIENTS} clients: {together.rate:.0f}/s batched, {one_by_one.rate:.0f}/s one by one "
                f"({gains[-1]:.1f}×); unloaded {1000 * median:.0f} ms, p99 {1000 * unloaded.quantile(0.99):.0f}; "
                f"at half load ({half.rate:.0f}/s) p99 {1000 * late:.0f} ms ({waits[-1]:.1f}×), the same text "
                f"p99 {slower[-1]:.1f}× as long as unloaded; wrong {wrong}"
            )
        print(f"batching: {statistics.median(gains):.1f}× the throughput (asked: 4)")
        print(f"p99 at half load: {statistics.median(waits):.1f}× of one unloaded (asked: at most 5)")
        print(f"the same text at half load and unloaded: {statistics.median(slower):.1f}× in the 99th percentile")


async def run_long_load(run: Path, texts: Sequence[str], minutes: float) -> None:
    """Load the server for a long time; print wrong answers and memory."""
    expected: dict[str, str] = {}
    with run_server(run) as (port, pid):
        await run_load(port, texts, expected, CLIENTS, 20.0)
        answers = wrong = 0
        memory, end = [read_resident_megabytes(pid)], time.perf_counter() + 60 * minutes
        while time.perf_counter() < end:
            load = await run_load(port, texts, expected, CLIENTS, min(15.0, end - time.perf_counter()))
            answers, wrong = answers + len(load.seconds), wrong + load.wrong_answers
            memory.append(read_resident_megabytes(pid))
        half = len(memory) // 2
        first, second = statistics.mean(memory[:half]), statistics.mean(memory[half:])
        spread = f"from {min(memory):.0f} to {max(memory):.0f} MB"
        halves = f"{first:.0f} MB on the mean in the first half, {100 * (second / first - 1):+.1f} % in the second"
        print(f"{minutes:g} minutes: {answers} answers, {wrong} wrong; memory {spread}, {halves}")


METRIC_ROWS = 200_000  # of the run whose curves are requested
PROBE_SECONDS = 0.005  # seconds between two requests for /health


def make_expensive_requests(name: str) -> dict[str, tuple[str, str, bytes]]:
    """Return requests by name: target, content type, body."""
    json_type, form_type = "application/json", "application/x-www-form-urlencoded"

    def encode_request(q: object) -> bytes:
        return json.dumps({"q": q, "source": "auto", "target": "de"}).encode()

    head = b"--x\r\nContent-Disposition: form-data; name=file; filename=a.txt\r\n\r\n"
    return {
        "detect words": ("POST /detect", json_type, encode_request(["the old house " * 280] * 1000)),
        "detect digits": ("POST /detect", json_type, encode_request(["1 " * 1990] * 1000)),
        "detect addresses": ("POST /detect", json_type, encode_request(["www.a.de " * 440] * 1000)),
        "translate addresses": ("POST /translate", json_type, encode_request(["www.a.de " * 440] * 1000)),
        "JSON of many parts": ("POST /translate", json_type, encode_request(["a"] * 49_000)),
        "JSON of escapes": ("POST /detect", json_type, encode_request(["\u00e4" * 600] * 1000)),
        "JSON of long numbers": ("POST /detect", json_type, encode_request([10**3999] * 990)),
        "predict many parts": ("POST /v1/predict", json_type, encode_request([["a"] * 10_000] * 4)),
        "form of escapes": ("POST /detect", form_type, b"q=" + b"%C3%A4" * 600_000),
        "form of line ends": ("POST /detect", form_type, b"q=" + b"%0D" * 1_300_000),
        "multipart of line ends": (
            "POST /translate_file",
            "multipart/form-data; boundary=x",
            head + b"\r\n-" * 4_000_000 + b"\r\n--x--\r\n",
        ),
        "curves": (f"GET /v1/models/{name}/curves", "", b""),
    }


async def send_request(port: int, target: str, kind: str, body: bytes) -> str:
    """Send a request on a connection of its own; return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {kind or 'text/plain'}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
    for start in range(0, len(body), 65536):  # so that this program does not stall itself
        writer.write(body[start : start + 65536])
        await writer.drain()
    status = (await reader.readline()).split()[1].decode()
    while await reader.read(65536):
        pass
    writer.close()
    return status


async def measure_longest_stall(port: int, request: asyncio.Task[str]) -> float:
    """Ask for /health until the attack is answered; return the longest time to an answer."""
    longest = 0.0
    while not request.done():
        started = time.perf_counter()
        await send_request(port, "GET /health", "", b"")
        longest = max(longest, time.perf_counter() - started)
        await asyncio.sleep(PROBE_SECONDS)
    return longest


async def measure_event_loop_stalls(run: Path, folder: Path) -> None:
    """Print the stalls that requests cause which are as expensive as the limits allow."""
    long = folder / "long"
    shutil.copytree(run, long)
    row = json.dumps({"kind": "train", "step": 1, "loss": 1.5, "learning_rate": 0.001, "seconds": 1.0})
    with (long / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{row}\n" * METRIC_ROWS)
    with run_server(long) as (port, _):
        idle = await measure_longest_stall(port, asyncio.create_task(asyncio.sleep(2.0, "")))
        print(f"nothing: {1000 * idle:.0f} ms", flush=True)
        for name, attack in make_expensive_requests(long.name).items():
            stalls = []
            for _ in range(ROUNDS):
                sent = asyncio.create_task(send_request(port, *attack))
                stalls.append(await measure_longest_stall(port, sent))
            print(f"{name}: {1000 * statistics.median(stalls):.0f} ms ({sent.result()})", flush=True)


def main() -> None:
    """Run the requested measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", nargs="?", type=Path, default=Path("runs/demo"))
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--attacks", action="store_true")
    options = parser.parse_args()
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        write_translation_corpus(Path(folder), 2000)
        texts = (Path(folder) / "train.en").read_text(encoding="utf-8").splitlines()
        if options.attacks:
            asyncio.run(measure_event_loop_stalls(options.run, Path(folder)))
            return
    gc.freeze()  # garbage collection of the client would be measured as a slow server
    asyncio.run(
        run_long_load(options.run, texts, options.minutes) if options.minutes else compare_batching(options.run, texts)
    )


if __name__ == "__main__":
    main()
