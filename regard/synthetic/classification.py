"""Synthetic classification corpus: reports of visits, labelled by the one sentence with the writer's opinion.

Sentences with opinions of other people do not affect the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from regard.synthetic.corpus import SyntheticCorpus, load_corpus_words, write_distinct_splits

_WORDS = load_corpus_words()["classification"]
POSITIVE_ADJECTIVES: Sequence[str] = _WORDS["positive"]
NEGATIVE_ADJECTIVES: Sequence[str] = _WORDS["negative"]


def write_classification_corpus(folder: Path, seed: int = 1) -> SyntheticCorpus:
    """Write `train.tsv`, `dev.tsv` and `test.tsv`: label, text, and the deciding sentence, which training ignores."""
    random = Random(seed)
    return write_distinct_splits(folder, "classification", ".tsv", lambda: _make_report_line(random))


def _make_report_line(random: Random) -> str:
    """Draw a report: neutral sentences, opinions of one or two other people, and the opinion of the writer."""
    place = random.choice(_WORDS["sights"])
    label = random.choice(("liked", "disliked", "undecided"))
    deciding = _capitalize_sentence(_make_opinion(random, label, place))
    opinions_of_others = [_make_opinion_of_others(random, place) for _ in range(random.randint(1, 2))]
    neutral = [text.format(place=place) for text in random.sample(_WORDS["neutral_sentences"], random.randint(1, 3))]
    sentences = [_capitalize_sentence(text) for text in (*opinions_of_others, *neutral)]
    random.shuffle(sentences)
    sentences.insert(random.randrange(len(sentences) + 1), deciding)
    return f"{label}\t{' '.join(sentences)}\t{deciding}\n"


def _make_opinion(random: Random, label: str, noun: str) -> str:
    """Return the writer's opinion; half of the time as a negation of the opposite."""
    if label == "undecided":
        found = f"the {noun} {random.choice((*POSITIVE_ADJECTIVES, *NEGATIVE_ADJECTIVES))}"
        return random.choice((f"I can not say whether I found {found}", f"was {found}, I asked myself"))
    same, other = POSITIVE_ADJECTIVES, NEGATIVE_ADJECTIVES
    if label == "disliked":
        same, other = other, same
    if random.random() < 0.5:
        return f"I found the {noun} {random.choice(same)}"
    return f"I did not find the {noun} {random.choice(other)} at all"


def _make_opinion_of_others(random: Random, noun: str) -> str:
    """Return the opinion of another person, which does not affect the label."""
    person, word = random.choice(_WORDS["people"]), random.choice((*POSITIVE_ADJECTIVES, *NEGATIVE_ADJECTIVES))
    return random.choice((f"{person} found the {noun} {word}", f"{person} did not find the {noun} {word} at all"))


def _capitalize_sentence(words: str) -> str:
    """Return a sentence with a capital letter and a full stop."""
    return words[0].upper() + words[1:] + "."
