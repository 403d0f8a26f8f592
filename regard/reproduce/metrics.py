"""Metrics of trained models: translation quality, attention and speed; tagging, regression and long-range memory.

The functions that `experiments` name measure a row of a table.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from regard import api
from regard.config import parse_settings
from regard.data.dataset import RaggedArray, Seq2SeqBatch, collate
from regard.data.loader import split_by_tokens
from regard.data.readers.dispatch import read_all_pairs
from regard.data.readers.text import Pair
from regard.data.series import read_series
from regard.data.tagging import TagDataSettings, read_tagged_sentences
from regard.evaluate.alignment_error_rate import GoldAlignment, read_gold_alignments
from regard.evaluate.translation_metrics import bleu, bleu_by_length
from regard.models.hypothesis import Floats
from regard.recipes.recipe import override
from regard.reproduce.experiment import ExperimentRow, MetricValues, TrainingSpec
from regard.runs import Run
from regard.special_tokens import PAD
from regard.training import TrainingSettings
from regard.training.distributed import SINGLE_PROCESS, ModelWithLoss, choose_device
from regard.training.optimizer import GradientAccumulator
from regard.translate import Translator, load
from regard.translate.evaluation import compute_perplexity_and_accuracy, score_alignments

if TYPE_CHECKING:
    from regard.reproduce.workspace import Workspace

NEGLIGIBLE_WEIGHT = 0.01  # attention weights below this count as negligible
BATCH_TOKENS, BATCH_TOKENS_GPU = 500, 4000


def measure_translation(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure BLEU, perplexity, AER if there are gold alignments, and the sharpness of attention.

    Of a row's options, `beam` is the beam size, and `replace_unknown` replaces each unknown word by the alignment and a
    dictionary.
    """
    corpus = workspace.get_corpus(row.trainings[0].corpus)
    test, folders = read_all_pairs(corpus.test), [workspace.train_or_resume(training) for training in row.trainings]
    translator = load(*folders, device=workspace.device)
    gold = None if corpus.gold is None else read_gold_alignments(corpus.gold, test, corpus.gold_offset)
    return {
        **_measure_bleu(workspace, translator, row, test),
        **_measure_forced_decoding(translator, test, gold),
        "parameters": sum(parameter.numel() for parameter in translator.models[0].parameters()),
    }


def _measure_bleu(
    workspace: Workspace, translator: Translator, row: ExperimentRow, test: Sequence[Pair]
) -> dict[str, Any]:
    """Return BLEU, overall and by source length."""
    options = {"beam": 5, **row.options}
    if options.get("replace_unknown"):
        train = read_all_pairs(workspace.get_corpus(row.trainings[0].corpus).train)
        options["dictionary"] = build_replacement_dictionary(train, translator)
    sources, references = [pair.source for pair in test], [pair.target for pair in test]
    hypotheses = [translation.text for translation in translator.translate(sources, alignments=False, **options)]
    lowercase = translator.tokenizers.target.lowercase
    score = bleu(hypotheses, references, lowercase)
    groups = bleu_by_length(sources, hypotheses, references, lowercase)
    return {
        "bleu": score.value,
        "signature": score.signature,
        "by_length": [[group.words, group.bleu] for group in groups],
        "kept": groups[-1].bleu / max(1e-9, groups[0].bleu),
    }


def _measure_forced_decoding(
    translator: Translator, test: Sequence[Pair], gold: Sequence[GoldAlignment] | None
) -> dict[str, Any]:
    """Measure perplexity, AER and attention entropy by forced decoding of the references."""
    scored = translator.score_pairs(test)
    values: dict[str, Any] = {"perplexity": compute_perplexity_and_accuracy(scored)[0]}
    if scored[0].hypothesis.attention is None:
        return values
    alignments = [translator.align_scored_pair(pair, target) for pair, target in zip(test, scored, strict=True)]
    if gold is not None:
        values["aer"] = score_alignments(alignments, gold).aer
    return {**values, **measure_attention_entropy(_compute_attention(translator, test))}


@torch.inference_mode()
def _compute_attention(translator: Translator, test: Sequence[Pair]) -> list[Floats]:
    """Return the attention of each pair, (T, S) with EOS; for hard attention the sampling distribution."""
    model = translator.models[0]
    attentions: list[Floats] = []
    for batch in make_batches(translator, test, BATCH_TOKENS_GPU if translator.device.type == "cuda" else BATCH_TOKENS):
        attended = model.decoder(model.encode(batch.source, batch.lengths), batch.target_in).attended
        assert attended is not None
        weights = attended.probabilities
        weights = attended.dense(batch.source.shape[1]) if weights is None else weights
        target_lengths = (batch.target_out != PAD).sum(1).tolist()
        sentences = zip(weights.float().cpu().numpy(), target_lengths, batch.lengths.tolist(), strict=True)
        attentions += [matrix[:target_length, :length] for matrix, target_length, length in sentences]
    return attentions


