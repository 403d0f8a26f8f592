"""What is measured of rows whose models translate, tag, or follow numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from regard import api
from regard.data.batch import Seq2SeqBatch
from regard.data.readers.dispatch import Pair, read_all_pairs
from regard.data.sampler import split_by_tokens
from regard.evaluate import GoldAlignment, bleu, bleu_by_length, read_gold_alignments
from regard.reproduce.experiment import ExperimentRow, MetricValues, TrainingSpec
from regard.search import Floats
from regard.special_tokens import BOS, PAD
from regard.translate import Translator, load, score_alignments
from regard.translate.evaluation import compute_perplexity_and_accuracy

if TYPE_CHECKING:
    from regard.reproduce.workspace import Workspace

NEGLIGIBLE_WEIGHT = 0.01  # a weight below this is as good as none
BATCH_TOKENS, BATCH_TOKENS_GPU = 500, 4000


def measure_translation(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """BLEU, perplexity, AER where there is gold, and what attention is like.

    Of a row's options `beam` is that of the search, and with `replace_unknown` each unknown word is replaced through
    the alignment and a dictionary.
    """
    corpus = workspace.get_corpus(row.trainings[0].corpus)
    test, folders = read_all_pairs(corpus.test), [workspace.train_or_resume(training) for training in row.trainings]
    translator = load(*folders)
    gold = None if corpus.gold is None else read_gold_alignments(corpus.gold, test, corpus.gold_offset)
    return {
        **_measure_bleu(workspace, translator, row, test),
        **_measure_forced_decoding(translator, test, gold),
        "parameters": sum(parameter.numel() for parameter in translator.models[0].parameters()),
    }


def _measure_bleu(
    workspace: Workspace, translator: Translator, row: ExperimentRow, test: Sequence[Pair]
) -> dict[str, Any]:
    """What translations are worth."""
    options = {"beam": 5, **row.options}
    if options.get("replace_unknown"):
        options["dictionary"] = build_replacement_dictionary(
            read_all_pairs(workspace.get_corpus(row.trainings[0].corpus).train), translator
        )
    sources, references = [pair.source for pair in test], [pair.target for pair in test]
    made = [one.text for one in translator.translate(sources, alignments=False, **options)]
    small = translator.tokenizers.target.lowercase
    score = bleu(made, references, small)
    groups = bleu_by_length(sources, made, references, small)
    return {
        "bleu": score.value,
        "signature": score.signature,
        "by_length": [[group.words, group.bleu] for group in groups],
        "kept": groups[-1].bleu / max(1e-9, groups[0].bleu),
    }


def make_batches(
    translator: Translator, pairs: Sequence[Pair], tokens: int, max_length: int | None = None
) -> list[Seq2SeqBatch]:
    """The pairs, sorted by length, in batches of so many tokens; those with more than `longest` are left out."""
    tokenizers = translator.tokenizers
    sources = [tokenizers.source.encode(pair.source) for pair in pairs]
    targets = [tokenizers.target.encode(pair.target) for pair in pairs]
    sizes = np.array([max(map(len, both)) + 1 for both in zip(sources, targets, strict=True)], dtype=np.int64)
    order = np.argsort(sizes, kind="stable")
    order = order if max_length is None else order[sizes[order] <= max_length + 1]
    made = []
    for rows in split_by_tokens(order, sizes, tokens):
        source, lengths = translator.make_batch([sources[row] for row in rows])
        target_out, _ = translator.make_batch([targets[row] for row in rows])
        first = torch.full_like(target_out[:, :1], BOS)
        made.append(Seq2SeqBatch(source, lengths, torch.cat((first, target_out[:, :-1]), 1), target_out))
    return made


def _measure_forced_decoding(
    translator: Translator, test: Sequence[Pair], gold: Sequence[GoldAlignment] | None
) -> dict[str, Any]:
    """What the model thinks of the references, and where it looks as it is made to write them."""
    found = translator.score_pairs(test)
    values: dict[str, Any] = {"perplexity": compute_perplexity_and_accuracy(found)[0]}
    if found[0].hypothesis.attention is None:
        return values
    aligned = [translator.align_scored_pair(pair, one) for pair, one in zip(test, found, strict=True)]
    if gold is not None:
        values["aer"] = score_alignments(aligned, gold).aer
    return {**values, **measure_attention_entropy(_compute_attention(translator, test))}


@torch.inference_mode()
def _compute_attention(translator: Translator, test: Sequence[Pair]) -> list[Floats]:
    """The weights that each target word, and the end, gives the source, T×S; of hard attention what it draws from."""
    model = translator.models[0]
    found: list[Floats] = []
    for batch in make_batches(translator, test, BATCH_TOKENS_GPU if translator.device.type == "cuda" else BATCH_TOKENS):
        attended = model.decoder(model.encode(batch.source, batch.lengths), batch.target_in).attended
        assert attended is not None
        weights = attended.probabilities
        weights = attended.dense(batch.source.shape[1]) if weights is None else weights
        ends = (batch.target_out != PAD).sum(1).tolist()
        each = zip(weights.float().cpu().numpy(), ends, batch.lengths.tolist(), strict=True)
        found += [matrix[:end, :length] for matrix, end, length in each]
    return found


def measure_attention_entropy(attentions: Sequence[Floats]) -> dict[str, float]:
    """Entropy of a word's weights, in nats, and the share of all weights that are faint."""
    entropies, faint, count = [], 0, 0
    for weights in attentions:
        shares = weights / np.maximum(weights.sum(1, keepdims=True), 1e-12)
        entropies += (-(shares * np.log(np.maximum(shares, 1e-12))).sum(1)).tolist()
        faint, count = faint + int((weights < NEGLIGIBLE_WEIGHT).sum()), count + weights.size
    return {"entropy": float(np.mean(entropies)), "faint": faint / count}


def build_replacement_dictionary(train: Sequence[Pair], translator: Translator) -> dict[str, str]:
    """For each source word the rare target word that it comes with most of all, by Dice's coefficient.

    Only words that the model cannot write are entries: an unknown word stands for one of these.
    """
    together: Counter[tuple[str, str]] = Counter()
    left: Counter[str] = Counter()
    right: Counter[str] = Counter()
    vocabulary = translator.tokenizers.target
    known = {
        vocabulary.decode([id]) for id in range(vocabulary.vocab_size)
    }  # not `pieces`: marks have joiners and spacers
    for pair in train:
        sources, targets = set(pair.source.split()), set(pair.target.split()) - known
        left.update(sources)
        right.update(targets)
        together.update((source, target) for source in sources for target in targets)
    best: dict[str, tuple[float, str]] = {}
    for (source, target), count in together.items():
        candidate = 2 * count / (left[source] + right[target]), target
        best[source] = max(best.get(source, candidate), candidate)
    return {source: target for source, (_, target) in best.items()}


def measure_unknown_replacement(workspace: Workspace, row: ExperimentRow) -> MetricValues:
    """The same as `translation`, with BLEU after unknown words were replaced beside it."""
    plain = workspace.measure_row(measure_translation, ExperimentRow(row.name, row.trainings[:1]))
    after = workspace.measure_row(
        measure_translation, ExperimentRow(row.name, row.trainings[:1], {"replace_unknown": True})
    )
    return {**plain, "replaced": after["bleu"]}


def evaluate_on_test_set(workspace: Workspace, training: TrainingSpec) -> dict[str, Any]:
    """What a run's own task measures on the test set."""
    corpus = workspace.get_corpus(training.corpus)
    return dict(api.load(workspace.train_or_resume(training)).evaluate(list(corpus.test)))
