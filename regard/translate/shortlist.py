"""Vocabulary shortlist: the target tokens that the tokens of a source may become, learnt from attention.

For a pair of languages, a few hundred of many thousand tokens suffice to translate a sentence, and the product with the
whole output vocabulary is a third or more of a decoder's work. The shortlist counts, for each target token of the
training data, the source token with the highest attention weight (forced decoding).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from regard.data.readers.text import Pair
from regard.errors import UserError
from regard.special_tokens import EOS, SPECIAL_TOKENS

if TYPE_CHECKING:
    from regard.translate.translator import Translator

SHORTLIST_FILE = "shortlist.json"
MAX_TRAINING_PAIRS = 100_000  # of the training data that are read
PAIRS_PER_CHUNK = 512
TARGETS_PER_SOURCE = 50  # target tokens of a source token, the most frequent ones
COMMON_TARGETS = 300  # most frequent target tokens, allowed for every sentence


class Shortlist(NamedTuple):
    """Target ids that are allowed for every source, and further ones for each source id."""

    common: list[int]
    by_source: dict[int, list[int]]

    def find_allowed_targets(self, source: Iterable[int]) -> set[int]:
        """Return the target ids that are allowed for a source sentence."""
        return set(self.common).union(*(self.by_source.get(id, ()) for id in set(source)))

    def save(self, folder: Path) -> None:
        """Write the shortlist to a new folder, for `read_shortlist`."""
        folder.mkdir()
        content = json.dumps({"common": self.common, "each": self.by_source})
        (folder / SHORTLIST_FILE).write_text(content + "\n", encoding="utf-8")

    def format_vmap(self, source: Sequence[str], target: Sequence[str]) -> str:
        """Format as CTranslate2's vmap: source token, tab, target tokens; an empty source means every source."""
        with_space = [token for token in (*source, *target) if token.split() != [token]]
        if with_space:
            raise UserError(f"a vmap file cannot hold tokens with white space in them, like {with_space[0]!r}")
        lines = [("", self.common), *((source[id], target_ids) for id, target_ids in sorted(self.by_source.items()))]
        return "".join(f"{token}\t{' '.join(target[id] for id in target_ids)}\n" for token, target_ids in lines)


def read_shortlist(folder: Path, vocabulary_size: int) -> Shortlist:
    """Read a saved shortlist; raise ValueError if it is malformed or does not fit `vocabulary_size`."""
    saved = json.loads((folder / SHORTLIST_FILE).read_text(encoding="utf-8"))
    match saved:
        case {"common": list(common), "each": dict(by_source)} if all(
            isinstance(target_ids, list) for target_ids in by_source.values()
        ):
            ids = [*common, *(id for target_ids in by_source.values() for id in target_ids)]
        case _:
            raise ValueError("not a shortlist")
    if not all(isinstance(id, int) and 0 <= id < vocabulary_size for id in ids):
        raise ValueError("an id that is not in the vocabulary")
    return Shortlist(common, {int(source_id): target_ids for source_id, target_ids in by_source.items()})


def learn_shortlist(translator: Translator, pairs: Iterable[Pair]) -> Shortlist:
    """Learn a shortlist from all given pairs, by the attention of forced decoding."""
    counts: dict[int, Counter[int]] = {}
    total: Counter[int] = Counter()
    texts = ((pair.source, pair.target) for pair in pairs if pair.source.strip() and pair.target.strip())
    while chunk := list(islice(texts, PAIRS_PER_CHUNK)):
        for (text, _), scored in zip(chunk, translator.score_pairs(chunk), strict=True):
            attention = scored.hypothesis.attention
            if attention is None:
                raise UserError("this model has no attention, so a shortlist cannot be learnt from it")
            source_ids = [*translator.tokenizers.source.encode(text), EOS]
            for target, position in zip(scored.hypothesis.tokens, attention.argmax(1), strict=True):
                counts.setdefault(source_ids[position], Counter())[target] += 1
                total[target] += 1
    if not total:
        raise UserError("the shortlist needs sentence pairs, but the data has none with words on both sides")
    most_common = [id for id, _ in total.most_common(COMMON_TARGETS)]
    common = dict.fromkeys([*range(len(SPECIAL_TOKENS)), *most_common])  # in this order
    by_source = {
        id: [target_id for target_id, _ in targets.most_common(TARGETS_PER_SOURCE) if target_id not in common]
        for id, targets in counts.items()
    }
    return Shortlist(list(common), {id: targets for id, targets in by_source.items() if targets})
