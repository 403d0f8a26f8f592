"""German: articles, adjective endings, noun and verb forms, and the word order of phrases and clauses.

A gender is "m", "f", "n", or "p" for every plural; a case is "nom", "acc", "dat" or "gen".

German splits its verb. The finite verb is second, first (questions, and after a subordinate clause that opens the
sentence) or last (subordinate clauses); prefix, participle and infinitive end the clause. Between them come pronouns,
time, dative, accusative, "nicht", manner, place.
"""

from regard.synthetic.grammar.lexicon import SECTIONS, Adjective, Adverbial, Modal, Noun, Pronoun, Verb, iterate_rows
from regard.synthetic.grammar.syntax import (
    Clause,
    CoordinatedPhrase,
    Nominal,
    NounPhrase,
    PrepositionalPhrase,
    Token,
    is_indefinite,
)

VERB_SECOND, VERB_FIRST, VERB_LAST = "second", "first", "last"
_CASES = {"nom": 0, "acc": 1, "dat": 2, "gen": 3}
_ENDINGS = {  # by declension and gender, of the four cases
    name: {gender: endings for gender, *endings in iterate_rows(table)}
    for name, table in SECTIONS["german_endings"].items()
}
# By English determiner: stem, declension, and declension of the adjectives after it.
_DETERMINERS = {english: columns for english, *columns in iterate_rows(SECTIONS["german_determiners"])}
_IRREGULAR = {
    infinitive: {"1": first, "3": third, "p": plural, "past": past}
    for infinitive, first, third, plural, past in iterate_rows(SECTIONS["german_irregular_verbs"])
}
_CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}


def inflect_adjective(word: Adjective, determiner: str, gender: str, case: str) -> str:
    """Return the adjective before a noun: weak after der-words, mixed after ein-words, else strong."""
    return word.stem + _ENDINGS[_DETERMINERS[determiner][2]][gender][_CASES[case]]


def inflect_noun(word: Noun, plural: bool, case: str) -> str:
    """Return the noun in its case: -n in the dative plural, -(e)n of weak masculines, the genitive."""
    if plural:
        is_unchanged = case != "dat" or word.german_plural.endswith(("n", "s"))
        return word.german_plural if is_unchanged else word.german_plural + "n"
    return word.genitive if case == "gen" or (word.is_weak and case != "nom") else word.german


def _inflect_preterite(past: str, person: str) -> str:
    """Return the preterite, given its singular."""
    return past.removesuffix("e") + "en" if person == "p" else past


def inflect_auxiliary(infinitive: str, person: str, past: bool) -> str:
    """Return a form of sein, haben or werden."""
    forms = _IRREGULAR[infinitive]
    return _inflect_preterite(forms["past"], person) if past else forms[person]


def inflect_modal(word: Modal, person: str) -> str:
    """Return the form of a modal, whose first and third person singular are the same."""
    return word.german_plural if person == "p" else word.german


def inflect_verb(verb: Verb, past: bool, person: str) -> str:
    """Return the finite form of the verb itself, without its separable prefix.

    A person is "1", "3" or "p" (first and third person plural are the same).
    """
    infinitive, third, preterite, _ = verb.german
    if past:
        return _inflect_preterite(preterite, person)
    if infinitive in _IRREGULAR:
        return _IRREGULAR[infinitive][person]
    if person != "1":
        return third if person == "3" else infinitive
    return infinitive.removesuffix("n").removesuffix("e") + "e"


def realize_german_phrase(nominal: Nominal, case: str, path: str, denial: str = "") -> list[Token]:
    """Return the German words of a noun phrase; `denial` (the name of "not") turns its article into kein.

    The first word also carries the case, for an English preposition ("of", "to") without a German counterpart.
    """
    if isinstance(nominal, Pronoun):
        return [(nominal.inflect_german(case), (path + ".noun", path + ".case"))]
    if isinstance(nominal, CoordinatedPhrase):
        left = realize_german_phrase(nominal.left, case, path + ".left")
        return [*left, ("und", (path + ".and",)), *realize_german_phrase(nominal.right, case, path + ".right")]
    determiner = "no" if denial else nominal.determiner
    words: list[Token] = []
    if determiner:
        stem, declension, _ = _DETERMINERS[determiner]
        names = (path + ".the", path + ".case", *([denial] if denial else []))
        words.append((stem + _ENDINGS[declension][nominal.gender][_CASES[case]], names))
    if nominal.very:
        words.append(("sehr", (path + ".very",)))
    for index, word in enumerate(nominal.adjectives):
        words.append((inflect_adjective(word, determiner, nominal.gender, case), (f"{path}.{index}",)))
    words.append((inflect_noun(nominal.noun, nominal.plural, case), (path + ".noun",)))
    if nominal.owner:
        words += realize_german_phrase(nominal.owner, "gen", path + ".owner")
    if nominal.companion:
        words += realize_german_prepositional(nominal.companion, path + ".with")
    return words


