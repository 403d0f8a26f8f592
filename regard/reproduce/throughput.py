"""Measure training and decoding throughput."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from regard.config import parse_settings
from regard.data.dataset import Seq2SeqBatch
from regard.data.readers.dispatch import read_all_pairs
from regard.data.readers.text import Pair
from regard.reproduce.experiment import ExperimentRow, MetricValues
from regard.reproduce.metrics import make_batches, measure_translation
from regard.runs import Run
from regard.training import TrainingSettings, choose_device
from regard.training.distributed import SINGLE_PROCESS, ModelWithLoss
from regard.training.gradient_accumulation import GradientAccumulator
from regard.translate import Translator, load

if TYPE_CHECKING:
    from regard.reproduce.workspace import Workspace

TIMED_BATCHES = 6
WARMUP_REPEATS, TIMED_REPEATS = 14, 5  # of these batches on a GPU
GPU_DECODING_PASSES = 4  # over the test set; the last is timed, since CUDA graphs are captured in the third
MIN_SAMPLED_PAIRS = 10_000  # the batches are chosen from


def measure_translation_and_speed(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure translation, and tokens per second in training and words per second in decoding."""
    training = row.trainings[0]
    corpus, translator = workspace.get_corpus(training.corpus), load(*map(workspace.train_or_resume, row.trainings))
    settings = parse_settings(
        TrainingSettings, Run(workspace.run_folder(training)).read_config()["training"], "training"
    )
    sources = [pair.source for pair in read_all_pairs(corpus.test)]
    return {
        **workspace.measure_row(measure_translation, row),
        "training_speed": measure_training_speed(translator, read_all_pairs(corpus.train), settings),
        "decoding_speed": measure_decoding_speed(translator, sources),
    }


def measure_decoding_speed(translator: Translator, sources: Sequence[str]) -> float:
    """Return words per second with beam size 5; on a GPU after CUDA graphs are captured."""
    for _ in range(GPU_DECODING_PASSES if translator.device.type == "cuda" else 1):
        start = read_clock(translator.device)
        texts = [translation.text for translation in translator.translate(sources, alignments=False, beam=5)]
        seconds = read_clock(translator.device) - start
    return sum(len(text.split()) for text in texts) / max(1e-9, seconds)


def measure_training_speed(translator: Translator, train: Sequence[Pair], settings: TrainingSettings) -> float:
    """Return target tokens per second (without padding) of forward and backward passes, without the optimizer.

    Batches are as large as in the run, with sentences of all lengths. On a GPU, the first batches use the reference
    implementation, as in every training; the timed ones come after faster kernels and CUDA graphs have taken over.
    """
    device = choose_device(settings.device)
    model = copy.deepcopy(translator.models[0]).to(device).train()
    gradients = GradientAccumulator(ModelWithLoss(model), settings, device, SINGLE_PROCESS)
    batches = make_batches(translator, subsample_pairs(train), settings.batch_tokens, translator.max_source_tokens)
    chosen = [batch.to(device) for batch in _choose_timed_batches(batches)]
    warmup, timed = (chosen * WARMUP_REPEATS, chosen * TIMED_REPEATS) if device.type == "cuda" else (chosen[:1], chosen)
    _accumulate_gradients(gradients, warmup)
    start = read_clock(device)
    _accumulate_gradients(gradients, timed)
    seconds = read_clock(device) - start
    return sum(batch.num_tokens for batch in timed) / max(1e-9, seconds)


def _accumulate_gradients(gradients: GradientAccumulator, batches: Sequence[Seq2SeqBatch]) -> None:
    for step, batch in enumerate(batches, 1):
        gradients.accumulate([batch], step, micro_batches=1)


def subsample_pairs(train: Sequence[Pair]) -> Sequence[Pair]:
    """Return a sample from all over the corpus, of at least MIN_SAMPLED_PAIRS pairs if there are so many."""
    return train[:: max(1, len(train) // MIN_SAMPLED_PAIRS)]


def _choose_timed_batches(batches: Sequence[Seq2SeqBatch]) -> list[Seq2SeqBatch]:
    """Return the middle batch of each of TIMED_BATCHES equal parts, with repetitions if there are fewer."""
    return [batches[(2 * part + 1) * len(batches) // (2 * TIMED_BATCHES)] for part in range(TIMED_BATCHES)]


def read_clock(device: torch.device) -> float:
    """Return seconds: CPU time of this process on a CPU, which others may use as well; wall-clock time on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
