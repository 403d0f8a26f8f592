"""Training and decoding throughput, in tokens and words a second."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import numpy as np
import torch

from regard.data.dataset import RaggedArray, Seq2SeqBatch, collate
from regard.data.loader import split_by_tokens
from regard.data.readers.text import Pair
from regard.training import TrainingSettings
from regard.training.distributed import SINGLE_PROCESS, ModelWithLoss, choose_device
from regard.training.optimizer import GradientAccumulator
from regard.translate import Translator

TIMED_BATCHES = 6
WARMUP_REPEATS, TIMED_REPEATS = 14, 5  # of these batches on a GPU
GPU_DECODING_PASSES = 4  # over the test set; the last is timed, since CUDA graphs are captured in the third
MIN_SAMPLED_PAIRS = 10_000  # the batches are chosen from


def make_batches(
    translator: Translator, pairs: Sequence[Pair], tokens: int, max_length: int | None = None
) -> list[Seq2SeqBatch]:
    """Return the pairs in batches of `tokens` tokens, sorted by length, without those longer than `max_length`."""
    tokenizers = translator.tokenizers
    source = RaggedArray.from_rows(tokenizers.source.encode(pair.source) for pair in pairs)
    target = RaggedArray.from_rows(tokenizers.target.encode(pair.target) for pair in pairs)
    sizes = np.maximum(source.lengths, target.lengths) + 1
    order = np.argsort(sizes, kind="stable")
    order = order if max_length is None else order[sizes[order] <= max_length + 1]
    return [collate(source, target, rows).to(translator.device) for rows in split_by_tokens(order, sizes, tokens)]


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
