"""Which of a model's looks at the source aligns best: by gold alignments, or by how well words choose each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from regard.errors import UserError
from regard.evaluate import Gold, Link, gold_score
from regard.models import Viewpoint
from regard.runs import Run, viewpoint
from regard.search import Floats
from regard.symbols import BOS
from regard.translate.alignment import Alignment, align_words, following
from regard.translate.trace import array, one_model, spelled
from regard.translate.translator import Translator, load


class Tried(NamedTuple):
    """A viewpoint, the share of words that are linked both ways, and the alignment error rate where gold is known."""

    viewpoint: Viewpoint
    mutual: float
    aer: float | None


def settled(run: Run, pairs: Sequence[tuple[str, str]]) -> None:
    """Finds from where a run's model aligns best, and keeps it."""
    viewpoint.write(run.folder, ranked_viewpoints(load(run.folder), pairs)[0].viewpoint)


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
    links: list[list[set[Link]]] = [[] for _ in points]
    for pair in pairs:
        found = alignments(translator, pair)
        words += sum(found[0].soft.shape)
        for number, one in enumerate(found):
            both[number] += 2 * mutual(one.soft)
            if gold is not None:
                links[number].append(set(one.pairs))
    tried = [
        Tried(point, linked / max(1, words), None if gold is None else gold_score(some, gold).aer)
        for point, linked, some in zip(points, both, links, strict=True)
    ]
    tried.sort(key=lambda one: -one.mutual if one.aer is None else one.aer)
    decoder.viewpoint = tried[0].viewpoint
    return tried


@torch.inference_mode()
def alignments(translator: Translator, pair: tuple[str, str]) -> list[Alignment]:
    """Those of a pair from every viewpoint, at the step that writes a word and at the one after it."""
    model, (source, target) = one_model(translator), spelled(translator, *pair)
    batch, lengths = translator.batch([source])
    target_in = torch.tensor([[BOS, *target[:-1]]], device=batch.device)
    looks = [array(look[0]) for look in model.decoder.looks(model.encode(batch, lengths), target_in)]
    both = translator.worded(pair)
    return [align_words(step(look), *both) for look in looks for step in (np.asarray, following)]


def mutual(soft: Floats) -> int:
    """How many links of target and source words there are in which each is the other's strongest."""
    if not soft.size:
        return 0
    strongest = soft.argmax(1)
    linked = soft.max(1) > 0
    return int((linked & (soft.argmax(0)[strongest] == np.arange(len(soft)))).sum())
