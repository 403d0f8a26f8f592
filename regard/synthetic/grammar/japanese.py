"""Japanese: particles, endings of verbs and adjectives, and the word order of phrases and clauses.

The verb ends its clause and the noun its phrase: modifiers, relative and subordinate clauses come before. Particles
follow their phrase. There are no articles, no plural and no agreement.

A name of a token that begins with "?" is of a possible alignment link. Such are the links of a particle with its phrase
and its verb, within a verb with its endings and English auxiliaries, and of an article or relative pronoun with a noun.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from regard.paths import read_package_yaml
from regard.synthetic.grammar import lexicon as lx
from regard.synthetic.grammar import syntax
from regard.synthetic.grammar.syntax import Clause, Nominal, NounPhrase, Token, has_determiner

# A clause begins with the time or the place if the English one does.
_CLAUSE_ORDER = (
    *("subject", "time", "interrogative", "place", "means", "frequency", "indirect", "direct", "complement", "manner"),
)
_PAST_TENSES = ("perfect", "pluperfect", "past")
_CONJUNCTIONS_WITH_PRESENT = ("before", "while")  # also for an event in the past


@cache
def _read_tables() -> dict[str, dict[str, list[str]]]:
    """Return the cells of each English word by section."""
    sections = read_package_yaml("regard.synthetic.grammar", "japanese.yaml").items()
    return {name: {word: cells for word, *cells in lx.iterate_rows(table, "|")} for name, table in sections}


def _find_cells(section: str, english: str, variant: str = "") -> list[str]:
    """Return the cells of an English word, or of its variant (`two:human`) if there is one."""
    table = _read_tables()[section]
    return table.get(f"{english}:{variant}") or table.get(english) or [""]


def _make_tokens(words: str, *names: str) -> list[Token]:
    return [(word, names) for word in words.split("+") if word]


def _add_particle(words: list[Token], particle: str, *names: str) -> list[Token]:
    """Append a particle with these names, and with possible links of the word before it."""
    return [*words, *_make_tokens(particle, *names, *("?" + name.lstrip("?") for name in words[-1][1]))]


def _classify(nominal: Nominal) -> str:
    noun = next(syntax.iterate_head_nouns(nominal), None)
    if noun is None or noun.kind in lx.HUMAN:
        return "human"
    return "animal" if noun.kind in lx.LISTS["animate_kinds"] else "other"


def realize_japanese_phrase(nominal: Nominal, path: str) -> list[Token]:
    """Return the Japanese words of a noun phrase, the noun last."""
    if isinstance(nominal, lx.Pronoun):
        return _make_tokens(_find_cells("pronouns", nominal.english[0])[0], path + ".noun")
    if isinstance(nominal, syntax.CoordinatedPhrase):
        left = realize_japanese_phrase(nominal.left, path + ".left")
        return [*left, ("と", (path + ".and",)), *realize_japanese_phrase(nominal.right, path + ".right")]
    words, kind = list[Token](), _classify(nominal)
    if nominal.companion:
        load = realize_japanese_phrase(nominal.companion.nominal, path + ".with")
        words += [*_add_particle(load, "を"), ("持った", (path + ".with.in",))]
    if nominal.owner:
        words += _add_particle(realize_japanese_phrase(nominal.owner, path + ".owner"), "の", path + ".owner.case")
    determiner = "these" if nominal.determiner == "this" and nominal.plural else nominal.determiner
    determiners = _make_tokens(_find_cells("determiners", determiner, kind)[0], path + ".the")
    words += [*determiners, *_make_tokens("とても" if nominal.very else "", path + ".very")]
    for index, adjective in enumerate(nominal.adjectives):
        words += _make_tokens(_find_cells("adjectives", adjective.english, kind)[1], f"{path}.{index}")
    article = [] if determiners else [f"?{path}.the"]
    return [*words, *_make_tokens(_find_cells("nouns", nominal.noun.english)[0], path + ".noun", *article)]


def realize_japanese_clause(
    clause: Clause, path: str, is_main: bool, content: Sequence[Token] = (), elided: bool = False
) -> list[Token]:
    """Return the Japanese words, polite in a main clause; `content` is a clause before the verb, as of "say"."""
    front = {clause.front} & {"time", "place"}
    names = [*front, *(name for name in _CLAUSE_ORDER if name not in front and not (elided and name == "subject"))]
    words = [token for name in names for token in _realize_part(clause, name, path, is_main)]
    return [*words, *content, *_realize_verb(clause, path, is_main)]


def _realize_part(clause: Clause, name: str, path: str, is_main: bool) -> list[Token]:
    part, verb, inner = getattr(clause, name), clause.verb, f"{path}.{name}"
    if part is None or (isinstance(part, lx.Pronoun) and part.noun):  # there are no relative pronouns
        return []
    if isinstance(part, lx.Adverbial):
        items = (item.split("@") for item in _find_cells("adverbials", part.name, verb.frame)[0].split())
        units = [str(unit) for _, unit in part.english]
        return [(word, tuple(f"{inner}.{unit}" for unit in numbers or units)) for word, *numbers in items]
    particle = {"indirect": "に", "place": "で"}.get(name) or _find_cells("verbs", verb.lemma, verb.frame)[0]
    if name == "subject":
        particle = "も" if has_determiner(part, "no") else "は" if is_main and part is not lx.WHO else "が"
    if not isinstance(part, syntax.PrepositionalPhrase):
        words = realize_japanese_phrase(part, inner)
        if clause.relative and clause.host == name:
            words = _add_relative_clause(words, clause.relative, path + ".relative")
        return _add_particle(words, particle, inner + ".case", f"?{inner}.the", f"?{path}.verb")
    words = realize_japanese_phrase(part.nominal, inner)
    particle = "に" if verb.frame == "put" else particle
    is_plain = isinstance(part.nominal, NounPhrase) and part.nominal.noun.english in lx.LOCATIONS
    if is_plain or not (noun := _find_cells("prepositions", part.english)[0]):
        return _add_particle(words, particle, inner + ".in")
    return _add_particle([*_add_particle(words, "の", f"?{inner}.in"), (noun, (inner + ".in",))], particle)


def _add_relative_clause(words: list[Token], relative: Clause, path: str) -> list[Token]:
    """Put the clause before its phrase; the English pronoun and commas have possible links with the noun."""
    noun, names = words[-1]
    absent = (f"?{path}.{relative.front}.noun", f"?{path}.open", f"?{path}.close")
    return [*realize_japanese_clause(relative, path, is_main=False), *words[:-1], (noun, (*names, *absent))]


def _realize_verb(clause: Clause, path: str, is_main: bool) -> list[Token]:
    """Return the verb or the predicate with its endings, which also hold tense, modal and negation."""
    verb, subject_class = clause.verb, _classify(clause.subject)
    denials = {
        ".not": clause.negated,
        ".subject.the": has_determiner(clause.subject, "no"),
        ".frequency.0": clause.frequency is not None and clause.frequency.name == "never",
    }
    negation = [path + name for name, is_negated in denials.items() if is_negated]
    names = [*negation, ("?" if negation else "") + path + ".finite"]
    tense = "past" if clause.tense in _PAST_TENSES else clause.tense
    mood = (clause.modal.english if clause.modal else tense) + " not" * bool(negation)
    if clause.predicate:
        forms = _find_cells("adjectives", clause.predicate.english, subject_class)[0]
        section = "adjective_endings" if " " in forms else "noun_endings"
        words = _make_tokens("とても" if clause.very else "", path + ".predicate.very")
        stem_names, names = [path + ".predicate", f"?{path}.verb"], [*names, path + ".verb"]
    else:
        variant = subject_class if verb.frame == "be" else verb.frame
        _, before, forms = _find_cells("verbs", verb.lemma, variant)
        section, words = "verb_endings", _make_tokens(before, path + ".verb")
        stem_names, names = [path + ".verb"], [*names, f"?{path}.verb"]
    number, *ending = _find_cells(section, mood)[0 if is_main else 1].split()
    stem_names += ["?" + name.lstrip("?") for name in names] if ending else names
    stem = forms.split()[int(number)].replace("-", "")
    return [*words, *_make_tokens(stem, *stem_names), *_make_tokens("".join(ending), *names)]


def realize_japanese_sentence(sentence: syntax.Sentence) -> list[Token]:
    """Return the Japanese words; a subordinate clause opens the sentence, or comes before the verb of the main one."""
    kind, first, second, conjunction = sentence
    words = realize_japanese_clause(first, "0", is_main=True)
    if second and conjunction:
        joint = _make_tokens(_find_cells("conjunctions", conjunction.english)[0], "join")
        comma: Token = ("、", ("comma", "?join"))
        if conjunction.english in _CONJUNCTIONS_WITH_PRESENT:
            second = replace(second, tense="present")
        is_coordinated = kind in {"joined", "shared"}
        other = realize_japanese_clause(second, "1", is_main=is_coordinated, elided=kind == "shared")
        if is_coordinated:
            words = [*words, comma, *joint, *other]
        elif first.verb.frame in {"that", "whether"}:
            words = realize_japanese_clause(first, "0", is_main=True, content=[*other, *joint])
        else:
            words = [*other, *joint, *([comma] if kind == "leading" else []), *words]
    return [*words, *_make_tokens("か" if kind == "question" else "", "stop"), ("。", ("stop",))]
