"""Synthetic classification corpus: reports of visits, labelled by the one sentence with the writer's opinion.

Sentences with opinions of other people do not affect the label.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple

from regard.synthetic.corpus import SyntheticCorpus

SPLIT_SIZES = {"train": 3000, "dev": 300, "test": 600}
_SIGHTS = ("museum", "harbour", "castle", "market", "garden", "theatre", "lake", "tower", "library", "chapel")
_PEOPLE = (
    "my brother",
    "our guide",
    "the old man",
    "a friend of mine",
    "the woman beside us",
    "my teacher",
    "the driver",
)
POSITIVE_ADJECTIVES = ("lovely", "splendid", "charming", "delightful", "wonderful", "impressive")
NEGATIVE_ADJECTIVES = ("dreadful", "boring", "ugly", "shabby", "terrible", "disappointing")
_NEUTRAL_SENTENCES = (
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
SMALL_MODEL_OVERRIDES = {
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


class _VisitReport(NamedTuple):
    """A text, its label, and the sentence that determines it."""

    text: str
    label: str
    deciding_sentence: str


def write_classification_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train.tsv`, `dev.tsv` and `test.tsv`: label, text, and the deciding sentence, which training ignores."""
    folder.mkdir(parents=True, exist_ok=True)
    random, seen = Random(seed), set[str]()
    paths = {}
    for name, count in SPLIT_SIZES.items():
        reports: list[_VisitReport] = []
        while len(reports) < count:
            report = _make_report(random)
            if report.text not in seen:
                seen.add(report.text)
                reports.append(report)
        paths[name] = folder / f"{name}.tsv"
        lines = (f"{report.label}\t{report.text}\t{report.deciding_sentence}\n" for report in reports)
        paths[name].write_text("".join(lines), encoding="utf-8")
    return SyntheticCorpus([paths["train"]], [paths["dev"]], [paths["test"]], SMALL_MODEL_OVERRIDES)


def _make_report(random: Random) -> _VisitReport:
    """Draw a report: neutral sentences, opinions of one or two other people, and the opinion of the writer."""
    place = random.choice(_SIGHTS)
    label = random.choice(("liked", "disliked", "undecided"))
    deciding = _capitalize_sentence(_make_opinion(random, label, place))
    opinions_of_others = [_make_opinion_of_others(random, place) for _ in range(random.randint(1, 2))]
    neutral = [text.format(place=place) for text in random.sample(_NEUTRAL_SENTENCES, random.randint(1, 3))]
    sentences = [_capitalize_sentence(text) for text in (*opinions_of_others, *neutral)]
    random.shuffle(sentences)
    sentences.insert(random.randrange(len(sentences) + 1), deciding)
    return _VisitReport(" ".join(sentences), label, deciding)


def _make_opinion(random: Random, label: str, sight: str) -> str:
    """Return the writer's opinion; half of the time as a negation of the opposite."""
    if label == "undecided":
        word = random.choice((*POSITIVE_ADJECTIVES, *NEGATIVE_ADJECTIVES))
        return random.choice(
            (f"I can not say whether I found the {sight} {word}", f"was the {sight} {word}, I asked myself")
        )
    same, other = (
        (POSITIVE_ADJECTIVES, NEGATIVE_ADJECTIVES) if label == "liked" else (NEGATIVE_ADJECTIVES, POSITIVE_ADJECTIVES)
    )
    if random.random() < 0.5:
        return f"I found the {sight} {random.choice(same)}"
    return f"I did not find the {sight} {random.choice(other)} at all"


def _make_opinion_of_others(random: Random, sight: str) -> str:
    """Return the opinion of another person, which does not affect the label."""
    person, word = random.choice(_PEOPLE), random.choice((*POSITIVE_ADJECTIVES, *NEGATIVE_ADJECTIVES))
    return random.choice((f"{person} found the {sight} {word}", f"{person} did not find the {sight} {word} at all"))


def _capitalize_sentence(words: str) -> str:
    """Return a sentence with a capital letter and a full stop."""
    return words[0].upper() + words[1:] + "."
