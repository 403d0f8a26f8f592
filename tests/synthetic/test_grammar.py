"""The grammar of the synthetic corpus: sentences against hand-written German, and properties of the corpus."""

import hashlib
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from regard.synthetic import translation as corpus_module
from regard.synthetic.grammar import german as de
from regard.synthetic.grammar.lexicon import (
    ADJECTIVES,
    AND,
    BUT,
    FREQUENCY,
    HE,
    MANNER,
    MEANS,
    MODALS,
    NOUNS,
    SHE,
    SPEAKER,
    SUBORDINATORS,
    THAT,
    THEY,
    TIME,
    VERBS,
    WE,
    WHAT,
    WHEN,
    WHERE,
    WHETHER,
    WHITHER,
    WHO,
    WHY,
    Adjective,
    Adverbial,
    are_contradictory,
    find_adjectives,
    find_noun,
    find_verb,
)
from regard.synthetic.grammar.sentences import AlignedPair, SentenceGenerator, realize_sentence_pair
from regard.synthetic.grammar.syntax import (
    Clause,
    CoordinatedPhrase,
    NounPhrase,
    PrepositionalPhrase,
    Sentence,
    make_relative_pronoun,
)
from regard.synthetic.translation import generate_corpus, is_held_out, iterate_combinations


def find_adjective(name: str) -> Adjective:
    return next(adjective for adjective in ADJECTIVES if adjective.english == name)


def the(name: str, *adjectives: str, plural: bool = False, determiner: str = "the") -> NounPhrase:
    """Build a noun phrase from English words."""
    return NounPhrase(find_noun(name), determiner, plural, tuple(map(find_adjective, adjectives)))


def a(name: str, *adjectives: str) -> NounPhrase:
    return the(name, *adjectives, determiner="a")


def adverb(name: str) -> Adverbial:
    return {word.name: word for word in (*TIME, *FREQUENCY, *MANNER, *MEANS)}[name]


MODAL = {modal.english: modal for modal in MODALS}
SUBORDINATOR = {conjunction.english: conjunction for conjunction in SUBORDINATORS}
IN_GARDEN = PrepositionalPhrase("in", "in", "dat", the("garden"))
TO_STATION = PrepositionalPhrase("to", "zu", "dat", the("station"))
INTO_CITY = PrepositionalPhrase("into", "in", "acc", the("city"))
IN_FRONT = PrepositionalPhrase("in front of", "vor", "dat", the("church"))
FOR_BUS = PrepositionalPhrase("for", "auf", "acc", the("bus"))

SEE_DOG = Clause(find_verb("see"), the("man"), direct=the("dog"))
READ_BOOK = Clause(find_verb("read"), the("man"), direct=a("book"))
GIVE = Clause(find_verb("give"), the("woman"), direct=a("book"), indirect=the("child"))
TIRED = Clause(find_verb("be"), HE, predicate=find_adjective("tired"))
SINGS = Clause(find_verb("sing"), the("man"))
WHO_SEES = Clause(find_verb("see"), make_relative_pronoun(the("man")), direct=the("dog"))
WHOM_HELP = Clause(find_verb("help"), WE, direct=make_relative_pronoun(the("boy")), front="direct")
WHICH_BARKS = Clause(find_verb("bark"), make_relative_pronoun(the("dog", plural=True)))


def statement(clause: Clause) -> Sentence:
    return Sentence("statement", clause)


def question(clause: Clause, front: str = "") -> Sentence:
    return Sentence("question", replace(clause, front=front))


