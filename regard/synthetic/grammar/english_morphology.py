"""English morphology: articles, agreement, the verb and its auxiliaries."""

from regard.synthetic.grammar.lexeme import Modal, Noun, Verb

_BE = {"1": ("am", "was"), "3": ("is", "was"), "p": ("are", "were")}


def inflect_article(determiner: str, plural: bool, following: str) -> str:
    """The determiner as it is written before the following word."""
    if determiner == "a":
        return "an" if following[0] in "aeiou" else "a"
    if determiner == "this" and plural:
        return "these"
    return determiner


def inflect_noun(word: Noun, plural: bool) -> str:
    """The noun in its number."""
    return word.english_plural if plural else word.english


def inflect_do(person: str, past: bool) -> str:
    """The auxiliary of questions and denials."""
    if past:
        return "did"
    return "does" if person == "3" else "do"


def inflect_have(person: str, past: bool) -> str:
    """The auxiliary of the perfect."""
    if past:
        return "had"
    return "has" if person == "3" else "have"


def inflect_modal(word: Modal, person: str) -> str:
    """The modal that agrees with its subject."""
    return word.english_third if person == "3" else word.english


def inflect_verb(verb: Verb, past: bool, person: str) -> str:
    """The verb's own finite form."""
    if verb.frame == "be":
        return _BE[person][past]
    if past:
        return verb.english[2]
    return verb.english[1] if person == "3" else verb.english[0]
