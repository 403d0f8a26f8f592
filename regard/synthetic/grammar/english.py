"""English: articles, agreement, verb forms, and the word order of phrases and clauses.

The order of a clause is subject, verb, objects, manner, place, time.
"""

from regard.synthetic.grammar.lexicon import Adjective, Adverbial, Pronoun
from regard.synthetic.grammar.syntax import Clause, CoordinatedPhrase, Nominal, PrepositionalPhrase, Token

_AUXILIARIES = {  # present and past by person
    "be": {"1": ("am", "was"), "3": ("is", "was"), "p": ("are", "were")},
    "have": {"1": ("have", "had"), "3": ("has", "had"), "p": ("have", "had")},
    "do": {"1": ("do", "did"), "3": ("does", "did"), "p": ("do", "did")},
}


def _inflect_article(determiner: str, plural: bool, following: str) -> str:
    """Return the determiner as it is written before the following word."""
    if determiner == "a":
        return "an" if following[0] in "aeiou" else "a"
    return "these" if determiner == "this" and plural else determiner


def realize_english_phrase(nominal: Nominal, path: str, objective: bool = False) -> list[Token]:
    """Return the English words of a noun phrase."""
    if isinstance(nominal, Pronoun):
        return [(nominal.english[objective], (path + ".noun",))]
    if isinstance(nominal, CoordinatedPhrase):
        left = realize_english_phrase(nominal.left, path + ".left")
        return [*left, ("and", (path + ".and",)), *realize_english_phrase(nominal.right, path + ".right")]
    words: list[Token] = [("very", (path + ".very",))] if nominal.very else []
    words += [(word.english, (f"{path}.{index}",)) for index, word in enumerate(nominal.adjectives)]
    noun = nominal.noun.english_plural if nominal.plural else nominal.noun.english
    words.append((noun, (path + ".noun",)))
    if nominal.determiner:
        words.insert(0, (_inflect_article(nominal.determiner, nominal.plural, words[0][0]), (path + ".the",)))
    if nominal.owner:
        words += [("of", (path + ".owner.case",)), *realize_english_phrase(nominal.owner, path + ".owner")]
    if nominal.companion:
        words += realize_english_prepositional(nominal.companion, path + ".with")
    return words


def realize_english_prepositional(phrase: PrepositionalPhrase, path: str) -> list[Token]:
    """Return the English words of a prepositional phrase."""
    words: list[Token] = [(word, (path + ".in",)) for word in phrase.english.split()]
    return words + realize_english_phrase(phrase.nominal, path, objective=True)


def realize_english_clause(clause: Clause, path: str, inverted: bool = False, elided: bool = False) -> list[Token]:
    """Return the English words: `inverted` in a question, `elided` to omit a subject that was mentioned before."""
    auxiliary, denial, main = _realize_english_verb(clause, path, inverted)
    subject: list[Token] = []
    if not elided:
        subject = realize_english_phrase(clause.subject, path + ".subject")
        subject += _realize_english_relative(clause, path, "subject")
    front = [] if clause.front in {"", "subject"} else _realize_english_part(clause, clause.front, path)
    opening = [*front, *auxiliary, *subject] if inverted else [*front, *subject, *auxiliary]
    middle = [*denial, *_realize_english_part(clause, "frequency", path), *main]
    return [*opening, *middle, *_realize_english_rest(clause, path)]


def _realize_english_verb(clause: Clause, path: str, inverted: bool) -> tuple[list[Token], list[Token], list[Token]]:
    """Return the finite auxiliary, "not", and the verb itself."""
    verb, modal, past, third = clause.verb, clause.modal, clause.is_past, clause.subject.person == "3"
    auxiliaries = {infinitive: forms[clause.subject.person][past] for infinitive, forms in _AUXILIARIES.items()}
    helper_path, verb_path = (path + ".finite",), (path + ".verb",)
    denial: list[Token] = [("not", (path + ".not",))] if clause.negated else []
    base: list[Token] = [(verb.english[0], verb_path)]
    needs_do = clause.negated or inverted
    do: Token = (auxiliaries["do"], helper_path)
    if modal and modal.base:
        want = modal.base if needs_do else modal.english_third if third else modal.english
        return [do] if needs_do else [], denial, [(want, helper_path), ("to", helper_path), *base]
    if modal and modal.english == "can" and clause.negated:
        return [("cannot", (*helper_path, path + ".not"))], [], base
    if modal:
        return [(modal.english_third if third else modal.english, helper_path)], denial, base
    if clause.tense in {"perfect", "pluperfect"}:
        return [(auxiliaries["have"], helper_path)], denial, [(verb.english[3], verb_path)]
    if clause.tense == "future":
        return [("will", helper_path)], denial, base
    if verb.frame == "be":
        return [(auxiliaries["be"], verb_path)], denial, []
    return ([do], denial, base) if needs_do else ([], [], [(verb.english[2 if past else third], verb_path)])


def _realize_english_rest(clause: Clause, path: str) -> list[Token]:
    """Return everything after the verb: objects and adjuncts, and a relative clause about the object."""
    names = ("direct", "indirect", "manner", "complement", "predicate", "means", "place", "time")
    part = {name: [] if name == clause.front else _realize_english_part(clause, name, path) for name in names}
    direct, indirect = part["direct"], part["indirect"]
    particle: list[Token] = [(clause.verb.particle, (path + ".verb",))] if clause.verb.particle else []
    if clause.verb.is_particle_movable and isinstance(clause.direct, Pronoun):
        objects = [*direct, *particle]
    elif clause.recipient_last:
        objects = [*direct, ("to", (path + ".indirect.case",)), *indirect]
    else:
        objects = [*particle, *indirect, *direct]
    adjuncts = [token for name in names[2:] for token in part[name]]
    return [*objects, *adjuncts, *_realize_english_relative(clause, path, "direct")]


def _realize_english_part(clause: Clause, name: str, path: str) -> list[Token]:
    part = getattr(clause, name)
    path = f"{path}.{name}"
    if part is None:
        return []
    if isinstance(part, Adjective):
        very: list[Token] = [("very", (path + ".very",))] if clause.very else []
        return [*very, (part.english, (path,))]
    if isinstance(part, PrepositionalPhrase):
        return realize_english_prepositional(part, path)
    if isinstance(part, Adverbial):
        return [(word, (f"{path}.{unit}",)) for word, unit in part.english]
    return realize_english_phrase(part, path, objective=True)


def _realize_english_relative(clause: Clause, path: str, host: str) -> list[Token]:
    if clause.relative is None or clause.host != host:
        return []
    inner = path + ".relative"
    closing: list[Token] = [(",", (inner + ".close",))] if host == "subject" else []
    return [(",", (inner + ".open",)), *realize_english_clause(clause.relative, inner), *closing]
