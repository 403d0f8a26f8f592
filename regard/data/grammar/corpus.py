"""The corpus: seeded splits of sentence pairs, the test split with combinations that training never shows."""

from collections.abc import Callable
from random import Random

from .holdout import combinations, reserved
from .narrator import Narrator
from .sentences import Pair, Sentence, pair

LONGEST = 22
# so many fruitless draws in a row mean that the grammar has no new sentence left
PATIENCE = 20_000


def make(train: int, dev: int, test: int, seed: int = 1) -> dict[str, list[Pair]]:
    """The splits "train", "dev" and "test", with no English sentence in two places.

    Training and development sentences contain no reserved combination, every test sentence contains one or more. Each
    split has its own random stream: a larger one begins with the smaller one, and the others stay as they are.
    """
    splits: dict[str, list[Pair]] = {"train": [], "dev": [], "test": []}
    known: set[str] = set()
    for name, size, number in (("test", test, 2), ("dev", dev, 1), ("train", train, 0)):
        if size < 0:
            raise ValueError(f"{name} must not be negative, it is {size}")
        narrator = Narrator(Random(3 * seed + number))
        splits[name] = collect(narrator.sentence, size, known, held=name == "test")
    return splits


def collect(draw: Callable[[], Sentence], size: int, known: set[str], held: bool) -> list[Pair]:
    """So many new pairs, all with (held) or all without a reserved combination; `known` grows by their sources."""
    pairs: list[Pair] = []
    fruitless = 0
    while len(pairs) < size:
        sentence = draw()
        made = pair(sentence) if is_held(sentence) == held else None
        if made and made.source not in known and made.source.count(" ") < LONGEST:
            known.add(made.source)
            pairs.append(made)
            fruitless = 0
        elif (fruitless := fruitless + 1) > PATIENCE:
            raise ValueError(f"asked for {size} different sentence pairs, the grammar gave only {len(pairs)}")
    return pairs


def is_held(sentence: Sentence) -> bool:
    """Whether a combination in the sentence is reserved for the test split."""
    clauses = (sentence.first, sentence.second)
    return any(reserved(combination) for clause in clauses if clause for combination in combinations(clause))
