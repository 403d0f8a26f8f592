"""Reports of visits, whose label hangs on one sentence: what the writer thought of it, and not what others did."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple

from regard.tasks.task import Corpus

SPLITS = {"train": 3000, "dev": 300, "test": 600}
PLACES = ("museum", "harbour", "castle", "market", "garden", "theatre", "lake", "tower", "library", "chapel")
PEOPLE = (
    "my brother",
    "our guide",
    "the old man",
    "a friend of mine",
    "the woman beside us",
    "my teacher",
    "the driver",
)
GOOD = ("lovely", "splendid", "charming", "delightful", "wonderful", "impressive")
BAD = ("dreadful", "boring", "ugly", "shabby", "terrible", "disappointing")
PLAIN = (
    "we took the early train",
    "it had rained all night",
    "the tickets were sold at the door",
    "a dog slept in the sun",
    "we met two students from Spain",
    "there was a long queue",
    "the bus came at noon",
    "somebody played the violin",
    "we ate bread and cheese",
    "the {place} stands near the river",
    "it was built a long time ago",
    "children ran up and down the stairs",
    "we stayed for two hours",
    "in the evening we walked back",
)
CHANGES = {
    "model.size": 32,
    "model.embedding": 32,
    "model.attention": 32,
    "model.dropout": 0.2,
    "model.hops": 4,
    "model.mlp": 64,
    "text.vocabulary": 1000,
    "training.steps": 900,
    "training.batch_tokens": 2000,
    "training.learning_rate": 0.005,
    "training.validate_every": 100,
    "training.checkpoint_every": 100,
    "training.log_every": 20,
}


class Report(NamedTuple):
    """A text, its label, and the sentence that tells it."""

    text: str
    label: str
    telling: str


def write(folder: Path, seed: int = 1) -> Corpus:
    """Writes `train.tsv`, `dev.tsv` and `test.tsv`: label, text, and the telling sentence, which nobody reads."""
    folder.mkdir(parents=True, exist_ok=True)
    random, seen = Random(seed), set[str]()
    paths = {}
    for name, count in SPLITS.items():
        reports: list[Report] = []
        while len(reports) < count:
            made = report(random)
            if made.text not in seen:
                seen.add(made.text)
                reports.append(made)
        paths[name] = folder / f"{name}.tsv"
        lines = (f"{one.label}\t{one.text}\t{one.telling}\n" for one in reports)
        paths[name].write_text("".join(lines), encoding="utf-8")
    return Corpus([paths["train"]], [paths["dev"]], [paths["test"]], CHANGES)


def report(random: Random) -> Report:
    """Some sentences that tell nothing, what one or two others thought, and what the writer did."""
    place = random.choice(PLACES)
    label = random.choice(("liked", "disliked", "undecided"))
    telling = sentence(verdict(random, label, place))
    beside = [hearsay(random, place) for _ in range(random.randint(1, 2))]
    plain = [one.format(place=place) for one in random.sample(PLAIN, random.randint(1, 3))]
    rest = [sentence(one) for one in (*beside, *plain)]
    random.shuffle(rest)
    rest.insert(random.randrange(len(rest) + 1), telling)
    return Report(" ".join(rest), label, telling)


def verdict(random: Random, label: str, place: str) -> str:
    """What the writer thought; half of the time by denying the contrary."""
    if label == "undecided":
        word = random.choice((*GOOD, *BAD))
        return random.choice(
            (f"I can not say whether I found the {place} {word}", f"was the {place} {word}, I asked myself")
        )
    same, other = (GOOD, BAD) if label == "liked" else (BAD, GOOD)
    if random.random() < 0.5:
        return f"I found the {place} {random.choice(same)}"
    return f"I did not find the {place} {random.choice(other)} at all"


def hearsay(random: Random, place: str) -> str:
    """What somebody else thought, which counts for nothing."""
    person, word = random.choice(PEOPLE), random.choice((*GOOD, *BAD))
    return random.choice((f"{person} found the {place} {word}", f"{person} did not find the {place} {word} at all"))


def sentence(words: str) -> str:
    """With a capital at the beginning and a full stop at the end."""
    return words[0].upper() + words[1:] + "."