# name: sentence, English, German, alignment in Pharaoh format
SENTENCES: dict[str, tuple[Sentence, str, str, str]] = {
    "preterite": (
        statement(replace(READ_BOOK, subject=HE, tense="past")),
        "He read a book .",
        "Er las ein Buch .",
        "0-0 1-1 2-2 3-3 4-4",
    ),
    "nicht behind a definite object": (
        statement(replace(SEE_DOG, negated=True)),
        "The man does not see the dog .",
        "Der Mann sieht den Hund nicht .",
        "0-0 1-1 2-2 3-5 4-2 5-3 6-4 7-6",
    ),
    "kein": (
        statement(replace(SEE_DOG, subject=SHE, direct=a("dog"), negated=True)),
        "She does not see a dog .",
        "Sie sieht keinen Hund .",
        "0-0 1-1 2-2 3-1 4-2 5-3 6-4",
    ),
    "kein without an English article": (
        statement(Clause(find_verb("sell"), WE, direct=the("car", "red", plural=True, determiner=""), negated=True)),
        "We do not sell red cars .",
        "Wir verkaufen keine roten Autos .",
        "0-0 1-1 2-2 3-1 4-3 5-4 6-5",
    ),
    "kein as a subject": (
        statement(Clause(find_verb("bark"), the("dog", determiner="no"))),
        "No dog barks .",
        "Kein Hund bellt .",
        "0-0 1-1 2-2 3-3",
    ),
    "nicht before location and participle": (
        statement(Clause(find_verb("sleep"), the("girl"), tense="perfect", negated=True, place=IN_GARDEN)),
        "The girl has not slept in the garden .",
        "Das Mädchen hat nicht im Garten geschlafen .",
        "0-0 1-1 2-2 3-3 4-6 5-4 6-4 7-5 8-7",
    ),
    "nicht before manner": (
        statement(Clause(find_verb("sing"), THEY, negated=True, manner=adverb("loudly"))),
        "They do not sing loudly .",
        "Sie singen nicht laut .",
        "0-0 1-1 2-2 3-1 4-3 5-4",
    ),
    "nicht before a separated prefix": (
        statement(Clause(find_verb("call"), the("nurse"), direct=the("neighbor"), negated=True)),
        "The nurse does not call the neighbor .",
        "Die Krankenschwester ruft den Nachbarn nicht an .",
        "0-0 1-1 2-2 3-5 4-2 4-6 5-3 6-4 7-7",
    ),
    "separable, apart": (
        statement(Clause(find_verb("call"), the("teacher"), direct=the("boy"))),
        "The teacher calls the boy .",
        "Der Lehrer ruft den Jungen an .",
        "0-0 1-1 2-2 2-5 3-3 4-4 5-6",
    ),
    "separable, with an English particle": (
        statement(Clause(find_verb("take off"), SHE, direct=the("coat"))),
        "She takes off the coat .",
        "Sie zieht den Mantel aus .",
        "0-0 1-1 1-4 2-1 2-4 3-2 4-3 5-5",
    ),
    "separable, joined at the end": (
        Sentence(
            "trailing", Clause(find_verb("know", "that"), SPEAKER), Clause(find_verb("call"), SHE, direct=HE), THAT
        ),
        "I know that she calls him .",
        "Ich weiß , dass sie ihn anruft .",
        "0-0 1-1 2-2 2-3 3-4 4-6 5-5 6-7",
    ),
    "separable, as an infinitive": (
        statement(Clause(find_verb("pick up"), WE, direct=HE, modal=MODAL["must"])),
        "We must pick him up .",
        "Wir müssen ihn abholen .",
        "0-0 1-1 2-3 3-2 4-3 5-4",
    ),
    "separable, as a participle": (
        statement(Clause(find_verb("get up"), the("child"), tense="perfect", manner=adverb("late"))),
        "The child has got up late .",
        "Das Kind ist spät aufgestanden .",
        "0-0 1-1 2-2 3-4 4-4 5-3 6-5",
    ),
    "wants to": (
        statement(
            Clause(find_verb("drink"), HE, direct=the("coffee", determiner=""), modal=MODAL["want"], negated=True)
        ),
        "He does not want to drink coffee .",
        "Er will keinen Kaffee trinken .",
        "0-0 1-1 2-2 3-1 4-1 5-4 6-3 7-5",
    ),
    "had to": (
        statement(Clause(find_verb("wait for"), THEY, complement=FOR_BUS, modal=MODAL["had"])),
        "They had to wait for the bus .",
        "Sie mussten auf den Bus warten .",
        "0-0 1-1 2-1 3-5 4-2 5-3 6-4 7-6",
    ),
    "cannot": (
        statement(Clause(find_verb("sleep"), SHE, modal=MODAL["can"], negated=True)),
        "She cannot sleep .",
        "Sie kann nicht schlafen .",
        "0-0 1-1 1-2 2-3 3-4",
    ),
    "future": (
        statement(Clause(find_verb("visit"), SPEAKER, direct=THEY, tense="future", time=adverb("tomorrow"))),
        "I will visit them tomorrow .",
        "Ich werde sie morgen besuchen .",
        "0-0 1-1 2-4 3-2 4-3 5-5",
    ),
    "perfect with sein": (
        statement(Clause(find_verb("go"), the("child", plural=True), tense="perfect", complement=TO_STATION)),
        "The children have gone to the station .",
        "Die Kinder sind zum Bahnhof gegangen .",
        "0-0 1-1 2-2 3-5 4-3 5-3 6-4 7-6",
    ),
    "dative, plural": (
        statement(Clause(find_verb("help"), WE, direct=the("child", plural=True))),
        "We help the children .",
        "Wir helfen den Kindern .",
        "0-0 1-1 2-2 3-3 4-4",
    ),
    "recipient first": (
        statement(GIVE),
        "The woman gives the child a book .",
        "Die Frau gibt dem Kind ein Buch .",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7",
    ),
    "recipient last": (
        statement(replace(GIVE, recipient_last=True)),
        "The woman gives a book to the child .",
        "Die Frau gibt dem Kind ein Buch .",
        "0-0 1-1 2-2 3-5 4-6 5-3 6-3 7-4 8-7",
    ),
    "recipient as a pronoun": (
        statement(replace(GIVE, indirect=HE, recipient_last=True, time=adverb("today"))),
        "The woman gives a book to him today .",
        "Die Frau gibt ihm heute ein Buch .",
        "0-0 1-1 2-2 3-5 4-6 5-3 6-3 7-4 8-7",
    ),
    "genitive": (
        statement(Clause(find_verb("sleep"), the("dog")._replace(owner=the("teacher", "old")))),
        "The dog of the old teacher sleeps .",
        "Der Hund des alten Lehrers schläft .",
        "0-0 1-1 2-2 3-2 4-3 5-4 6-5 7-6",
    ),
    "relative clause about the subject": (
        statement(Clause(find_verb("sleep"), the("man"), relative=WHO_SEES)),
        "The man , who sees the dog , sleeps .",
        "Der Mann , der den Hund sieht , schläft .",
        "0-0 1-1 2-2 3-3 4-6 5-4 6-5 7-7 8-8 9-9",
    ),
    "relative clause about the object": (
        statement(Clause(find_verb("see"), SHE, tense="perfect", direct=the("boy"), relative=WHOM_HELP, host="direct")),
        "She has seen the boy , whom we help .",
        "Sie hat den Jungen gesehen , dem wir helfen .",
        "0-0 1-1 2-4 3-2 4-3 5-5 6-6 7-7 8-8 9-9",
    ),
    "relative clause with which": (
        statement(Clause(find_verb("feed"), HE, direct=the("dog", plural=True), relative=WHICH_BARKS, host="direct")),
        "He feeds the dogs , which bark .",
        "Er füttert die Hunde , die bellen .",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7",
    ),
    "because": (
        Sentence("trailing", Clause(find_verb("sleep"), HE), TIRED, SUBORDINATOR["because"]),
        "He sleeps because he is tired .",
        "Er schläft , weil er müde ist .",
        "0-0 1-1 2-2 2-3 3-4 4-6 5-5 6-7",
    ),
    "although, leading": (
        Sentence("leading", Clause(find_verb("work"), HE), TIRED, SUBORDINATOR["although"]),
        "Although he is tired , he works .",
        "Obwohl er müde ist , arbeitet er .",
        "0-0 1-1 2-3 3-2 4-4 5-6 6-5 7-7",
    ),
    "if, with an auxiliary last": (
        Sentence(
            "trailing",
            Clause(find_verb("laugh"), THEY, tense="future"),
            Clause(find_verb("sing"), SPEAKER, modal=MODAL["may"]),
            SUBORDINATOR["if"],
        ),
        "They will laugh if I may sing .",
        "Sie werden lachen , wenn ich singen darf .",
        "0-0 1-1 2-2 3-3 3-4 4-5 5-7 6-6 7-8",
    ),
    "after, in the pluperfect": (
        Sentence(
            "trailing",
            Clause(find_verb("laugh"), SHE, tense="past"),
            Clause(find_verb("read"), SHE, tense="pluperfect", direct=the("letter")),
            SUBORDINATOR["after"],
        ),
        "She laughed after she had read the letter .",
        "Sie lachte , nachdem sie den Brief gelesen hatte .",
        "0-0 1-1 2-2 2-3 3-4 4-8 5-7 6-5 7-6 8-9",
    ),
    "whether": (
        Sentence(
            "trailing", Clause(find_verb("ask"), HE, tense="past"), Clause(find_verb("come"), WE, tense="past"), WHETHER
        ),
        "He asked whether we came .",
        "Er fragte , ob wir kamen .",
        "0-0 1-1 2-2 2-3 3-4 4-5 5-6",
    ),
    "and": (
        Sentence("joined", Clause(find_verb("sing"), HE), Clause(find_verb("dance"), SHE), AND),
        "He sings and she dances .",
        "Er singt und sie tanzt .",
        "0-0 1-1 2-2 3-3 4-4 5-5",
    ),
    "but": (
        Sentence("joined", Clause(find_verb("sing"), HE), Clause(find_verb("dance"), SHE), BUT),
        "He sings , but she dances .",
        "Er singt , aber sie tanzt .",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-6",
    ),
    "shared subject": (
        Sentence("shared", SINGS, Clause(find_verb("open"), the("man"), direct=the("door")), AND),
        "The man sings and opens the door .",
        "Der Mann singt und macht die Tür auf .",
        "0-0 1-1 2-2 3-3 4-4 4-7 5-5 6-6 7-8",
    ),
    "two subjects": (
        statement(Clause(find_verb("sing"), CoordinatedPhrase(the("man"), the("woman")))),
        "The man and the woman sing .",
        "Der Mann und die Frau singen .",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-6",
    ),
    "yes or no": (
        question(replace(READ_BOOK, direct=the("book"))),
        "Does the man read the book ?",
        "Liest der Mann das Buch ?",
        "0-0 1-1 2-2 3-0 4-3 5-4 6-5",
    ),
    "yes or no, in the perfect": (
        question(replace(READ_BOOK, tense="perfect")),
        "Has the man read a book ?",
        "Hat der Mann ein Buch gelesen ?",
        "0-0 1-1 2-2 3-5 4-3 5-4 6-6",
    ),
    "yes or no, with be": (
        question(replace(TIRED, tense="past", very=True)),
        "Was he very tired ?",
        "War er sehr müde ?",
        "0-0 1-1 2-2 3-3 4-4",
    ),
    "who": (
        question(replace(READ_BOOK, subject=WHO), "subject"),
        "Who reads a book ?",
        "Wer liest ein Buch ?",
        "0-0 1-1 2-2 3-3 4-4",
    ),
    "what": (
        question(Clause(find_verb("read"), THEY, direct=WHAT), "direct"),
        "What do they read ?",
        "Was lesen sie ?",
        "0-0 1-1 2-2 3-1 4-3",
    ),
    "whom, in the dative": (
        question(Clause(find_verb("listen to"), SHE, direct=WHO, tense="past"), "direct"),
        "Whom did she listen to ?",
        "Wem hörte sie zu ?",
        "0-0 1-1 2-2 3-1 3-3 4-1 4-3 5-4",
    ),
    "which": (
        question(
            Clause(find_verb("read"), HE, direct=the("letter", "long", determiner="which"), tense="past"), "direct"
        ),
        "Which long letter did he read ?",
        "Welchen langen Brief las er ?",
        "0-0 1-1 2-2 3-3 4-4 5-3 6-5",
    ),
    "where": (
        question(Clause(find_verb("work"), SHE, interrogative=WHERE), "interrogative"),
        "Where does she work ?",
        "Wo arbeitet sie ?",
        "0-0 1-1 2-2 3-1 4-3",
    ),
    "where to": (
        question(Clause(find_verb("go"), WE, interrogative=WHITHER), "interrogative"),
        "Where do we go ?",
        "Wohin gehen wir ?",
        "0-0 1-1 2-2 3-1 4-3",
    ),
    "when": (
        question(Clause(find_verb("arrive"), the("train"), interrogative=WHEN), "interrogative"),
        "When does the train arrive ?",
        "Wann kommt der Zug an ?",
        "0-0 1-1 2-2 3-3 4-1 4-4 5-5",
    ),
    "why": (
        question(Clause(find_verb("cry"), HE, tense="perfect", interrogative=WHY), "interrogative"),
        "Why has he cried ?",
        "Warum hat er geweint ?",
        "0-0 1-1 2-2 3-3 4-4",
    ),
    "time at the end": (
        statement(replace(READ_BOOK, time=adverb("today"))),
        "The man reads a book today .",
        "Der Mann liest heute ein Buch .",
        "0-0 1-1 2-2 3-4 4-5 5-3 6-6",
    ),
    "time in front": (
        statement(replace(READ_BOOK, time=adverb("in the evening"), front="time")),
        "In the evening the man reads a book .",
        "Am Abend liest der Mann ein Buch .",
        "0-0 1-0 2-1 3-3 4-4 5-2 6-5 7-6 8-7",
    ),
    "location in front": (
        statement(Clause(find_verb("sing"), the("girl", plural=True), place=IN_FRONT, front="place")),
        "In front of the church the girls sing .",
        "Vor der Kirche singen die Mädchen .",
        "0-0 1-0 2-0 3-1 4-2 5-4 6-5 7-3 8-6",
    ),
    "ago": (
        statement(Clause(find_verb("come"), SHE, tense="past", complement=TO_STATION, time=adverb("two days ago"))),
        "She came to the station two days ago .",
        "Sie kam vor zwei Tagen zum Bahnhof .",
        "0-0 1-1 2-5 3-5 4-6 5-3 6-4 7-2 8-7",
    ),
    "time, manner, direction": (
        statement(
            Clause(find_verb("travel"), HE, complement=INTO_CITY, means=adverb("by train"), time=adverb("in summer"))
        ),
        "He travels into the city by train in summer .",
        "Er reist im Sommer mit dem Zug in die Stadt .",
        "0-0 1-1 2-7 3-8 4-9 5-4 5-5 6-6 7-2 8-3 9-10",
    ),
    "direction with the accusative": (
        statement(
            Clause(
                find_verb("place"),
                SHE,
                direct=the("lamp"),
                complement=PrepositionalPhrase("on", "auf", "acc", the("table")),
            )
        ),
        "She places the lamp on the table .",
        "Sie stellt die Lampe auf den Tisch .",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7",
    ),
    "location with the dative": (
        statement(
            Clause(find_verb("lie"), the("hat"), complement=PrepositionalPhrase("next to", "neben", "dat", the("bed")))
        ),
        "The hat lies next to the bed .",
        "Der Hut liegt neben dem Bett .",
        "0-0 1-1 2-2 3-3 4-3 5-4 6-5 7-6",
    ),
    "manner before an indefinite object": (
        statement(replace(READ_BOOK, manner=adverb("slowly"))),
        "The man reads a book slowly .",
        "Der Mann liest langsam ein Buch .",
        "0-0 1-1 2-2 3-4 4-5 5-3 6-6",
    ),
    "manner after a definite object": (
        statement(replace(READ_BOOK, direct=the("book"), manner=adverb("slowly"))),
        "The man reads the book slowly .",
        "Der Mann liest das Buch langsam .",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-6",
    ),
    "never, definite object": (
        statement(replace(SEE_DOG, frequency=adverb("never"), tense="perfect")),
        "The man has never seen the dog .",
        "Der Mann hat den Hund nie gesehen .",
        "0-0 1-1 2-2 3-5 4-6 5-3 6-4 7-7",
    ),
    "never, indefinite object": (
        statement(replace(READ_BOOK, frequency=adverb("never"))),
        "The man never reads a book .",
        "Der Mann liest nie ein Buch .",
        "0-0 1-1 2-3 3-2 4-4 5-5 6-6",
    ),
    "pronoun before a full subject": (
        statement(replace(SEE_DOG, direct=SPEAKER, time=adverb("today"), front="time")),
        "Today the man sees me .",
        "Heute sieht mich der Mann .",
        "0-0 1-3 2-4 3-1 4-2 5-5",
    ),
    "pronoun that could be a subject": (
        statement(replace(SEE_DOG, direct=SHE, time=adverb("today"), front="time")),
        "Today the man sees her .",
        "Heute sieht der Mann sie .",
        "0-0 1-2 2-3 3-1 4-4 5-5",
    ),
    "companion": (
        statement(
            Clause(
                find_verb("laugh"),
                a("nurse")._replace(companion=PrepositionalPhrase("with", "mit", "dat", a("hat", "red"))),
            )
        ),
        "A nurse with a red hat laughs .",
        "Eine Krankenschwester mit einem roten Hut lacht .",
        "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_sentence_has_the_expected_translation_and_alignment(name: str) -> None:
    sentence, source, target, links = SENTENCES[name]
    made = realize_sentence_pair(sentence)
    assert (made.source, made.target) == (source, target)
    assert " ".join(f"{i}-{j}" for i, j in made.alignment) == links


# "old" with a masculine, a feminine and a neuter noun and in the plural; nominative, accusative, dative, genitive
DECLENSIONS = {
    "the": """
        der alte Mann | den alten Mann | dem alten Mann | des alten Mannes
        die alte Frau | die alte Frau | der alten Frau | der alten Frau
        das alte Buch | das alte Buch | dem alten Buch | des alten Buches
        die alten Männer | die alten Männer | den alten Männern | der alten Männer
    """,
    "a": """
        ein alter Mann | einen alten Mann | einem alten Mann | eines alten Mannes
        eine alte Frau | eine alte Frau | einer alten Frau | einer alten Frau
        ein altes Buch | ein altes Buch | einem alten Buch | eines alten Buches
    """,
    "our": """
        unser alter Mann | unseren alten Mann | unserem alten Mann | unseres alten Mannes
        unsere alte Frau | unsere alte Frau | unserer alten Frau | unserer alten Frau
        unser altes Buch | unser altes Buch | unserem alten Buch | unseres alten Buches
        unsere alten Männer | unsere alten Männer | unseren alten Männern | unserer alten Männer
    """,
    "no": """
        kein alter Mann | keinen alten Mann | keinem alten Mann | keines alten Mannes
        keine alte Frau | keine alte Frau | keiner alten Frau | keiner alten Frau
        kein altes Buch | kein altes Buch | keinem alten Buch | keines alten Buches
        keine alten Männer | keine alten Männer | keinen alten Männern | keiner alten Männer
    """,
    "this": """
        dieser alte Mann | diesen alten Mann | diesem alten Mann | dieses alten Mannes
        diese alte Frau | diese alte Frau | dieser alten Frau | dieser alten Frau
        dieses alte Buch | dieses alte Buch | diesem alten Buch | dieses alten Buches
        diese alten Männer | diese alten Männer | diesen alten Männern | dieser alten Männer
    """,
}


@pytest.mark.parametrize("determiner", DECLENSIONS)
def test_adjective_and_noun_are_declined_after_each_determiner(determiner: str) -> None:
    rows = [[cell.strip() for cell in row.split("|")] for row in DECLENSIONS[determiner].strip().splitlines()]
    heads = [("man", False), ("woman", False), ("book", False), ("man", True)]
    for row, (name, plural) in zip(rows, heads, strict=False):
        phrase = the(name, "old", plural=plural, determiner=determiner)
        assert [decline(phrase, case) for case in ("nom", "acc", "dat", "gen")] == row


@pytest.mark.parametrize(
    ("name", "plural", "determiner", "forms"),
    [
        ("coffee", False, "", "heißer Kaffee | heißen Kaffee | heißem Kaffee | heißen Kaffees"),
        ("milk", False, "", "heiße Milch | heiße Milch | heißer Milch | heißer Milch"),
        ("water", False, "", "heißes Wasser | heißes Wasser | heißem Wasser | heißen Wassers"),
        (
            "potato",
            True,
            "two",
            "zwei heiße Kartoffeln | zwei heiße Kartoffeln | zwei heißen Kartoffeln | zwei heißer Kartoffeln",
        ),
        ("soup", True, "many", "viele heiße Suppen | viele heiße Suppen | vielen heißen Suppen | vieler heißer Suppen"),
    ],
)
def test_adjective_without_article_has_strong_endings(name: str, plural: bool, determiner: str, forms: str) -> None:
    phrase = the(name, "hot", plural=plural, determiner=determiner)
    assert [decline(phrase, case) for case in ("nom", "acc", "dat", "gen")] == forms.split(" | ")


def decline(phrase: NounPhrase, case: str) -> str:
    return " ".join(word for word, _ in de.realize_german_phrase(phrase, case, ""))


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("boy", "Junge Jungen Jungen Jungen Jungen Jungen"),
        ("student", "Student Studenten Studenten Studenten Studenten Studenten"),
        ("neighbor", "Nachbar Nachbarn Nachbarn Nachbarn Nachbarn Nachbarn"),
        ("garden", "Garten Garten Garten Gartens Gärten Gärten"),
        ("brother", "Bruder Bruder Bruder Bruders Brüder Brüdern"),
        ("car", "Auto Auto Auto Autos Autos Autos"),
        ("sister", "Schwester Schwester Schwester Schwester Schwestern Schwestern"),
    ],
)
def test_noun_forms(name: str, forms: str) -> None:
    word = find_noun(name)
    singular = [de.inflect_noun(word, False, case) for case in ("nom", "acc", "dat", "gen")]
    assert [*singular, de.inflect_noun(word, True, "nom"), de.inflect_noun(word, True, "dat")] == forms.split()


