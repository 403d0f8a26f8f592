"""Function words: adverbials, modals, conjunctions, prepositions of place.

In an adverbial, words joined by + are one unit; units translate each other in order, or as @ says: vor@2 is the
translation of the English unit 2 (counted from 0).
"""

from regard.synthetic.grammar.lexeme import Adverbial, Conjunction, Modal

_TIME = """
    today | heute | present past perfect future modal
    now | jetzt | present modal
    every day | jeden Tag | present past
    every evening | jeden Abend | present past
    in+the morning | am Morgen | present past future
    in+the evening | am Abend | present past future
    at night | in+der Nacht | present past
    on Monday | am Montag | past future modal modal-past
    on Friday | am Freitag | past future modal modal-past
    on Sunday | am Sonntag | present past future modal
    in summer | im Sommer | present past
    in winter | im Winter | present past
    yesterday | gestern | past modal-past
    last week | letzte Woche | past modal-past
    last year | letztes Jahr | past
    two days ago | vor@2 zwei@0 Tagen@1 | past
    three weeks ago | vor@2 drei@0 Wochen@1 | past
    this morning | heute Morgen | past perfect
    this week | diese Woche | perfect future modal
    tomorrow | morgen | future modal
    tonight | heute+Abend | future modal
    soon | bald | future
    next week | nächste Woche | future modal
    next year | nächstes Jahr | future
"""

_FREQUENCY = """
    often | oft | present past perfect modal
    always | immer | present past perfect modal
    never | nie | present past perfect future modal
    sometimes | manchmal | present past modal
    rarely | selten | present past
    usually | meistens | present past
    already | schon | perfect
    just | gerade | perfect
"""

_MANNER = """
    well | gut |
    quickly | schnell |
    slowly | langsam |
    loudly | laut |
    quietly | leise |
    carefully | vorsichtig |
    patiently | geduldig |
    happily | fröhlich |
    alone | allein |
    together | zusammen |
    early | früh |
    late | spät |
"""

_MEANS = """
    by train | mit+dem Zug |
    by bus | mit+dem Bus |
    by bicycle | mit+dem Fahrrad |
"""

_ASKED = """
    where | wo |
    when | wann |
    why | warum |
"""

# English base and third person, infinitive if it takes "to"; German singular and plural; past; can be negated
MODALS = (
    Modal("can", "can", "", "kann", "können", is_past=False, is_negatable=True),
    Modal("must", "must", "", "muss", "müssen", is_past=False, is_negatable=False),
    Modal("should", "should", "", "sollte", "sollten", is_past=False, is_negatable=True),
    Modal("may", "may", "", "darf", "dürfen", is_past=False, is_negatable=True),
    Modal("want", "wants", "want", "will", "wollen", is_past=False, is_negatable=True),
    Modal("could", "could", "", "konnte", "konnten", is_past=True, is_negatable=True),
    Modal("had", "had", "have", "musste", "mussten", is_past=True, is_negatable=True),
    Modal("wanted", "wanted", "want", "wollte", "wollten", is_past=True, is_negatable=True),
)

_SAME = (("present", "present"), ("past", "past"), ("past", "past"))
_CAUSE = (*_SAME, ("modal", "present"), ("present", "modal"), ("perfect", "present"), ("modal-past", "past"))

SUBORDINATORS = (
    Conjunction("because", "weil", (*_CAUSE, ("future", "present"), ("present", "perfect"))),
    Conjunction("although", "obwohl", (*_CAUSE, ("past", "modal-past"))),
    Conjunction("if", "wenn", (("future", "present"), ("modal", "present"), ("present", "present"))),
    Conjunction("while", "während", _SAME),
    Conjunction("when", "als", (("past", "past"),)),
    Conjunction("before", "bevor", _SAME),
    Conjunction("after", "nachdem", (("past", "pluperfect"),)),
)
_SAID = (("present", "past"), ("present", "perfect"), ("present", "future"), ("present", "modal"))
THAT = Conjunction("that", "dass", (*_SAME, *_SAID, ("past", "pluperfect"), ("past", "modal-past")))
WHETHER = Conjunction("whether", "ob", THAT.tenses)
AND = Conjunction("and", "und", (*_SAME, ("perfect", "perfect"), ("future", "future")))
BUT = Conjunction("but", "aber", (*_SAME, ("perfect", "perfect"), ("modal", "present"), ("present", "modal")))

# Nouns with another preposition of place than "in"/"in".
LOCATIONS = {
    "station": ("at", "an"),
    "market": ("at", "auf"),
    "beach": ("on", "an"),
    "lake": ("at", "an"),
    "bridge": ("on", "auf"),
    "street": ("on", "auf"),
    "meadow": ("on", "auf"),
}
AROUND = (("behind", "hinter"), ("next to", "neben"), ("in front of", "vor"))
UPON = (("on", "auf"), ("next to", "neben"), ("under", "unter"))


def _parse_units(phrase: str) -> tuple[tuple[str, int], ...]:
    units = (unit.partition("@") for unit in phrase.split())
    units_with_targets = ((words, int(target) if target else index) for index, (words, _, target) in enumerate(units))
    return tuple((word, target) for words, target in units_with_targets for word in words.split("+"))


def _parse_adverbials(table: str) -> tuple[Adverbial, ...]:
    rows = (tuple(cell.strip() for cell in line.split("|")) for line in table.strip().splitlines())
    return tuple(
        Adverbial(english.replace("+", " "), _parse_units(english), _parse_units(german), tuple(tenses.split()))
        for english, german, tenses in rows
    )


TIME = _parse_adverbials(_TIME)
FREQUENCY = _parse_adverbials(_FREQUENCY)
MANNER = _parse_adverbials(_MANNER)
MEANS = _parse_adverbials(_MEANS)
WHERE, WHEN, WHY = _parse_adverbials(_ASKED)
WHITHER = _parse_adverbials("where | wohin |")[0]
