"""Small stories that regard brings along: who did what with which things, and a sentence that says some of it again.

One word of that sentence, a person or a thing, says which lines of the story are meant, and it stands in the middle of
a long sentence: whoever looks from there finds these lines at once, while the sentence's last states are far from it.
In some of the stories several lines are meant and most of them name the answer: the weights of a word that stands in
several places have to add up, and some other word stands in the story about as often.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from regard.tasks.task import Corpus

PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas")
THINGS = ("lamps", "books", "coats", "keys", "drums", "ropes", "clocks", "bowls", "flutes", "brooms")
VERBS = ("bought", "sold", "lost", "found", "made")
BEFORE = (
    "now that the rain is over we know that",
    "as far as anybody in the village can say",
    "it was late and the fire was low when",
    "what the old man has told me is that",
    "nobody believed it at first but",
    "when the snow had melted they found out that",
)
AFTER = (
    "but nobody could say why that was so",
    "and then all the bells began to ring",
    "long before any snow began to fall here",
    "which is all we ever heard of it",
    "and the children laughed about it for days",
    "although the neighbours told it in another way",
)
FACTS = (3, 5)  # in a story in which every word stands once: at least, at most
TIMES = 3  # that an answer is told, beside one other, in a story about what somebody did most of all
OFTEN = 0.3  # share of these
SIZES = {"train": 16_000, "dev": 300, "test": 1000}
CHANGES: dict[str, Any] = {
    "model.size": 32,
    "model.embedding": 32,
    "model.dropout": 0.0,
    "model.reach": 1.0,
    "model.penalty": 0.0,
    "training.steps": 1000,
    "training.batch_tokens": 2000,
    "training.learning_rate": 0.01,
    "training.schedule": "cosine",
    "training.warmup": 30,
    "training.validate_every": 100,
    "training.checkpoint_every": 100,
    "training.keep": 1,
    "training.log_every": 20,
}


class Fact(NamedTuple):
    """Who, and what."""

    person: str
    thing: str

    def told(self, random: Random) -> str:
        """In words."""
        return f"{self.person} {random.choice(VERBS)} {self.thing}"


class Story(NamedTuple):
    """Facts, and which of them is asked about, one of its two words blank."""

    facts: list[Fact]
    asked: Fact
    blank: int  # 0: who, 1: what


def write(folder: Path, seed: int = 1) -> Corpus:
    """Writes `train`, `dev` and `test` in the layout of the Children's Book Test, with no question in two places."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = distinct(Random(seed))
    paths = {}
    for name, count in SIZES.items():
        paths[name] = folder / f"{name}.txt"
        paths[name].write_text("".join(next(drawn) for _ in range(count)), encoding="utf-8")
    return Corpus([paths["train"]], [paths["dev"]], [paths["test"]], CHANGES)


def distinct(random: Random) -> Iterator[str]:
    """Questions without end, each once."""
    known: set[str] = set()
    while True:
        made = question(random)
        if made not in known:
            known.add(made)
            yield made


def question(random: Random) -> str:
    """A story and what is asked about it; candidates are its words of the blank's kind, and some of the other."""
    blank = random.randrange(2)
    often = random.random() < OFTEN
    story = repeated(random, blank) if often else apart(random, blank)
    same, others = (sorted({fact[kind] for fact in story.facts}) for kind in (blank, 1 - blank))
    candidates = [*same, *random.sample(others, min(len(same), len(others)))]
    random.shuffle(candidates)
    blanked = Fact(*("XXXXX" if number == blank else word for number, word in enumerate(story.asked)))
    before, after = (" , ".join(random.sample(some, random.randint(1, 2))) for some in (BEFORE, AFTER))
    query = f"{before}{' most of all' if often else ''} {blanked.told(random)} {after} ."
    lines = [f"{number} {fact.told(random)} .\n" for number, fact in enumerate(story.facts, 1)]
    return "".join([*lines, f"{len(lines) + 1} {query}\t{story.asked[blank]}\t\t{'|'.join(candidates)}\n\n"])


def apart(random: Random, blank: int) -> Story:
    """Facts that have no word in common."""
    count = random.randint(*FACTS)
    facts = [Fact(*words) for words in zip(random.sample(PEOPLE, count), random.sample(THINGS, count), strict=True)]
    return Story(facts, random.choice(facts), blank)


def repeated(random: Random, blank: int) -> Story:
    """Two words of one kind, each beside one word often and beside another once; of these there are three in all."""
    kinds = (PEOPLE, THINGS)
    clue, rival = random.sample(kinds[1 - blank], 2)
    answer, *others = random.sample(kinds[blank], 3)
    other, often = random.choice(others), random.choice(others)
    once = random.choice([word for word in (answer, *others) if word != often])
    beside = {clue: (*[answer] * TIMES, other), rival: (*[often] * TIMES, once)}
    facts = [fact(one, word, blank) for one, words in beside.items() for word in words]
    random.shuffle(facts)
    return Story(facts, fact(clue, answer, blank), blank)


def fact(clue: str, word: str, blank: int) -> Fact:
    """Both words, the one that is asked for at its place."""
    return Fact(clue, word) if blank else Fact(word, clue)
