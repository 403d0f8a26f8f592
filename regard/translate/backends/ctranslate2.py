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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.errors import UserError
from regard.models.hypothesis import Hypothesis, Scorer, SearchOptions
from regard.special_tokens import BOS, EOS, PAD
from regard.translate.backends.base import TorchBackend, restore_order, split_segments
from regard.translate.backends.exports import make_load_error
from regard.translate.options import CompiledOptions
from regard.translate.translation import EncodedSegment

# CTranslate2 divides log p by |y|^α, and no α makes that equal to ((5 + |y|) / 6)^0.6; near |y| = 25 the two rank
# alike. It only decides which hypotheses are returned, and these are ranked again.
CT2_LENGTH_PENALTY = 0.5
MAX_BATCH_TOKENS = 1024
MAX_CALL_TOKENS = 32_000  # of one call, which makes its own batches


@dataclass(kw_only=True, eq=False, repr=False)
class CTranslate2Backend(TorchBackend):
    """Decodes segments without constraints by CTranslate2, and the others by PyTorch."""

    ctranslate2: CTranslate2Model

    def search(self, segments: Sequence[EncodedSegment], compiled: CompiledOptions) -> list[list[Hypothesis]]:
        """See `TorchBackend`."""
        supported = [compiled.is_unconstrained and not (one.prefix_ids or one.forced_phrases) for one in segments]
        own = [segment for segment, ours in zip(segments, supported, strict=True) if ours]
        others = [segment for segment, ours in zip(segments, supported, strict=True) if not ours]
        options = compiled.search_options
        batches = split_segments(own, MAX_CALL_TOKENS)
        calls = ([[*compiled.domain_ids, *own[row].ids, EOS] for row in rows] for rows in batches)
        found = [self.ctranslate2.search(ids, options) for ids in calls]
        of_own, of_others = iter(restore_order(batches, found)), iter(super().search(others, compiled))
        return [next(of_own if ours else of_others) for ours in supported]


class CTranslate2Model:
    """An exported model in CTranslate2: `workers` batches in parallel with `threads` threads each.

    With more than one batch, two workers of one thread are faster than one worker of two.
    """

    def __init__(self, folder: Path, workers: int = 1, threads: int = 1) -> None:
        from ctranslate2 import Translator

        from regard.export.ctranslate2 import MAX_POSITIONS, VMAP

        if not (folder / "model.bin").is_file():
            raise UserError(f"{folder} is not a model exported for CTranslate2: it has no model.bin")
        self.max_positions = MAX_POSITIONS
        self.translator = Translator(str(folder), inter_threads=workers, intra_threads=threads)
        self.has_shortlist = (folder / VMAP).is_file()
        self.workers = workers
        self.source_vocabulary = _read_vocabulary(folder, "source")
        self.target_vocabulary = _read_vocabulary(folder, "target")
        self.target_ids = {token: id for id, token in enumerate(self.target_vocabulary)}

    def search(self, sources: Sequence[Sequence[int]], options: SearchOptions) -> list[list[Hypothesis]]:
        """Return the n best targets of each source, with EOS; `options` must be without constraints."""
        longest = max(map(len, sources), default=0)
        if longest > self.max_positions:
            raise UserError(f"a source has {longest} tokens, but an exported model reads at most {self.max_positions}")
        limits = [min(limit, self.max_positions) for limit in options.max_lengths([*map(len, sources)])]
        hypotheses = self.search_within_limit(sources, max(limits, default=0), options)
        # One call has one length limit: sources whose target exceeds their own limit are searched again with it.
        sizes = [max(len(hypothesis.tokens) for hypothesis in of_source[: options.n_best]) for of_source in hypotheses]
        too_long = [row for row, limit in enumerate(limits) if sizes[row] > limit]
        for limit in {limits[row] for row in too_long}:
            rows = [row for row in too_long if limits[row] == limit]
            again = self.search_within_limit([sources[row] for row in rows], limit, options)
            for row, of_source in zip(rows, again, strict=True):
                hypotheses[row] = of_source
        return [of_source[: options.n_best] for of_source in hypotheses]

    def search_within_limit(
        self, sources: Sequence[Sequence[int]], limit: int, options: SearchOptions
    ) -> list[list[Hypothesis]]:
        """Return all hypotheses that ended or were cut off at the limit, the best first."""
        hypotheses, ranking = self._search_once(sources, limit, options), Scorer(options.length_penalty)
        # CTranslate2 stops when as many hypotheses have ended as the beam size. An empty one ends before all others and
        # may displace the best, so its source is searched again without it.
        empty = {
            row: hypothesis
            for row, of_source in enumerate(hypotheses)
            for hypothesis in of_source
            if options.beam > 1 and hypothesis.tokens == [EOS]
        }
        longer = self._search_once([sources[row] for row in empty], limit, options, min_length=1)
        for (row, empty_hypothesis), others in zip(empty.items(), longer, strict=True):
            # EOS was suppressed before the first softmax.
            rest = math.log(max(-math.expm1(empty_hypothesis.log_prob), 1e-38))
            known = [hypothesis.tokens for hypothesis in hypotheses[row]]
            hypotheses[row] += [
                ranking.score(other.tokens, other.log_prob + rest, other.attention)
                for other in others
                if other.tokens[-1] == EOS and other.tokens not in known
            ]
            hypotheses[row].sort(key=lambda hypothesis: -hypothesis.score)
        return hypotheses

    def _search_once(
        self, sources: Sequence[Sequence[int]], limit: int, options: SearchOptions, min_length: int = 0
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of one search for each source, the best first; `min_length` excludes EOS."""
        ranking = Scorer(options.length_penalty)
        results = self._call_ctranslate2(sources, limit, options.beam, options.attention, min_length)
        if not options.attention:
            return [self._rescore_hypotheses(result, ranking) for result in results]
        # In a batched beam search CTranslate2 returns the first row of attention of another sentence. That row is the
        # same for all hypotheses of a source and correct in greedy search, so it is taken from there.
        firsts = results if options.beam == 1 else self._call_ctranslate2(sources, 1, 1, True)
        pairs = zip(results, firsts, strict=True)
        return [self._rescore_hypotheses(result, ranking, first.attention[0][0]) for result, first in pairs]

    def _call_ctranslate2(
        self, sources: Sequence[Sequence[int]], limit: int, beam: int, attention: bool, min_length: int = 0
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
        self, result: Any, ranking: Scorer, first_attention: Sequence[float] | None = None
    ) -> list[Hypothesis]:
        """Rank the hypotheses of one source, the best first; those that were cut off only if none ended."""
        hypotheses = []
        for rank, (subwords, score) in enumerate(zip(result.hypotheses, result.scores, strict=True)):
            tokens = [self.target_ids[subword] for subword in subwords]
            log_prob = score * len(tokens) ** CT2_LENGTH_PENALTY
            attention = None
            if first_attention is not None:
                attention = np.array([first_attention, *result.attention[rank][1:]], np.float32)
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


def load_ctranslate2_model(folder: Path) -> CTranslate2Model:
    """Load an export; raise UserError if it is damaged."""
    try:
        return CTranslate2Model(folder, torch.get_num_threads())
    except (RuntimeError, OSError, ValueError) as error:
        raise make_load_error(folder, error) from error
