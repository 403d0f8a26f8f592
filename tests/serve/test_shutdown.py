"""Start-up and shutdown of `regard serve`: addresses, signals, files left behind, worker processes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
from support.combinations import slow_after
from support.commands import Command, environment, regard_command
from support.server import TIMEOUT, hold_decoding, serve_in_thread

from regard.errors import UserError
from regard.runs import Run
from regard.serve import server as http_server
from regard.serve.engine.batching import MAX_SHARE
from regard.serve.server import announce
from regard.serve.settings import Settings


class ServeProcess:
    """A `regard serve` process whose temporary folder is known."""

    def __init__(self, process: subprocess.Popen[str], log: Path, folder: Path) -> None:
        self.process = process
        self.log = log
        self.folder = folder
        assert process.stdout is not None
        self.greeting = process.stdout.readline()
        self.url = self.greeting.split(" at ")[1].strip()

    def translate_file(self, content: bytes) -> httpx.Response:
        fields = {"source": "en", "target": "de"}
        return httpx.post(
            f"{self.url}/translate_file", data=fields, files={"file": ("a.txt", content)}, timeout=TIMEOUT
        )

    def count_waiting_sentences(self) -> float:
        lines = httpx.get(f"{self.url}/metrics", timeout=TIMEOUT).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("regard_waiting_sentences{"))


@contextmanager
def start_process(run: Run, tmp_path: Path, *options: object) -> Iterator[ServeProcess]:
    folder, log = tmp_path / "tmp", tmp_path / "log"
    folder.mkdir()
    with log.open("w") as errors:
        started = subprocess.Popen(
            regard_command(["serve", run.folder, "--port", 0, *options]),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**environment(), "TMPDIR": str(folder)},
            preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),  # which `nohup make test` ignores
        )
        try:
            yield ServeProcess(started, log, folder)
        finally:
            started.kill()
            started.wait()
            assert started.stdout is not None
            started.stdout.close()


@pytest.mark.parametrize("number", slow_after(1, [signal.SIGTERM, signal.SIGHUP]), ids=lambda number: number.name)
def test_signal_to_end_finishes_accepted_requests_and_deletes_documents(
    number: signal.Signals, fluent_run: Run, corpus: Path, tmp_path: Path
) -> None:
    texts = (corpus / "train.en").read_text(encoding="utf-8").splitlines()[:40]
    fields = {"q": texts, "source": "en", "target": "de"}
    options = ("--processes", 1, "--batch-pieces", 1)
    with start_process(fluent_run, tmp_path, *options) as server, ThreadPoolExecutor(1) as thread:
        assert server.translate_file(b"the old house").status_code == 200
        assert len(list(server.folder.glob("regard-document-*"))) == 1
        waiting = thread.submit(httpx.post, f"{server.url}/translate", json=fields, timeout=TIMEOUT)
        while not server.count_waiting_sentences():
            assert not waiting.done()
        for worker in list_workers(server.process.pid):
            os.kill(worker, number)  # as a closed terminal does
        server.process.send_signal(number)
        assert len(waiting.result().json()["translatedText"]) == len(texts)
        assert server.process.wait() == 0
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", int(server.url.rpartition(":")[2]))) != 0
        assert list(server.folder.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_service_and_deletes_documents(fluent_run: Run, tmp_path: Path) -> None:
    with start_process(fluent_run, tmp_path) as server:
        assert server.translate_file(b"the old house").status_code == 200
        assert len(list(server.folder.glob("regard-document-*"))) == 1
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait() == 0
        assert list(server.folder.iterdir()) == []


@pytest.mark.slow
def test_second_ctrl_c_answers_waiting_requests_with_503(fluent_run: Run, corpus: Path, tmp_path: Path) -> None:
    texts = (corpus / "train.en").read_text(encoding="utf-8").splitlines() * 20
    with start_process(fluent_run, tmp_path, "--batch-pieces", 1) as server:
        assert server.translate_file(b"the old house").status_code == 200
        found: list[httpx.Response] = []
        fields = {"q": texts[:1000], "source": "en", "target": "de"}
        asking = [
            threading.Thread(
                target=lambda: found.append(httpx.post(f"{server.url}/translate", json=fields, timeout=TIMEOUT))
            ),
            threading.Thread(target=lambda: found.append(server.translate_file("\n".join(texts).encode()))),
        ]
        for one in asking:
            one.start()
        while server.count_waiting_sentences() < MAX_SHARE:  # more than one of the two requests can have waiting
            assert all(one.is_alive() for one in asking)
        server.process.send_signal(signal.SIGINT)
        while "Waiting for connections to close" not in server.log.read_text():
            assert server.process.poll() is None
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


@pytest.mark.slow
def test_forced_shutdown_answers_waiting_requests_with_503(fluent_run: Run) -> None:
    text = "the old house"
    with serve_in_thread(fluent_run.folder) as server, ThreadPoolExecutor(2) as threads:
        document: dict[str, Any] = {
            "data": {"source": "en", "target": "de"},
            "files": {"file": ("a.txt", text.encode())},
        }
        with hold_decoding(server) as started:
            waiting = [
                threads.submit(server.http.post, "/translate", json={"q": text, "source": "en", "target": "de"}),
                threads.submit(server.http.post, "/translate_file", **document),
            ]
            assert started.wait(TIMEOUT)
            while server.service.models.models[fluent_run.folder.name].batcher.waiting < 1:
                assert not any(one.done() for one in waiting)  # until the second request waits for the first
            server.stop()
            answers = [one.result() for one in waiting]
        for answer in answers:
            assert answer.status_code == 503
            assert answer.json() == {"error": "The service is ending; try again in a moment"}
            assert answer.headers["Retry-After"]


def test_unusable_address_is_reported_before_models_are_loaded(regard: Command, tmp_path: Path) -> None:
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


def test_unknown_host_name_is_an_error() -> None:
    with pytest.raises(UserError, match=r"--host a\.\.b: no such address"):
        http_server.listen("a..b", 0)


def test_all_addresses_of_a_host_share_one_port() -> None:
    sockets = http_server.listen("localhost", 0)
    try:
        assert len({one.getsockname()[1] for one in sockets}) == 1
        assert http_server.format_url("::1", sockets) == f"http://[::1]:{sockets[0].getsockname()[1]}"
    finally:
        http_server.close_all(sockets)


def serve_on_free_port(monkeypatch: pytest.MonkeyPatch, load: Callable[[int], None]) -> None:
    """Run `serve` on a port of its own, with `load`, which gets the port, in the place of loading models."""

    def make_service(runs: Sequence[str], settings: Settings) -> Any:
        load(settings.port)
        return SimpleNamespace(close=lambda: None)

    for name in ("configure_logging", "_handle_termination", "make_server_config"):
        monkeypatch.setattr(http_server, name, MagicMock())
    monkeypatch.setattr(
        http_server, "Server", lambda config: SimpleNamespace(handle_exit=None, run=http_server.close_all)
    )
    monkeypatch.setattr(http_server, "freeze_garbage_collector", lambda: None)
    monkeypatch.setattr("sys.setswitchinterval", lambda seconds: None)
    monkeypatch.setattr(http_server, "Service", make_service)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    http_server.serve([], Settings(port=port))


def test_clients_are_refused_until_models_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy with two services asks the other one only if this one refuses connections."""
    connected = []

    def load(port: int) -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))

    def connect(service: object, url: str) -> None:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))).close()
        connected.append(url)

    monkeypatch.setattr(http_server, "announce", connect)
    serve_on_free_port(monkeypatch, load)
    assert len(connected) == 1


