"""macOS and Windows, simulated: what Python lacks there is missing, and what their file systems refuse is refused.

`support/other_system/sitecustomize.py` is the simulation. It shows that regard does without these things, not that
PyTorch and the other packages do.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import os
import pickle
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import portalocker
import pytest
import torch
from support.commands import ROOT, environment, regard_command
from support.training import TINY, corpus_files, format_overrides

from regard.data import prepare
from regard.data.dataset import RaggedArray, RaggedArrayWriter
from regard.data.prepare import PairEncoder, RawPair, encode_in_parallel
from regard.data.readers.text import Pair
from regard.paths import wait_for_lock
from regard.runs import Run, checkpoint
from regard.serve.engine.documents import FileStore
from regard.serve.server import listen
from regard.tokenizers.sentencepiece import SentencePieceTokenizer
from regard.tokenizers.tokenizer import Tokenizers
from regard.tokenizers.words import WordTokenizer
from regard.training.distributed import measure_peak_memory_mb
from regard.training.metrics import format_update_metrics

SYSTEMS = ("win32", "darwin")
SIMULATION = ROOT / "tests" / "support" / "other_system"


def simulate(system: str, folder: Path) -> dict[str, str]:
    """Return the environment of a process that runs on another system, with a code page that is not UTF-8."""
    code_page = {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    return {
        **environment(),
        "PYTHONPATH": os.pathsep.join([str(SIMULATION), str(ROOT)]),
        "REGARD_TEST_SYSTEM": system,
        "REGARD_TEST_FOLDER": str(folder),
        "REGARD_CACHE": str(folder / "cache"),
        **(code_page if system == "win32" else {}),
    }


def call(system: str, folder: Path, *arguments: object, input: str = "") -> str:
    """Run `regard …` on another system, and return its standard output."""
    done = subprocess.run(
        regard_command(arguments), env=simulate(system, folder), cwd=folder, input=input.encode(), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode()


def run_python(system: str, folder: Path, program: str) -> str:
    """Run a program as a module of regard on another system, and return its standard output."""
    script = f"__name__ = 'regard.program'\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", script], env=simulate(system, folder), cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("system", SYSTEMS)
def test_files_are_written_locked_and_cached(system: str, tmp_path: Path) -> None:
    program = """
from pathlib import Path
from regard.cli.back_translate import ResumableFile
from regard.errors import UserError
from regard.paths import CACHE_MANIFEST, find_cache_damage, find_or_build_cache_entry, write_atomically
from regard.runs.run import lock_run

def build(folder):
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text("content")

with lock_run(Path("run")):
    for text in ("one", "two"):
        write_atomically(Path("run/state.json"), text)
    try:
        with lock_run(Path("run")):
            print("not locked")
    except UserError as error:
        print(error)
print(Path("run/state.json").read_text())
entry = find_or_build_cache_entry("kind", {}, build)
print(find_cache_damage(entry), "inner/file" in (entry / CACHE_MANIFEST).read_text())
with ResumableFile(Path("out.tsv"), {}).start_new() as output:
    output.write(["a"], type(output.counts)(lines=1))
with ResumableFile(Path("out.tsv"), {}).resume() as output:
    print(list(output.iterate_rows()))
    output.write(["b"], type(output.counts)(lines=2))
    output.finish()
