"""Which layer and head of a model aligns best, by gold alignments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regard.errors import UserError
from regard.evaluate import Gold
from regard.models import Viewpoint
from regard.translate.assessment import against
from regard.translate.trace import one_model
from regard.translate.translator import Translator


class Tried(NamedTuple):
    """A viewpoint and its alignment error rate."""

    viewpoint: Viewpoint
    aer: float


def ranked_viewpoints(translator: Translator, pairs: Sequence[tuple[str, str]], gold: Sequence[Gold]) -> list[Tried]:
    """Every viewpoint of the model, the best first; the translator is left with the best."""
    decoder = one_model(translator).decoder
    tried = []
    for viewpoint in decoder.viewpoints():
        decoder.viewpoint = viewpoint
        tried.append(Tried(viewpoint, against(translator.align(pairs), gold).aer))
    if not tried:
        raise UserError("this model looks at the source from one place only; there is nothing to choose")
    tried.sort(key=lambda one: one.aer)
    decoder.viewpoint = tried[0].viewpoint
    return tried
