"""The server process of `regard serve`: addresses, uvicorn, signals."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
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
    with ExitStack() as stack:
        sockets = bind(settings.host, settings.port)
        stack.callback(close_all, sockets)
        sys.setswitchinterval(0.0005)  # seconds: the event loop must not wait long for threads that decode
        service = stack.enter_context(closing(Service(runs, settings)))
        server = Server(make_server_config(service))
        _handle_termination(server.handle_exit)
        listen(sockets)
        freeze_garbage_collector()
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


def bind(host: str, port: int) -> list[socket.socket]:
    """Bind a socket to each address of a host, before models are loaded; clients cannot connect yet.

    uvicorn binds only when the application is loaded.
    """
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host}: no such address ({getattr(error, 'strerror', None) or error})") from error
    sockets: list[socket.socket] = []
    for number, (family, kind, protocol, _, address) in enumerate(addresses, 1):
        try:
            sockets.append(_bind_one(family, kind, protocol, (address[0], port, *address[2:])))
        except OSError as error:
            if error.errno in UNAVAILABLE and (sockets or number < len(addresses)):
                continue
            close_all(sockets)
            raise _explain_bind_error(host, port, error) from error
        port = sockets[0].getsockname()[1]  # if it is 0, any free port, the same for all addresses
    return sockets


def _bind_one(family: int, kind: int, protocol: int, address: tuple[str | int, ...]) -> socket.socket:
    bound = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # where it would allow a second service on the same port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def listen(sockets: Sequence[socket.socket]) -> None:
    """Let clients connect, once models are loaded: a proxy with two services asks the other one until then.

    Another process may listen on an address since it was bound.
    """
    for bound in sockets:
        try:
            bound.listen(BACKLOG)
        except OSError as error:
            host, port = bound.getsockname()[:2]
            raise _explain_bind_error(host, port, error) from error


def close_all(sockets: Sequence[socket.socket]) -> None:
    """Close the sockets."""
    for bound in sockets:
        bound.close()


def _explain_bind_error(host: str, port: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return UserError(f"port {port} of {host} is in use already; choose another with --port (0: any that is free)")
    return UserError(f"--host {host} --port {port} cannot be listened on: {error.strerror or error}")


def format_url(host: str, sockets: Sequence[socket.socket]) -> str:
    """Return the URL of the service, for a browser."""
    port = sockets[0].getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host or '0.0.0.0'}:{port}"