@pytest.mark.parametrize(
    ("lemma", "forms"),
    [
        ("sleep", "schlafe schläft schlafen schlief schliefen"),
        ("read", "lese liest lesen las lasen"),
        ("give", "gebe gibt geben gab gaben"),
        ("take", "nehme nimmt nehmen nahm nahmen"),
        ("eat", "esse isst essen aß aßen"),
        ("forget", "vergesse vergisst vergessen vergaß vergaßen"),
        ("feed", "füttere füttert füttern fütterte fütterten"),
        ("work", "arbeite arbeitet arbeiten arbeitete arbeiteten"),
        ("invite", "lade lädt laden lud luden"),
        ("wash", "wasche wäscht waschen wusch wuschen"),
        ("be", "bin ist sind war waren"),
    ],
)
def test_verb_forms(lemma: str, forms: str) -> None:
    word = find_verb(lemma)
    present = [de.inflect_verb(word, False, person) for person in ("1", "3", "p")]
    assert [*present, de.inflect_verb(word, True, "3"), de.inflect_verb(word, True, "p")] == forms.split()


def test_irregular_verb_forms() -> None:
    assert [de.inflect_verb(find_verb("know", "that"), False, person) for person in ("1", "3", "p")] == [
        "weiß",
        "weiß",
        "wissen",
    ]
    assert [de.inflect_auxiliary("haben", person, past=True) for person in ("1", "p")] == ["hatte", "hatten"]
    assert [de.inflect_modal(MODAL["may"], person) for person in ("1", "3", "p")] == ["darf", "darf", "dürfen"]


