"""How fast a run trains and translates."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.config import parse_settings
from regard.data.batch import Seq2SeqBatch
from regard.data.readers.dispatch import Pair, read_all_pairs
from regard.reproduce.experiment import ExperimentRow, MetricValues
from regard.reproduce.metrics import make_batches, measure_translation
from regard.runs import Run
from regard.training import TrainingSettings, choose_device
from regard.training.distributed import SINGLE_PROCESS, ModelWithLoss
from regard.training.gradient_accumulation import GradientAccumulator
from regard.translate import Translator, load

if TYPE_CHECKING:
    from regard.reproduce.workspace import Workspace

TIMED_BATCHES = 6  # batches that training is timed by
WARMUP_REPEATS, TIMED_REPEATS = 14, 5  # times that they come on a GPU before the clock counts, and after
GPU_DECODING_PASSES = 4  # over the test set on a GPU, of which the last is timed: recordings are made in the third
MIN_SAMPLED_PAIRS = 10_000  # pairs that they are chosen from, or some more


def measure_translation_and_speed(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """The same as `translation`, with tokens a second in training and words a second in translating beside it."""
    corpus, translator = (
        workspace.get_corpus(row.trainings[0].corpus),
        load(*map(workspace.train_or_resume, row.trainings)),
    )
    return {
        **workspace.measure_row(measure_translation, row),
        "training_speed": measure_training_speed(
            translator, read_all_pairs(corpus.train), _read_training_settings(workspace.run_folder(row.trainings[0]))
        ),
        "decoding_speed": measure_decoding_speed(translator, [pair.source for pair in read_all_pairs(corpus.test)]),
    }


def _read_training_settings(folder: Path) -> TrainingSettings:
    """How a run was trained."""
    return parse_settings(TrainingSettings, Run(folder).read_config()["training"], "training")


def measure_decoding_speed(translator: Translator, sources: Sequence[str]) -> float:
    """Words a second of all translations, with a beam of 5; on a GPU when all is recorded that will be."""
    for _ in range(GPU_DECODING_PASSES if translator.device.type == "cuda" else 1):
        began = read_clock(translator.device)
        made = [one.text for one in translator.translate(sources, alignments=False, beam=5)]
        seconds = read_clock(translator.device) - began
    return sum(len(text.split()) for text in made) / max(1e-9, seconds)


def measure_training_speed(translator: Translator, train: Sequence[Pair], settings: TrainingSettings) -> float:
    """Target tokens a second of training, padding not counted: gradients, without the optimizer, as the run had them.

    Batches are as large as the run's, of sentences of all lengths. On a GPU the copy goes the readable way first, as
    every training does; what is timed comes when faster ways have taken over and recorded batches like these.
    """
    device = choose_device(settings.device)
    model = copy.deepcopy(translator.models[0]).to(device).train()
    gradients = GradientAccumulator(ModelWithLoss(model), settings, device, SINGLE_PROCESS)
    made = make_batches(translator, subsample_pairs(train), settings.batch_tokens, translator.max_source_tokens)
    some = [batch.to(device) for batch in _choose_timed_batches(made)]
    warm, counted = (some * WARMUP_REPEATS, some * TIMED_REPEATS) if device.type == "cuda" else (some[:1], some)
    _accumulate_gradients(gradients, warm)
    began = read_clock(device)
    _accumulate_gradients(gradients, counted)
    seconds = read_clock(device) - began
    return sum(batch.num_tokens for batch in counted) / max(1e-9, seconds)


def _accumulate_gradients(gradients: GradientAccumulator, batches: Sequence[Seq2SeqBatch]) -> None:
    """Forwards and backwards, one batch after the other."""
    for step, batch in enumerate(batches, 1):
        gradients.accumulate([batch], step, micro_batches=1)


def subsample_pairs(train: Sequence[Pair]) -> Sequence[Pair]:
    """Not many more than are looked at, from all over a corpus."""
    return train[:: max(1, len(train) // MIN_SAMPLED_PAIRS)]


def _choose_timed_batches(batches: Sequence[Seq2SeqBatch]) -> list[Seq2SeqBatch]:
    """The middle one of each of so many equal parts; the same one again where there are fewer."""
    return [batches[(2 * part + 1) * len(batches) // (2 * TIMED_BATCHES)] for part in range(TIMED_BATCHES)]


def read_clock(device: torch.device) -> float:
    """Seconds: of this process on a CPU, which others may use as well; of the wall where a GPU works."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
