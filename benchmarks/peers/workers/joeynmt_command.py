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


class StopRequest:
    """Being asked to stop, which JoeyNMT takes as Ctrl-C."""

    def __init__(self) -> None:
        self.is_requested = False
        self.is_deferred = False

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """What happens when the signal comes."""
        self.is_requested = True
        self.raise_if_due()

    def raise_if_due(self) -> None:
        """Stops now, unless it is to be later."""
        if self.is_requested and not self.is_deferred:
            raise KeyboardInterrupt

    def defer_during(self, validate: Callable[..., None]) -> Callable[..., None]:
        """The same validation, which is not interrupted."""

        def validate_uninterrupted(manager: Any, valid_data: Any) -> None:
            self.is_deferred = True
            validate(manager, valid_data)
            self.is_deferred = False
            self.raise_if_due()

        return validate_uninterrupted


def tokenize_before_training(train: Callable[..., None]) -> Callable[..., None]:
    """The same training, with every sentence cut before it begins."""

    def train_after_tokenizing(manager: Any, train_data: Any, valid_data: Any) -> None:
        for data in (train_data, valid_data):
            for row in range(len(data)):
                data[row]
        train(manager, train_data=train_data, valid_data=valid_data)

    return train_after_tokenizing


if __name__ == "__main__":
    stop = StopRequest()
    signal.signal(signal.SIGINT, stop.handle_signal)
    SentencePieceTokenizer.__call__ = cache(SentencePieceTokenizer.__call__)
    SentencePieceTokenizer.set_vocab = BasicTokenizer.set_vocab
    TrainManager._validate = stop.defer_during(TrainManager._validate)
    TrainManager.train_and_validate = tokenize_before_training(TrainManager.train_and_validate)
    main()
