"""The process that listens."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from regard.serve import listening, logs
from regard.serve.app import application
from regard.serve.connection import patient
from regard.serve.prefix import prefix
from regard.serve.service import Service
from regard.serve.settings import Settings
from regard.serve.settling import settle


class Server(uvicorn.Server):
    """As uvicorn has it, but a signal to end has done its work when the server has ended: it is not raised again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends when all is answered; after a second Ctrl-C, at once."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


def serve(runs: Sequence[str], settings: Settings) -> None:
    """Loads the runs and answers until it is told to stop; what was accepted is finished first."""
    logs.begin()
    on_end_signals(end)
    sockets = listening.taken(settings.host, settings.port)
    try:
        sys.setswitchinterval(0.0005)  # who listens must not wait long for who decodes
        service = Service(runs, settings)
        try:
            server = Server(configuration(service))
            on_end_signals(server.handle_exit)
            listening.listen(sockets)
            settle()
            tell(service, listening.url(settings.host, sockets))
            server.run(sockets)
        finally:
            service.close()
    finally:
        listening.release(sockets)


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
        logs.note("model", name=served.name, run=str(served.folder), source=served.source, target=served.target)
        pairs.append(f"{served.name} ({served.source}-{served.target})")
    for hand in service.crew.hands.values():
        logs.note("model", name=hand.name, run=str(hand.folder), task=hand.task)
        pairs.append(f"{hand.name} ({hand.task})")
    logs.note(f"running on {url}")
    if sys.stdout is None:  # closed before the start, as by `>&-`
        return
    try:
        sys.stdout.write(f"regard serves {', '.join(pairs)} at {url}{prefix(service.settings.url_prefix)}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # not read any more; what is still buffered must not fail at exit either
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
