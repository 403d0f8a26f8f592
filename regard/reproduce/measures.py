"""What is measured of rows whose models translate, tag, or follow numbers."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from regard import api
from regard.config import parse
from regard.data.batches import Batch
from regard.data.corpus import Pair, pairs
from regard.data.order import cuts
from regard.evaluate import Gold, bleu, by_length, read_gold
from regard.reproduce.experiment import Row, Training, Values
from regard.runs import Run
from regard.search import Floats
from regard.symbols import BOS, PAD
from regard.training import TrainingSettings, choose_device
from regard.training.gradients import Gradients
from regard.training.objective import Objective
from regard.training.processes import ALONE
from regard.translate import Translator, against, load
from regard.translate.assessment import fluency

if TYPE_CHECKING:
    from regard.reproduce.lab import Lab

FAINT = 0.01  # a weight below this is as good as none
BATCH_TOKENS = 500
SAMPLE = 6  # batches that training is timed by
UNTIMED, TIMED = 14, 5  # times that they come on a GPU before the clock counts, and after
LOOKED = 10_000  # pairs that they are chosen from, or some more


def translation(lab: Lab, row: Row) -> Values:
    """BLEU, perplexity, AER where there is gold, what attention is like, and how fast it all goes.

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
        "training_speed": pace(translator, pairs(corpus.train), training_of(folders[0])),
        "parameters": sum(parameter.numel() for parameter in translator.models[0].parameters()),
    }


def training_of(folder: Path) -> TrainingSettings:
    """How a run was trained."""
    return parse(TrainingSettings, Run(folder).config()["training"], "training")


def written(lab: Lab, translator: Translator, row: Row, test: Sequence[Pair]) -> dict[str, Any]:
    """What translations are worth, and how many words come out in a second."""
    options = {"beam": 5, **row.options}
    if options.get("replace_unknown"):
        options["dictionary"] = dictionary(pairs(lab.corpus(row.trainings[0].corpus).train), translator)
    sources, references = [pair.source for pair in test], [pair.target for pair in test]
    began = clock(translator.device)
    made = [one.text for one in translator.translate(sources, alignments=False, **options)]
    seconds = clock(translator.device) - began
    small = translator.tokenizers.target.lowercase
    score = bleu(made, references, small)
    groups = by_length(sources, made, references, small)
    words = sum(len(text.split()) for text in made)
    return {
        "bleu": score.value,
        "signature": score.signature,
        "by_length": [[group.words, group.bleu] for group in groups],
        "kept": groups[-1].bleu / max(1e-9, groups[0].bleu),
        "decoding_speed": words / max(1e-9, seconds),
    }


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
    warm, timed = (some * UNTIMED, some * TIMED) if device.type == "cuda" else (some[:1], some)
    passed(gradients, warm)
    began = clock(device)
    passed(gradients, timed)
    seconds = clock(device) - began
    return sum(batch.tokens for batch in timed) / max(1e-9, seconds)


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


def batches(
    translator: Translator, some: Sequence[Pair], tokens: int = BATCH_TOKENS, longest: int | None = None
) -> list[Batch]:
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


def clock(device: torch.device) -> float:
    """Seconds: of this process on a CPU, which others may use as well; of the wall where a GPU works."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


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
    for batch in batches(translator, test):
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
    known = set(translator.tokenizers.target.pieces(range(translator.tokenizers.target.size)))
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
