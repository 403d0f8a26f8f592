"""Clauses, the grammar's synchronous rule: one abstract record, realized in English and in German word order.

German splits its verb. The finite verb is second, first (questions, and after a subordinate clause that opens the
sentence) or last (subordinate clauses); prefix, participle and infinitive end the clause. Between them come pronouns,
time, dative, accusative, "nicht", manner, place. The English order is objects, manner, place, time.
"""

from dataclasses import dataclass

from regard.synthetic.grammar import english_morphology as en
from regard.synthetic.grammar import german_morphology as de
from regard.synthetic.grammar import phrases as ph
from regard.synthetic.grammar.lexicon import Adjective, Adverbial, Modal, Pronoun, Verb
from regard.synthetic.grammar.phrases import Nominal, PrepositionalPhrase, Token

VERB_SECOND, VERB_FIRST, VERB_LAST = "second", "first", "last"


@dataclass(slots=True)
class Clause:
    """The parts of a clause: verb, subject, objects, adverbials; filled in one by one.

    `tense` is "present", "past", "perfect", "pluperfect" or "future"; a modal has its own. `front` names the part that
    opens the clause: "subject", "direct", "time", "place", "interrogative", or "" for a yes-no question.
    `relative` is a clause about the subject or the direct object, as `host` says; its front is a relative pronoun.
    """

    verb: Verb
    subject: Nominal
    tense: str = "present"
    modal: Modal | None = None
    negated: bool = False
    direct: Nominal | None = None
    indirect: Nominal | None = None
    recipient_last: bool = False
    complement: PrepositionalPhrase | None = None
    predicate: Adjective | None = None
    very: bool = False
    frequency: Adverbial | None = None
    manner: Adverbial | None = None
    means: Adverbial | None = None
    place: PrepositionalPhrase | None = None
    time: Adverbial | None = None
    interrogative: Adverbial | None = None
    front: str = "subject"
    relative: "Clause | None" = None
    host: str = "subject"

    @property
    def is_past(self) -> bool:
        """True if the finite verb is in a past form."""
        return self.modal.is_past if self.modal else self.tense in {"past", "pluperfect"}


def realize_english_clause(clause: Clause, path: str, inverted: bool = False, elided: bool = False) -> list[Token]:
    """Return the English words: `inverted` in a question, `elided` to omit a subject that was mentioned before."""
    auxiliary, denial, main = _realize_english_verb(clause, path, inverted)
    subject: list[Token] = []
    if not elided:
        subject = ph.realize_english_phrase(clause.subject, path + ".subject")
        subject += _realize_english_relative(clause, path, "subject")
    front = [] if clause.front in {"", "subject"} else _realize_english_part(clause, clause.front, path)
    opening = [*front, *auxiliary, *subject] if inverted else [*front, *subject, *auxiliary]
    middle = [*denial, *_realize_english_part(clause, "frequency", path), *main]
    return [*opening, *middle, *_realize_english_rest(clause, path)]


def _realize_english_verb(clause: Clause, path: str, inverted: bool) -> tuple[list[Token], list[Token], list[Token]]:
    """Return the finite auxiliary, "not", and the verb itself."""
    verb, modal, person = clause.verb, clause.modal, clause.subject.person
    helper_path, verb_path = (path + ".finite",), (path + ".verb",)
    denial: list[Token] = [("not", (path + ".not",))] if clause.negated else []
    base: list[Token] = [(verb.english[0], verb_path)]
    needs_do = clause.negated or inverted
    do: Token = (en.inflect_auxiliary("do", person, clause.is_past), helper_path)
    if modal and modal.base:
        want = modal.base if needs_do else en.inflect_modal(modal, person)
        return [do] if needs_do else [], denial, [(want, helper_path), ("to", helper_path), *base]
    if modal and modal.english == "can" and clause.negated:
        return [("cannot", (*helper_path, path + ".not"))], [], base
    if modal:
        return [(en.inflect_modal(modal, person), helper_path)], denial, base
    if clause.tense in {"perfect", "pluperfect"}:
        have: Token = (en.inflect_auxiliary("have", person, clause.is_past), helper_path)
        return [have], denial, [(verb.english[3], verb_path)]
    if clause.tense == "future":
        return [("will", helper_path)], denial, base
    finite: Token = (en.inflect_verb(verb, clause.is_past, person), verb_path)
    if verb.frame == "be":
        return [finite], denial, []
    return ([do], denial, base) if needs_do else ([], [], [finite])


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
        return ph.realize_english_prepositional(part, path)
    if isinstance(part, Adverbial):
        return ph.realize_adverbial(part.english, path)
    return ph.realize_english_phrase(part, path, objective=True)


