"""How the service begins and ends: what is said first, what is left behind, what those are told who still wait."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.commands import Command, environment, regard_command

from regard.errors import UserError
from regard.runs import Run
from regard.serve import listening
from regard.serve.batching import SLICE


class Process:
    """A server process whose folder for files is a known one."""

    def __init__(self, process: subprocess.Popen[str], log: Path, folder: Path) -> None:
        self.process = process
        self.log = log
        self.folder = folder
        assert process.stdout is not None
        self.greeting = process.stdout.readline()
        self.url = self.greeting.split(" at ")[1].strip()

    def file(self, content: bytes) -> httpx.Response:
        fields = {"source": "en", "target": "de"}
        return httpx.post(f"{self.url}/translate_file", data=fields, files={"file": ("a.txt", content)}, timeout=300)

    def waiting(self) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("regard_waiting_sentences{"))


@contextmanager
def process(able: Run, tmp_path: Path, *options: object) -> Iterator[Process]:
    folder, log = tmp_path / "tmp", tmp_path / "log"
    folder.mkdir()
    with log.open("w") as errors:
        started = subprocess.Popen(
            regard_command(["serve", able.folder, "--port", 0, *options]),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**environment(), "TMPDIR": str(folder)},
        )
        try:
            yield Process(started, log, folder)
        finally:
            started.kill()
            started.wait()
            assert started.stdout is not None
            started.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_document_is_left_behind(fluent_run: Run, tmp_path: Path, number: signal.Signals) -> None:
    with process(fluent_run, tmp_path) as server:
        assert server.file(b"the old house").status_code == 200
        assert len(list(server.folder.glob("regard-files-*/*"))) == 1
        server.process.send_signal(number)
        assert server.process.wait() == 0
        assert list(server.folder.iterdir()) == []


def test_those_who_wait_when_it_must_end_at_once_are_told_so(fluent_run: Run, corpus: Path, tmp_path: Path) -> None:
    texts = (corpus / "train.en").read_text(encoding="utf-8").splitlines() * 20
    with process(fluent_run, tmp_path, "--batch-pieces", 1) as server:
        assert server.file(b"the old house").status_code == 200
        found: list[httpx.Response] = []
        fields = {"q": texts[:1000], "source": "en", "target": "de"}
        asking = [
            threading.Thread(
                target=lambda: found.append(httpx.post(f"{server.url}/translate", json=fields, timeout=300))
            ),
            threading.Thread(target=lambda: found.append(server.file("\n".join(texts).encode()))),
        ]
        for one in asking:
            one.start()
        while server.waiting() < SLICE:  # one of them alone has fewer that wait, when its first is taken
            pass
        server.process.send_signal(signal.SIGINT)
        while "Waiting for connections to close" not in server.log.read_text():
            pass
        server.process.send_signal(signal.SIGINT)
        for one in asking:
            one.join()
        assert server.process.wait() == 0
        assert [answer.status_code for answer in found] == [503, 503]
        for answer in found:
            assert answer.json() == {"error": "The service is ending; try again in a moment"}
            assert answer.headers["Retry-After"]
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
        assert not [line for line in lines if "error" in line or line["level"] != "info"]
        assert list(server.folder.iterdir()) == []


def test_one_line_says_what_is_served_and_where(fluent_run: Run, tmp_path: Path) -> None:
    with process(fluent_run, tmp_path) as server:
        assert server.greeting == f"regard serves able (en-de) at {server.url}\n"
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert f"running on {server.url}" in [json.loads(line)["event"] for line in server.log.read_text().splitlines()]


def test_what_is_wrong_with_an_address_is_said_before_a_model_is_loaded(regard: Command, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = regard("serve", tmp_path / "nowhere", "--port", port)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"regard: port {port} of 127.0.0.1 is in use already; choose another with --port (0: any that is free)\n"
        )
    done = regard("serve", tmp_path / "nowhere", "--host", "192.0.2.1", "--port", 0)
    assert done.returncode == 2
    assert done.stderr.startswith("regard: --host 192.0.2.1 --port 0 cannot be listened on: ")
    assert done.stderr.count("\n") == 1
    done = regard("serve", tmp_path / "nowhere", "--port", 99999)
    assert done.returncode == 2
    assert "--port" in done.stderr
    assert "65535" in done.stderr


def test_a_name_that_stands_for_nothing_is_no_host() -> None:
    with pytest.raises(UserError, match=r"--host a\.\.b: no such address"):
        listening.taken("a..b", 0)


def test_all_addresses_of_a_host_have_one_port() -> None:
    sockets = listening.taken("localhost", 0)
    try:
        assert len({one.getsockname()[1] for one in sockets}) == 1
        assert listening.url("::1", sockets) == f"http://[::1]:{sockets[0].getsockname()[1]}"
    finally:
        listening.release(sockets)


def test_who_was_quicker_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    first = listening.taken("127.0.0.1", 0)
    second = listening.taken("127.0.0.1", first[0].getsockname()[1])
    try:
        listening.listen(first)
        with pytest.raises(UserError, match="is in use already"):
            listening.listen(second)
    finally:
        listening.release([*first, *second])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals of POSIX")
def test_a_service_that_is_stopped_while_it_loads_leaves_nothing(fluent_run: Run, tmp_path: Path) -> None:
    code = (
        "import os, signal, regard.serve.server as server\n"
        "from regard.serve import Settings\n"
        "server.configuration = lambda service: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"server.serve([{str(fluent_run.folder)!r}], Settings(port=0))\n"
    )
    folder = tmp_path / "tmp"
    folder.mkdir()
    python = regard_command([])[0]
    done = subprocess.run([python, "-c", code], env={**environment(), "TMPDIR": str(folder)}, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert list(folder.iterdir()) == []


def decoders(server: int) -> list[int]:
    """The processes that decode for a server: its children, but for the one that looks after what they share."""
    children = [pid for each in Path(f"/proc/{server}/task").glob("*/children") for pid in each.read_text().split()]
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def gone(pid: int) -> bool:
    """Whether a process ends within a minute."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(watched):
        return bool(select.select([watched], [], [], 60)[0])


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc, which says what the children of a process are")
def test_what_decodes_is_replaced_when_it_dies_and_ends_with_the_service(fluent_run: Run, tmp_path: Path) -> None:
    with process(fluent_run, tmp_path) as server:
        asked = {"q": "The dog sleeps.", "source": "en", "target": "de"}
        before = httpx.post(f"{server.url}/translate", data=asked, timeout=300).json()
        (first,) = decoders(server.process.pid)
        os.kill(first, signal.SIGTERM)  # that is for the service to say
        os.kill(first, signal.SIGKILL)
        assert gone(first)
        assert httpx.post(f"{server.url}/translate", data=asked, timeout=300).json() == before
        (second,) = set(decoders(server.process.pid)) - {first}
        server.process.kill()
        assert gone(second)
