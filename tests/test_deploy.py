"""The files of `deploy/`: container images, systemd unit, proxies, and the environment of the service."""

from __future__ import annotations

import configparser
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import yaml
from prometheus_client import generate_latest
from support.server import Client, serve_in_thread

from regard.runs import Run
from regard.serve.metrics import Metrics

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILES = [DEPLOY / "Dockerfile.cpu", DEPLOY / "Dockerfile.cuda"]
ENVIRONMENT_FILE = DEPLOY / "regard.env"
SCRIPT = runpy.run_path(str(ROOT / "docs" / "serve_environment.py"))
format_environment: Callable[[], str] = SCRIPT["format_environment"]
WAIT = 60.0  # seconds, for a process to start


class Image(NamedTuple):
    """What a Dockerfile says of the container that runs."""

    environment: dict[str, str]
    entry_point: list[str]
    health_check: list[str]
    copied: list[str]
    instructions: list[tuple[str, str]]


def read_dockerfile(path: Path) -> Image:
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    instructions = [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]
    last = dict(instructions)
    environment = dict(word.split("=", 1) for name, rest in instructions if name == "ENV" for word in shlex.split(rest))
    copies = [rest.split()[:-1] for name, rest in instructions if name == "COPY" and "--from" not in rest]
    health_check = json.loads(last["HEALTHCHECK"].partition(" CMD ")[2])
    return Image(
        environment,
        json.loads(last["ENTRYPOINT"]),
        health_check,
        [name for names in copies for name in names],
        instructions,
    )


def as_this_python(command: list[str]) -> list[str]:
    """Return the command with the interpreter of the tests instead of the container's."""
    replaced = {"regard": [sys.executable, "-m", "regard"], "python": [sys.executable]}
    return [*replaced[Path(command[0]).name], *command[1:]]


def test_environment_file_has_every_option_of_serve() -> None:
    assert ENVIRONMENT_FILE.read_text(encoding="utf-8") == format_environment(), "run: python docs/serve_environment.py"
    assert len(re.findall(r"^#REGARD_SERVE_", format_environment(), re.MULTILINE)) > 30


def list_known_variables() -> set[str]:
    options = re.findall(r"#(REGARD_SERVE_\w+)=", format_environment())
    return {*options, "REGARD_CACHE", "REGARD_DOMAIN", "REGARD_UPSTREAM"}


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_variables_in_the_files_of_deploy_exist(path: Path) -> None:
    assert {*re.findall(r"REGARD_[A-Z_]+[A-Z]", path.read_text(encoding="utf-8"))} <= list_known_variables()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_copy_files_that_exist_and_are_not_ignored(path: Path) -> None:
    image = read_dockerfile(path)
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    allowed = set(re.findall("^!(.*)$", ignore, re.MULTILINE))
    assert all((ROOT / name).exists() for name in image.copied)
    assert set(image.copied) == allowed
    users = [rest for name, rest in image.instructions if name == "USER"]
    assert users
    assert users[-1] not in ("0", "root")


def test_images_for_cpu_and_gpu_differ_in_device_and_pytorch_only() -> None:
    cpu, cuda = map(read_dockerfile, DOCKERFILES)
    assert (cpu.entry_point, cpu.health_check, cpu.copied) == (cuda.entry_point, cuda.health_check, cuda.copied)
    assert cpu.environment.items() - cuda.environment.items() == {("REGARD_SERVE_DEVICE", "cpu")}
    assert cuda.environment["REGARD_SERVE_DEVICE"] == "cuda"


@pytest.mark.slow
def test_entry_point_of_the_image_serves_and_is_healthy(fluent_run: Run, tmp_path: Path) -> None:
    """Run entry point and health check as processes, with the variables of the image."""
    image = read_dockerfile(DOCKERFILES[0])
    settings = {"REGARD_SERVE_PORT": "0", "REGARD_SERVE_RUNS": str(fluent_run.folder), "REGARD_SERVE_JOBS": "0"}
    settings |= {"REGARD_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **image.environment, **settings}
    process = subprocess.Popen(
        as_this_python(image.entry_point), env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().rpartition(":")[2].strip().strip("/")
        check = as_this_python(image.health_check)
        for tested, healthy in ((port, True), ("1", False)):
            variables = {**environment, "REGARD_SERVE_PORT": tested}
            done = subprocess.run(check, env=variables, check=False, capture_output=True)
            assert (done.returncode == 0) == healthy, done.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) == 0
    finally:
        process.kill()
        process.communicate()


def test_systemd_unit_starts_the_entry_point_of_the_images() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "regard@.service", encoding="utf-8")
    command = shlex.split(unit["Service"]["ExecStart"])
    assert ["regard", *command[1:]] == [*read_dockerfile(DOCKERFILES[0]).entry_point, "--port", "%i"]
    assert unit["Service"]["ExecStartPost"].endswith("http://127.0.0.1:%i/ready")
    assert unit["Service"]["EnvironmentFile"] == "/etc/regard.env"


