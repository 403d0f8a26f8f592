"""JoeyNMT's own command line, with some courtesies: `python -m benchmarks.peers.workers.joeynmt_command train FILE`.

It cuts each sentence into pieces twice an epoch, in the process that feeds the GPU (its workers cannot help there: they
would move batches to the GPU themselves). Here what was cut once is remembered, and all is cut before the first epoch.
Who asks it to stop while it validates waits until that is done and its checkpoint written. And it does not tell
SentencePiece which pieces to use, which newer versions cannot be told: they are all of its model's.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

from joeynmt.__main__ import main
from joeynmt.tokenizers import BasicTokenizer, SentencePieceTokenizer
from joeynmt.training import TrainManager


class Stop:
    """Being asked to stop, which JoeyNMT takes as Ctrl-C."""

    def __init__(self) -> None:
        self.asked = False
        self.later = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """What happens when the signal comes."""
        self.asked = True
        self.heed()

    def heed(self) -> None:
        """Stops now, unless it is to be later."""
        if self.asked and not self.later:
            raise KeyboardInterrupt

    def after(self, validate: Callable[..., None]) -> Callable[..., None]:
        """The same validation, which is not interrupted."""

        def whole(manager: Any, valid_data: Any) -> None:
            self.later = True
            validate(manager, valid_data)
            self.later = False
            self.heed()

        return whole


def prepared(train: Callable[..., None]) -> Callable[..., None]:
    """The same training, with every sentence cut before it begins."""

    def begin(manager: Any, train_data: Any, valid_data: Any) -> None:
        for data in (train_data, valid_data):
            for row in range(len(data)):
                data[row]
        train(manager, train_data=train_data, valid_data=valid_data)

    return begin


if __name__ == "__main__":
    stop = Stop()
    signal.signal(signal.SIGINT, stop.note)
    SentencePieceTokenizer.__call__ = cache(SentencePieceTokenizer.__call__)
    SentencePieceTokenizer.set_vocab = BasicTokenizer.set_vocab
    TrainManager._validate = stop.after(TrainManager._validate)
    TrainManager.train_and_validate = prepared(TrainManager.train_and_validate)
    main()
