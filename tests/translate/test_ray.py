"""Translation on a Ray cluster (`regard translate --engine ray`).

Tests that start Ray are slow; what reads the input and divides the cores is tested without it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import Command, environment, regard_command
from support.training import corpus_files

from regard.data.readers.dispatch import read_all_pairs
from regard.errors import UserError
from regard.runs import Run
from regard.translate import Options, Translation, load
from regard.translate.backends.ray import (
    MAX_TRIES_PER_CHUNK,
    RayWorker,
    RayWorkerPool,
    allocate_workers,
    convert_ray_errors,
    open_worker_pool,
    set_private_cluster_env,
)

CHUNK_SIZE = 7


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Start Ray with two cores; its workers can import this file."""
    import ray

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(map(str, Path(__file__).parents[:2])), prepend=os.pathsep)
        set_private_cluster_env()
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level=logging.CRITICAL, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def texts(corpus: Path) -> list[str]:
    sources = [pair.source for pair in read_all_pairs(corpus_files(corpus, "test"))]
    return [*sources, "", *sources[::-1], "  two  spaces  "]


def split_into_chunks(texts: Sequence[str]) -> list[Sequence[str]]:
    return [texts[start : start + CHUNK_SIZE] for start in range(0, len(texts), CHUNK_SIZE)]


class KilledWorker(RayWorker):
    """A worker that kills itself at a text that is the path of a file, once for each character in that file."""

    def translate_chunk(self, texts: Sequence[str]) -> list[Translation]:
        made = super().translate_chunk(texts)
        for text in texts:
            if text.startswith("/"):
                left = Path(text).read_text(encoding="utf-8")
                Path(text).write_text(left[1:], encoding="utf-8")
                if left:
                    os.kill(os.getpid(), signal.SIGKILL)
        return made


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "options", [Options(beam=2, n_best=2), Options(sample=True, seed=3)], ids=["beam search", "sampling"]
)
def test_ray_workers_translate_as_one_process_does(run: Run, texts: list[str], options: Options) -> None:
    translator = load(run.folder)
    expected = [
        translator.translate_chunk(chunk, translator.compile_options(options)) for chunk in split_into_chunks(texts)
    ]
    with open_worker_pool([run.folder], options, workers=2) as workers:
        found = list(workers.translate_chunks(split_into_chunks(texts)))
    assert [[list_fields(made) for made in some] for some in found] == [
        [list_fields(made) for made in some] for some in expected
    ]


def list_fields(made: Translation) -> tuple[object, ...]:
    alignment = made.alignment and (made.alignment.soft.tolist(), made.alignment.pairs)
    others = [list_fields(other) for other in made.alternatives]
    return made.source, made.text, made.score, made.tokens, made.ended, alignment, others


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_no_line_is_lost_or_repeated_when_a_ray_worker_is_killed(run: Run, texts: list[str], tmp_path: Path) -> None:
    kills = tmp_path / "kills"
    kills.write_text("x" * (MAX_TRIES_PER_CHUNK - 1), encoding="utf-8")
    some = [*texts[:20], str(kills), *texts[20:]]
    options = Options(beam=2, alignments=False)
    translator = load(run.folder)
    expected = [
        made
        for chunk in split_into_chunks(some)
        for made in translator.translate_chunk(chunk, translator.compile_options(options))
    ]
    with open_worker_pool([run.folder], options, workers=2, worker_class=KilledWorker) as workers:
        found = [made for chunk in workers.translate_chunks(split_into_chunks(some)) for made in chunk]
    assert kills.read_text(encoding="utf-8") == ""
    assert [(made.source, made.text) for made in found] == [(made.source, made.text) for made in expected]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_chunk_that_kills_every_ray_worker_is_reported_by_its_lines(run: Run, texts: list[str], tmp_path: Path) -> None:
    kills = tmp_path / "kills"
    kills.write_text("x" * 100, encoding="utf-8")
    some = [*texts[:10], str(kills), *texts[10:30]]
    found: list[list[Translation]] = []
    with (
        pytest.raises(UserError, match="a worker died repeatedly at lines 8 to 14 of the input") as caught,
        open_worker_pool(
            [run.folder], Options(beam=1, alignments=False), workers=1, worker_class=KilledWorker
        ) as workers,
    ):
        found.extend(workers.translate_chunks(split_into_chunks(some)))
    assert "\n" not in str(caught.value)
    assert len(found) == 1
    assert 100 - len(kills.read_text(encoding="utf-8")) == MAX_TRIES_PER_CHUNK


