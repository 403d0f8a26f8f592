"""Normalisation of English and French text to the tokenisation of the Hansards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.reproduce.corpora import tokenize_hansard_english, tokenize_hansard_french


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("C'est l'ordre du jour.", "Ce est le ordre de le jour ."),
        ("Qu’il s'en aille, lorsqu'il pleut aux champs !", "Que il se en aille , lorsque il pleut à les champs !"),
        ("Des voix : au-dessus, aujourd'hui", "De les voix : au - dessus , aujourd' hui"),
        ("M. Côté a 1 122 000 $, soit 3,5 % de plus...", "M. Côté a 1 122 000 $ , soit 3,5 % de plus ..."),
    ],
)
def test_french_elisions_contractions_and_punctuation_are_split(text: str, normalised: str) -> None:
    assert tokenize_hansard_french(text) == normalised


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("I don't know, Mr. Speaker.", "I do not know , Mr. Speaker ."),
        ("We can't, won't and shan't.", "We cannot , will not and shall not ."),
        ("It's John's; they've 1,122,000 well-known ones.", "It 's John 's ; they have 1,122,000 well - known ones ."),
        ("At 3 p.m. -- in the 1960s", "At 3 p.m. -- in the 1960s"),
    ],
)
def test_english_contractions_and_punctuation_are_split(text: str, normalised: str) -> None:
    assert tokenize_hansard_english(text) == normalised


@given(
    st.lists(
        st.sampled_from(["L'un", "du", "aux", "can't", "I'm", "p.m.", "2.8c", ".5", "(a)", "«x»", "--", "M.", "é"])
    )
)
def test_normalisation_is_idempotent(words: list[str]) -> None:
    text = " ".join(words)
    assert tokenize_hansard_french(tokenize_hansard_french(text)) == tokenize_hansard_french(text)
    assert tokenize_hansard_english(tokenize_hansard_english(text)) == tokenize_hansard_english(text)


@given(st.text())
def test_normalisation_never_empties_a_text_and_uses_single_spaces(text: str) -> None:
    for normalised in (tokenize_hansard_french(text), tokenize_hansard_english(text)):
        assert normalised.split() == normalised.split(" ") or not normalised
        assert bool(normalised) == bool(text.split())
