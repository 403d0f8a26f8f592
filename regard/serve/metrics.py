"""What Prometheus is told."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PIECES = (1, 2, 4, 8, 16, 32, 64, 128)


class Figures:
    """Counters of one service."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.requests = Counter("regard_requests_total", "Requests answered", ["path", "status"], registry=own)
        self.seconds = Histogram("regard_request_seconds", "Time to an answer", ["path"], registry=own, buckets=SECONDS)
        self.characters = Counter("regard_characters_total", "Characters translated", ["model"], registry=own)
        self.batches = Histogram(
            "regard_batch_sentences", "Sentences that begin together", ["model"], registry=own, buckets=PIECES
        )
        self.waiting = Gauge("regard_waiting_sentences", "Sentences that wait", ["model"], registry=own)

    def batch(self, name: str, pieces: int, waiting: int) -> None:
        """Pieces that come into a batch."""
        self.batches.labels(name).observe(pieces)
        self.waiting.labels(name).set(waiting)

    def page(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


LOG = logging.getLogger("regard.serve")


class Lines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, what happened, and the figures that go with it."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "figures", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def begin() -> None:
    """All of it goes to standard error, what the server and the libraries have to say among it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    for name in ("regard.serve", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # a stranger's broken form is no event


def note(event: str, level: int = logging.INFO, error: BaseException | None = None, **figures: Any) -> None:
    """One line."""
    LOG.log(level, event, exc_info=error, extra={"figures": figures})
