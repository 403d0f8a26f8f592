"""How fast a run trains and translates."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.config import parse
from regard.data.batches import Batch
from regard.data.corpus import Pair, pairs
from regard.reproduce.experiment import Row, Values
from regard.reproduce.measures import batches, translation
from regard.runs import Run
from regard.training import TrainingSettings, choose_device
from regard.training.gradients import Gradients
from regard.training.objective import Objective
from regard.training.processes import ALONE
from regard.translate import Translator, load

if TYPE_CHECKING:
    from regard.reproduce.lab import Lab

SAMPLE = 6  # batches that training is timed by
UNTIMED, TIMED = 14, 5  # times that they come on a GPU before the clock counts, and after
PASSES = 4  # over the test set on a GPU, of which the last is timed: recordings are made in the third
LOOKED = 10_000  # pairs that they are chosen from, or some more


def timed(lab: Lab, row: Row) -> Values:
    """The same as `translation`, with tokens a second in training and words a second in translating beside it."""
    corpus, translator = lab.corpus(row.trainings[0].corpus), load(*map(lab.trained, row.trainings))
    return {
        **lab.measured(translation, row),
        "training_speed": pace(translator, pairs(corpus.train), training_of(lab.folder(row.trainings[0]))),
        "decoding_speed": writing(translator, [pair.source for pair in pairs(corpus.test)]),
    }


def training_of(folder: Path) -> TrainingSettings:
    """How a run was trained."""
    return parse(TrainingSettings, Run(folder).config()["training"], "training")


def writing(translator: Translator, sources: Sequence[str]) -> float:
    """Words a second of all translations, with a beam of 5; on a GPU when all is recorded that will be."""
    for _ in range(PASSES if translator.device.type == "cuda" else 1):
        began = clock(translator.device)
        made = [one.text for one in translator.translate(sources, alignments=False, beam=5)]
        seconds = clock(translator.device) - began
    return sum(len(text.split()) for text in made) / max(1e-9, seconds)


def pace(translator: Translator, train: Sequence[Pair], settings: TrainingSettings) -> float:
    """Target tokens a second of training, padding not counted: gradients, without the optimizer, as the run had them.

    Batches are as large as the run's, of sentences of all lengths. On a GPU the copy goes the readable way first, as
    every training does; what is timed comes when faster ways have taken over and recorded batches like these.
    """
    device = choose_device(settings.device)
    model = copy.deepcopy(translator.models[0]).to(device).train()
    gradients = Gradients(Objective(model), settings, device, ALONE)
    made = batches(translator, thinned(train), settings.batch_tokens, translator.limit)
    some = [batch.to(device) for batch in sample(made)]
    warm, counted = (some * UNTIMED, some * TIMED) if device.type == "cuda" else (some[:1], some)
    passed(gradients, warm)
    began = clock(device)
    passed(gradients, counted)
    seconds = clock(device) - began
    return sum(batch.tokens for batch in counted) / max(1e-9, seconds)


def passed(gradients: Gradients, some: Sequence[Batch]) -> None:
    """Forwards and backwards, one batch after the other."""
    for step, batch in enumerate(some, 1):
        gradients.add([batch], step, pieces=1)


def thinned(train: Sequence[Pair]) -> Sequence[Pair]:
    """Not many more than are looked at, from all over a corpus."""
    return train[:: max(1, len(train) // LOOKED)]


def sample(made: Sequence[Batch]) -> list[Batch]:
    """The middle one of each of so many equal parts; the same one again where there are fewer."""
    return [made[(2 * part + 1) * len(made) // (2 * SAMPLE)] for part in range(SAMPLE)]


def clock(device: torch.device) -> float:
    """Seconds: of this process on a CPU, which others may use as well; of the wall where a GPU works."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