def test_compose_file_builds_an_image_and_mounts_files_of_this_folder() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert (ROOT / services["regard"]["build"]["dockerfile"]).exists()
    assert (DEPLOY / services["caddy"]["volumes"][0].partition(":")[0]).exists()
    assert set(services["regard"]["environment"]) <= list_known_variables()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("promtool"), reason="needs prometheus")
def test_prometheus_accepts_targets_and_alerts(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(DEPLOY / name, tmp_path)
    (tmp_path / "metrics.token").write_text("token", encoding="utf-8")
    done = subprocess.run(["promtool", "check", "config", "prometheus.yml"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_alerts_use_metrics_that_the_service_has() -> None:
    names = set(re.findall(r"regard_\w+", (DEPLOY / "alerts.yml").read_text(encoding="utf-8")))
    assert len(names) >= 3
    exported = Metrics()
    exported.requests.labels("/translate", "200")
    exported.seconds.labels("/translate")
    exported.record_admission("en-de", 1, 0)
    assert [name for name in names if f"\n{name}{{" not in generate_latest(exported.registry).decode()] == []


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def start_proxy(command: list[str], url: str, **variables: str) -> Iterator[httpx.Client]:
    """Start a proxy, and yield a client when it answers; the certificate is not checked."""
    environment = {**os.environ, **variables}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    transport = httpx.HTTPTransport(verify=False, retries=8)  # waits longer before each
    try:
        with httpx.Client(base_url=url, transport=transport, timeout=WAIT) as client:
            yield client
    finally:
        process.terminate()
        process.wait(WAIT)


def check_proxied(client: httpx.Client, server: Client) -> None:
    """Check that the service sees the client and the scheme, and that files and streams pass the proxy."""
    fields = {"q": "the old house", "source": "en", "target": "de"}
    assert client.post("/translate", json=fields).json()["translatedText"]
    assert client.get("/metrics").status_code == 404
    files = {"file": ("a.txt", b"the old house")}
    url = client.post("/translate_file", data={"source": "en", "target": "de"}, files=files).json()["translatedFileUrl"]
    assert url.startswith(f"{client.base_url}".rstrip("/") + "/download_file/")
    assert client.get(url).status_code == 200
    with client.stream("POST", "/v1/translate/stream", json=fields) as answer:
        assert "event: end" in answer.read().decode()
    assert client.get("/languages", headers={"X-Forwarded-For": "203.0.113.9"}).status_code == 200
    assert server.logged("/languages")["client"] == "127.0.0.1"


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("nginx") and shutil.which("openssl")), reason="needs nginx and openssl")
def test_nginx_forwards_to_the_service(fluent_run: Run, tmp_path: Path, free_port: int) -> None:
    certificate, key = tmp_path / "a.pem", tmp_path / "a.key"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*request, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    with serve_in_thread(fluent_run.folder, trust_proxy=True) as server:
        site = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
        for old, new in {
            "listen 443": f"listen 127.0.0.1:{free_port}",
            "/etc/ssl/translate.pem": str(certificate),
            "/etc/ssl/translate.key": str(key),
            "127.0.0.1:5000": server.url.partition("//")[2],
            "127.0.0.1:5001": "127.0.0.1:1",  # the other service restarts
        }.items():
            assert old in site
            site = site.replace(old, new)
        config = tmp_path / "nginx.conf"
        paths = "".join(
            f"{kind}_temp_path {tmp_path};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        head = f"daemon off; pid {tmp_path}/pid; error_log stderr; events {{}}"
        config.write_text(f"{head} http {{ access_log off; {paths}\n{site}}}", encoding="utf-8")
        command = ["nginx", "-p", str(tmp_path), "-c", str(config), "-e", "stderr"]
        with start_proxy(command, f"https://127.0.0.1:{free_port}") as client:
            check_proxied(client, server)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("caddy"), reason="needs caddy")
def test_caddy_forwards_to_the_service(fluent_run: Run, tmp_path: Path, free_port: int) -> None:
    command = ["caddy", "run", "--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile"]
    with serve_in_thread(fluent_run.folder, trust_proxy=True) as server:
        variables = {"REGARD_DOMAIN": f"http://127.0.0.1:{free_port}", "REGARD_UPSTREAM": server.url.partition("//")[2]}
        with start_proxy(
            command, f"http://127.0.0.1:{free_port}", **variables, HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path)
        ) as client:
            check_proxied(client, server)