@pytest.mark.parametrize(("stem", "word"), [("dark", "dunkle"), ("expensive", "teure"), ("tired", "müde")])
def test_adjective_stem_drops_e_where_german_does(stem: str, word: str) -> None:
    assert de.inflect_adjective(find_adjective(stem), "the", "m", "nom") == word


def test_lexicon_entries_are_unique_and_refer_to_each_other() -> None:
    kinds = {word.kind for word in NOUNS} | {word.english for word in NOUNS}
    named = {kind for word in VERBS for kind in (*word.subjects, *word.objects, *word.places)}
    assert named | {kind for word in ADJECTIVES for kind in word.kinds} <= kinds
    assert {name for word in VERBS for name in word.manners} <= {word.name for word in MANNER}
    assert len({word.english for word in NOUNS}) == len(NOUNS)
    assert len({(word.lemma, word.frame) for word in VERBS}) == len(VERBS)


def test_every_noun_has_three_compatible_adjectives() -> None:
    for word in NOUNS:
        fitting = set(find_adjectives(word))
        for worn in itertools.combinations(fitting, 2):
            assert any(not any(are_contradictory(other, one) for one in worn) for other in fitting), (word, worn)


SPLIT_SIZES = {"train": 20_000, "dev": 300, "test": 1_000}


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[AlignedPair]]:
    return generate_corpus(SPLIT_SIZES["train"], SPLIT_SIZES["dev"], SPLIT_SIZES["test"])


