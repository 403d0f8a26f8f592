"""Time and memory of `regard train` by corpus size and machine: the figures and the table of `docs/hardware.md`.

    REGARD_DATA=data python -m benchmarks.hardware measure 5000:600 50000:600 300000:60 --out figures.json
    python -m benchmarks.hardware page figures.json …

`measure` trains the recipe `default` on so many pairs, for at most so many seconds after the preparation of the data.
The pairs are drawn from `mixed-ende`, or synthetic without REGARD_DATA; the dev set is held out of them. A training
that early stopping or the limit of updates ends gives the updates and the time to 95 % of its best score, others only
the speed. `page` adds such figures to docs/results/hardware.json, and writes the table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.data.readers.text import iterate_lines
from regard.reproduce.corpora import prepare_corpus, write_lines
from regard.runs import Run
from regard.runs.run import summarize_run
from regard.synthetic.translation import write_translation_corpus
from regard.training.metrics import TrainingCost

LOG_EVERY = 20  # updates between two lines of metrics.jsonl
KEYS = [f"training.log_every={LOG_EVERY}", "training.tensorboard=false"]
FRACTION = 0.95  # of the best score

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results" / "hardware.json", DOCS / "hardware.md"
BEGIN, END = "<!-- table of benchmarks/hardware.py -->", "<!-- end of the table -->"
# Published peaks of dense 16-bit matrix products with fp32 sums, in TFLOP/s.
REFERENCE_GPU, PEAK = "H200", 989.5
OTHER_GPUS = {"RTX 4090": 165.2, "T4": 65.0}

Figures = dict[str, Any]  # of a training


def write_corpus(folder: Path, size: int) -> list[Path]:
    """Write `size` pairs that are drawn from the mixed corpus, or synthetic ones if REGARD_DATA is not set."""
    if "REGARD_DATA" not in os.environ:
        write_translation_corpus(folder, size, seed=1)
        return [folder / "train.en", folder / "train.de"]
    sides = [list(iterate_lines(path)) for path in prepare_corpus("mixed-ende", folder).train]
    rows = random.Random(1).sample(range(len(sides[0])), min(size, len(sides[0])))
    paths = [folder / "sample.en", folder / "sample.de"]
    for path, lines in zip(paths, sides, strict=True):
        write_lines(path, (lines[row] for row in rows))
    return paths


def train_for(command: list[str], run: Run, limit: float) -> bool:
    """Run a training; interrupt it `limit` seconds after its first figures. Return whether it ended by itself."""
    with subprocess.Popen(command) as process:
        start = None
        while process.poll() is None:
            if start is None and run.metrics_path.is_file() and run.metrics_path.stat().st_size:
                start = time.monotonic()
            if start is not None and time.monotonic() - start > limit:
                process.send_signal(signal.SIGINT)  # saves a checkpoint
                break
            time.sleep(0.2)
        return process.wait() == 0


def summarize_metrics(rows: list[Figures]) -> Figures:
    """Return seconds of an update and of a validation, tokens per update, peak memory, and the scores over time."""
    logged = [row for row in rows if row["kind"] == "train"]
    dev = [row for row in rows if row["kind"] == "dev"]
    speeds = [row["tokens_per_second"] for row in logged[len(logged) // 2 :]]
    validated = {row["step"] for row in dev}
    updates: list[float] = []
    validations: list[float] = []
    for before, after in pairwise(logged):
        seconds = after["seconds"] - before["seconds"]
        has_validation = any(before["step"] <= step < after["step"] for step in validated)
        (validations if has_validation else updates).append(seconds)
    updates = updates or [logged[-1]["seconds"] * LOG_EVERY / logged[-1]["step"]]
    seconds_per_update = statistics.median(updates[len(updates) // 2 :]) / LOG_EVERY
    extra = [max(0.0, seconds - LOG_EVERY * seconds_per_update) for seconds in validations]
    seconds_by_step = {row["step"]: row["seconds"] for row in logged}
    memory = [row["memory_mb"] for row in logged if row["memory_mb"] is not None]
    return {
        "updates": logged[-1]["step"],
        "seconds": logged[-1]["seconds"],
        "seconds_per_update": round(seconds_per_update, 5),
        "seconds_per_validation": round(statistics.median(extra), 3) if extra else None,
        "tokens_per_second": round(statistics.median(speeds)),
        "memory_mb": round(max(memory)) if memory else None,
        "measure": dev[-1]["measure"] if dev else None,
        "curve": [
            {"step": row["step"], "seconds": seconds_by_step.get(row["step"]), "score": round(row[row["measure"]], 3)}
            for row in dev
        ],
    }


def find_goal(curve: list[Figures]) -> Figures | None:
    """Return the first point of a curve with 95 % of the best score."""
    best = max((point["score"] for point in curve), default=0.0)
    return next((point for point in curve if point["score"] >= FRACTION * best), None)


def measure(size: int, limit: float, options: argparse.Namespace) -> Figures:
    """Train on `size` pairs, and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        files, run = write_corpus(Path(folder), size), Run(Path(folder) / "run")
        workers = ["data.workers=2"] if options.device == "cuda" else []
        threads = [f"training.threads={options.threads}"] if options.threads else []
        keys = [*KEYS, *workers, *threads]
        arguments = ["regard", "train", "--device", options.device, *keys]
        command = [sys.executable, "-m", *arguments, *map(str, files), "--out", str(run.folder)]
        load_before = os.getloadavg()[0]
        is_finished = train_for(command, run, limit)
        config, summary = run.read_config(), summarize_run(run.folder)
        figures = summarize_metrics(run.read_metrics())
    return {
        "pairs": size,
        "corpus": "mixed-ende" if "REGARD_DATA" in os.environ else "synthetic",
        "machine": options.machine,
        "device": options.device,
        "gpu": torch.cuda.get_device_name() if options.device == "cuda" else None,
        "threads": config["training"]["threads"],
        "load": [round(load, 1) for load in (load_before, os.getloadavg()[0])],  # running processes before and after
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(arguments),
        "parameters": summary.parameters,
        "model": {key: config["model"][key] for key in ("size", "layers", "heads")},
        "training": {key: config["training"][key] for key in ("steps", "batch_tokens", "validate_every", "patience")},
        "finished": is_finished,
        **figures,
        "goal": find_goal(figures["curve"]) if is_finished else None,
    }


