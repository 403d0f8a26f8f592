"""What Prometheus is told."""

from __future__ import annotations

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