@pytest.fixture(scope="class", params=["inline", pytest.param("ray", marks=pytest.mark.slow)])
def workers(run: Run, request: pytest.FixtureRequest) -> Iterator[RayWorkerPool]:
    """Provide two workers that search greedily, on Ray or in this process."""
    options = Options(beam=1)
    if request.param == "inline":
        worker = RayWorker([run.folder], options, 1)
        actor = SimpleNamespace(translate_chunk=SimpleNamespace(remote=worker.translate_chunk))
        yield RayWorkerPool(SimpleNamespace(get=lambda result: result), [actor, actor])
    else:
        request.getfixturevalue("cluster")
        with open_worker_pool([run.folder], options, workers=2) as two:
            yield two


class TestStream:
    """Input is read while results are returned."""

    def test_stream_reads_no_more_than_the_workers_can_hold(self, workers: RayWorkerPool, texts: list[str]) -> None:
        read = 0

        def endless() -> Iterator[list[str]]:
            nonlocal read
            while True:
                read += 1
                yield texts[:2]

        stream = workers.translate_chunks(endless())
        for given in range(1, 6):
            assert len(next(stream)) == 2
            assert read <= given + 2 * 2 + 2  # two per worker, one read ahead, one held by the reading thread

    def test_stream_answers_a_line_before_the_next_is_written(self, workers: RayWorkerPool, texts: list[str]) -> None:
        answered = threading.Semaphore(0)

        def write_after_answer() -> Iterator[list[str]]:
            for text in texts[:3]:
                yield [text]
                answered.acquire()

        sources = []
        for (made,) in workers.translate_chunks(write_after_answer()):
            sources.append(made.source)
            answered.release()
        assert sources == texts[:3]

    def test_stream_translates_lines_before_an_input_error(self, workers: RayWorkerPool, texts: list[str]) -> None:
        def broken() -> Iterator[list[str]]:
            yield texts[:3]
            yield texts[3:5]
            raise UserError("line 6 is not UTF-8")

        found: list[list[Translation]] = []
        with pytest.raises(UserError, match="line 6 is not UTF-8"):
            found.extend(workers.translate_chunks(broken()))
        assert [made.source for some in found for made in some] == texts[:5]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_user_errors_in_ray_workers_have_the_same_message_as_here(run: Run, tmp_path: Path) -> None:
    wrong = Options(force=["Xylophon"])
    with pytest.raises(UserError) as here:
        load(run.folder).compile_options(wrong)
    with pytest.raises(UserError) as there, open_worker_pool([run.folder], wrong, workers=1):
        pass
    assert str(there.value) == str(here.value)
    with pytest.raises(UserError, match="is not a run: it has no"), open_worker_pool([tmp_path], Options(), workers=1):
        pass
    with (
        pytest.raises(UserError, match=r"room for \d+ workers, .* not for 4000"),
        open_worker_pool([tmp_path], Options(), 4000),
    ):
        pass


class UnstartableWorker(RayWorker):
    """A worker whose constructor fails, as on a machine without `regard` or with another version."""

    def __init__(self, runs: Sequence[Path], options: Options, threads: int) -> None:
        raise ModuleNotFoundError("No module named 'regard'")


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_ray_worker_that_does_not_start_reports_the_reason(run: Run) -> None:
    message = "a worker does not start: ModuleNotFoundError: No module named 'regard'; install this version"
    with (
        pytest.raises(UserError, match=message),
        open_worker_pool([run.folder], Options(), workers=1, worker_class=UnstartableWorker),
    ):
        pass


def test_ray_out_of_memory_is_a_one_line_error() -> None:
    import ray

    with (
        pytest.raises(UserError, match="too little memory: use fewer --jobs") as caught,
        convert_ray_errors(ray, "now"),
    ):
        raise ray.exceptions.RayError("1 worker(s) were killed\nOOM kill reason: …")
    assert "\n" not in str(caught.value)


