"""English morphology: articles, agreement, verb forms and auxiliaries."""

from regard.synthetic.grammar.lexicon import Modal, Noun, Verb

_AUXILIARIES = {  # present and past by person
    "be": {"1": ("am", "was"), "3": ("is", "was"), "p": ("are", "were")},
    "have": {"1": ("have", "had"), "3": ("has", "had"), "p": ("have", "had")},
    "do": {"1": ("do", "did"), "3": ("does", "did"), "p": ("do", "did")},
}


def inflect_article(determiner: str, plural: bool, following: str) -> str:
    """Return the determiner as it is written before the following word."""
    if determiner == "a":
        return "an" if following[0] in "aeiou" else "a"
    return "these" if determiner == "this" and plural else determiner


def inflect_noun(word: Noun, plural: bool) -> str:
    """Return the singular or plural form of the noun."""
    return word.english_plural if plural else word.english


def inflect_auxiliary(infinitive: str, person: str, past: bool) -> str:
    """Return a form of be, have or do."""
    return _AUXILIARIES[infinitive][person][past]


def inflect_modal(word: Modal, person: str) -> str:
    """Return the form of the modal that agrees with its subject."""
    return word.english_third if person == "3" else word.english


def inflect_verb(verb: Verb, past: bool, person: str) -> str:
    """Return the finite form of the verb itself."""
    if verb.frame == "be":
        return inflect_auxiliary("be", person, past)
    return verb.english[2] if past else verb.english[1 if person == "3" else 0]
