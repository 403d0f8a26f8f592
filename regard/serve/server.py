"""The server process of `regard serve`: addresses, uvicorn, signals."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import FrameType

import uvicorn

from regard.errors import UserError
from regard.serve.app import make_application
from regard.serve.connections import make_protocol
from regard.serve.engine.workers import freeze_garbage_collector
from regard.serve.metrics import configure_logging, log_event
from regard.serve.service import Service
from regard.serve.settings import Settings

UNAVAILABLE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # of several addresses of a host, one may be missing here
BACKLOG = 2048  # connections that wait to be accepted


class Server(uvicorn.Server):
    """Server of uvicorn that does not raise a termination signal again after it has ended."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End after the current requests; at once after a second Ctrl-C."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


def serve(runs: Sequence[str], settings: Settings) -> None:
    """Load the runs and answer requests until a signal ends the service; accepted requests are answered first."""
    configure_logging()
    _handle_termination(_exit)
    close_all(listen(settings.host, settings.port))  # an address that cannot be used is reported at once
    sys.setswitchinterval(0.0005)  # seconds: the event loop must not wait long for threads that decode
    with closing(Service(runs, settings)) as service:
        server = Server(make_server_config(service))
        _handle_termination(server.handle_exit)
        freeze_garbage_collector()
        # Only now: of two services, a proxy asks the other one as long as this one refuses connections.
        sockets = listen(settings.host, settings.port)
        announce(service, format_url(settings.host, sockets))
        server.run(sockets)


def _handle_termination(handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle SIGTERM, and SIGHUP (a closed terminal) unless it is ignored, as under nohup."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    """End while models are loaded, and clean up."""
    raise SystemExit(128 + number)


def make_server_config(service: Service) -> uvicorn.Config:
    """Make the configuration of uvicorn."""
    limit = service.settings.connection_limit
    return uvicorn.Config(
        make_application(service),
        http=make_protocol(service.settings.patience),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=None if limit < 0 else limit + 1,  # at which requests are refused
        timeout_keep_alive=75,
        timeout_graceful_shutdown=60,  # for clients that do not read their responses
        lifespan="off",
    )


def announce(service: Service, url: str) -> None:
    """Log what is served and where, and print it in one line."""
    models, predictors = service.models.models.values(), service.models.predictors.values()
    for model in models:
        log_event("model", name=model.name, run=str(model.folder), source=model.source, target=model.target)
    for predictor in predictors:
        log_event("model", name=predictor.name, run=str(predictor.folder), task=predictor.task)
    served = [f"{model.name} ({model.source}-{model.target})" for model in models]
    served += [f"{predictor.name} ({predictor.task})" for predictor in predictors]
    log_event(f"running on {url}")
    if sys.stdout is None:  # closed before the start, as by `>&-`
        return
    try:
        sys.stdout.write(f"regard serves {', '.join(served)} at {url}{service.settings.url_prefix}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # nothing reads it any more; what is still buffered must not fail at exit either
        with Path(os.devnull).open("w") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())


def listen(host: str, port: int) -> list[socket.socket]:
    """Listen on each address of a host, on one port: if it is 0, any that is free."""
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host}: no such address ({getattr(error, 'strerror', None) or error})") from error
    sockets: list[socket.socket] = []
    for number, (family, _, _, _, address) in enumerate(addresses, 1):
        try:
            sockets.append(socket.create_server((address[0], port, *address[2:]), family=family, backlog=BACKLOG))
        except OSError as error:
            if error.errno in UNAVAILABLE and (sockets or number < len(addresses)):
                continue
            close_all(sockets)
            message = f"--host {host} --port {port} cannot be listened on: {error.strerror or error}"
            if error.errno == errno.EADDRINUSE:
                message = f"port {port} of {host} is in use already; choose another with --port (0: any that is free)"
            raise UserError(message) from error
        port = sockets[0].getsockname()[1]
    return sockets


def close_all(sockets: Sequence[socket.socket]) -> None:
    """Close the sockets."""
    for bound in sockets:
        bound.close()


def format_url(host: str, sockets: Sequence[socket.socket]) -> str:
    """Return the URL of the service, for a browser."""
    port = sockets[0].getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host or '0.0.0.0'}:{port}"
