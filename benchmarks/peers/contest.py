"""Contestants in turns: a process for each, asleep until it is told to run, and a table of what they reached."""

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

from .works import TITLES, Work

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "peers"
OURS, BYTES = "regard", "int8"
PAUSE = 0.3  # seconds until the threads of the one before have stopped looking for work
CLOCKS = ("wall", "processor")


class Contestant(NamedTuple):
    """A worker, what it is started with, and in which environment: regard's own, unless the peer has one."""

    worker: str
    way: str = ""
    environment: str = ""
    settings: Mapping[str, str] = {}

    @property
    def python(self) -> Path:
        """The interpreter that it needs."""
        return HOME / self.environment / "bin" / "python" if self.environment else Path(sys.executable)

    @property
    def ready(self) -> bool:
        """Whether it has been set up."""
        return not self.environment or (HOME / self.environment / "ready").exists()


class Worker:
    """A contestant's process."""

    def __init__(self, contestant: Contestant, log: Path) -> None:
        threads = os.environ.get("OMP_NUM_THREADS", "2")
        command = [str(contestant.python), "-W", "ignore", "-m", f"{__package__}.workers.{contestant.worker}"]
        with log.open("w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                [*command, *([contestant.way] if contestant.way else [])],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": threads, **contestant.settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.log = log

    def ask(self, question: str) -> str:
        """The answer to one line."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().strip()
        except BrokenPipeError:
            answer = ""
        return answer or f"failed: it has ended, see {self.log}"


class Workers(dict[str, Worker]):
    """All processes, which end with the contest."""

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.values():
            worker.process.kill()
            worker.process.wait()


def contest(contestants: Mapping[str, Contestant], works: Sequence[str], about: str | None) -> None:
    """Prints a table for each work."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", choices=[*works, []], help=f"some of {', '.join(works)}; all, if none")
    parser.add_argument("--rounds", type=int, default=5, help="in each of which everyone runs once")
    parser.add_argument("--clock", choices=CLOCKS, default=CLOCKS[0], help="processor: where others use the machine")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="contestants to leave out")
    given = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    with Workers() as workers:
        for name, contestant in contestants.items():
            if any(name.startswith(other) for other in given.without):
                continue
            if not contestant.ready:
                print(f"{name}: left out; sh benchmarks/peers/setup.sh {contestant.environment}")
                continue
            workers[name] = Worker(contestant, HOME / f"{name.replace(' ', '-')}.log")
        clock = CLOCKS.index(given.clock)
        peak = float(next(iter(workers.values())).ask("peak").split()[clock])
        threads = os.environ.get("OMP_NUM_THREADS", "2")
        print(
            f"{threads} threads; a large product in fp32: {peak / 1e9:.0f} G operations a second; {given.clock} clock"
        )
        for work in given.works or works:
            table(workers, work, peak, given.rounds, clock)


def table(workers: Mapping[str, Worker], name: str, peak: float, rounds: int, clock: int) -> None:
    """Has one work done in turns, and prints what each reached."""
    work = Work.named(name)
    beam = {0: "a batch of 2,048 tokens", 1: "greedy"}.get(work.beam, f"beam {work.beam}")
    print(f"\n{TITLES[work.model]}; {work.task}, {beam}")
    operations = next(iter(workers.values())).ask(f"operations {name}")
    seconds = measured(workers, name, rounds, clock)
    if not seconds:
        return
    medians = {one: statistics.median(times) for one, times in seconds.items()}
    peers = [one for one in medians if not one.startswith(OURS)]
    in_fp32 = fastest([one for one in peers if not one.endswith(BYTES)], medians)
    of_all = fastest(peers, medians)
    print(
        f"  {'':<26} {'tokens/s':>9} {'best':>9} {'spread':>7} {'× fp32 peer':>12} {'× any peer':>11} {'of limit':>9}"
    )
    for one, median in medians.items():
        times = seconds[one]
        speeds = f"{work.tokens / median:>9,.0f} {work.tokens / min(times):>9,.0f}"
        spread = (max(times) - min(times)) / median
        ratios = f"{against(times, seconds.get(in_fp32)):>12} {against(times, seconds.get(of_all)):>11}"
        share = f"{float(operations) / peak / median:.0%}" if operations.isdigit() else ""
        print(f"  {one:<26} {speeds} {spread:>7.0%} {ratios} {share:>9}", flush=True)


def fastest(names: list[str], seconds: Mapping[str, float]) -> str:
    """Which of some is the fastest; none, where there are none."""
    return min(names, key=lambda name: seconds[name], default="")


def against(times: list[float], others: list[float] | None) -> str:
    """How much faster, the median over the rounds."""
    return f"{statistics.median(b / a for a, b in zip(times, others, strict=True)):.2f}" if others else ""


def measured(workers: Mapping[str, Worker], name: str, rounds: int, clock: int) -> dict[str, list[float]]:
    """Seconds of every round for each that has such a work; the first round builds the models and is not counted."""
    seconds: dict[str, list[float]] = {one: [] for one in workers}
    for _ in range(rounds + 1):
        for one in list(seconds):
            answer = workers[one].ask(f"run {name}")
            if answer.startswith("failed"):
                print(f"  {one}: {answer}")
            if not answer[0].isdigit():
                del seconds[one]
                continue
            seconds[one].append(float(answer.split()[clock]))
            time.sleep(PAUSE)
    return {one: times[1:] for one, times in seconds.items()}
