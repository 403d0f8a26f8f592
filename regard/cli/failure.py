"""How a command that cannot go on says so: to a person, and to torchrun where that has started it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from regard.console import is_first

DEBUG = "REGARD_DEBUG"  # the environment variable behind --debug
REPORT = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for what a process of its own died of


def under_torchrun() -> bool:
    """Whether torchrun has started this process, alone or with others."""
    return REPORT in os.environ


def fail(sentence: str) -> NoReturn:
    """Ends with 2 and one sentence; of several processes one speaks, and torchrun's report has it as the cause.

    With --debug (REGARD_DEBUG=1) each process prints the traceback of the exception that is being handled as well.
    """
    said = f"regard: {sentence}"
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        traceback.print_exc()
    if is_first() and sys.stderr is not None:  # closed before the start, as by `2>&-`
        sys.stderr.write(f"{said}\n")
    if under_torchrun():
        with suppress(OSError):  # a disk that is full may be what the sentence is about
            Path(os.environ[REPORT]).write_text(json.dumps(cause(said)), encoding="utf-8")
    sys.exit(2)


def cause(said: str) -> dict[str, object]:
    """The form in which torchrun reads it."""
    # The earliest is the cause, by whole seconds: those that torchrun ends because of this one must all seem later.
    return {"message": {"message": said, "extraInfo": {"timestamp": str(int(time.time()) - 1)}}}