def test_corpus_splits_have_the_requested_sizes_and_are_disjoint(corpus: dict[str, list[AlignedPair]]) -> None:
    assert {name: len(pairs) for name, pairs in corpus.items()} == SPLIT_SIZES
    assert len({made.source for pairs in corpus.values() for made in pairs}) == sum(SPLIT_SIZES.values())


def test_corpus_text_is_tokenised(corpus: dict[str, list[AlignedPair]]) -> None:
    for made in corpus["train"]:
        for text in (made.source, made.target):
            assert text == " ".join(text.split())
            assert text[0].isupper()
            assert text[-2:] in {" .", " ?"}
            assert 3 <= len(text.split()) <= 26


def test_alignment_covers_all_words_of_both_sides(corpus: dict[str, list[AlignedPair]]) -> None:
    for made in corpus["train"]:
        width, height = len(made.source.split()), len(made.target.split())
        assert list(made.alignment) == sorted(set(made.alignment))
        assert all(0 <= i < width and 0 <= j < height for i, j in made.alignment)
        assert {i for i, _ in made.alignment} == set(range(width))
        assert {j for _, j in made.alignment} == set(range(height))
        assert (width - 1, height - 1) in made.alignment


def test_a_third_of_the_pairs_reorder_words(corpus: dict[str, list[AlignedPair]]) -> None:
    crossing = sum(any(i < k and j > m for i, j in made.alignment for k, m in made.alignment) for made in corpus["dev"])
    assert crossing >= 0.3 * len(corpus["dev"])


