"""English morphology: articles, agreement, verb forms and auxiliaries."""

from regard.synthetic.grammar.lexeme import Modal, Noun, Verb

_BE = {"1": ("am", "was"), "3": ("is", "was"), "p": ("are", "were")}


def inflect_article(determiner: str, plural: bool, following: str) -> str:
    """Return the determiner as it is written before the following word."""
    if determiner == "a":
        return "an" if following[0] in "aeiou" else "a"
    if determiner == "this" and plural:
        return "these"
    return determiner


def inflect_noun(word: Noun, plural: bool) -> str:
    """Return the singular or plural form of the noun."""
    return word.english_plural if plural else word.english


def inflect_do(person: str, past: bool) -> str:
    """Return the form of "do" in questions and negations."""
    if past:
        return "did"
    return "does" if person == "3" else "do"


def inflect_have(person: str, past: bool) -> str:
    """Return the form of "have" in the perfect."""
    if past:
        return "had"
    return "has" if person == "3" else "have"


def inflect_modal(word: Modal, person: str) -> str:
    """Return the form of the modal that agrees with its subject."""
    return word.english_third if person == "3" else word.english


def inflect_verb(verb: Verb, past: bool, person: str) -> str:
    """Return the finite form of the verb itself."""
    if verb.frame == "be":
        return _BE[person][past]
    if past:
        return verb.english[2]
    return verb.english[1] if person == "3" else verb.english[0]
