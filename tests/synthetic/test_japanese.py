"""The synthetic English–Japanese corpus: sentences against hand-written Japanese, and properties of text and links."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.readers.dispatch import read_all_pairs
from regard.errors import UserError
from regard.evaluate.alignment_error_rate import read_gold_alignments
from regard.paths import read_package_yaml
from regard.synthetic.grammar.lexicon import (
    ADJECTIVES,
    BUT,
    HE,
    MODALS,
    NOUNS,
    SHE,
    SPEAKER,
    SUBORDINATORS,
    THAT,
    VERBS,
    WHAT,
    WHO,
    find_noun,
    find_verb,
)
from regard.synthetic.grammar.sentences import SentenceGenerator, realize_sentence_pair
from regard.synthetic.grammar.syntax import (
    Clause,
    CoordinatedPhrase,
    NounPhrase,
    PrepositionalPhrase,
    Sentence,
    make_relative_pronoun,
)
from regard.synthetic.translation import generate_corpus, write_translation_corpus
from regard.tokenizers.segmentation import join_words

CELLS = {
    section: {row.split(" | ")[0].strip(): row.split(" | ")[1:] for row in table.splitlines()}
    for section, table in read_package_yaml("regard.synthetic.grammar", "japanese.yaml").items()
}


def the(noun: str, **changes: object) -> NounPhrase:
    return NounPhrase(find_noun(noun))._replace(**changes)  # type: ignore[arg-type]


def adjectives(*names: str) -> tuple[object, ...]:
    return tuple(next(word for word in ADJECTIVES if word.english == name) for name in names)


def read(**changes: object) -> Clause:
    clause = Clause(find_verb("read"), the("teacher"), direct=the("book"))
    for name, value in changes.items():
        setattr(clause, name, value)
    return clause


CAN, WANTED = (next(modal for modal in MODALS if modal.english == name) for name in ("can", "wanted"))
BEFORE = next(conjunction for conjunction in SUBORDINATORS if conjunction.english == "before")
GARDEN = PrepositionalPhrase("in", "in", "dat", the("garden"))
TABLE = PrepositionalPhrase("under", "unter", "acc", the("table"))

SENTENCES: dict[str, tuple[Sentence, str]] = {
    "present": (Sentence("statement", read()), "先生 は 本 を 読み ます 。"),
    "negated past": (Sentence("statement", read(tense="past", negated=True)), "先生 は 本 を 読み ません でした 。"),
    "future": (Sentence("statement", read(tense="future", subject=SHE)), "彼女 は 本 を 読む でしょう 。"),
    "modal": (Sentence("statement", read(modal=CAN)), "先生 は 本 を 読む こと が できます 。"),
    "negated past modal": (
        Sentence("statement", read(modal=WANTED, negated=True)),
        "先生 は 本 を 読み たく ありません でした 。",
    ),
    "no": (Sentence("statement", read(subject=the("boy", determiner="no"))), "どの 少年 も 本 を 読み ません 。"),
    "who": (Sentence("question", read(subject=WHO)), "誰 が 本 を 読み ます か 。"),
    "what": (Sentence("question", read(direct=WHAT, front="direct")), "先生 は 何 を 読み ます か 。"),
    "modifiers": (
        Sentence(
            "statement",
            read(
                subject=the("child", adjectives=adjectives("old"), very=True, owner=the("doctor")),
                direct=the("book", determiner="two", adjectives=adjectives("old")),
                place=GARDEN,
                front="place",
            ),
        ),
        "庭 で 医者 の とても 年配の 子供 は 二つ の 古い 本 を 読み ます 。",
    ),
    "two subjects": (
        Sentence("statement", read(subject=CoordinatedPhrase(the("man"), the("woman")))),
        "男性 と 女性 は 本 を 読み ます 。",
    ),
    "destination": (
        Sentence("statement", Clause(find_verb("place"), HE, direct=the("lamp"), complement=TABLE)),
        "彼 は ランプ を テーブル の 下 に 置き ます 。",
    ),
    "recipient": (
        Sentence("statement", Clause(find_verb("give"), HE, direct=the("book"), indirect=SPEAKER)),
        "彼 は 私 に 本 を あげ ます 。",
    ),
    "predicate": (
        Sentence("statement", Clause(find_verb("be"), the("house"), "past", predicate=adjectives("big")[0])),  # type: ignore[arg-type]
        "家 は 大きかった です 。",
    ),
    "somebody is in a place": (
        Sentence("statement", Clause(find_verb("be"), the("dog"), negated=True, complement=GARDEN)),
        "犬 は 庭 に い ません 。",
    ),
    "something is in a place": (
        Sentence("statement", Clause(find_verb("be"), the("ball"), complement=GARDEN)),
        "ボール は 庭 に あり ます 。",
    ),
    "relative clause": (
        Sentence(
            "statement",
            read(
                relative=Clause(
                    find_verb("buy"), HE, "past", direct=make_relative_pronoun(the("book")), front="direct"
                ),
                host="direct",
            ),
        ),
        "先生 は 彼 が 買った 本 を 読み ます 。",
    ),
    "subordinate clause": (
        Sentence("trailing", read(tense="past"), Clause(find_verb("sleep"), HE, "past"), BEFORE),
        "彼 が 眠る 前 に 先生 は 本 を 読み ました 。",
    ),
    "content clause": (
        Sentence("trailing", Clause(find_verb("say"), HE), read(), THAT),
        "彼 は 先生 が 本 を 読む と 言い ます 。",
    ),
    "two main clauses": (
        Sentence("joined", read(), Clause(find_verb("sleep"), HE), BUT),
        "先生 は 本 を 読み ます 、 しかし 彼 は 眠り ます 。",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_sentence_has_the_expected_japanese(name: str) -> None:
    sentence, expected = SENTENCES[name]
    assert realize_sentence_pair(sentence, "ja").target == expected


def test_links_of_a_sentence_are_sure_for_its_words_and_possible_for_particles_and_articles() -> None:
    made = realize_sentence_pair(SENTENCES["negated past"][0], "ja")
    assert made.source == "The teacher did not read the book ."
    assert made.alignment == ((1, 0), (3, 5), (3, 6), (4, 4), (6, 2), (7, 7))
    assert made.possible == tuple(
        (left, right)
        for left, possible in enumerate(((0, 1), (1,), (4, 5, 6), (4,), (1, 3, 5, 6), (2, 3), (3,)))
        for right in possible
    )


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_word_has_a_link_and_content_words_to_their_translations(seed: int) -> None:
    sentence = SentenceGenerator(Random(seed)).draw_sentence()
    made = realize_sentence_pair(sentence, "ja")
    source, target = made.source.lower().split(), made.target.split()
    links = {*made.alignment, *made.possible}
    assert {left for left, _ in links} == set(range(len(source)))
    assert {right for _, right in links} == set(range(len(target)))
    assert not {*made.alignment} & {*made.possible}
    nouns = {form: word.english for word in NOUNS for form in (word.english, word.english_plural)}
    for index, word in enumerate(source):
        if word in nouns and word not in {"train", "bus", "bicycle", "answer"}:  # also verbs, and "by train"
            [linked] = (target[right] for left, right in made.alignment if left == index)
            assert [linked] == CELLS["nouns"][nouns[word]]
    assert made.source == realize_sentence_pair(sentence).source  # the English of every pair


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_verb_ends_the_sentence(seed: int) -> None:
    sentence = SentenceGenerator(Random(seed)).draw_sentence()
    made = realize_sentence_pair(sentence, "ja")
    source, target = made.source.split(), made.target.split()
    last = len(target) - (3 if target[-2] == "か" else 2)
    main = sentence.second if sentence.kind in {"joined", "shared"} and sentence.second else sentence.first
    forms = {*main.verb.english, main.verb.particle, "am", "are", "were", "not", "cannot", "never", "has", "have"}
    forms |= {"had", "do", "does", "did", "will", "to", "No"} | {form for modal in MODALS for form in modal[:3]}
    links = {*made.alignment, *made.possible}
    assert {source[left] for left, right in links if right == last} <= forms | {form.capitalize() for form in forms}


def test_lexicon_has_japanese_for_every_english_word() -> None:
    assert set(CELLS["nouns"]) == {word.english for word in NOUNS}
    assert {name for name in CELLS["adjectives"] if ":" not in name} == {word.english for word in ADJECTIVES}
    assert {name for name in CELLS["verbs"] if ":" not in name} == {word.lemma for word in VERBS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic") / "corpus"
    write_translation_corpus(out, 300, seed=5, pair="en-ja")
    return out


def test_written_text_has_no_spaces_and_is_that_of_the_segmented_words(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        f"{split}.{ending}" for split in ("train", "dev", "test") for ending in ("en", "ja", "align", "words.ja")
    }
    for split in ("train", "dev", "test"):
        texts, words = ((folder / f"{split}.{ending}").read_text("utf-8").splitlines() for ending in ("ja", "words.ja"))
        assert texts == [line.replace(" ", "") for line in words] == [join_words(line.split()) for line in words]
        assert not any(character.isascii() for line in texts for character in line)


def test_written_gold_alignments_count_the_segmented_words(folder: Path) -> None:
    pairs = read_all_pairs([folder / "test.en", folder / "test.words.ja"])
    gold = read_gold_alignments(folder / "test.align", pairs, presegmented=True)  # raises for a link beyond its words
    made = generate_corpus(train=0, dev=0, test=30, seed=5, pair="en-ja")["test"]
    assert [(links.sure, links.possible) for links in gold] == [
        (frozenset(one.alignment), frozenset((*one.alignment, *one.possible))) for one in made
    ]


def test_corpus_is_determined_by_its_seed_and_has_the_english_of_the_german_one(folder: Path, tmp_path: Path) -> None:
    write_translation_corpus(tmp_path / "again", 300, seed=5, pair="en-ja")
    write_translation_corpus(tmp_path / "german", 300, seed=5)
    for path in folder.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    for name in ("train.en", "dev.en", "test.en"):
        assert (tmp_path / "german" / name).read_bytes() == (folder / name).read_bytes()


def test_files_of_segmented_words_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test.words.ja").write_text("mine\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"already holds test\.words\.ja"):
        write_translation_corpus(tmp_path, 20, pair="en-ja")