def test_vocabulary_and_sentence_length_are_within_bounds(corpus: dict[str, list[AlignedPair]]) -> None:
    english = {word for made in corpus["train"] for word in made.source.split()}
    german = Counter(word for made in corpus["train"] for word in made.target.split())
    assert 450 <= len(english) <= 700
    assert 800 <= len(german) <= 1300
    tested = {word for made in corpus["test"] for word in made.target.split()}
    assert sum(german[word] >= 8 for word in tested) >= 0.99 * len(tested)
    length = sum(len(made.source.split()) for made in corpus["train"]) / len(corpus["train"])
    assert 9 <= length <= 11


def test_training_split_has_no_held_out_combination(corpus: dict[str, list[AlignedPair]]) -> None:
    lemmas = {form: word.english for word in NOUNS for form in (word.english, word.english_plural)}
    attributes = {word.english for word in ADJECTIVES}
    shown = Counter(
        is_held_out(f"adjective {first} {lemmas[second]}")
        for made in corpus["train"] + corpus["dev"]
        for first, second in zip(made.source.lower().split(), made.source.lower().split()[1:], strict=False)
        if first in attributes and second in lemmas
    )
    assert shown[False] > 5_000
    assert shown[True] == 0


def test_every_test_sentence_has_a_held_out_combination(corpus: dict[str, list[AlignedPair]]) -> None:
    lemmas = {form: word.english for word in NOUNS for form in (word.english, word.english_plural)}
    verbs = {form: {word.lemma for word in VERBS if form in word.english} for use in VERBS for form in use.english}
    verbs |= {form: {"be"} for form in ("am", "are", "were")}
    for made in corpus["test"]:
        words = made.source.lower().split()
        nouns = [lemmas[word] for word in words if word in lemmas]
        heads = [f"adjective {word}" for word in words]
        heads += [f"verb {lemma}" for word in words for lemma in verbs.get(word, ())]
        assert any(is_held_out(f"{head} {word}") for head in heads for word in nouns), made.source