def test_port_taken_while_models_are_loaded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[socket.socket] = []
    try:
        with pytest.raises(UserError, match="is in use already"):
            serve_on_free_port(monkeypatch, lambda port: others.extend(http_server.listen("127.0.0.1", port)))
        assert others
    finally:
        http_server.close_all(others)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
def test_sigterm_while_loading_leaves_no_files(fluent_run: Run, tmp_path: Path) -> None:
    code = (
        "import os, signal, regard.serve.server as server\n"
        "from regard.serve.settings import Settings\n"
        "server.make_server_config = lambda service: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"server.serve([{str(fluent_run.folder)!r}], Settings(port=0))\n"
    )
    folder = tmp_path / "tmp"
    folder.mkdir()
    python = regard_command([])[0]
    done = subprocess.run([python, "-c", code], env={**environment(), "TMPDIR": str(folder)}, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert list(folder.iterdir()) == []


def make_idle_service() -> Any:
    """Return what the greeting needs of a service, without models."""
    return SimpleNamespace(models=SimpleNamespace(models={}, predictors={}), settings=SimpleNamespace(url_prefix=""))


def test_service_starts_with_standard_output_closed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", None)  # as Python has it after `>&-`
    announce(make_idle_service(), "http://127.0.0.1:5000")
    assert capfd.readouterr() == ("", "")


def test_service_starts_if_its_output_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:  # closing it fails if anything is left to write, as at exit
        monkeypatch.setattr("sys.stdout", output)
        announce(make_idle_service(), "http://127.0.0.1:5000")
        assert os.fstat(output.fileno()).st_rdev == Path(os.devnull).stat().st_rdev


def list_workers(server: int) -> list[int]:
    """Return the process ids of the workers of a server: its children except the resource tracker."""
    children = [pid for each in Path(f"/proc/{server}/task").glob("*/children") for pid in each.read_text().split()]
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def wait_for_end(pid: int) -> bool:
    """Wait for the end of a process that is no child of this one; return False after the timeout."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(watched):
        return bool(select.select([watched], [], [], TIMEOUT)[0])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to list child processes")
def test_killed_worker_is_replaced_and_workers_end_with_the_service(fluent_run: Run, tmp_path: Path) -> None:
    with start_process(fluent_run, tmp_path) as server:
        request = {"q": "The dog sleeps.", "source": "en", "target": "de"}
        before = httpx.post(f"{server.url}/translate", data=request, timeout=TIMEOUT).json()
        (first,) = list_workers(server.process.pid)
        os.kill(first, signal.SIGTERM)  # ignored: the service decides when a worker ends
        os.kill(first, signal.SIGKILL)
        assert wait_for_end(first)
        assert httpx.post(f"{server.url}/translate", data=request, timeout=TIMEOUT).json() == before
        (second,) = set(list_workers(server.process.pid)) - {first}
        server.process.kill()
        assert wait_for_end(second)