def merge_figures(rows: list[Figures], new_rows: list[Figures]) -> list[Figures]:
    """Return the rows with new ones in place of those of the same machine and size; an unknown goal stays known."""
    merged = {(row["machine"], row["pairs"]): row for row in rows}
    for row in new_rows:
        key = row["machine"], row["pairs"]
        known = merged.get(key, {}).get("goal")
        merged[key] = {**row, "goal": row["goal"] or known}
    return sorted(merged.values(), key=lambda row: (row["pairs"], row["device"] != "cpu", row["machine"]))


class Estimate(NamedTuple):
    """Time to 95 % of the final score on a machine, and how it is known."""

    pairs: int
    machine: str
    parameters: int | None
    tokens_per_second: float | None
    memory_mb: float | None
    seconds: float
    is_limit: bool  # the time is at most so long
    is_measured: bool
    note: str = ""


def estimate_rows(rows: list[Figures]) -> list[Estimate]:
    """Return the rows of the table: of each machine in the figures, and of GPUs known by their peak throughput.

    Another GPU is assumed to reach the fraction of its peak that the largest model reaches on the reference GPU, and to
    be no faster than that one: small models wait for other things than arithmetic.
    """
    estimates = []
    highest = max((_multiply_rate(row) for row in rows if row["machine"] == REFERENCE_GPU), default=0.0)
    for row in rows:
        goal = row["goal"]
        cost = TrainingCost(row["seconds_per_update"], row["memory_mb"] or math.nan, row["seconds_per_validation"] or 0)
        step = goal["step"] if goal else row["training"]["steps"]
        seconds = cost.estimate_seconds(step, step / row["training"]["validate_every"])
        is_measured = goal is not None and goal["seconds"] is not None
        is_limit = goal is None or goal.get("is_limit", False)
        figures = row["pairs"], row["machine"], row["parameters"], row["tokens_per_second"], row["memory_mb"]
        seconds = goal["seconds"] if is_measured else seconds
        estimates.append(Estimate(*figures, seconds, is_limit, is_measured, row.get("note", "")))
        for name, peak in OTHER_GPUS.items() if row["machine"] == REFERENCE_GPU else ():
            speed = min(1.0, peak / PEAK * highest / _multiply_rate(row))
            scaled = cost.scale(speed).estimate_seconds(step, step / row["training"]["validate_every"])
            tokens = row["tokens_per_second"] and row["tokens_per_second"] * speed
            other = row["pairs"], name, row["parameters"], tokens, row["memory_mb"]
            estimates.append(Estimate(*other, scaled, is_limit, is_measured=False))
    return estimates


def _multiply_rate(row: Figures) -> float:
    """Return weights × tokens a second, which arithmetic is proportional to."""
    return float(row["parameters"] * row["tokens_per_second"])


def format_table(rows: list[Figures]) -> str:
    """Return the table of docs/hardware.md."""
    lines = [
        "| pairs | machine | weights | tokens/s | memory | minutes to 95 % | |",
        "|---:|---|---:|---:|---:|---:|---|",
    ]
    for row in estimate_rows(rows):
        minutes = row.seconds / 60
        cells = [
            f"{row.pairs:,}",
            row.machine,
            "" if row.parameters is None else f"{row.parameters / 1e6:.1f} M",
            "" if row.tokens_per_second is None else f"{float(f'{row.tokens_per_second:.2g}'):,.0f}",
            "" if row.memory_mb is None else f"{row.memory_mb / 1000:.1f} GB",
            f"{'≤ ' if row.is_limit else ''}{minutes:,.{0 if minutes >= 10 else 1}f}",
            f"{'measured' if row.is_measured else 'estimated'}{row.note and '; '}{row.note}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page(new_rows: list[Figures]) -> None:
    """Add figures to the result file, and write the table of the page."""
    rows = merge_figures(json.loads(RESULTS.read_text(encoding="utf-8")), new_rows)
    RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    before, after = (PAGE.read_text(encoding="utf-8").split(marker)[index] for marker, index in ((BEGIN, 0), (END, 1)))
    PAGE.write_text(f"{before}{BEGIN}\n{format_table(rows)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    measuring = commands.add_parser("measure")
    measuring.add_argument("sizes", nargs="+", metavar="PAIRS:SECONDS")
    measuring.add_argument("--machine", required=True, help="name of the machine in the table")
    measuring.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    measuring.add_argument("--threads", type=int)
    measuring.add_argument("--out", type=Path, required=True)
    commands.add_parser("page").add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    if options.command == "page":
        write_page([row for path in options.files for row in json.loads(path.read_text(encoding="utf-8"))])
        return
    rows = []
    for argument in options.sizes:
        size, _, seconds = argument.partition(":")
        rows.append(measure(int(size), float(seconds), options))
        options.out.write_text(
            json.dumps(rows, indent=1) + "\n", encoding="utf-8"
        )  # after each: the rest may be killed


if __name__ == "__main__":
    main()