def test_combinations_are_found_in_all_parts_of_a_clause() -> None:
    inner = Clause(find_verb("read"), the("girl", "young"), direct=make_relative_pronoun(the("book")), front="direct")
    place = PrepositionalPhrase("in", "in", "dat", the("garden", "small"))
    whole = Clause(
        find_verb("find"), the("man", "old")._replace(owner=the("doctor", "rich")), direct=the("book"), place=place
    )
    whole = replace(whole, relative=inner, host="direct")
    assert set(iterate_combinations(whole)) == {
        "adjective old man",
        "adjective rich doctor",
        "adjective small garden",
        "adjective young girl",
        "verb find book",
        "verb read book",
    }
    assert list(iterate_combinations(Clause(find_verb("wait for"), HE, complement=FOR_BUS))) == ["verb wait for bus"]
    assert list(iterate_combinations(replace(TIRED, subject=the("boy")))) == ["adjective tired boy"]


def test_about_eight_percent_of_combinations_are_held_out() -> None:
    possible = [f"adjective {word.english} {other.english}" for word in ADJECTIVES for other in NOUNS]
    assert 0.06 < sum(map(is_held_out, possible)) / len(possible) < 0.1


@pytest.mark.parametrize(("count", "repetitions"), [(6_000, 3), pytest.param(30_000, 50, marks=pytest.mark.slow)])
def test_equal_sources_have_equal_targets(count: int, repetitions: int) -> None:
    narrator = SentenceGenerator(random.Random(5))
    known: dict[str, str] = {}
    repeated = 0
    for _ in range(count):
        made = realize_sentence_pair(narrator.draw_sentence())
        repeated += made.source in known
        assert known.setdefault(made.source, made.target) == made.target
    assert repeated > repetitions


