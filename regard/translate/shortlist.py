"""Which target tokens a source's tokens may become, so that a decoder need not score all others.

For a pair of languages the tokens that can translate a sentence's are a few hundred of many thousand, and the product
with the whole vocabulary is a third or more of a decoder's work. What may become of a token is counted where the model
looked when it was made to write the translations of its training data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from regard.data.readers.dispatch import Pair
from regard.errors import UserError
from regard.special_tokens import EOS, SPECIAL_TOKENS

if TYPE_CHECKING:
    from regard.translate.translator import Translator

SHORTLIST_FILE = "shortlist.json"
MAX_TRAINING_PAIRS = 100_000  # of the training data that are looked at
PAIRS_PER_CHUNK = 512
TARGETS_PER_SOURCE = 50  # target tokens of a source token, the most frequent ones
COMMON_TARGETS = 300  # those that every sentence may have


class Shortlist(NamedTuple):
    """Target ids that every source may become, and those of each source id beside them."""

    common: list[int]
    by_source: dict[int, list[int]]

    def find_allowed_targets(self, source: Iterable[int]) -> set[int]:
        """What a sentence may become."""
        return set(self.common).union(*(self.by_source.get(id, ()) for id in set(source)))

    def save(self, folder: Path) -> None:
        """Into a new folder, as `read` has it."""
        folder.mkdir()
        (folder / SHORTLIST_FILE).write_text(
            json.dumps({"common": self.common, "each": self.by_source}) + "\n", encoding="utf-8"
        )

    def format_vmap(self, source: Sequence[str], target: Sequence[str]) -> str:
        """As CTranslate2 reads it: a source token, a tab, target tokens; before the tab nothing means every source."""
        spaced = [piece for piece in (*source, *target) if piece.split() != [piece]]
        if spaced:
            raise UserError(f"a shortlist cannot be written of tokens with white space in them, like {spaced[0]!r}")
        lines = [("", self.common), *((source[id], some) for id, some in sorted(self.by_source.items()))]
        return "".join(f"{piece}\t{' '.join(target[id] for id in some)}\n" for piece, some in lines)


def read_shortlist(folder: Path, vocabulary_size: int) -> Shortlist:
    """What was saved, of a target vocabulary of that size; a ValueError where it cannot be."""
    known = json.loads((folder / SHORTLIST_FILE).read_text(encoding="utf-8"))
    match known:
        case {"common": list(common), "each": dict(each)} if all(isinstance(some, list) for some in each.values()):
            ids = [*common, *(id for some in each.values() for id in some)]
        case _:
            raise ValueError("no shortlist")
    if not all(isinstance(id, int) and 0 <= id < vocabulary_size for id in ids):
        raise ValueError("an id that is not in the vocabulary")
    return Shortlist(common, {int(source): some for source, some in each.items()})


def learn_shortlist(translator: Translator, pairs: Iterable[Pair]) -> Shortlist:
    """Of pairs, as many as are given."""
    counts: dict[int, Counter[int]] = {}
    total: Counter[int] = Counter()
    worded = ((pair.source, pair.target) for pair in pairs if pair.source.strip() and pair.target.strip())
    while chunk := list(islice(worded, PAIRS_PER_CHUNK)):
        for source, target in _iterate_token_links(translator, chunk):
            counts.setdefault(source, Counter())[target] += 1
            total[target] += 1
    if not total:
        raise UserError("a shortlist is learnt from pairs, and there is none")
    common = [
        *range(len(SPECIAL_TOKENS)),
        *(id for id, _ in total.most_common(COMMON_TARGETS) if id >= len(SPECIAL_TOKENS)),
    ]
    known = set(common)
    each = {
        id: [one for one, _ in some.most_common(TARGETS_PER_SOURCE) if one not in known] for id, some in counts.items()
    }
    return Shortlist(common, {id: some for id, some in each.items() if some})


def _iterate_token_links(translator: Translator, pairs: Sequence[tuple[str, str]]) -> Iterable[tuple[int, int]]:
    """The source token that each target token looked at most, and that target token."""
    for (text, _), judged in zip(pairs, translator.score_pairs(pairs), strict=True):
        look = judged.hypothesis.attention
        if look is None:
            raise UserError("this model has no attention, so nothing says which target tokens belong to a source token")
        source = [*translator.tokenizers.source.encode(text), EOS]
        for target, place in zip(judged.hypothesis.tokens, look.argmax(1), strict=True):
            yield source[place], target
