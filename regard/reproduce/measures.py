"""What is measured of rows whose models translate, tag, or follow numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from regard import api
from regard.data.batches import Batch
from regard.data.corpus import Pair, pairs
from regard.data.order import cuts
from regard.evaluate import Gold, bleu, by_length, read_gold
from regard.reproduce.experiment import Row, Training, Values
from regard.search import Floats
from regard.symbols import BOS, PAD
from regard.translate import Translator, against, load
from regard.translate.assessment import fluency

if TYPE_CHECKING:
    from regard.reproduce.lab import Lab

FAINT = 0.01  # a weight below this is as good as none
BATCH_TOKENS, ON_A_GPU = 500, 4000


def translation(lab: Lab, row: Row) -> Values:
    """BLEU, perplexity, AER where there is gold, and what attention is like.

    Of a row's options `beam` is that of the search, and with `replace_unknown` each unknown word is replaced through
    the alignment and a dictionary.
    """
    corpus = lab.corpus(row.trainings[0].corpus)
    test, folders = pairs(corpus.test), [lab.trained(training) for training in row.trainings]
    translator = load(*folders)
    gold = None if corpus.gold is None else read_gold(corpus.gold, test, corpus.first)
    return {
        **written(lab, translator, row, test),
        **judged(translator, test, gold),
        "parameters": sum(parameter.numel() for parameter in translator.models[0].parameters()),
    }


def written(lab: Lab, translator: Translator, row: Row, test: Sequence[Pair]) -> dict[str, Any]:
    """What translations are worth."""
    options = {"beam": 5, **row.options}
    if options.get("replace_unknown"):
        options["dictionary"] = dictionary(pairs(lab.corpus(row.trainings[0].corpus).train), translator)
    sources, references = [pair.source for pair in test], [pair.target for pair in test]
    made = [one.text for one in translator.translate(sources, alignments=False, **options)]
    small = translator.tokenizers.target.lowercase
    score = bleu(made, references, small)
    groups = by_length(sources, made, references, small)
    return {
        "bleu": score.value,
        "signature": score.signature,
        "by_length": [[group.words, group.bleu] for group in groups],
        "kept": groups[-1].bleu / max(1e-9, groups[0].bleu),
    }


def batches(translator: Translator, some: Sequence[Pair], tokens: int, longest: int | None = None) -> list[Batch]:
    """The pairs, sorted by length, in batches of so many tokens; those with more than `longest` are left out."""
    tokenizers = translator.tokenizers
    sources = [tokenizers.source.encode(pair.source) for pair in some]
    targets = [tokenizers.target.encode(pair.target) for pair in some]
    sizes = np.array([max(map(len, both)) + 1 for both in zip(sources, targets, strict=True)], dtype=np.int64)
    order = np.argsort(sizes, kind="stable")
    order = order if longest is None else order[sizes[order] <= longest + 1]
    made = []
    for rows in cuts(order, sizes, tokens):
        source, lengths = translator.batch([sources[row] for row in rows])
        target_out, _ = translator.batch([targets[row] for row in rows])
        first = torch.full_like(target_out[:, :1], BOS)
        made.append(Batch(source, lengths, torch.cat((first, target_out[:, :-1]), 1), target_out))
    return made


def judged(translator: Translator, test: Sequence[Pair], gold: Sequence[Gold] | None) -> dict[str, Any]:
    """What the model thinks of the references, and where it looks as it is made to write them."""
    found = translator.judge(test)
    values: dict[str, Any] = {"perplexity": fluency(found)[0]}
    if found[0].hypothesis.attention is None:
        return values
    aligned = [translator.aligned(pair, one) for pair, one in zip(test, found, strict=True)]
    if gold is not None:
        values["aer"] = against(aligned, gold).aer
    return {**values, **spread(looks(translator, test))}


@torch.inference_mode()
def looks(translator: Translator, test: Sequence[Pair]) -> list[Floats]:
    """The weights that each target word, and the end, gives the source, T×S; of hard attention what it draws from."""
    model = translator.models[0]
    found: list[Floats] = []
    for batch in batches(translator, test, ON_A_GPU if translator.device.type == "cuda" else BATCH_TOKENS):
        attended = model.decoder(model.encode(batch.source, batch.lengths), batch.target_in).attended
        assert attended is not None
        weights = attended.probabilities
        weights = attended.dense(batch.source.shape[1]) if weights is None else weights
        ends = (batch.target_out != PAD).sum(1).tolist()
        each = zip(weights.float().cpu().numpy(), ends, batch.lengths.tolist(), strict=True)
        found += [matrix[:end, :length] for matrix, end, length in each]
    return found


def spread(looks: Sequence[Floats]) -> dict[str, float]:
    """Entropy of a word's weights, in nats, and the share of all weights that are faint."""
    entropies, faint, count = [], 0, 0
    for weights in looks:
        shares = weights / np.maximum(weights.sum(1, keepdims=True), 1e-12)
        entropies += (-(shares * np.log(np.maximum(shares, 1e-12))).sum(1)).tolist()
        faint, count = faint + int((weights < FAINT).sum()), count + weights.size
    return {"entropy": float(np.mean(entropies)), "faint": faint / count}


def dictionary(train: Sequence[Pair], translator: Translator) -> dict[str, str]:
    """For each source word the rare target word that it comes with most of all, by Dice's coefficient.

    Only words that the model cannot write are entries: an unknown word stands for one of these.
    """
    together: Counter[tuple[str, str]] = Counter()
    left: Counter[str] = Counter()
    right: Counter[str] = Counter()
    vocabulary = translator.tokenizers.target
    known = {vocabulary.decode([id]) for id in range(vocabulary.size)}  # not `pieces`: marks have joiners and spacers
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


def replaced(lab: Lab, row: Row) -> Values:
    """The same as `translation`, with BLEU after unknown words were replaced beside it."""
    plain = lab.measured(translation, Row(row.name, row.trainings[:1]))
    after = lab.measured(translation, Row(row.name, row.trainings[:1], {"replace_unknown": True}))
    return {**plain, "replaced": after["bleu"]}


def evaluated(lab: Lab, training: Training) -> dict[str, Any]:
    """What a run's own task measures on the test set."""
    corpus = lab.corpus(training.corpus)
    return dict(api.load(lab.trained(training)).evaluate(list(corpus.test)))
