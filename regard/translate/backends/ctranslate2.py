"""CTranslate2's beam search over an exported model: ids in, ids out.

Its beam is not ours. A hypothesis that ends is replaced by the next best one instead of narrowing the beam; the search
goes on until as many have ended as the beam is wide, whether or not those that are open could still win; and what is
cut off at the limit is ranked among what ended. An empty hypothesis ends first and would take the place of another, so
a source for which one is found is searched once more, without it. What may not be written (PAD, BOS) is left out before
the softmax, so that all others gain the little that those had.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2 import Translator

from regard.errors import UserError
from regard.fast.ctranslate2 import POSITIONS, VMAP
from regard.search import Hypothesis, Scorer
from regard.special_tokens import BOS, EOS, PAD

# CTranslate2 divides log p by |y|^α, which is ((5 + |y|) / 6)^0.6 for no α; near |y| = 25 the two rank alike. It only
# decides which hypotheses are given out at all, and those that are given out are ranked again.
CT2_LENGTH_PENALTY = 0.5
MAX_BATCH_TOKENS = 1024
NO_LENGTH_PENALTY = Scorer(0.0)


class CTranslate2Backend:
    """An exported model, `workers` times at once by so many threads each.

    Two workers of one thread do more than one worker of two, where there is more than one batch.
    """

    def __init__(self, folder: Path, workers: int = 1, threads: int = 1) -> None:
        if not (folder / "model.bin").is_file():
            raise UserError(f"{folder}: no model.bin, so no model that was exported for CTranslate2")
        self.translator = Translator(str(folder), inter_threads=workers, intra_threads=threads)
        self.has_shortlist = (folder / VMAP).is_file()
        self.workers = workers
        self.source_vocabulary = _read_vocabulary(folder, "source")
        self.target_vocabulary = _read_vocabulary(folder, "target")
        self.target_ids = {piece: id for id, piece in enumerate(self.target_vocabulary)}

    def search(
        self,
        sources: Sequence[Sequence[int]],
        beam: int = 5,
        n_best: int = 1,
        ranking: Scorer = NO_LENGTH_PENALTY,
        attention: bool = False,
    ) -> list[list[Hypothesis]]:
        """The best `n_best` targets for each source, EOS at its end, ranked by length alone.

        A target may have twice its source's tokens and ten more.
        """
        if not 1 <= n_best <= beam:
            raise ValueError(f"n_best must be between 1 and the beam: n_best {n_best}, beam {beam}")
        longest = max(map(len, sources), default=0)
        if longest > POSITIONS:
            raise UserError(f"a source of {longest} tokens is longer than an exported model reads: {POSITIONS}")
        limits = [min(2 * len(source) + 10, POSITIONS) for source in sources]
        found = self._search_within_limit(max(limits, default=0), sources, beam, ranking, attention)
        # One call has one limit: those that went beyond their own are searched again, within it.
        sizes = [max(len(one.tokens) for one in some[:n_best]) for some in found]
        beyond = [place for place, limit in enumerate(limits) if sizes[place] > limit]
        for limit in {limits[place] for place in beyond}:
            places = [place for place in beyond if limits[place] == limit]
            again = self._search_within_limit(limit, [sources[place] for place in places], beam, ranking, attention)
            for place, some in zip(places, again, strict=True):
                found[place] = some
        return [some[:n_best] for some in found]

    def _search_within_limit(
        self,
        limit: int,
        sources: Sequence[Sequence[int]],
        beam: int,
        ranking: Scorer,
        attention: bool,
    ) -> list[list[Hypothesis]]:
        """All that ended, or was cut at the limit, the best first."""
        found = self._search_once(limit, sources, beam, ranking, attention)
        # CTranslate2 stops when as many hypotheses have ended as the beam is wide. An empty one ends before all others
        # and may take the place of the best, so its source is searched again without it.
        empty = {place: one for place, some in enumerate(found) for one in some if beam > 1 and one.tokens == [EOS]}
        longer = self._search_once(limit, [sources[place] for place in empty], beam, ranking, attention, 1)
        for (place, nothing), more in zip(empty.items(), longer, strict=True):
            rest = math.log(max(-math.expm1(nothing.log_prob), 1e-38))  # EOS was left out before the first softmax
            known = [one.tokens for one in found[place]]
            new = [one for one in more if one.tokens[-1] == EOS and one.tokens not in known]
            found[place] += [ranking.score(one.tokens, one.log_prob + rest, one.attention) for one in new]
            found[place].sort(key=lambda one: -one.score)
        return found

    def _search_once(
        self,
        limit: int,
        sources: Sequence[Sequence[int]],
        beam: int,
        ranking: Scorer,
        attention: bool,
        min_length: int = 0,
    ) -> list[list[Hypothesis]]:
        """Return what one search finds for each source, the best first; `min_length` does not count EOS."""
        results = self._call_ctranslate2(limit, sources, beam, attention, min_length)
        if not attention:
            return [self._rescore_hypotheses(result, ranking, None) for result in results]
        # In a batch that is searched by a beam the first row of attention is that of another sentence. It is the same
        # for all hypotheses of a source, and right in greedy search.
        firsts = results if beam == 1 else self._call_ctranslate2(1, sources, 1, True)
        pairs = zip(results, firsts, strict=True)
        return [self._rescore_hypotheses(result, ranking, first.attention[0][0]) for result, first in pairs]

    def _call_ctranslate2(
        self, limit: int, sources: Sequence[Sequence[int]], beam: int, attention: bool, min_length: int = 0
    ) -> list[Any]:
        """What CTranslate2 gives for each source."""
        results: list[Any] = self.translator.translate_batch(
            [[self.source_vocabulary[id] for id in source] for source in sources],
            max_batch_size=choose_batch_tokens(sources, self.workers),
            batch_type="tokens",
            beam_size=beam,
            num_hypotheses=beam,
            length_penalty=CT2_LENGTH_PENALTY,
            suppress_sequences=[[self.target_vocabulary[PAD]], [self.target_vocabulary[BOS]]],
            return_end_token=True,  # which also has EOS count in |y|
            max_input_length=0,
            max_decoding_length=limit,
            min_decoding_length=min_length,
            use_vmap=self.has_shortlist,
            return_scores=True,
            return_attention=attention,
        )
        return results

    def _rescore_hypotheses(
        self, result: Any, ranking: Scorer, first_attention: Sequence[float] | None
    ) -> list[Hypothesis]:
        """What was found for one source, the best first; those that were cut off only where none ended."""
        found = []
        for place, (pieces, score) in enumerate(zip(result.hypotheses, result.scores, strict=True)):
            tokens = [self.target_ids[piece] for piece in pieces]
            log_prob = score * len(tokens) ** CT2_LENGTH_PENALTY
            looks = (
                None
                if first_attention is None
                else np.array([first_attention, *result.attention[place][1:]], np.float32)
            )
            found.append(ranking.score(tokens, log_prob, looks))
        ended = [one for one in found if one.tokens[-1] == EOS]
        return sorted(ended or found, key=lambda one: -one.score)


def choose_batch_tokens(sources: Sequence[Sequence[int]], workers: int) -> int:
    """Tokens of a batch, so that there is one for every worker where they are few.

    >>> share([[4] * 25] * 32, 2)
    400
    """
    longest = max(map(len, sources), default=1)
    return min(MAX_BATCH_TOKENS, longest * math.ceil(len(sources) / workers)) or 1


def _read_vocabulary(folder: Path, side: str) -> list[str]:
    """The pieces of one side in the order of their ids."""
    shared = folder / "shared_vocabulary.json"
    path = shared if shared.exists() else folder / f"{side}_vocabulary.json"
    pieces: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return pieces
