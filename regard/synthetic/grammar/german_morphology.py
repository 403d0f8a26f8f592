"""German morphology: articles, adjective endings, noun and verb forms.

A gender is "m", "f", "n", or "p" for every plural; a case is "nom", "acc", "dat" or "gen".
"""

from regard.synthetic.grammar.lexicon import Adjective, Modal, Noun, Verb

_CASES = {"nom": 0, "acc": 1, "dat": 2, "gen": 3}


def _parse_endings(m: str, f: str, n: str, p: str) -> dict[str, tuple[str, ...]]:
    rows = {"m": m, "f": f, "n": n, "p": p}
    return {gender: tuple(cell.replace("-", "") for cell in row.split()) for gender, row in rows.items()}


_THE = _parse_endings(m="der den dem des", f="die die der der", n="das das dem des", p="die die den der")
_THIS = _parse_endings(m="er en em es", f="e e er er", n="es es em es", p="e e en er")
_EIN = _parse_endings(m="- en em es", f="e e er er", n="- - em es", p="e e en er")

_WEAK = _parse_endings(m="e en en en", f="e e en en", n="e e en en", p="en en en en")
_MIXED = _parse_endings(m="er en en en", f="e e en en", n="es es en en", p="en en en en")
_STRONG = _parse_endings(m="er en em en", f="e e er er", n="es es em en", p="e e en er")

_EIN_STEMS = {"a": "ein", "no": "kein", "my": "mein", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr"}
_THIS_STEMS = {"this": "dies", "every": "jed", "which": "welch", "many": "viel", "some": "einig"}
_FIXED = {"two": "zwei", "three": "drei", "": ""}

# Preposition and article as one word.
CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}

_IRREGULAR = {
    "sein": {"1": "bin", "3": "ist", "p": "sind"},
    "haben": {"1": "habe", "3": "hat", "p": "haben"},
    "werden": {"1": "werde", "3": "wird", "p": "werden"},
    "wissen": {"1": "weiß", "3": "weiß", "p": "wissen"},
}
_PRETERITE = {"sein": "war", "haben": "hatte"}

# Nominative, accusative and dative by gender.
RELATIVE_PRONOUNS = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "p": ("die", "die", "denen"),
}


def inflect_article(determiner: str, gender: str, case: str) -> str:
    """Return the German determiner for an English one; "" if there is none."""
    index = _CASES[case]
    if determiner == "the":
        return _THE[gender][index]
    if determiner in _EIN_STEMS:
        return _EIN_STEMS[determiner] + _EIN[gender][index]
    if determiner in _THIS_STEMS:
        return _THIS_STEMS[determiner] + _THIS[gender][index]
    return _FIXED[determiner]


def inflect_adjective(word: Adjective, determiner: str, gender: str, case: str) -> str:
    """Return the adjective before a noun: weak after der-words, mixed after ein-words, else strong."""
    is_weak = determiner in {"the", "this", "every", "which"}
    endings = _WEAK if is_weak else _MIXED if determiner in _EIN_STEMS else _STRONG
    return word.stem + endings[gender][_CASES[case]]


def inflect_noun(word: Noun, plural: bool, case: str) -> str:
    """Return the noun in its case: -n in the dative plural, -(e)n of weak masculines, the genitive."""
    if plural:
        is_unchanged = case != "dat" or word.german_plural.endswith(("n", "s"))
        return word.german_plural if is_unchanged else word.german_plural + "n"
    return word.genitive if case == "gen" or (word.is_weak and case != "nom") else word.german


def _inflect_present(parts: tuple[str, str, str, str], person: str) -> str:
    """Return the present form; a person is "1", "3" or "p" (first and third person plural are the same)."""
    infinitive, third = parts[0], parts[1]
    if infinitive in _IRREGULAR:
        return _IRREGULAR[infinitive][person]
    if person != "1":
        return third if person == "3" else infinitive
    return infinitive.removesuffix("n").removesuffix("e") + "e"


def _inflect_preterite(past: str, person: str) -> str:
    """Return the preterite, given its singular."""
    if person != "p":
        return past
    return past + "n" if past.endswith("e") else past + "en"


def inflect_auxiliary(infinitive: str, person: str, past: bool) -> str:
    """Return a form of sein, haben or werden."""
    return _inflect_preterite(_PRETERITE[infinitive], person) if past else _IRREGULAR[infinitive][person]


def inflect_modal(word: Modal, person: str) -> str:
    """Return the form of a modal, whose first and third person singular are the same."""
    return word.german_plural if person == "p" else word.german


def inflect_verb(verb: Verb, past: bool, person: str) -> str:
    """Return the finite form of the verb itself, without its separable prefix."""
    return _inflect_preterite(verb.german[2], person) if past else _inflect_present(verb.german, person)