def realize_german_prepositional(phrase: PrepositionalPhrase, path: str) -> list[Token]:
    """Return the German words of a prepositional phrase; preposition and article are contracted if possible."""
    words = realize_german_phrase(phrase.nominal, phrase.case, path)
    name = path + ".in"
    first, names = words[0]
    contraction = _CONTRACTIONS.get(f"{phrase.german} {first}")
    if contraction and isinstance(phrase.nominal, NounPhrase):
        return [(contraction, (name, *names)), *words[1:]]
    return [(phrase.german, (name,)), *words]


def realize_german_clause(clause: Clause, path: str, order: str = VERB_SECOND, elided: bool = False) -> list[Token]:
    """Return the German words with the finite verb second, first or last."""
    finite, closing = _realize_german_verb(clause, path, joined=order == VERB_LAST)
    front = "" if order == VERB_FIRST else clause.front
    opening = _realize_german_part(clause, front, path) if front else []
    omitted = {front, "subject"} if elided else {front}
    names = [name for name in _order_middle_field(clause, order) if name not in omitted]
    middle = [token for name in names for token in _realize_german_part(clause, name, path)]
    body = [*opening, *middle, *closing, finite] if order == VERB_LAST else [*opening, finite, *middle, *closing]
    # A clause about the object moves to the end of the clause; one about the subject stays with it.
    return body + _realize_german_relative(clause, path, "direct")


def _order_middle_field(clause: Clause, order: str) -> list[str]:
    pronouns = {name: part for name in ("direct", "indirect") if isinstance(part := getattr(clause, name), Pronoun)}
    # A pronoun moves before a full subject (heute sieht ihn der Mann), unless its form could also be the subject.
    forms = ((part.inflect_german(_choose_case(clause, name)), part) for name, part in pronouns.items())
    is_distinct = all(form != part.inflect_german("nom") for form, part in forms)
    moves_forward = is_distinct and order != VERB_LAST and not isinstance(clause.subject, Pronoun)
    early = [*pronouns, "subject", "time"] if moves_forward else ["subject", *pronouns, "time"]
    if not isinstance(clause.indirect, Pronoun):
        early.append("indirect")
    late = ["frequency", "negation", "manner", "means"]
    if clause.direct is not None and not isinstance(clause.direct, Pronoun):
        late.insert(len(late) if is_indefinite(clause.direct) else 0, "direct")
    return [*early, *late, "place", "complement", "predicate"]


def _realize_german_verb(clause: Clause, path: str, joined: bool) -> tuple[Token, list[Token]]:
    """Return the finite verb, and the words that end the clause; `joined`: the prefix is not separated."""
    verb, person = clause.verb, clause.subject.person
    helper_path, verb_path = (path + ".finite",), (path + ".verb",)
    infinitive: Token = (verb.prefix + verb.german[0], verb_path)
    if clause.modal:
        return (inflect_modal(clause.modal, person), helper_path), [infinitive]
    if clause.tense in {"perfect", "pluperfect"}:
        participle: Token = (verb.prefix + verb.german[3], verb_path)
        return (inflect_auxiliary(verb.auxiliary, person, clause.is_past), helper_path), [participle]
    if clause.tense == "future":
        return (inflect_auxiliary("werden", person, past=False), helper_path), [infinitive]
    stem = inflect_verb(verb, clause.is_past, person)
    if joined or not verb.prefix:
        return (verb.prefix + stem, (*verb_path, *helper_path)), []
    return (stem, (*verb_path, *helper_path)), [(verb.prefix, verb_path)]


def _realize_german_part(clause: Clause, name: str, path: str) -> list[Token]:
    if name == "negation":
        return [("nicht", (path + ".not",))] if clause.negated and not _is_negated_by_kein(clause) else []
    part = getattr(clause, name)
    inner = f"{path}.{name}"
    if part is None:
        return []
    if isinstance(part, Adjective):
        very: list[Token] = [("sehr", (inner + ".very",))] if clause.very else []
        return [*very, (part.german, (inner,))]
    if isinstance(part, PrepositionalPhrase):
        return realize_german_prepositional(part, inner)
    if isinstance(part, Adverbial):
        return [(word, (f"{inner}.{unit}",)) for word, unit in part.german]
    denial = path + ".not" if name == "direct" and _is_negated_by_kein(clause) else ""
    words = realize_german_phrase(part, _choose_case(clause, name), inner, denial)
    return words + _realize_german_relative(clause, path, "subject") if name == "subject" else words


def _is_negated_by_kein(clause: Clause) -> bool:
    return clause.negated and is_indefinite(clause.direct)


def _choose_case(clause: Clause, name: str) -> str:
    if name == "subject":
        return "nom"
    return "dat" if name == "indirect" or clause.verb.frame == "dat" else "acc"


def _realize_german_relative(clause: Clause, path: str, host: str) -> list[Token]:
    if clause.relative is None or clause.host != host:
        return []
    inner = path + ".relative"
    closing: list[Token] = [(",", (inner + ".close",))] if host == "subject" else []
    return [(",", (inner + ".open",)), *realize_german_clause(clause.relative, inner, VERB_LAST), *closing]
