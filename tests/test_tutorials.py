"""The shell blocks of the tutorials are executed in order, in one folder, and their output is compared.

A tiny model is trained in seconds. Output must be the tutorial's to the letter; what depends on the model must have the
same form, since its translations are those of another model. The notebook is executed as a whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
TINY = (
    "model.size=16 model.layers=1 model.heads=2 text.vocabulary=400 training.steps=4 training.validate_every=4 "
    "training.validate_pairs=8 training.tensorboard=false"
)


def read_blocks(page: str) -> list[tuple[str, str]]:
    """Return the shell blocks of a tutorial, each with the output that the page shows, or an empty text."""
    blocks = BLOCK.findall((TUTORIALS / page).read_text(encoding="utf-8"))
    following = [*blocks[1:], ("", "")]
    return [
        (text, after if kind == "text" else "")
        for (language, text), (kind, after) in zip(blocks, following, strict=True)
        if language == "sh"
    ]


def run_shell(script: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a block in bash, which stops at the first error, and return its output, errors included."""
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}"
    return done.stdout


def shorten(files: Iterable[Path]) -> None:
    """Keep some lines of each file: what is left out would take time only."""
    for path in files:
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:20]), encoding="utf-8")


def describe_form(value: Any) -> Any:
    """Return a JSON value with the names of types in place of its texts and numbers."""
    if isinstance(value, dict):
        return {key: describe_form(item) for key, item in value.items()}
    return [describe_form(item) for item in value] if isinstance(value, list) else type(value).__name__


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `regard` is this checkout's."""
    program = tmp_path / "bin" / "regard"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m regard "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


@contextmanager
def serve_in_background(script: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Start the service of a block, wait until it is ready, and stop it at the end."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {script}"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            printed: list[str] = []
            for line in server.stdout:
                printed.append(line)
                if line.startswith("regard serves"):
                    break
            assert server.poll() is None, "".join(printed)
            yield
        finally:
            server.terminate()


def find_free_port() -> int:
    """Return a port that no program listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash") or not shutil.which("curl"), reason="needs bash and curl")
def test_tutorial_from_a_tmx_to_a_service(tmp_path: Path, environment: dict[str, str]) -> None:
    folder, port, is_trained = tmp_path / "work", find_free_port(), False
    folder.mkdir()
    blocks = iter(read_blocks("tmx-to-service.md"))
    compared = 0
    for script, expected in blocks:
        script = re.sub(r"--minutes \d+", TINY, script).replace(":5000", f":{port}")
        if "regard train" in script:
            assert TINY in script
            is_trained = True
        if "regard serve" in script:
            with serve_in_background(f"{script.strip()} --port {port}", folder, environment):
                for request, response in blocks:
                    printed = run_shell(request.replace(":5000", f":{port}"), folder, environment)
                    describe = describe_form if "/translate" in request else list
                    assert describe(json.loads(printed)) == describe(json.loads(response)), request
                    compared += 1
            break
        printed = run_shell(script, folder, environment)
        if expected:
            assert not is_trained
            assert [line.rstrip() for line in printed.splitlines()] == expected.splitlines(), script
            compared += 1
        shorten((folder / "corpus").glob("test.*"))
    assert compared == 6
    assert "<b>" in (folder / "brief.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_tutorial_of_a_score_of_your_own(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    compared = 0
    for script, expected in read_blocks("luong-own-score.md"):
        script = script.replace("regard reproduce architectures", "regard reproduce architectures --dry-run")
        script = script.replace(
            "{model.score:", "{training.steps: 4, training.validate_every: 4, model.size: 16, model.score:"
        )
        printed = run_shell(script, folder, environment)
        if expected:
            assert printed == expected, script
            compared += 1
    assert compared == 1
    table = (folder / "runs/reproduce/small/scores/table.md").read_text(encoding="utf-8")
    assert all(f"| {score} |" in table for score in ("location", "dot", "general", "concat", "cosine"))
    assert (folder / "cosine.png").is_file()


# Programs that change the machine. In the test they write down what they were asked to do.
RECORDED = ("useradd", "chown", "systemctl")


@contextmanager
def stop_processes(folder: Path) -> Iterator[None]:
    """Stop the processes whose ids are in the files `*.pid` at the end, if the tutorial has not stopped them."""
    try:
        yield
    finally:
        for path in folder.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(path.read_text(encoding="utf-8")), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "curl", "nginx", "openssl"))), reason="needs bash, curl, nginx and openssl"
)
def test_tutorial_of_production(tmp_path: Path, environment: dict[str, str]) -> None:
    """Run the rehearsal for real, with nginx and TLS, and the last section in a folder instead of `/etc` and `/srv`."""
    folder, root, record = tmp_path / "work", tmp_path / "root", tmp_path / "record"
    for needed in (folder, root / "etc/nginx/conf.d", root / "etc/systemd/system", root / "srv/regard"):
        needed.mkdir(parents=True)
    for name in RECORDED:
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> "{record}"\n', encoding="utf-8")
        program.chmod(0o755)
    environment = {**environment, "CHECKOUT": str(ROOT)}
    ports = {port: str(find_free_port()) for port in ("5000", "5001", "8443")}
    compared = 0
    with stop_processes(folder):
        for script, expected in read_blocks("production.md"):
            script = re.sub(r"--minutes \d+", TINY, script)
            script = re.sub(r"\b(5000|5001|8443)\b", lambda match: ports[match[0]], script)
            if "/srv/" in script or "systemctl" in script:
                script = re.sub(r"(?<=\s)/(?=etc/|srv/)", f"{root}/", script)
            elif "cp -r" in script:  # the proxy file names the ports, too
                script += f"sed -i 's/:5000/:{ports['5000']}/; s/:5001/:{ports['5001']}/' deploy/nginx.conf\n"
            printed = run_shell(script, folder, environment)
            if expected:
                is_translation = expected.startswith('{"translatedText"')
                describe = (lambda text: describe_form(json.loads(text))) if is_translation else str.splitlines
                assert describe(printed) == describe(expected), script
                compared += 1
            shorten((folder / "sample").glob("test.*"))
    assert compared == 13
    asked = record.read_text(encoding="utf-8")
    assert f"systemctl enable --now regard@{ports['5000']} regard@{ports['5001']}\n" in asked
    assert (root / "etc/systemd/system/regard@.service").is_file()
    assert (root / "srv/regard/models/en-de/config.yaml").is_file()


EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.mark.slow
def test_notebook_of_attention_in_the_classroom(tmp_path: Path, environment: dict[str, str]) -> None:
    """Run it with few updates: it has four pictures of trained models and an animation, and prints what it shows."""
    pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    path, executed = TUTORIALS / "attention-in-the-classroom.ipynb", tmp_path / "executed.ipynb"
    environment = {**environment, "LESSON_STEPS": "12", "LESSON_PAIRS": "500", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", EXECUTE, str(path), str(executed)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = (json.loads(file.read_text(encoding="utf-8"))["cells"] for file in (path, executed))
    shown = [output for cell in after for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", ()) for output in shown) == 4
    assert sum("Animation" in str(output.get("data", {}).get("text/html")) for output in shown) == 1
    stated = [cell["outputs"] for cell in before if cell.get("outputs")]
    assert stated
    assert all(outputs in [cell.get("outputs") for cell in after] for outputs in stated)