def test_read_is_past_tense_only_where_english_shows_it(corpus: dict[str, list[AlignedPair]]) -> None:
    targets = [made.target.lower().split() for made in corpus["train"]]
    assert any("lesen" in target for target in targets)
    assert any("las" in target for target in targets)
    assert not any("lasen" in target for target in targets)


def test_larger_split_keeps_its_prefix_and_the_other_splits() -> None:
    small, large = generate_corpus(50, 20, 20, seed=3), generate_corpus(120, 20, 20, seed=3)
    assert large["train"][:50] == small["train"]
    assert (large["dev"], large["test"]) == (small["dev"], small["test"])
    assert generate_corpus(50, 20, 20, seed=4)["train"] != small["train"]


def test_corpus_is_the_same_in_every_process() -> None:
    code = (
        "from regard.synthetic.translation import generate_corpus; import sys; "
        "sys.stdout.write(ascii(generate_corpus(40, 9, 9, seed=2)))"
    )
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
        assert run.stdout == ascii(generate_corpus(40, 9, 9, seed=2))


def test_corpus_of_a_seed_stays_the_same() -> None:
    pairs = generate_corpus(300, 30, 30, seed=1)
    digest = hashlib.sha256(ascii([tuple(pair)[:3] for split in pairs.values() for pair in split]).encode()).hexdigest()
    assert digest == "283711bec4a9bcc9b7f9571568b573d40a4f9cb605c938b5eb71205f4cad1a42"
    assert not any(pair.possible for split in pairs.values() for pair in split)


def test_exhausted_grammar_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "MAX_FRUITLESS_DRAWS", 10)
    sentence = statement(Clause(find_verb("sleep"), HE))
    with pytest.raises(ValueError, match=r"5 different .* only 1"):
        corpus_module.collect_pairs(lambda: sentence, 5, set(), held_out=False)


def test_negative_split_size_is_refused() -> None:
    with pytest.raises(ValueError, match="dev must not be negative"):
        generate_corpus(1, -1, 1)