print(Path("out.tsv").read_bytes())
"""
    assert run_python(system, tmp_path, program).splitlines() == [
        "another process is training into run; wait for it, or choose another --out",
        "two",
        "None True",
        "['a']",
        r"b'a\nb\n'",
    ]


@pytest.mark.parametrize("kind", ["mapped", "in memory"])
def test_rows_are_sent_to_spawned_workers_as_the_location_of_their_files(kind: str, tmp_path: Path) -> None:
    rows = RaggedArray.from_rows([[number] * 1000 for number in range(100)])
    writer = RaggedArrayWriter(tmp_path, "source", 1000)
    writer.write(rows)
    writer.close()
    pickled = pickle.dumps(RaggedArray.load(tmp_path, "source") if kind == "mapped" else rows)
    assert (len(pickled) < 1000) == (kind == "mapped")
    copy = pickle.loads(pickled)
    assert np.array_equal(copy.values, rows.values)
    assert np.array_equal(copy.offsets, rows.offsets)


def test_peak_memory_is_bytes_on_macos_and_unknown_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    linux = measure_peak_memory_mb(cpu)
    monkeypatch.setattr(sys, "platform", "darwin")
    for device in (cpu, torch.device("mps")):
        assert measure_peak_memory_mb(device) == pytest.approx(linux / 1000, rel=0.1)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert math.isnan(measure_peak_memory_mb(cpu))


def test_log_line_leaves_out_memory_that_is_unknown() -> None:
    numbers = {"loss": 1.0, "learning_rate": 0.1, "gradient_norm": 1.0, "tokens_per_second": 1.0, "epoch": 1.0}
    lines = [format_update_metrics({**numbers, "memory_mb": memory}) for memory in (5.0, math.nan)]
    assert ["MB" in line for line in lines] == [True, False]


def test_lock_is_waited_for_after_windows_gave_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [portalocker.AlreadyLocked(""), portalocker.AlreadyLocked(""), None]

    def lock(file: Any, flags: Any) -> None:
        if answer := answers.pop(0):
            raise answer

    monkeypatch.setattr(portalocker, "lock", lock)
    with (tmp_path / "lock").open("a") as file:
        wait_for_lock(file)
    assert not answers


def test_port_cannot_be_shared_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        (bound,) = listen("127.0.0.1", 0)
    with bound:
        assert not bound.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


def test_checkpoint_that_another_program_reads_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "step-1"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        checkpoint.remove_checkpoint(folder)
    assert "step-1 cannot be removed now (it is open); the next removal tries again" in capsys.readouterr().err
    checkpoint.remove_checkpoint(folder)
    assert not folder.exists()


def test_file_that_is_downloaded_on_windows_does_not_prevent_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(1_000_000)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", refuse)
            asyncio.run(add_two_large_files(store))
        assert len(store.files) == 1
    finally:
        store.close()


async def add_two_large_files(store: FileStore) -> None:
    for _ in range(2):
        await store.add("owner", "a.txt", b"x" * 90_000)


def refuse(*paths: Any, **options: Any) -> None:
    raise PermissionError(13, "it is open")


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_run_is_trained_resumed_used_and_served(system: str, corpus: Path, tmp_path: Path) -> None:
    fewer = {"training.steps": 2, "training.validate_every": 2, "training.checkpoint_every": 2, "training.keep": 1}
    changes = {**TINY, **fewer, "training.keep_best": 1, "training.log_every": 1, "data.workers": 1}
    files = corpus_files(corpus, "train")
    call(system, tmp_path, "train", *files, "--recipe", "bahdanau2015", "--out", "run", *format_overrides(changes))
    call(system, tmp_path, "train", "--resume", "--out", "run", "training.steps=6")
    run = Run(tmp_path / "run")
    rows = [json.loads(line) for line in run.metrics_path.read_text(encoding="utf-8").splitlines()]
    memory = [row["memory_mb"] for row in rows if row["kind"] == "train"]
    assert len(memory) == 6
    assert all(each is None if system == "win32" else 50 < each < 5000 for each in memory)
    assert run.find_newest_step() == 6
    assert 2 not in run.list_steps()  # the checkpoint that was resumed
    translated = call(system, tmp_path, "translate", "run", "--json", input="ein Träger\nзавтра\n")
    assert "Träger" in translated
    assert "завтра" in translated
    assert ask_service(system, tmp_path) == 200


def ask_service(system: str, folder: Path) -> int:
    """Start `regard serve`, and return the status of one translation."""
    with subprocess.Popen(
        regard_command(["serve", "run", "--port", "0"]),
        env=simulate(system, folder),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            (url,) = re.findall(r"http://\S+", process.stdout.readline())
            request = urllib.request.Request(
                f"{url}/translate", json.dumps({"q": "one", "source": "auto", "target": "de"}).encode()
            )
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request, timeout=300) as response:
                return int(response.status)
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_doctor_describes_the_machine(system: str, tmp_path: Path) -> None:
    report = json.loads(call(system, tmp_path, "doctor", "--json"))
    parts = {row["part"]: (row["implementation"], row["reason"]) for row in report["implementations"]}
    assert report["machine"]["memory"] == "unknown"
    assert parts["Transformer training"][0] == "packed batches"
    if system == "win32":
        reason = "there are no C kernels for Windows; they run in WSL 2"
        assert parts["--precision int8"] == ("an export to CTranslate2 or ONNX", reason)


@pytest.mark.slow
def test_data_are_prepared_by_spawned_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    words = WordTokenizer.train(["a b c d"], 9)
    subwords = SentencePieceTokenizer.train(["a b c d ab cd"] * 9, 20, "bpe", byte_fallback=False)
    encoder = PairEncoder(Tokenizers(words, subwords), 9)
    raw = [RawPair(Pair("a b", "c d"))] * 6
    monkeypatch.setattr(prepare, "PAIRS_PER_CHUNK", 2)
    monkeypatch.setattr(sys, "platform", "darwin")
    spawn = multiprocessing.get_context("spawn")  # the default of macOS and Windows
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: spawn if method is None else None)
    parts = list(encode_in_parallel(raw, encoder, num_processes=1))
    assert [len(part.source) for part in parts] == [2, 2, 2]
