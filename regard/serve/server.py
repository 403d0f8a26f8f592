"""The process that listens."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from regard.errors import UserError
from regard.serve import metrics
from regard.serve.app import application
from regard.serve.engine.workers import settle
from regard.serve.http.middleware import prefix
from regard.serve.http.timeouts import patient
from regard.serve.service import Service
from regard.serve.settings import Settings


class Server(uvicorn.Server):
    """As uvicorn has it, but a signal to end has done its work when the server has ended: it is not raised again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends when all is answered; after a second Ctrl-C, at once."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


def serve(runs: Sequence[str], settings: Settings) -> None:
    """Loads the runs and answers until it is told to stop; what was accepted is finished first."""
    metrics.begin()
    on_end_signals(end)
    sockets = taken(settings.host, settings.port)
    try:
        sys.setswitchinterval(0.0005)  # who listens must not wait long for who decodes
        service = Service(runs, settings)
        try:
            server = Server(configuration(service))
            on_end_signals(server.handle_exit)
            listen(sockets)
            settle()
            tell(service, url(settings.host, sockets))
            server.run(sockets)
        finally:
            service.close()
    finally:
        release(sockets)


def on_end_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle SIGTERM, and SIGHUP (a closed terminal) unless it is ignored, as under nohup."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, handler)


def end(number: int, frame: FrameType | None) -> None:
    """A signal to end while nothing is served: what there is to put away is put away."""
    raise SystemExit(128 + number)


def configuration(service: Service) -> uvicorn.Config:
    """How uvicorn is to go about it."""
    return uvicorn.Config(
        application(service),
        http=patient(service.settings.patience),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=None if (most := service.settings.connection_limit) < 0 else most,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=60,  # for those who do not read what they asked for
        lifespan="off",
    )


def tell(service: Service, url: str) -> None:
    """What is served and where: the log's lines, and one for whoever started it."""
    pairs = []
    for served in service.fleet.served.values():
        metrics.note("model", name=served.name, run=str(served.folder), source=served.source, target=served.target)
        pairs.append(f"{served.name} ({served.source}-{served.target})")
    for hand in service.crew.hands.values():
        metrics.note("model", name=hand.name, run=str(hand.folder), task=hand.task)
        pairs.append(f"{hand.name} ({hand.task})")
    metrics.note(f"running on {url}")
    if sys.stdout is None:  # closed before the start, as by `>&-`
        return
    try:
        sys.stdout.write(f"regard serves {', '.join(pairs)} at {url}{prefix(service.settings.url_prefix)}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # not read any more; what is still buffered must not fail at exit either
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # of a name that stands for several, one may be such as is not here
WAITING = 2048  # connections that wait to be taken


def taken(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host; nobody can connect yet."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host}: no such address ({getattr(error, 'strerror', None) or error})") from error
    sockets: list[socket.socket] = []
    for number, (family, kind, protocol, _, address) in enumerate(found):
        try:
            sockets.append(bound(family, kind, protocol, (address[0], port, *address[2:])))
        except OSError as error:
            if error.errno in ABSENT and (sockets or number + 1 < len(found)):
                continue
            release(sockets)
            raise refused(host, port, error) from error
        port = sockets[0].getsockname()[1]  # 0 is any: the same on all of them
    return sockets


def bound(family: int, kind: int, protocol: int, address: tuple[str | int, ...]) -> socket.socket:
    """One of them."""
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def listen(sockets: Sequence[socket.socket]) -> None:
    """From now on somebody can connect, unless another process was quicker since the addresses were taken."""
    for one in sockets:
        try:
            one.listen(WAITING)
        except OSError as error:
            host, port = one.getsockname()[:2]
            raise refused(host, port, error) from error


def release(sockets: Sequence[socket.socket]) -> None:
    """Gives them back."""
    for one in sockets:
        one.close()


def refused(host: str, port: int, error: OSError) -> UserError:
    """Why an address cannot be listened on."""
    why = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        return UserError(f"port {port} of {host} is in use already; choose another with --port (0: any that is free)")
    return UserError(f"--host {host} --port {port} cannot be listened on: {why}")


def url(host: str, sockets: Sequence[socket.socket]) -> str:
    """Where the service is, for a person to open."""
    port = sockets[0].getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host or '0.0.0.0'}:{port}"
