"""The adjectives: English, German, the stem that takes the endings, and the kinds of noun each suits."""

from .lexeme import Adjective

_GROUPS = {
    "human": ("person", "kin", "youth"),
    "animal": ("pet", "farm", "wild"),
    "edible": ("food", "mass"),
    "place": ("building", "room", "town"),
    "object": ("thing", "clothing", "vehicle", "furniture"),
}

_TABLE = """
    old alt alt | person animal object place text
    young jung jung | person animal
    new neu neu | object place text work idea
    big groß groß | animal object place opening nature food
    small klein klein | youth animal object place opening nature food
    good gut gut | person text work idea edible drink
    beautiful schön schön | youth pet object place nature work
    expensive teuer teur | object edible drink
    cheap billig billig | object edible drink
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
    strong stark stark | person animal
    fresh frisch frisch | edible drink
    hot heiß heiß | drink soup potato meat
    cold kalt kalt | drink soup room nature
    sweet süß süß | drink food
    delicious lecker lecker | edible drink
    long lang lang | text work opening
    short kurz kurz | text work
    interesting interessant interessant | text work idea building
    funny lustig lustig | youth text work
    difficult schwierig schwierig | idea book poem report
    important wichtig wichtig | idea book letter report
    simple einfach einfach | idea poem story book
    modern modern modern | place vehicle furniture
    quiet ruhig ruhig | place nature human
    dark dunkel dunkl | room building nature
    clean sauber sauber | object opening room
    dirty schmutzig schmutzig | object opening animal
    empty leer leer | building room cup box suitcase bottle bag bus train
    heavy schwer schwer | thing furniture
"""


def _read(line: str) -> Adjective:
    words, kinds = line.split(" | ")
    english, german, stem = words.split()
    return Adjective(
        english, german, stem, tuple(kind for name in kinds.split() for kind in _GROUPS.get(name, (name,)))
    )


ADJECTIVES = tuple(map(_read, _TABLE.strip().splitlines()))
