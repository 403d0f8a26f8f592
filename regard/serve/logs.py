"""What the service says of itself: a JSON object a line, and never a word of what was translated."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

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
