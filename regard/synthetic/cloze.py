"""Synthetic cloze corpus: short stories of who did what with which things, and a query with one word left out.

One word of the query, a person or a thing, says which lines of the story are meant. It is in the middle of a long
sentence: attention from there finds these lines directly, while the last states of the query's encoder are far from it.
In some stories several lines are meant, and most of them name the answer: the attention weights of a word that occurs
several times have to be summed, and another word occurs in the story about as often.
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
_FACT_COUNT_RANGE = (3, 5)  # minimum and maximum, in a story in which every word occurs once
_ANSWER_REPEATS = 3  # of the answer, besides one other word, in a story about what somebody did "most of all"
_REPEATED_STORY_FRACTION = 0.3  # fraction of these stories
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
    """A person and a thing."""

    person: str
    thing: str

    def format_clause(self, random: Random) -> str:
        """Return the fact as a clause with a random verb."""
        return f"{self.person} {random.choice(_VERBS)} {self.thing}"


class _Story(NamedTuple):
    """Facts, the one that the query is about, and which of its two words is left out."""

    facts: list[_Fact]
    query_fact: _Fact
    blank_index: int  # 0: person, 1: thing


def write_cloze_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train`, `dev` and `test` in the format of the Children's Book Test, without repeated questions."""
    folder.mkdir(parents=True, exist_ok=True)
    questions = _iterate_distinct_questions(Random(seed))
    paths = {}
    for name, count in SPLIT_SIZES.items():
        paths[name] = folder / f"{name}.txt"
        paths[name].write_text("".join(next(questions) for _ in range(count)), encoding="utf-8")
    return SyntheticCorpus([paths["train"]], [paths["dev"]], [paths["test"]], SMALL_MODEL_OVERRIDES)


def _iterate_distinct_questions(random: Random) -> Iterator[str]:
    """Yield distinct questions without end."""
    seen: set[str] = set()
    while True:
        question = make_cloze_question(random)
        if question not in seen:
            seen.add(question)
            yield question


def make_cloze_question(random: Random) -> str:
    """Draw a story and its query; candidates are all its words of the blank's kind, and some of the other kind."""
    blank = random.randrange(2)
    has_repeats = random.random() < _REPEATED_STORY_FRACTION
    story = _make_story_with_repeats(random, blank) if has_repeats else _make_story_without_repeats(random, blank)
    same, others = (sorted({fact[kind] for fact in story.facts}) for kind in (blank, 1 - blank))
    candidates = [*same, *random.sample(others, min(len(same), len(others)))]
    random.shuffle(candidates)
    blanked = _Fact(*("XXXXX" if index == blank else word for index, word in enumerate(story.query_fact)))
    before, after = (
        " , ".join(random.sample(clauses, random.randint(1, 2))) for clauses in (_OPENING_CLAUSES, _CLOSING_CLAUSES)
    )
    query = f"{before}{' most of all' if has_repeats else ''} {blanked.format_clause(random)} {after} ."
    lines = [f"{number} {fact.format_clause(random)} .\n" for number, fact in enumerate(story.facts, 1)]
    return "".join([*lines, f"{len(lines) + 1} {query}\t{story.query_fact[blank]}\t\t{'|'.join(candidates)}\n\n"])


def _make_story_without_repeats(random: Random, blank_index: int) -> _Story:
    """Draw facts that have no word in common."""
    count = random.randint(*_FACT_COUNT_RANGE)
    facts = [_Fact(*words) for words in zip(random.sample(PEOPLE, count), random.sample(THINGS, count), strict=True)]
    return _Story(facts, random.choice(facts), blank_index)


def _make_story_with_repeats(random: Random, blank_index: int) -> _Story:
    """Draw facts about two clue words, each occurring several times with one word and once with another.

    The clues are of one kind; the words that occur with them, three in all, are of the other.
    """
    kinds = (PEOPLE, THINGS)
    clue, other_clue = random.sample(kinds[1 - blank_index], 2)
    answer, *others = random.sample(kinds[blank_index], 3)
    other, frequent = random.choice(others), random.choice(others)
    rare = random.choice([word for word in (answer, *others) if word != frequent])
    words_by_clue = {clue: (*[answer] * _ANSWER_REPEATS, other), other_clue: (*[frequent] * _ANSWER_REPEATS, rare)}
    facts = [_make_fact(clue_word, word, blank_index) for clue_word, words in words_by_clue.items() for word in words]
    random.shuffle(facts)
    return _Story(facts, _make_fact(clue, answer, blank_index), blank_index)


def _make_fact(clue: str, word: str, blank_index: int) -> _Fact:
    """Build the fact with the queried word at its position."""
    return _Fact(clue, word) if blank_index else _Fact(word, clue)
