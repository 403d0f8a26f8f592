"""Verbs and their arguments, one use a line:

    English verb [particle] = German verb, auxiliary (h haben, s sein) | frame | subjects | objects | places | manners

A particle written ~up follows an object pronoun (picks him up); an-rufen marks a separable prefix. Frames: `none`,
`acc`, `dat` (one object in that case), `give` (recipient and thing, both English orders), `buy` (recipient first only),
`explain` (recipient last only), `prep:for:auf:acc` (prepositional object), `spot` (location), `put` (object and
destination), `goal` and `ride` (motion, on foot or not), `that` and `whether` (a clause), `be`. A ! after the frame
marks a state, which has no time, place or modal; a ? marks an involuntary event, which takes "can" but not "want" or
"may". Subjects, objects, places: kinds of noun, groups of kinds, or nouns.
"""

from regard.synthetic.grammar import verb_forms
from regard.synthetic.grammar.lexeme import Verb

_GROUPS = {
    "human": ("person", "kin", "youth"),
    "adult": ("person", "kin"),
    "animal": ("pet", "farm", "wild"),
    "somewhere": ("building", "room", "nature", "town"),
    "edible": ("food", "mass"),
}

_TABLE = """
    sleep = schlafen h | none | human animal | | room hotel house garden | well
    work = arbeiten h | none | adult | | building office garden | well alone
    laugh = lachen h | none | human | | somewhere | loudly quietly
    cry = weinen h | none | human | | somewhere | loudly quietly alone
    dance = tanzen h | none | human | | somewhere | well alone together
    sing = singen h | none | human | | somewhere | loudly quietly well together
    bark = bellen h | none | dog | | garden house park street | loudly
    play = spielen h | none | youth pet | | nature room house | happily alone
    get up = auf-stehen s | none | human | | | early late slowly
    fall asleep = ein-schlafen s | none? | human pet | | room hotel | late early
    arrive = an-kommen s | none? | human bus train | | town hotel | early late
    shop = ein-kaufen h | none | adult | | city village market | alone together
    read = lesen h | acc | human | text | somewhere | slowly quickly quietly
    write = schreiben h | acc | human | letter poem novel story report postcard | room nature | slowly quickly
    buy = kaufen h | acc | adult | edible drink thing clothing text vehicle | market city village |
    eat = essen h | acc | human | edible | somewhere | slowly quickly
    drink = trinken h | acc | adult | drink | somewhere | slowly quickly
    see = sehen h | acc? | human | human animal vehicle building | nature town |
    find = finden h | acc? | human | thing clothing text pet | somewhere | quickly
    look for = suchen h | acc | human | human thing clothing pet | somewhere | patiently
    love = lieben h | acc! | human | human animal work | |
    visit = besuchen h | acc | human | human museum castle city village church | | alone
    meet = treffen h | acc? | human | human | somewhere |
    know = kennen h | acc! | human | human text work building answer | | well
    hear = hören h | acc? | human | human animal | nature town room |
    carry = tragen h | acc | human | thing | | carefully slowly
    wash = waschen h | acc | human | clothing car bicycle dog horse apple cup | garden house | carefully slowly
    repair = reparieren h | acc | adult | vehicle clock lamp computer chair | garden house | carefully
    sell = verkaufen h | acc | adult | edible drink thing clothing vehicle furniture | town |
    paint = malen h | acc | human | human animal picture flower castle bridge ship | nature room | slowly carefully
    cook = kochen h | acc | adult | soup potato egg meat | kitchen restaurant | slowly
    forget = vergessen h | acc? | human | thing clothing idea text | |
    lose = verlieren h | acc? | human | thing clothing | somewhere |
    need = brauchen h | acc! | human | thing clothing vehicle furniture | |
    take = nehmen h | acc | human | thing food bus train | | quickly carefully
    drive = fahren h | acc | adult | car bus train | | slowly quickly carefully
    understand = verstehen h | acc? | human | human idea text work | | well
    feed = füttern h | acc | human | pet farm | garden meadow park | carefully patiently
    open = auf-machen h | acc | human | opening box bottle suitcase bag letter gift | | carefully slowly quietly
    close = zu-machen h | acc | human | opening box bottle suitcase bag cupboard | | carefully quickly quietly
    call = an-rufen h | acc | adult | human | | early
    invite = ein-laden h | acc | human | human | |
    pick ~up = ab-holen h | acc | adult | human | town hotel school | early late
    take ~off = aus-ziehen h | acc | human | clothing | | slowly quickly
    look at = an-sehen h | acc | human | human animal picture building clothing flower | | quietly
    throw ~away = weg-werfen h | acc | human | thing text clothing food | |
    clean ~up = auf-räumen h | acc | human | room cupboard house library school | | quickly slowly
    bring ~along = mit-bringen h | acc | human | edible drink gift flower text ball | |
    help = helfen h | dat | human | human | somewhere | patiently
    thank = danken h | dat | human | human | |
    follow = folgen s | dat | human pet | human pet | | quietly slowly
    listen to = zu-hören h | dat | human | human | | patiently quietly
    answer = antworten h | dat | human | human | | quickly quietly loudly
    belong to = gehören h | dat! | thing clothing vehicle text pet farm house hotel restaurant furniture | human | |
    give = geben h | give | human | thing text edible drink clothing | |
    show = zeigen h | give | human | thing text animal clothing building vehicle | | patiently
    send = schicken h | give | adult | text gift flower picture key film | |
    bring = bringen h | give | human | edible drink thing text | | quickly
    explain = erklären h | explain | human | idea film joke poem story report book | | patiently slowly
    buy = kaufen h | buy | adult | thing food clothing text vehicle | |
    wait = warten h | prep:for:auf:acc | human | human bus train ship answer letter | somewhere | patiently alone
    think = denken h | prep:of:an:acc | human | human idea work | |
    talk = sprechen h | prep:about:über:acc | human | idea text work human animal | somewhere | loudly quietly
    talk = sprechen h | prep:with:mit:dat | human | human | somewhere | loudly quietly alone
    dream = träumen h | prep:of:von:dat? | human | human pet castle beach forest house | |
    play = spielen h | prep:with:mit:dat | youth pet | youth pet ball | nature room house | happily quietly
    laugh = lachen h | prep:about:über:acc | human | story film joke picture answer idea hat | | loudly quietly
    lie = liegen h | spot | thing text clothing pet | furniture | |
    sit = sitzen h | spot | human pet | chair bed sofa bench table | | quietly alone
    stand = stehen h | spot | lamp cup box suitcase bottle computer bag | furniture | |
    place = stellen h | put | human | lamp cup box suitcase bottle clock | furniture | carefully quietly
    go = gehen s | goal | human | somewhere | | slowly alone together
    run = laufen s | goal | human dog cat rabbit | somewhere | | quickly
    come = kommen s | goal | human | building room park garden beach lake station market | | late alone together
    drive = fahren s | ride | adult bus | station hotel city village castle beach lake market | | slowly quickly
    travel = reisen s | ride | human | city village castle beach lake | | slowly alone together
    say = sagen h | that! | human | | |
    believe = glauben h | that! | human | | |
    hope = hoffen h | that! | human | | |
    know = wissen h | that! | human | | |
    hear = hören h | that! | human | | |
    ask = fragen h | whether! | human | | |
    be = sein s | be | | | |
"""


