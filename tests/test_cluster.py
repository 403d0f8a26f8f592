"""Translation on a real Ray cluster, on this machine; workers are really killed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest
import ray
from support.commands import Command, environment, regard_command
from support.training import corpus_files

from regard.data.corpus import pairs
from regard.errors import UserError
from regard.runs import Run
from regard.translate import Options, Translation, load
from regard.translate.cluster import TRIES, Crew, Worker, crew, keep_to_oneself, share, understood

SIZE = 7  # texts a chunk


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One for all tests of this file that do not start their own; its workers know the classes of this file."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        keep_to_oneself()
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level=logging.CRITICAL, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def texts(corpus: Path) -> list[str]:
    sources = [pair.source for pair in pairs(corpus_files(corpus, "test"))]
    return [*sources, "", *sources[::-1], "  two  spaces  "]


def chunks(texts: Sequence[str]) -> list[Sequence[str]]:
    return [texts[start : start + SIZE] for start in range(0, len(texts), SIZE)]


class Mortal(Worker):
    """Is killed in the middle of its work, at a text that names a file: so many times as the file allows."""

    def chunk(self, texts: Sequence[str]) -> list[Translation]:
        made = super().chunk(texts)
        for text in texts:
            if text.startswith("/"):
                left = Path(text).read_text(encoding="utf-8")
                Path(text).write_text(left[1:], encoding="utf-8")
                if left:
                    os.kill(os.getpid(), signal.SIGKILL)
        return made


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("wishes", [Options(beam=2, n_best=2), Options(sample=True, seed=3)])
def test_the_cluster_translates_as_one_process_does(run: Run, texts: list[str], wishes: Options) -> None:
    translator = load(run.folder)
    expected = [translator.chunk(chunk, translator.plan(wishes)) for chunk in chunks(texts)]
    with crew([run.folder], wishes, workers=2) as hired:
        found = list(hired.translated(chunks(texts)))
    assert [[described(made) for made in some] for some in found] == [
        [described(made) for made in some] for some in expected
    ]


def described(made: Translation) -> tuple[object, ...]:
    alignment = made.alignment and (made.alignment.soft.tolist(), made.alignment.pairs)
    others = [described(other) for other in made.alternatives]
    return made.source, made.text, made.score, made.tokens, made.ended, alignment, others


@pytest.mark.thorough
@pytest.mark.usefixtures("cluster")
def test_no_line_is_lost_or_doubled_when_a_worker_is_killed(run: Run, texts: list[str], tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.write_text("x" * (TRIES - 1), encoding="utf-8")
    some = [*texts[:20], str(lives), *texts[20:]]
    wishes = Options(beam=2, alignments=False)
    translator = load(run.folder)
    expected = [made for chunk in chunks(some) for made in translator.chunk(chunk, translator.plan(wishes))]
    with crew([run.folder], wishes, workers=2, kind=Mortal) as hired:
        found = [made for chunk in hired.translated(chunks(some)) for made in chunk]
    assert lives.read_text(encoding="utf-8") == ""
    assert [(made.source, made.text) for made in found] == [(made.source, made.text) for made in expected]


@pytest.mark.thorough
@pytest.mark.usefixtures("cluster")
def test_a_chunk_that_kills_every_worker_ends_the_work(run: Run, texts: list[str], tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.write_text("x" * 100, encoding="utf-8")
    some = [*texts[:10], str(lives), *texts[10:30]]
    found: list[list[Translation]] = []
    with (
        pytest.raises(UserError, match="a worker died again and again at lines 8 to 14 of the input") as caught,
        crew([run.folder], Options(beam=1, alignments=False), workers=1, kind=Mortal) as hired,
    ):
        found.extend(hired.translated(chunks(some)))
    assert "\n" not in str(caught.value)
    assert len(found) == 1
    assert 100 - len(lives.read_text(encoding="utf-8")) == TRIES


@pytest.fixture(scope="class")
def hired(run: Run, cluster: None) -> Iterator[Crew]:
    """Two workers that take the likeliest; they are gone when the class is done, or nobody else would find a place."""
    with crew([run.folder], Options(beam=1), workers=2) as two:
        yield two


class TestStream:
    """What comes in while other things go out."""

    def test_no_more_is_read_than_the_workers_can_hold(self, hired: Crew, texts: list[str]) -> None:
        read = 0

        def endless() -> Iterator[list[str]]:
            nonlocal read
            while True:
                read += 1
                yield texts[:2]

        stream = hired.translated(endless())
        for given in range(1, 6):
            assert len(next(stream)) == 2
            assert read <= given + 2 * 2 + 2  # two a worker, one that is read ahead, one that is on its way there

    def test_an_answer_comes_before_the_next_line_is_written(self, hired: Crew, texts: list[str]) -> None:
        answered = threading.Semaphore(0)

        def waits() -> Iterator[list[str]]:
            for text in texts[:3]:
                yield [text]
                answered.acquire()

        sources = []
        for (made,) in hired.translated(waits()):
            sources.append(made.source)
            answered.release()
        assert sources == texts[:3]

    def test_what_was_read_before_a_mistake_in_the_input_is_translated(self, hired: Crew, texts: list[str]) -> None:
        def broken() -> Iterator[list[str]]:
            yield texts[:3]
            yield texts[3:5]
            raise UserError("line 6 is not UTF-8")

        found: list[list[Translation]] = []
        with pytest.raises(UserError, match="line 6 is not UTF-8"):
            found.extend(hired.translated(broken()))
        assert [made.source for some in found for made in some] == texts[:5]


@pytest.mark.usefixtures("cluster")
def test_a_users_mistake_comes_back_as_the_same_sentence(run: Run, tmp_path: Path) -> None:
    wrong = Options(force=["Xylophon"])
    with pytest.raises(UserError) as here:
        load(run.folder).plan(wrong)
    with pytest.raises(UserError) as there, crew([run.folder], wrong, workers=1):
        pass
    assert str(there.value) == str(here.value)
    with pytest.raises(UserError, match="is not a run: it has no"), crew([tmp_path], Options(), workers=1):
        pass
    with pytest.raises(UserError, match=r"room for \d+ workers .* not for 4000"), crew([tmp_path], Options(), 4000):
        pass


class Stillborn(Worker):
    """Does not come to life: so it is where a machine has another version of the code, or none."""

    def __init__(self, runs: Sequence[Path], options: Options, threads: int) -> None:
        raise ModuleNotFoundError("No module named 'regard'")


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_does_not_start_says_why(run: Run) -> None:
    told = "a worker does not start: ModuleNotFoundError: No module named 'regard'; each machine"
    with pytest.raises(UserError, match=told), crew([run.folder], Options(), workers=1, kind=Stillborn):
        pass


def test_a_machine_without_memory_is_told_in_one_sentence() -> None:
    with pytest.raises(UserError, match="not enough memory: ask for fewer --workers") as caught, understood(ray, "now"):
        raise ray.exceptions.RayError("1 worker(s) were killed\nOOM kill reason: …")
    assert "\n" not in str(caught.value)


def test_cores_are_divided_so_that_every_worker_finds_a_place() -> None:
    for nodes, wanted in product([(2,), (3, 3), (8, 1), (16, 4, 2)], range(1, 12)):
        if wanted > sum(nodes):
            with pytest.raises(UserError, match=f"room for {sum(nodes)} workers"):
                share([{"CPU": cpus} for cpus in nodes], wanted)
            continue
        found = share([{"CPU": float(cpus), "memory": 1e9} for cpus in nodes], wanted)
        assert (found.workers, found.gpus) == (wanted, 0)
        assert sum(cpus // found.cpus for cpus in nodes) >= wanted
        assert sum(cpus // (found.cpus + 1) for cpus in nodes) < wanted
    assert share([{"CPU": 4.0}, {"CPU": 2.0}], None) == (6, 1, 0)
    assert share([{"CPU": 16.0, "GPU": 2.0}, {"CPU": 8.0}], None) == (2, 8, 1)
    assert share([{"CPU": 1.0, "GPU": 4.0}], None) == (4, 0, 1)
    with pytest.raises(UserError, match="room for 2 workers on this Ray cluster, one a GPU, not for 3"):
        share([{"CPU": 16.0, "GPU": 2.0}], 3)
    with pytest.raises(UserError, match="room for 0 workers"):
        share([], None)


def processes(folder: Path) -> list[str]:
    """Those of Ray that were started in a folder and are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").resolve() == folder.resolve():
                found.append((entry / "cmdline").read_bytes().decode())
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
    return [line for line in found if "ray" in line]


