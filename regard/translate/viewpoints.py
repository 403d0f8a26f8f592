"""Which of a model's looks at the source aligns best: by gold alignments, or by how well words choose each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from regard.data.order import cuts
from regard.errors import UserError
from regard.evaluate import Gold, Link, gold_score
from regard.models import Seq2Seq, Viewpoint
from regard.search import Floats
from regard.symbols import BOS
from regard.text import Tokenizers
from regard.translate.alignment import Alignment, align_words, following
from regard.translate.trace import array, one_model, spelled
from regard.translate.translator import Translator

BATCH_TOKENS = 1000  # of a side, with padding: the attention of all heads is kept at once


class Tried(NamedTuple):
    """A viewpoint, the share of words that are linked both ways, and the alignment error rate where gold is known."""

    viewpoint: Viewpoint
    mutual: float
    aer: float | None


def choose_alignment_head(
    model: Seq2Seq, tokenizers: Tokenizers, pairs: Sequence[tuple[str, str]], device: torch.device
) -> Viewpoint:
    """Return the layer and head by which a model aligns best, without gold alignments; the model stays as it is."""
    own, training = model.decoder.viewpoint, model.training
    try:
        return ranked_viewpoints(Translator([model], tokenizers, device), pairs)[0].viewpoint
    finally:
        model.decoder.viewpoint = own
        model.train(training)


def ranked_viewpoints(
    translator: Translator, pairs: Sequence[tuple[str, str]], gold: Sequence[Gold] | None = None
) -> list[Tried]:
    """Every viewpoint of the model, the best first; the translator is left with the best.

    Without gold the best is the one by which most words are linked both ways: each is what the other looks at most.
    """
    decoder = one_model(translator).decoder
    points = [point._replace(after=after) for point in decoder.viewpoints() for after in (False, True)]
    if not points:
        raise UserError("this model looks at the source from one place only; there is nothing to choose")
    words, both = 0, [0] * len(points)
    links: list[list[set[Link]]] = [[set() for _ in pairs] for _ in points]
    sizes = np.array([max(map(len, spelled(translator, *pair))) + 1 for pair in pairs], dtype=np.int64)
    for rows in cuts(np.argsort(sizes, kind="stable"), sizes, BATCH_TOKENS):
        some = alignments(translator, [pairs[row] for row in rows])
        for row, found in zip(rows.tolist(), some, strict=True):
            words += sum(found[0].soft.shape)
            for number, one in enumerate(found):
                both[number] += 2 * mutual(one.soft)
                if gold is not None:
                    links[number][row] = set(one.pairs)
    tried = [
        Tried(point, linked / max(1, words), None if gold is None else gold_score(some, gold).aer)
        for point, linked, some in zip(points, both, links, strict=True)
    ]
    tried.sort(key=lambda one: -one.mutual if one.aer is None else one.aer)
    decoder.viewpoint = tried[0].viewpoint
    return tried


@torch.inference_mode()
def alignments(translator: Translator, pairs: Sequence[tuple[str, str]]) -> list[list[Alignment]]:
    """Return the alignment of each pair from every viewpoint, at the step of a word and at the next one."""
    model, ids = one_model(translator), [spelled(translator, *pair) for pair in pairs]
    batch, lengths = translator.batch([source for source, _ in ids])
    target_in, _ = translator.batch([[BOS, *target[:-1]] for _, target in ids])  # what follows a target is not read
    looks = [array(look) for look in model.decoder.looks(model.encode(batch, lengths), target_in)]
    found = []
    for row, (pair, (source, target)) in enumerate(zip(pairs, ids, strict=True)):
        own = [look[row, : len(target), : len(source) + 1] for look in looks]
        both = translator.worded(pair)
        found.append([align_words(step(look), *both) for look in own for step in (np.asarray, following)])
    return found


def mutual(soft: Floats) -> int:
    """How many links of target and source words there are in which each is the other's strongest."""
    if not soft.size:
        return 0
    strongest = soft.argmax(1)
    linked = soft.max(1) > 0
    return int((linked & (soft.argmax(0)[strongest] == np.arange(len(soft)))).sum())