def test_cores_are_divided_so_that_every_ray_worker_fits() -> None:
    for nodes, wanted in product([(2,), (3, 3), (8, 1), (16, 4, 2)], range(1, 12)):
        if wanted > sum(nodes):
            with pytest.raises(UserError, match=f"room for {sum(nodes)} workers"):
                allocate_workers([{"CPU": cpus} for cpus in nodes], wanted)
            continue
        found = allocate_workers([{"CPU": float(cpus), "memory": 1e9} for cpus in nodes], wanted)
        assert (found.workers, found.gpus) == (wanted, 0)
        assert sum(cpus // found.cpus for cpus in nodes) >= wanted
        assert sum(cpus // (found.cpus + 1) for cpus in nodes) < wanted
    assert allocate_workers([{"CPU": 4.0}, {"CPU": 2.0}], None) == (6, 1, 0)
    assert allocate_workers([{"CPU": 16.0, "GPU": 2.0}, {"CPU": 8.0}], None) == (2, 8, 1)
    assert allocate_workers([{"CPU": 1.0, "GPU": 4.0}], None) == (4, 0, 1)
    with pytest.raises(UserError, match="room for 2 workers, one per GPU, not for 3"):
        allocate_workers([{"CPU": 16.0, "GPU": 2.0}], 3)
    with pytest.raises(UserError, match="room for 0 workers"):
        allocate_workers([], None)


def list_ray_processes(folder: Path) -> list[str]:
    """Return the command lines of the Ray processes whose working directory is `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").resolve() == folder.resolve():
                found.append((entry / "cmdline").read_bytes().decode())
        except OSError:  # it has ended meanwhile, or belongs to another user
            continue
    return [line for line in found if "ray" in line]


@pytest.mark.slow
def test_ray_command_prints_the_same_lines_and_leaves_no_processes(
    regard: Command, run: Run, corpus: Path, tmp_path: Path
) -> None:
    arguments = [run.folder, corpus / "test.en", "--beam", 3, "--n-best", 2, "--json"]
    expected = regard("translate", *arguments)
    done = regard("translate", *arguments, "--engine", "ray", "--workers", 1)
    assert (done.returncode, done.stderr) == (expected.returncode, expected.stderr)
    assert done.stdout == expected.stdout
    assert list_ray_processes(tmp_path) == []


@pytest.mark.slow
def test_closed_output_pipe_ends_the_ray_cluster_too(run: Run, tmp_path: Path) -> None:
    with subprocess.Popen(
        regard_command(["translate", run.folder, "--beam", 1, "--engine", "ray", "--jobs", 1]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"The dog sleeps .\n" * 300)
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE
    assert list_ray_processes(tmp_path) == []


ENGINE_ERRORS = [
    (["--engine", "spark"], "--engine must be one of auto, torch, onnx, ctranslate2 and ray, not 'spark'"),
    (["--jobs", "2"], "--jobs is for --engine ray"),
]


@pytest.mark.parametrize(("options", "message"), ENGINE_ERRORS, ids=[" ".join(options) for options, _ in ENGINE_ERRORS])
def test_unknown_engine_and_misplaced_workers_option_are_errors(
    regard: Command, run: Run, options: list[str], message: str
) -> None:
    done = regard("translate", run.folder, *options, input="The dog .\n")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


NO_RAY = "--engine ray needs Ray, which is not installed: pip install 'regard[cluster]'"


def test_missing_ray_is_reported_with_the_install_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=f"^{re.escape(NO_RAY)}$"), open_worker_pool([run.folder], Options()):
        pass


@pytest.mark.slow
def test_command_without_ray_prints_only_the_install_command(run: Run, tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['ray'] = None; import regard.cli.app as a; a.main()"
    done = subprocess.run(
        [sys.executable, "-c", blocked, "translate", str(run.folder), "--engine", "ray"],
        input=b"",
        capture_output=True,
        env=environment(),
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.decode() == f"regard: {NO_RAY}\n"


def test_ray_cluster_that_does_not_answer_is_a_one_line_error(
    regard: Command, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as bound:  # bound without listening, so that the port refuses connections
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        done = regard("translate", run.folder, "--engine", "ray")
    assert done.returncode == 2
    assert done.stderr.startswith(f"regard: no Ray cluster at RAY_ADDRESS={address}: ")
    assert done.stderr.count("\n") == 1