def _expand_groups(cell: str) -> tuple[str, ...]:
    return tuple(kind for name in cell.split() for kind in _GROUPS.get(name, (name,)))


def _parse_verb(line: str) -> Verb:
    words, frame, subjects, objects, places, manners = (cell.strip() for cell in line.split("|"))
    english, german = words.split(" = ")
    base, _, particle = english.partition(" ")
    infinitive, auxiliary = german.split()
    prefix, _, stem = infinitive.rpartition("-")
    name, *preposition = frame.rstrip("!?").split(":")
    return Verb(
        english=verb_forms.ENGLISH[base],
        german=verb_forms.GERMAN[stem],
        particle=particle.lstrip("~"),
        is_particle_movable=particle.startswith("~"),
        prefix=prefix,
        auxiliary={"h": "haben", "s": "sein"}[auxiliary],
        frame=name,
        is_stative=frame.endswith("!"),
        is_volitional=not frame.endswith("?"),
        preposition=(preposition[0], preposition[1], preposition[2]) if preposition else ("", "", ""),
        subjects=_expand_groups(subjects),
        objects=_expand_groups(objects),
        places=_expand_groups(places),
        manners=tuple(manners.split()),
    )


VERBS = tuple(map(_parse_verb, _TABLE.strip().splitlines()))