@pytest.mark.thorough
def test_the_command_gives_the_same_lines_and_leaves_nothing_behind(
    regard: Command, run: Run, corpus: Path, tmp_path: Path
) -> None:
    wishes = [run.folder, corpus / "test.en", "--beam", 3, "--n-best", 2, "--json"]
    expected = regard("translate", *wishes)
    done = regard("translate", *wishes, "--engine", "ray", "--workers", 1)
    assert (done.returncode, done.stderr) == (expected.returncode, expected.stderr)
    assert done.stdout == expected.stdout
    assert processes(tmp_path) == []


@pytest.mark.thorough
def test_a_closed_pipe_ends_the_cluster_too(run: Run, tmp_path: Path) -> None:
    with subprocess.Popen(
        regard_command(["translate", run.folder, "--beam", 1, "--engine", "ray", "--workers", 1]),
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
    assert processes(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "spark"], "--engine is one of auto, torch, onnx, ctranslate2 and ray, not 'spark'"),
        (["--workers", "2"], "--workers is for --engine ray"),
    ],
)
def test_engines_that_are_not_there(regard: Command, run: Run, options: list[str], message: str) -> None:
    done = regard("translate", run.folder, *options, input="The dog .\n")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


def test_without_ray_it_says_how_to_get_it(run: Run, tmp_path: Path) -> None:
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
    assert done.stderr.decode() == (
        "regard: --engine ray needs Ray, which is not installed: pip install 'regard[cluster]'\n"
    )


def test_a_cluster_that_does_not_answer(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"  # nobody listens there
        monkeypatch.setenv("RAY_ADDRESS", address)
        done = subprocess.run(
            regard_command(["translate", run.folder, "--engine", "ray"]),
            input=b"",
            capture_output=True,
            env=environment(),
            cwd=tmp_path,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"regard: no Ray cluster at RAY_ADDRESS={address}: ")
    assert done.stderr.count(b"\n") == 1
