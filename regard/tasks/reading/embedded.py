"""Small stories that regard brings along: who did what where, and a sentence that says one of it again with a blank.

In a story any two of person, thing and place say which the third is, and none of them alone does: the facts are cells of
a Latin square. So a reader has to weigh two words of the query together.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from regard.tasks.task import Corpus

PEOPLE = [
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Greta",
    "Henry",
    "Ida",
    "Jonas",
    "Karla",
    "Leo",
    "Mara",
    "Nils",
    "Olga",
    "Paul",
]
THINGS = [
    "lamp",
    "book",
    "vase",
    "coat",
    "key",
    "drum",
    "kite",
    "rope",
    "bell",
    "cup",
    "hat",
    "ring",
    "flute",
    "basket",
    "letter",
    "candle",
]
PLACES = [
    "kitchen",
    "garden",
    "attic",
    "cellar",
    "barn",
    "chapel",
    "mill",
    "tower",
    "stable",
    "library",
    "harbour",
    "market",
    "forest",
    "school",
]
VERBS = ["left", "found", "hid", "saw", "took", "lost"]
TOLD = ("{0} {3} the {1} in the {2} .", "in the {2} , {0} {3} the {1} .")
SAID = ("it rained all day .", "nobody said a word .", "the wind was cold .", "then it was night .")
ORDER, FACTS, LINES = 3, 6, 7  # of the square, cells of it in a story, and lines with those that say nothing
SIZES = {"train": 4000, "dev": 300, "test": 500}
CHANGES: dict[str, Any] = {
    "model.size": 64,
    "model.embedding": 64,
    "model.dropout": 0.0,
    "model.penalty": 0.0,
    "training.steps": 500,
    "training.batch_tokens": 2000,
    "training.learning_rate": 0.005,
    "training.schedule": "cosine",
    "training.validate_every": 250,
    "training.checkpoint_every": 250,
    "training.log_every": 50,
}


class Fact(NamedTuple):
    """Who, what and where."""

    person: str
    thing: str
    place: str

    def told(self, random: Random) -> str:
        """In words."""
        return random.choice(TOLD).format(*self, random.choice(VERBS))


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
    facts = story(random)
    lines = [fact.told(random) for fact in facts] + random.sample(SAID, LINES - FACTS)
    random.shuffle(lines)
    asked, role = random.choice(facts), random.randrange(3)
    same = {fact[role] for fact in facts}
    others = {fact[other] for fact in facts for other in range(3) if other != role}
    candidates = [*sorted(same), *random.sample(sorted(others), len(same))]
    random.shuffle(candidates)
    query = asked._replace(**{Fact._fields[role]: "XXXXX"}).told(random)
    numbered = [f"{number} {line}\n" for number, line in enumerate(lines, 1)]
    return "".join([*numbered, f"{len(lines) + 1} {query}\t{asked[role]}\t\t{'|'.join(candidates)}\n\n"])


def story(random: Random) -> list[Fact]:
    """Facts of which any two words say the third."""
    people, things, places = (random.sample(words, ORDER) for words in (PEOPLE, THINGS, PLACES))
    return random.sample(list(square(people, things, places)), FACTS)


def square(people: list[str], things: list[str], places: list[str]) -> Iterator[Fact]:
    """A Latin square: every person has everything once and is everywhere once."""
    for row, person in enumerate(people):
        for column, thing in enumerate(things):
            yield Fact(person, thing, places[(row + column) % len(places)])