def measure_attention_entropy(attentions: Sequence[Floats]) -> dict[str, float]:
    """Return the mean entropy of attention, in nats, and the fraction of negligible weights."""
    entropies = []
    for weights in attentions:
        probabilities = weights / np.maximum(weights.sum(1, keepdims=True), 1e-12)
        entropies += (-(probabilities * np.log(np.maximum(probabilities, 1e-12))).sum(1)).tolist()
    is_negligible = np.concatenate([weights.ravel() < NEGLIGIBLE_WEIGHT for weights in attentions])
    return {"entropy": float(np.mean(entropies)), "faint": float(is_negligible.mean())}


def build_replacement_dictionary(train: Sequence[Pair], translator: Translator) -> dict[str, str]:
    """Map each source word to the rare target word with the highest Dice coefficient.

    Only words that the model cannot write are entries, since an unknown word stands for one of these.
    """
    pair_counts: Counter[tuple[str, str]] = Counter()
    source_counts: Counter[str] = Counter()
    target_counts: Counter[str] = Counter()
    vocabulary = translator.tokenizers.target
    # Decoded, since tokens of punctuation have joiners and spacers.
    writable = {vocabulary.decode([id]) for id in range(vocabulary.vocab_size)}
    for pair in train:
        sources, targets = set(pair.source.split()), set(pair.target.split()) - writable
        source_counts.update(sources)
        target_counts.update(targets)
        pair_counts.update((source, target) for source in sources for target in targets)
    best: dict[str, tuple[float, str]] = {}
    for (source, target), count in pair_counts.items():
        candidate = 2 * count / (source_counts[source] + target_counts[target]), target
        best[source] = max(best.get(source, candidate), candidate)
    return {source: target for source, (_, target) in best.items()}


def measure_architecture(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure translation with the first run, also with unknown words replaced, and AER with the last."""
    first, last = row.trainings[:1], row.trainings[-1:]
    plain, replaced, aligned = (
        workspace.measure_row(measure_translation, ExperimentRow(row.name, trainings, options))
        for trainings, options in ((first, {}), (first, {"replace_unknown": True}), (last, {}))
    )
    gain = replaced["bleu"] - plain["bleu"]
    return {**plain, "replaced": replaced["bleu"], "aer": aligned.get("aer"), "gain": gain}


def measure_translation_and_speed(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure translation, and tokens per second in training and words per second in decoding."""
    training = row.trainings[0]
    corpus, folders = workspace.get_corpus(training.corpus), map(workspace.train_or_resume, row.trainings)
    translator = load(*folders, device=workspace.device)
    config = override(Run(workspace.run_folder(training)).read_config(), workspace.device_override)
    settings = parse_settings(TrainingSettings, config["training"], "training")
    sources = [pair.source for pair in read_all_pairs(corpus.test)]
    return {
        **workspace.measure_row(measure_translation, row),
        "training_speed": measure_training_speed(translator, read_all_pairs(corpus.train), settings),
        "decoding_speed": measure_decoding_speed(translator, sources),
    }


def evaluate_on_test_set(workspace: Workspace, training: TrainingSpec) -> dict[str, Any]:
    """Evaluate a run on the test set with the metrics of its task."""
    corpus = workspace.get_corpus(training.corpus)
    return dict(api.load(workspace.train_or_resume(training), device=workspace.device).evaluate(list(corpus.test)))


def measure_direction(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure the accuracy of the tags and R² of the regression."""
    tags, series = (evaluate_on_test_set(workspace, training) for training in row.trainings)
    return {"accuracy": tags["accuracy"], "r2": series["r2"]}


def measure_cell(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """Measure the error of the sum, the recall of copied symbols, and translation with speed."""
    adding, copying, text = row.trainings
    return {
        "error": _measure_adding_error(workspace, adding),
        "recall": _measure_copy_recall(workspace, copying),
        **workspace.measure_row(measure_translation_and_speed, ExperimentRow(row.name, [text])),
    }


def _measure_adding_error(workspace: Workspace, training: TrainingSpec) -> float:
    """Return the RMSE at the last step, whose target is the sum; 0.41 is that of the mean."""
    test = list(read_series(workspace.get_corpus(training.corpus).test, num_inputs=2))
    predictions = api.load(workspace.train_or_resume(training), device=workspace.device).predict(
        [series.inputs for series in test]
    )
    sums = [series.targets[-1, 0] for series in test]
    errors = [total - prediction.outputs[-1, 0] for total, prediction in zip(sums, predictions, strict=True)]
    return float(np.sqrt(np.mean(np.square(errors))))


def _measure_copy_recall(workspace: Workspace, training: TrainingSpec) -> float:
    """Return the percentage of symbols that were copied correctly."""
    test = list(read_tagged_sentences(workspace.get_corpus(training.corpus).test, TagDataSettings()))
    predictions = api.load(workspace.train_or_resume(training), device=workspace.device).predict(
        [sentence.words for sentence in test]
    )
    is_correct = [
        label == tag
        for sentence, prediction in zip(test, predictions, strict=True)
        for (word, *_), label, tag in zip(*sentence, prediction.tags, strict=True)
        if word == "say"
    ]
    return 100.0 * float(np.mean(is_correct))


# Throughput: tokens a second in training, words a second in decoding.

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
