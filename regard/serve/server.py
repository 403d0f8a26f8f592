"""The process that listens."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

import torch
import uvicorn

from regard.serve import logs
from regard.serve.app import application
from regard.serve.connection import patient
from regard.serve.service import Service
from regard.serve.settings import Settings


def serve(runs: Sequence[str], settings: Settings) -> None:
    """Loads the runs and answers until it is told to stop; what was accepted is finished first."""
    logs.begin()
    sys.setswitchinterval(0.0005)  # who listens must not wait long for who decodes
    torch.set_num_threads(max(1, torch.get_num_threads() // settings.threads))
    service = Service(runs, settings)
    for served in service.fleet.served.values():
        logs.note("model", name=served.name, run=str(served.folder), source=served.source, target=served.target)
    config = uvicorn.Config(
        application(service),
        host=settings.host,
        port=settings.port,
        http=patient(settings.patience),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=60,  # for those who do not read what they asked for
        lifespan="on",
    )
    with suppress(KeyboardInterrupt):  # which has done its work when it comes here
        uvicorn.Server(config).run()