def _realize_english_relative(clause: Clause, path: str, host: str) -> list[Token]:
    if clause.relative is None or clause.host != host:
        return []
    inner = path + ".relative"
    closing: list[Token] = [(",", (inner + ".close",))] if host == "subject" else []
    return [(",", (inner + ".open",)), *realize_english_clause(clause.relative, inner), *closing]


def realize_german_clause(clause: Clause, path: str, order: str = VERB_SECOND, elided: bool = False) -> list[Token]:
    """Return the German words with the finite verb second, first or last."""
    finite, closing = _realize_german_verb(clause, path, joined=order == VERB_LAST)
    front = "" if order == VERB_FIRST else clause.front
    opening = _realize_german_part(clause, front, path) if front else []
    omitted = {front, "subject"} if elided else {front}
    names = [name for name in _order_middle_field(clause, order) if name not in omitted]
    middle = [token for name in names for token in _realize_german_part(clause, name, path)]
    body = [*opening, *middle, *closing, finite] if order == VERB_LAST else [*opening, finite, *middle, *closing]
    return body + _realize_german_relative(clause, path, "direct")


def _order_middle_field(clause: Clause, order: str) -> list[str]:
    pronouns = {name: part for name in ("direct", "indirect") if isinstance(part := getattr(clause, name), Pronoun)}
    # A pronoun moves before a full subject (heute sieht ihn der Mann), unless its form could also be the subject.
    is_distinct = all(
        part.inflect_german(_choose_case(clause, name)) != part.inflect_german("nom") for name, part in pronouns.items()
    )
    moves_forward = is_distinct and order != VERB_LAST and not isinstance(clause.subject, Pronoun)
    early = [*pronouns, "subject", "time"] if moves_forward else ["subject", *pronouns, "time"]
    if not isinstance(clause.indirect, Pronoun):
        early.append("indirect")
    late = ["frequency", "negation", "manner", "means"]
    if clause.direct is not None and not isinstance(clause.direct, Pronoun):
        late.insert(len(late) if ph.is_indefinite(clause.direct) else 0, "direct")
    return [*early, *late, "place", "complement", "predicate"]


def _realize_german_verb(clause: Clause, path: str, joined: bool) -> tuple[Token, list[Token]]:
    """Return the finite verb, and the words that end the clause; `joined`: the prefix is not separated."""
    verb, person = clause.verb, clause.subject.person
    helper_path, verb_path = (path + ".finite",), (path + ".verb",)
    infinitive: Token = (verb.prefix + verb.german[0], verb_path)
    if clause.modal:
        return (de.inflect_modal(clause.modal, person), helper_path), [infinitive]
    if clause.tense in {"perfect", "pluperfect"}:
        participle: Token = (verb.prefix + verb.german[3], verb_path)
        return (de.inflect_auxiliary(verb.auxiliary, person, clause.is_past), helper_path), [participle]
    if clause.tense == "future":
        return (de.inflect_auxiliary("werden", person, past=False), helper_path), [infinitive]
    stem = de.inflect_verb(verb, clause.is_past, person)
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
        return ph.realize_german_prepositional(part, inner)
    if isinstance(part, Adverbial):
        return ph.realize_adverbial(part.german, inner)
    denial = path + ".not" if name == "direct" and _is_negated_by_kein(clause) else ""
    words = ph.realize_german_phrase(part, _choose_case(clause, name), inner, denial)
    return words + _realize_german_relative(clause, path, name, inside=True)


def _is_negated_by_kein(clause: Clause) -> bool:
    return clause.negated and clause.direct is not None and ph.is_indefinite(clause.direct)


def _choose_case(clause: Clause, name: str) -> str:
    if name == "subject":
        return "nom"
    return "dat" if name == "indirect" or clause.verb.frame == "dat" else "acc"


def _realize_german_relative(clause: Clause, path: str, host: str, inside: bool = False) -> list[Token]:
    # A clause about the object moves to the end of the clause; one about the subject stays with it.
    if clause.relative is None or clause.host != host or inside != (host == "subject"):
        return []
    inner = path + ".relative"
    closing: list[Token] = [(",", (inner + ".close",))] if inside else []
    return [(",", (inner + ".open",)), *realize_german_clause(clause.relative, inner, VERB_LAST), *closing]
