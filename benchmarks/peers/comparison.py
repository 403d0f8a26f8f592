"""Run contestants in turns, each in a process that sleeps until it has to run, and print a table of their speeds."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from benchmarks.peers.workloads import TITLES, Workload

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "peers"
OUR_PREFIX, INT8_SUFFIX = "regard", "int8"
THREADS = "2"
PAUSE_SECONDS = 0.3  # until the threads of the previous contestant have stopped spinning
BUSY_SAMPLE_SECONDS = 0.1  # length of a sample of the load by other programs
MAX_BUSY_FRACTION = 0.1  # of the machine, by other programs, before a run begins
CLOCKS = ("wall", "processor")


class Contestant(NamedTuple):
    """A worker with its backend and environment: regard's own, unless the peer has one."""

    worker: str
    backend: str = ""
    environment: str = ""
    settings: Mapping[str, str] = {}

    @property
    def python(self) -> Path:
        """Python interpreter of its environment."""
        return HOME / self.environment / "bin" / "python" if self.environment else Path(sys.executable)

    @property
    def is_ready(self) -> bool:
        """True if its environment is set up."""
        return not self.environment or (HOME / self.environment / "ready").exists()


class Worker:
    """The process of a contestant."""

    def __init__(self, contestant: Contestant, log: Path) -> None:
        threads = os.environ.get("OMP_NUM_THREADS", THREADS)
        command = [str(contestant.python), "-W", "ignore", "-m", f"{__package__}.workers.{contestant.worker}"]
        with log.open("w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                [*command, *([contestant.backend] if contestant.backend else [])],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": threads, **contestant.settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.log = log

    def ask(self, question: str) -> str:
        """Send a line, and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().strip()
        except BrokenPipeError:
            answer = ""
        return answer or f"failed: it has ended, see {self.log}"


class WorkerPool(dict[str, Worker]):
    """All processes; leaving the context ends them."""

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.values():
            worker.process.kill()
            worker.process.wait()


def run_comparison(contestants: Mapping[str, Contestant], workloads: Sequence[str], description: str | None) -> None:
    """Print a table for each workload."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "works", nargs="*", choices=[*workloads, []], help=f"some of {', '.join(workloads)}; all, if none"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds; each contestant runs once in each")
    parser.add_argument("--clock", choices=CLOCKS, default=CLOCKS[0], help="processor: if other programs are running")
    parser.add_argument(
        "--patience", type=float, default=3.0, help="seconds to wait, before a run, until the machine is idle"
    )
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="contestants to leave out")
    given = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    with WorkerPool() as workers:
        for name, contestant in contestants.items():
            if any(name.startswith(other) for other in given.without):
                continue
            if not contestant.is_ready:
                print(f"{name}: left out; sh benchmarks/peers/setup.sh {contestant.environment}")
                continue
            workers[name] = Worker(contestant, HOME / f"{name.replace(' ', '-')}.log")
        print(f"{os.environ.get('OMP_NUM_THREADS', THREADS)} threads, {given.clock} clock")
        for work in given.works or workloads:
            print_table(workers, work, MeasurementRounds(given.rounds, CLOCKS.index(given.clock), given.patience))


def print_table(workers: Mapping[str, Worker], name: str, rounds: MeasurementRounds) -> None:
    """Run a workload in turns, and print the speed of each contestant."""
    work = Workload.parse_name(name)
    beam = {0: "a batch of 2,048 tokens", 1: "greedy"}.get(work.beam, f"beam {work.beam}")
    print(f"\n{TITLES[work.model]}; {work.task}, {beam}", flush=True)
    operations = next(iter(workers.values())).ask(f"operations {name}")
    seconds = rounds.measure_workload(workers, name)
    if not seconds:
        return
    rounds.wait_until_idle()
    peak = float(next(iter(workers.values())).ask("peak").split()[rounds.clock])
    print(f"  a large product in fp32: {peak / 1e9:.0f} G operations a second")
    medians = {one: statistics.median(times) for one, times in seconds.items()}
    peers = [one for one in medians if not one.startswith(OUR_PREFIX)]
    in_fp32 = find_fastest([one for one in peers if not one.endswith(INT8_SUFFIX)], medians)
    of_all = find_fastest(peers, medians)
    print(
        f"  {'':<34} {'tokens/s':>9} {'best':>9} {'spread':>7} {'× fp32 peer':>12} {'× any peer':>11} {'of limit':>9}"
    )
    for one, median in medians.items():
        times = seconds[one]
        speeds = f"{work.tokens / median:>9,.0f} {work.tokens / min(times):>9,.0f}"
        spread = (max(times) - min(times)) / median
        ratios = f"{format_speedup(times, seconds.get(in_fp32)):>12} {format_speedup(times, seconds.get(of_all)):>11}"
        fraction = f"{float(operations) / peak / median:.0%}" if operations.isdigit() else ""
        print(f"  {one:<34} {speeds} {spread:>7.0%} {ratios} {fraction:>9}", flush=True)


def find_fastest(names: list[str], seconds: Mapping[str, float]) -> str:
    """Return the fastest contestant; an empty string if there are none."""
    return min(names, key=lambda name: seconds[name], default="")


def format_speedup(times: list[float], others: list[float] | None) -> str:
    """Format the speed-up, the median over the rounds."""
    return f"{statistics.median(b / a for a, b in zip(times, others, strict=True)):.2f}" if others else ""


class MeasurementRounds:
    """Rounds in which each contestant runs once."""

    def __init__(self, rounds: int, clock: int, patience: float) -> None:
        self.rounds = rounds
        self.clock = clock
        self.patience = patience

    def measure_workload(self, workers: Mapping[str, Worker], name: str) -> dict[str, list[float]]:
        """Return the seconds of each round but the first, which builds models, of contestants with the workload."""
        seconds: dict[str, list[float]] = {one: [] for one in workers}
        noisy = 0
        for number in range(self.rounds + 1):
            for one in list(seconds):
                noisy += not self.wait_until_idle() and number > 0
                answer = workers[one].ask(f"run {name}")
                if answer.startswith("failed"):
                    print(f"  {one}: {answer}")
                if answer[0].isdigit():
                    seconds[one].append(float(answer.split()[self.clock]))
                else:
                    del seconds[one]
        if noisy:
            print(f"  other programs were running when {noisy} of {self.rounds * len(seconds)} turns began")
        return {one: times[1:] for one, times in seconds.items()}

    def wait_until_idle(self) -> bool:
        """Wait up to `patience` seconds until the machine is idle; return True if it is."""
        time.sleep(PAUSE_SECONDS)
        until = time.monotonic() + self.patience
        while (
            not (is_idle := measure_busy_fraction(BUSY_SAMPLE_SECONDS) < MAX_BUSY_FRACTION) and time.monotonic() < until
        ):
            time.sleep(BUSY_SAMPLE_SECONDS)
        return is_idle


def measure_busy_fraction(seconds: float) -> float:
    """Return the busy fraction of the machine during `seconds`; 0 on systems without /proc/stat."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    before = [int(number) for number in stat.read_text().splitlines()[0].split()[1:]]
    time.sleep(seconds)
    after = [int(number) for number in stat.read_text().splitlines()[0].split()[1:]]
    spent = [late - early for early, late in zip(before, after, strict=True)]
    return 1 - (spent[3] + spent[4]) / max(1, sum(spent[:8]))  # fields 4 and 5: idle and waiting for I/O
