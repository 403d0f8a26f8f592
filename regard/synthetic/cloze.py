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

from regard.synthetic.corpus import SyntheticCorpus

PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas")
THINGS = ("lamps", "books", "coats", "keys", "drums", "ropes", "clocks", "bowls", "flutes", "brooms")
_VERBS = ("bought", "sold", "lost", "found", "made")
_OPENING_CLAUSES = (
    "now that the rain is over we know that",
    "as far as anybody in the village can say",
    "it was late and the fire was low when",
    "what the old man has told me is that",
    "nobody believed it at first but",
    "when the snow had melted they found out that",
)
_CLOSING_CLAUSES = (
    "but nobody could say why that was so",
    "and then all the bells began to ring",
    "long before any snow began to fall here",
    "which is all we ever heard of it",
    "and the children laughed about it for days",
    "although the neighbours told it in another way",
)
_FACT_COUNT_RANGE = (3, 5)  # in a story in which every word stands once: at least, at most
_ANSWER_REPEATS = 3  # that an answer is told, beside one other, in a story about what somebody did most of all
_REPEATED_STORY_FRACTION = 0.3  # share of these
SPLIT_SIZES = {"train": 16_000, "dev": 300, "test": 1000}
SMALL_MODEL_OVERRIDES: dict[str, Any] = {
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


class _Fact(NamedTuple):
    """Who, and what."""

    person: str
    thing: str

    def format_clause(self, random: Random) -> str:
        """In words."""
        return f"{self.person} {random.choice(_VERBS)} {self.thing}"


class _Story(NamedTuple):
    """Facts, and which of them is asked about, one of its two words blank."""

    facts: list[_Fact]
    query_fact: _Fact
    blank_index: int  # 0: who, 1: what


def write_cloze_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Writes `train`, `dev` and `test` in the layout of the Children's Book Test, with no question in two places."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = _iterate_distinct_questions(Random(seed))
    paths = {}
    for name, count in SPLIT_SIZES.items():
        paths[name] = folder / f"{name}.txt"
        paths[name].write_text("".join(next(drawn) for _ in range(count)), encoding="utf-8")
    return SyntheticCorpus([paths["train"]], [paths["dev"]], [paths["test"]], SMALL_MODEL_OVERRIDES)


def _iterate_distinct_questions(random: Random) -> Iterator[str]:
    """Questions without end, each once."""
    known: set[str] = set()
    while True:
        made = make_cloze_question(random)
        if made not in known:
            known.add(made)
            yield made


def make_cloze_question(random: Random) -> str:
    """A story and what is asked about it; candidates are its words of the blank's kind, and some of the other."""
    blank = random.randrange(2)
    often = random.random() < _REPEATED_STORY_FRACTION
    story = _make_story_with_repeats(random, blank) if often else _make_story_without_repeats(random, blank)
    same, others = (sorted({fact[kind] for fact in story.facts}) for kind in (blank, 1 - blank))
    candidates = [*same, *random.sample(others, min(len(same), len(others)))]
    random.shuffle(candidates)
    blanked = _Fact(*("XXXXX" if number == blank else word for number, word in enumerate(story.query_fact)))
    before, after = (
        " , ".join(random.sample(some, random.randint(1, 2))) for some in (_OPENING_CLAUSES, _CLOSING_CLAUSES)
    )
    query = f"{before}{' most of all' if often else ''} {blanked.format_clause(random)} {after} ."
    lines = [f"{number} {fact.format_clause(random)} .\n" for number, fact in enumerate(story.facts, 1)]
    return "".join([*lines, f"{len(lines) + 1} {query}\t{story.query_fact[blank]}\t\t{'|'.join(candidates)}\n\n"])


def _make_story_without_repeats(random: Random, blank_index: int) -> _Story:
    """Facts that have no word in common."""
    count = random.randint(*_FACT_COUNT_RANGE)
    facts = [_Fact(*words) for words in zip(random.sample(PEOPLE, count), random.sample(THINGS, count), strict=True)]
    return _Story(facts, random.choice(facts), blank_index)


def _make_story_with_repeats(random: Random, blank_index: int) -> _Story:
    """Two words of one kind, each beside one word often and beside another once; of these there are three in all."""
    kinds = (PEOPLE, THINGS)
    clue, rival = random.sample(kinds[1 - blank_index], 2)
    answer, *others = random.sample(kinds[blank_index], 3)
    other, often = random.choice(others), random.choice(others)
    once = random.choice([word for word in (answer, *others) if word != often])
    words_by_clue = {clue: (*[answer] * _ANSWER_REPEATS, other), rival: (*[often] * _ANSWER_REPEATS, once)}
    facts = [_make_fact(one, word, blank_index) for one, words in words_by_clue.items() for word in words]
    random.shuffle(facts)
    return _Story(facts, _make_fact(clue, answer, blank_index), blank_index)


def _make_fact(clue: str, word: str, blank_index: int) -> _Fact:
    """Both words, the one that is asked for at its place."""
    return _Fact(clue, word) if blank_index else _Fact(word, clue)
