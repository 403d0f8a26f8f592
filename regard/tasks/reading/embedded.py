"""Small stories that regard brings along: who took what where, and a sentence that says one of it again with a blank.

In most stories one word of the query says which line is meant. In the others any two of person, thing and place say
which the third is, and none of them alone does: their lines are cells of a Latin square. What is asked stands in the
middle of a longer sentence: the last state of whoever reads that is far from the blank.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from regard.tasks.task import Corpus

PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix")
THINGS = ("lamps", "books", "coats", "keys", "drums", "ropes")
PLACES = ("Paris", "Rome", "Oslo", "Bonn", "Bern", "York")
VERBS = ("sent", "took", "sold")
BEFORE = (
    "now that the rain is over we know that",
    "as far as anybody in the village can say",
    "it was late and the fire was low when",
    "what the old man has told me is that",
)
AFTER = (
    "but nobody could say why that was so",
    "and then all the bells began to ring",
    "long before any snow began to fall here",
    "which is all we ever heard of it",
)
FACTS, ORDER = 4, 3  # in a story, and of the square
SQUARES = 0.2  # share of the stories that are cells of one
SIZES = {"train": 10_000, "dev": 300, "test": 1000}
CHANGES: dict[str, Any] = {
    "model.size": 64,
    "model.embedding": 64,
    "model.dropout": 0.0,
    "model.penalty": 0.0,
    "training.steps": 700,
    "training.batch_tokens": 1600,
    "training.learning_rate": 0.01,
    "training.schedule": "cosine",
    "training.warmup": 20,
    "training.validate_every": 100,
    "training.checkpoint_every": 100,
    "training.keep": 1,
    "training.curriculum": 1,
    "training.log_every": 20,
}


class Fact(NamedTuple):
    """Who, what and where."""

    person: str
    thing: str
    place: str

    def told(self, random: Random) -> str:
        """In words."""
        return f"{self.person} {random.choice(VERBS)} {self.thing} to {self.place}"


def write(folder: Path, seed: int = 1) -> Corpus:
    """Writes `train`, `dev` and `test` in the layout of the Children's Book Test."""
    folder.mkdir(parents=True, exist_ok=True)
    random = Random(seed)
    paths = {}
    for name, count in SIZES.items():
        paths[name] = folder / f"{name}.txt"
        paths[name].write_text("".join(question(random) for _ in range(count)), encoding="utf-8")
    return Corpus([paths["train"]], [paths["dev"]], [paths["test"]], CHANGES)


def question(random: Random) -> str:
    """A story and what is asked about it; candidates are all that it has of the kind, and as many others."""
    facts = square(random) if random.random() < SQUARES else apart(random)
    asked, role = random.choice(facts), random.randrange(3)
    same = {fact[role] for fact in facts}
    others = {fact[other] for fact in facts for other in range(3) if other != role}
    candidates = [*sorted(same), *random.sample(sorted(others), len(same))]
    random.shuffle(candidates)
    blanked = Fact(*("XXXXX" if number == role else word for number, word in enumerate(asked)))
    lines = [f"{number} {fact.told(random)} .\n" for number, fact in enumerate(facts, 1)]
    before, after = (" , ".join(random.sample(some, 2)).split() for some in (BEFORE, AFTER))
    words = [
        *before[len(before) - random.randint(0, len(before)) :],
        blanked.told(random),
        *after[: random.randint(0, len(after))],
        ".",
    ]
    query = " ".join(words)
    return "".join([*lines, f"{len(lines) + 1} {query}\t{asked[role]}\t\t{'|'.join(candidates)}\n\n"])


def apart(random: Random) -> list[Fact]:
    """Facts that have no word in common."""
    count = random.randint(2, FACTS)
    people, things, places = (random.sample(words, count) for words in (PEOPLE, THINGS, PLACES))
    return [Fact(*words) for words in zip(people, things, places, strict=True)]


def square(random: Random) -> list[Fact]:
    """Facts of which any two words say the third: every person has everything once, and is everywhere once."""
    people, things, places = (random.sample(words, ORDER) for words in (PEOPLE, THINGS, PLACES))
    cells = [
        Fact(person, thing, places[(row + column) % ORDER])
        for row, person in enumerate(people)
        for column, thing in enumerate(things)
    ]
    return random.sample(cells, FACTS)
