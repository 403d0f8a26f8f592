"""CTranslate2's beam search over an exported model: ids in, ids out.

Its beam search differs from `regard.search`. A hypothesis that ends is replaced by the next best one instead of
narrowing the beam. The search continues until as many hypotheses have ended as the beam size, whether or not the active
ones could still win. Hypotheses that are cut off at the length limit are ranked among those that ended. An empty
hypothesis ends first and would displace another one, so a source that yields one is searched once more without it. PAD
and BOS are suppressed before the softmax, so all other tokens gain the little probability that those had.
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

# CTranslate2 divides log p by |y|^α, and no α makes that equal to ((5 + |y|) / 6)^0.6; near |y| = 25 the two rank
# alike. It only decides which hypotheses are returned, and these are ranked again.
CT2_LENGTH_PENALTY = 0.5
MAX_BATCH_TOKENS = 1024
NO_LENGTH_PENALTY = Scorer(0.0)


class CTranslate2Backend:
    """An exported model in CTranslate2: `workers` batches in parallel with `threads` threads each.

    With more than one batch, two workers of one thread are faster than one worker of two.
    """

    def __init__(self, folder: Path, workers: int = 1, threads: int = 1) -> None:
        if not (folder / "model.bin").is_file():
            raise UserError(f"{folder} is not a model exported for CTranslate2: it has no model.bin")
        self.translator = Translator(str(folder), inter_threads=workers, intra_threads=threads)
        self.has_shortlist = (folder / VMAP).is_file()
        self.workers = workers
        self.source_vocabulary = _read_vocabulary(folder, "source")
        self.target_vocabulary = _read_vocabulary(folder, "target")
        self.target_ids = {token: id for id, token in enumerate(self.target_vocabulary)}

    def search(
        self,
        sources: Sequence[Sequence[int]],
        beam: int = 5,
        n_best: int = 1,
        ranking: Scorer = NO_LENGTH_PENALTY,
        attention: bool = False,
    ) -> list[list[Hypothesis]]:
        """Return the `n_best` targets of each source, with EOS, ranked by `ranking` (length penalty only).

        The maximum length of a target is twice its source's tokens plus ten.
        """
        if not 1 <= n_best <= beam:
            raise ValueError(f"n_best must be between 1 and the beam: n_best {n_best}, beam {beam}")
        longest = max(map(len, sources), default=0)
        if longest > POSITIONS:
            raise UserError(f"a source has {longest} tokens, but an exported model reads at most {POSITIONS}")
        limits = [min(2 * len(source) + 10, POSITIONS) for source in sources]
        hypotheses = self._search_within_limit(max(limits, default=0), sources, beam, ranking, attention)
        # One call has one length limit: sources whose target exceeds their own limit are searched again with it.
        sizes = [max(len(hypothesis.tokens) for hypothesis in of_source[:n_best]) for of_source in hypotheses]
        too_long = [row for row, limit in enumerate(limits) if sizes[row] > limit]
        for limit in {limits[row] for row in too_long}:
            rows = [row for row in too_long if limits[row] == limit]
            again = self._search_within_limit(limit, [sources[row] for row in rows], beam, ranking, attention)
            for row, of_source in zip(rows, again, strict=True):
                hypotheses[row] = of_source
        return [of_source[:n_best] for of_source in hypotheses]

    def _search_within_limit(
        self,
        limit: int,
        sources: Sequence[Sequence[int]],
        beam: int,
        ranking: Scorer,
        attention: bool,
    ) -> list[list[Hypothesis]]:
        """Return all hypotheses that ended or were cut off at the limit, the best first."""
        hypotheses = self._search_once(limit, sources, beam, ranking, attention)
        # CTranslate2 stops when as many hypotheses have ended as the beam size. An empty one ends before all others and
        # may displace the best, so its source is searched again without it.
        empty = {
            row: hypothesis
            for row, of_source in enumerate(hypotheses)
            for hypothesis in of_source
            if beam > 1 and hypothesis.tokens == [EOS]
        }
        longer = self._search_once(limit, [sources[row] for row in empty], beam, ranking, attention, 1)
        for (row, empty_hypothesis), others in zip(empty.items(), longer, strict=True):
            rest = math.log(
                max(-math.expm1(empty_hypothesis.log_prob), 1e-38)
            )  # EOS was suppressed before the first softmax
            known_tokens = [hypothesis.tokens for hypothesis in hypotheses[row]]
            new = [
                hypothesis
                for hypothesis in others
                if hypothesis.tokens[-1] == EOS and hypothesis.tokens not in known_tokens
            ]
            hypotheses[row] += [
                ranking.score(hypothesis.tokens, hypothesis.log_prob + rest, hypothesis.attention) for hypothesis in new
            ]
            hypotheses[row].sort(key=lambda hypothesis: -hypothesis.score)
        return hypotheses

    def _search_once(
        self,
        limit: int,
        sources: Sequence[Sequence[int]],
        beam: int,
        ranking: Scorer,
        attention: bool,
        min_length: int = 0,
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of one search for each source, the best first; `min_length` excludes EOS."""
        results = self._call_ctranslate2(limit, sources, beam, attention, min_length)
        if not attention:
            return [self._rescore_hypotheses(result, ranking, None) for result in results]
        # In a batched beam search CTranslate2 returns the first row of attention of another sentence. That row is the
        # same for all hypotheses of a source and correct in greedy search, so it is taken from there.
        firsts = results if beam == 1 else self._call_ctranslate2(1, sources, 1, True)
        pairs = zip(results, firsts, strict=True)
        return [self._rescore_hypotheses(result, ranking, first.attention[0][0]) for result, first in pairs]

    def _call_ctranslate2(
        self, limit: int, sources: Sequence[Sequence[int]], beam: int, attention: bool, min_length: int = 0
    ) -> list[Any]:
        results: list[Any] = self.translator.translate_batch(
            [[self.source_vocabulary[id] for id in source] for source in sources],
            max_batch_size=choose_batch_tokens(sources, self.workers),
            batch_type="tokens",
            beam_size=beam,
            num_hypotheses=beam,
            length_penalty=CT2_LENGTH_PENALTY,
            suppress_sequences=[[self.target_vocabulary[PAD]], [self.target_vocabulary[BOS]]],
            return_end_token=True,  # also counts EOS in |y|
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
        """Rank the hypotheses of one source, the best first; those that were cut off only if none ended."""
        hypotheses = []
        for rank, (subwords, score) in enumerate(zip(result.hypotheses, result.scores, strict=True)):
            tokens = [self.target_ids[subword] for subword in subwords]
            log_prob = score * len(tokens) ** CT2_LENGTH_PENALTY
            attention = (
                None
                if first_attention is None
                else np.array([first_attention, *result.attention[rank][1:]], np.float32)
            )
            hypotheses.append(ranking.score(tokens, log_prob, attention))
        ended = [hypothesis for hypothesis in hypotheses if hypothesis.tokens[-1] == EOS]
        return sorted(ended or hypotheses, key=lambda hypothesis: -hypothesis.score)


def choose_batch_tokens(sources: Sequence[Sequence[int]], workers: int) -> int:
    """Return the tokens of a batch, small enough that every worker gets one.

    >>> choose_batch_tokens([[4] * 25] * 32, 2)
    400
    """
    longest = max(map(len, sources), default=1)
    return min(MAX_BATCH_TOKENS, longest * math.ceil(len(sources) / workers)) or 1


def _read_vocabulary(folder: Path, side: str) -> list[str]:
    """Read the tokens of one side in the order of their ids."""
    shared = folder / "shared_vocabulary.json"
    path = shared if shared.exists() else folder / f"{side}_vocabulary.json"
    tokens: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return tokens
