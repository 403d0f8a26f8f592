"""Metrics for Prometheus, and the log: JSON lines without any text of a request."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128)
LOG = logging.getLogger("regard.serve")


class Metrics:
    """Prometheus metrics of one service."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.requests = Counter("regard_requests_total", "Requests answered", ["path", "status"], registry=own)
        self.seconds = Histogram("regard_request_seconds", "Time to an answer", ["path"], registry=own, buckets=SECONDS)
        self.characters = Counter("regard_characters_total", "Characters translated", ["model"], registry=own)
        self.admitted = Histogram(
            "regard_batch_sentences", "Sentences that begin together", ["model"], registry=own, buckets=SENTENCES
        )
        self.waiting = Gauge("regard_waiting_sentences", "Sentences that wait", ["model"], registry=own)

    def record_admission(self, model: str, admitted: int, waiting: int) -> None:
        """Record how many sentences were added to a batch at once, and how many still wait."""
        self.admitted.labels(model).observe(admitted)
        self.waiting.labels(model).set(waiting)


class JsonFormatter(logging.Formatter):
    """Format a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, event, and the fields of the event."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging() -> None:
    """Log everything to standard error, warnings and the messages of the libraries included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    for name in ("regard.serve", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # a malformed form of a client is no event


def log_event(event: str, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Log an event with its fields."""
    LOG.log(level, event, exc_info=error, extra={"fields": fields})
