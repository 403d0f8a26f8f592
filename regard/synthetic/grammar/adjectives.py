"""Adjectives: English, German, the stem that takes the endings, and the kinds of noun that each one suits."""

from regard.synthetic.grammar.lexeme import Adjective

_GROUPS = {
    "human": ("person", "kin", "youth"),
    "animal": ("pet", "farm", "wild"),
    "edible": ("food", "mass"),
    "place": ("building", "room", "town"),
    "object": ("thing", "clothing", "vehicle", "furniture"),
}

_TABLE = """
    old alt alt | person animal object place text
    young jung jung | person animal child girl pupil
    new neu neu | object place text work idea
    big groß groß | animal object place opening nature food
    small klein klein | youth animal object place opening nature food
    good gut gut | person text work idea edible drink
    beautiful schön schön | youth pet object place nature work
    expensive teuer teur | thing clothing furniture car bicycle edible drink
    cheap billig billig | thing clothing furniture car bicycle edible drink
    red rot rot | object opening
    blue blau blau | object opening
    black schwarz schwarz | object animal
    white weiß weiß | object animal opening building
    friendly freundlich freundlich | human pet
    clever klug klug | human animal idea
    lazy faul faul | human animal
    brave mutig mutig | human animal
    tired müde müd | human animal
    happy glücklich glücklich | human
    sad traurig traurig | human text work
    hungry hungrig hungrig | human animal
    sick krank krank | human animal
    rich reich reich | person
    poor arm arm | human
    famous berühmt berühmt | person text work building
    strong stark stark | human animal
    fresh frisch frisch | edible drink
    hot heiß heiß | drink soup potato meat
    cold kalt kalt | drink soup potato egg meat cake room nature
    delicious lecker lecker | edible drink
    long lang lang | text work coat scarf knife table bench train ship street bridge
    interesting interessant interessant | person text work idea building
    funny lustig lustig | human text work
    difficult schwierig schwierig | idea book poem report letter novel customer pupil guest neighbor child
    important wichtig wichtig | idea text person
    simple einfach einfach | idea text furniture clothing
    modern modern modern | building room city vehicle furniture
    quiet ruhig ruhig | place nature human
    dark dunkel dunkl | room building forest park clothing
    clean sauber sauber | object opening room
    dirty schmutzig schmutzig | object opening animal
    heavy schwer schwer | thing furniture coat ship bus
"""


def _parse_adjective(line: str) -> Adjective:
    words, kinds = line.split(" | ")
    english, german, stem = words.split()
    return Adjective(
        english, german, stem, tuple(kind for name in kinds.split() for kind in _GROUPS.get(name, (name,)))
    )


ADJECTIVES = tuple(map(_parse_adjective, _TABLE.strip().splitlines()))

# Adjectives of one group exclude each other.
_CONTRARIES = (
    ("old", "young", "new", "modern"),
    ("big", "small"),
    ("red", "blue", "black", "white"),
    ("expensive", "cheap"),
    ("hot", "cold"),
    ("clean", "dirty"),
    ("happy", "sad"),
    ("rich", "poor"),
    ("difficult", "simple"),
)


def are_contradictory(one: Adjective, other: Adjective) -> bool:
    """Return True if both adjectives cannot describe the same thing, or are the same."""
    return one == other or any(one.english in group and other.english in group for group in _CONTRARIES)
