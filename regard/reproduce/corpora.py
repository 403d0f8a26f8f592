"""Text spelt as the Hansards with gold alignments are, so that a model that is to align them has seen their words.

There each word and mark stands alone, elided and contracted words are written out (« l'ordre du jour » is « le ordre de
le jour »), and an English "n't" is "not".
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from regard.console import log_message
from regard.data.readers.dispatch import Pair, iterate_pairs
from regard.data.readers.text_io import iterate_lines
from regard.data.sentence_pair import format_pharaoh
from regard.errors import UserError
from regard.reproduce.document_split import DocumentLine, merge_splits, split_by_document
from regard.synthetic.grammar import AlignedPair as Linked
from regard.synthetic.grammar import generate_corpus
from regard.tasks import regression, tagging

TITLES = "Mr Mrs Ms Dr St Hon hon No M MM Mme".replace(" ", "|")
NUMBER, TITLE, INITIALS = r"\.?\d(?:[\d.,]*\d)?\w*", rf"(?:{TITLES})\.(?=\s)", r"(?:[a-z]\.){2,}"
HANSARD_TOKEN = re.compile(
    "|".join((NUMBER, TITLE, INITIALS, r"\.{2,}", r"-{2,}", r"aujourd'", r"\w+", r"'s\b", r"\S"))
)
ELIDED = re.compile(r"\b([ldnsjcmt]|qu|jusqu|lorsqu|puisqu|quoiqu)'(?=\w)", re.IGNORECASE)
CONTRACTED = re.compile(r"\b(du|des|au|aux)\b(?! ?-)", re.IGNORECASE)
CONTRACTION_EXPANSIONS = {"du": "de le", "des": "de les", "au": "à le", "aux": "à les"}
NEGATION = re.compile(r"\b(ca|wo|sha|\w+)n't\b", re.IGNORECASE)
IRREGULAR_NEGATIONS = {"ca": "cannot", "wo": "will not", "sha": "shall not"}
SHORTENED_VERB = re.compile(r"\b(\w+)'(m|re|ve|ll|d)\b", re.IGNORECASE)
VERB_EXPANSIONS = {"m": "am", "re": "are", "ve": "have", "ll": "will", "d": "would"}


def tokenize_hansard_french(text: str) -> str:
    """« C'est l'ordre du jour. » -> « Ce est le ordre de le jour . »"""
    text = ELIDED.sub(lambda found: f"{found[1]}e ", _normalize_apostrophes(text))
    return _separate_tokens(CONTRACTED.sub(_make_case_preserving_expansion(CONTRACTION_EXPANSIONS), text))


def tokenize_hansard_english(text: str) -> str:
    """ "I don't, Mr. Speaker." -> "I do not , Mr. Speaker ." """
    text = NEGATION.sub(
        lambda found: IRREGULAR_NEGATIONS.get(found[1].lower(), f"{found[1]} not"), _normalize_apostrophes(text)
    )
    return _separate_tokens(SHORTENED_VERB.sub(lambda found: f"{found[1]} {VERB_EXPANSIONS[found[2].lower()]}", text))


def _normalize_apostrophes(text: str) -> str:
    """With typewriters' apostrophes."""
    return text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def _separate_tokens(text: str) -> str:
    """Words, numbers and marks with a space between them."""
    return " ".join(HANSARD_TOKEN.findall(text))


def _make_case_preserving_expansion(words: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    """What stands for a word, with a capital where it has one."""

    def expand_word(found: re.Match[str]) -> str:
        whole = words[found[0].lower()]
        return whole[0].upper() + whole[1:] if found[0][0].isupper() else whole

    return expand_word


HELD_OUT_PAIRS = {"test": 300, "dev": 150}  # pairs of the simple corpus that are not trained on
COMMON_WORDS, MAX_SENTENCE_WORDS = 250, 10  # words that a simple sentence is made of, and how many it has at most
DRAWN_SENTENCES = 60_000  # sentences that the simple ones are chosen from
MAX_JOINED_SENTENCES = 4  # simple sentences that one line of the joined corpus has at most
COPY_SYMBOLS = "abcdefgh"

# What there is under REGARD_DATA, by corpus and language: a pattern for each file of two sides, source first.
NEWSTEST_STEM = "newstest/{year}.{pair}"
TECHNICAL_STEMS = ("libreoffice/libreoffice", "manpages/manpages", "ddtp/ddtp")
EARLY_NEWSTESTS = ("news-test2008", "newstest2009", "newstest2010", "newstest2011", "newstest2012")
LATE_NEWSTESTS = ("newstest2016", "newstest2017", "newstest2018")


@dataclass(frozen=True)
class CorpusFiles:
    """Files to train, validate and test on, and gold alignments of the test set, counted from `first`."""

    train: tuple[Path, ...]
    dev: tuple[Path, ...] | None
    test: tuple[Path, ...]
    gold: Path | None = None
    gold_offset: int = 0


@dataclass(frozen=True)
class CorpusBuilder:
    """How a corpus comes about, and what its files are called."""

    write: Callable[[Path], None]
    extensions: tuple[str, ...]
    gold: str | None = None
    gold_offset: int = 0
    has_dev_set: bool = True  # whether there is a dev set; else some of the training data is held out

    def find_files(self, folder: Path) -> CorpusFiles:
        """Its files in a folder."""
        train, dev, test = (
            tuple(folder / f"{name}.{ending}" for ending in self.extensions) for name in ("train", "dev", "test")
        )
        gold = folder / self.gold if self.gold else None
        return CorpusFiles(train, dev if self.has_dev_set else None, test, gold, self.gold_offset)


def find_corpus(name: str, folder: Path) -> CorpusFiles:
    """Where the files of a corpus are, or will be."""
    return CORPUS_BUILDERS[name].find_files(folder / name)


def prepare_corpus(name: str, folder: Path) -> CorpusFiles:
    """The files of a corpus, written where they are not there; a folder is whole or it is not there."""
    place = folder / name
    if not place.is_dir():
        beside = folder / f".{name}.part"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        CORPUS_BUILDERS[name].write(beside)
        beside.rename(place)
        log_message(f"corpus {name} in {place}")
    return find_corpus(name, folder)


# The small scale: made by the grammar, or by dice.


def _write_simple_corpus(folder: Path) -> None:
    """Short sentences of common words, with their gold alignments: what a small model learns in half a minute."""
    made = _make_simple_pairs()
    for name, size in HELD_OUT_PAIRS.items():
        _write_aligned_split(folder, name, made[:size])
        made = made[size:]
    _write_aligned_split(folder, "train", made)


def _make_simple_pairs() -> list[Linked]:
    """Those sentences of the grammar that have few and common words; no two are the same."""
    drawn = generate_corpus(train=DRAWN_SENTENCES, dev=0, test=0)["train"]
    counts = Counter(word for pair in drawn for word in pair.source.split())
    common = {word for word, _ in counts.most_common(COMMON_WORDS)}
    split = ((pair, pair.source.split()) for pair in drawn)
    return [pair for pair, words in split if len(words) <= MAX_SENTENCE_WORDS and common.issuperset(words)]


def _write_joined_corpus(folder: Path) -> None:
    """Lines of one to four simple sentences: as many words as long sentences have."""
    made, random = _make_simple_pairs(), Random(1)
    for name, size in HELD_OUT_PAIRS.items():
        _write_aligned_split(folder, name, list(_iterate_joined_pairs(made[:size] * MAX_JOINED_SENTENCES, random)))
        made = made[size:]
    _write_aligned_split(folder, "train", list(_iterate_joined_pairs(made * 2, random)))


def _iterate_joined_pairs(pairs: list[Linked], random: Random) -> Iterator[Linked]:
    """All the pairs, in another order, so many at once in a line as the dice say."""
    pairs = random.sample(pairs, len(pairs))
    while pairs:
        count = random.randint(1, MAX_JOINED_SENTENCES)
        yield join_aligned_pairs(pairs[:count])
        pairs = pairs[count:]


def join_aligned_pairs(pairs: list[Linked]) -> Linked:
    """Several pairs as one, with the links of all of them."""
    links, source, target = [], 0, 0
    for pair in pairs:
        links += [(source + left, target + right) for left, right in pair.alignment]
        source, target = source + len(pair.source.split()), target + len(pair.target.split())
    return Linked(
        " ".join(pair.source for pair in pairs), " ".join(pair.target for pair in pairs), tuple(sorted(links))
    )


def _write_aligned_split(folder: Path, name: str, pairs: list[Linked]) -> None:
    """A split as two sides and their links."""
    _write_lines(folder / f"{name}.en", (pair.source for pair in pairs))
    _write_lines(folder / f"{name}.de", (pair.target for pair in pairs))
    _write_lines(folder / f"{name}.align", (format_pharaoh(pair.alignment) for pair in pairs))


def _make_adding_task_writer(steps: int) -> Callable[[Path], None]:
    """The adding problem (Hochreiter & Schmidhuber 1997): of many numbers two are marked, the last step has their sum.

    The first mark is in the first tenth of a series, so that it must be remembered almost to the end. The last step is
    marked −1; before it 0 is to be given.
    """

    def write(folder: Path) -> None:
        random = Random(1)
        for name, size in (("train", 3000), ("dev", 100), ("test", 300)):
            _write_lines(folder / f"{name}.txt", (make_adding_series(random, steps) for _ in range(size)))

    return write


def make_adding_series(random: Random, steps: int) -> str:
    """One series: number, mark, and what is to be given."""
    numbers = [random.random() for _ in range(steps)]
    first, second = random.randrange(max(1, steps // 10)), random.randrange(steps // 2, steps - 1)
    marks = {first: 1, second: 1, steps - 1: -1}
    total = {steps - 1: numbers[first] + numbers[second]}
    rows = ((numbers[step], marks.get(step, 0), total.get(step, 0.0)) for step in range(steps))
    return "".join(f"{number:.4f} {mark} {sought:.4f}\n" for number, mark, sought in rows)


def _make_copy_task_writer(symbols: int, pause: int) -> Callable[[Path], None]:
    """The copy problem: symbols, a pause, and then the symbols again, which must have been remembered over it."""

    def write(folder: Path) -> None:
        random = Random(1)
        for name, size in (("train", 4000), ("dev", 100), ("test", 300)):
            _write_lines(folder / f"{name}.conll", (make_copy_sentence(random, symbols, pause) for _ in range(size)))

    return write


def make_copy_sentence(random: Random, symbols: int, pause: int) -> str:
    """One sentence, a word and its label a line."""
    told = [random.choice(COPY_SYMBOLS) for _ in range(symbols)]
    rows = [
        *((word, "wait") for word in told),
        *(("-", "wait") for _ in range(pause)),
        *(("say", word) for word in told),
    ]
    return "".join(f"{word} {label}\n" for word, label in rows)


def _write_tagging_corpus(folder: Path) -> None:
    """The tagging task's own."""
    tagging.write_tagging_corpus(folder)


def _write_regression_corpus(folder: Path) -> None:
    """The regression task's own."""
    regression.write_regression_corpus(folder)


# The full scale: real text.


def _find_data_folder() -> Path:
    """The folder with real corpora."""
    named = os.environ.get("REGARD_DATA")
    if not named:
        raise UserError("--scale full reads real corpora: set REGARD_DATA to the folder that holds them")
    if not Path(named).is_dir():
        raise UserError(f"REGARD_DATA names {named}, which is not a folder")
    return Path(named)


def _find_data_file(name: str) -> Path:
    """A file under REGARD_DATA, however it is compressed."""
    for path in (_find_data_folder() / f"{name}{packing}" for packing in ("", ".xz", ".gz", ".zst")):
        if path.is_file():
            return path
    raise UserError(f"there is no {name} in {_find_data_folder()}, nor one that ends in .xz, .gz or .zst")


def read_parallel_files(stem: str, *codes: str) -> Iterator[Pair]:
    """The pairs of two files, source first."""
    return iterate_pairs([_find_data_file(f"{stem}.{code}") for code in codes])


def read_tatoeba(name: str) -> Iterator[Pair]:
    """Pairs in columns; what follows them says whose they are."""
    for line in iterate_lines(_find_data_file(f"tatoeba/{name}.txt")):
        source, target, *_ = [*line.split("\t"), "", ""]
        yield Pair(source, target)


def _write_multi30k(folder: Path) -> None:
    """Captions, English to German; the test set is that of 2016."""
    for name, stem in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        _write_pairs(folder, name, read_parallel_files(f"multi30k/{stem}", "en", "de"), ("en", "de"))


def _write_mixed_ende(folder: Path) -> None:
    """Everyday sentences, technical prose, parliament and news; dev newstest2013, test newstest2014."""
    news = [
        read_parallel_files(NEWSTEST_STEM.format(year=year, pair="de-en"), "en", "de")
        for year in (*EARLY_NEWSTESTS, *LATE_NEWSTESTS)
    ]
    prose = [read_parallel_files(f"{stem}.en-de", "en", "de") for stem in TECHNICAL_STEMS]
    dev, test = (
        list(read_parallel_files(NEWSTEST_STEM.format(year=f"newstest{year}", pair="de-en"), "en", "de"))
        for year in (2013, 2014)
    )
    both = [read_tatoeba("eng-deu"), *prose, read_parallel_files("europarl20k-de-en/train", "en", "de"), *news]
    write_split(folder, both, dev, test, ("en", "de"))


def _write_mixed_enfr(folder: Path) -> None:
    """The same of English and French, spelt as the Hansards, whose gold alignments are the test; dev newstest2013."""
    news = [read_parallel_files(NEWSTEST_STEM.format(year=year, pair="en-fr"), "en", "fr") for year in EARLY_NEWSTESTS]
    prose = [read_parallel_files(f"{stem}.en-fr", "en", "fr") for stem in TECHNICAL_STEMS]
    dev = read_parallel_files(NEWSTEST_STEM.format(year="newstest2013", pair="en-fr"), "en", "fr")
    both = [map(_tokenize_pair_like_hansards, part) for part in (read_tatoeba("eng-fra"), *prose, *news)]
    halves = (line.split("|||") for line in iterate_lines(_find_data_file("align/enfr.src-tgt")))
    test = [Pair(" ".join(source.split()), " ".join(target.split())) for source, target in halves]
    write_split(folder, both, [*map(_tokenize_pair_like_hansards, dev)], test, ("en", "fr"))
    _write_lines(folder / "test.align", iterate_lines(_find_data_file("align/enfr.gold")))


def _tokenize_pair_like_hansards(pair: Pair) -> Pair:
    """An English and a French sentence as the Hansards have them."""
    return Pair(tokenize_hansard_english(pair.source), tokenize_hansard_french(pair.target))


def _make_technical_corpus_writer(code: str) -> Callable[[Path], None]:
    """Technical prose out of English, split by document; a `.doc` file has the document of each line."""

    def write(folder: Path) -> None:
        parts = merge_splits(split_by_document(list(_iterate_document_lines(stem, code))) for stem in TECHNICAL_STEMS)
        Random(1).shuffle(parts["dev"])  # so that its first sentences, on which BLEU is measured, are of every kind
        for name, some in parts.items():
            _write_pairs(folder, name, (Pair(line.source, line.target) for line in some), ("en", code))
            _write_lines(folder / f"{name}.doc", (line.document for line in some))

    return write


def _iterate_document_lines(stem: str, code: str) -> Iterator[DocumentLine]:
    """The pairs of two files and the documents that a third one names, the kind of text before them."""
    both = zip(
        read_parallel_files(f"{stem}.en-{code}", "en", code),
        iterate_lines(_find_data_file(f"{stem}.en-{code}.doc")),
        strict=True,
    )
    for pair, name in both:
        if pair.source.strip() and pair.target.strip():
            yield DocumentLine(pair.source, pair.target, f"{Path(stem).name}/{name}")


def write_split(
    folder: Path, parts: Iterable[Iterable[Pair]], dev: list[Pair], test: list[Pair], codes: tuple[str, str]
) -> None:
    """A corpus of several parts, each pair once and none that is validated or tested on."""
    known = {pair.source for pair in (*dev, *test)}
    kept = dict.fromkeys(
        pair
        for part in parts
        for pair in part
        if pair.source.strip() and pair.target.strip() and pair.source not in known
    )
    for name, some in (("train", kept), ("dev", dev), ("test", test)):
        _write_pairs(folder, name, some, codes)


def _write_pairs(folder: Path, name: str, pairs: Iterable[Pair], codes: tuple[str, str]) -> None:
    """A split as two sides."""
    some = list(pairs)
    _write_lines(folder / f"{name}.{codes[0]}", (pair.source for pair in some))
    _write_lines(folder / f"{name}.{codes[1]}", (pair.target for pair in some))


def _write_ud_english_ewt(folder: Path) -> None:
    """Universal Dependencies, English EWT; its dev set is the test set here."""
    for name, stem in (("train", "train"), ("test", "dev")):
        _write_lines(
            folder / f"{name}.conllu", iterate_lines(_find_data_file(f"ud-english-ewt/en_ewt-ud-{stem}.conllu"))
        )


def _write_lines(path: Path, text_lines: Iterable[str]) -> None:
    """Lines as a file."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in text_lines)


CORPUS_BUILDERS = {
    "simple": CorpusBuilder(_write_simple_corpus, ("en", "de"), gold="test.align"),
    "joined": CorpusBuilder(_write_joined_corpus, ("en", "de"), gold="test.align"),
    "adding-30": CorpusBuilder(_make_adding_task_writer(30), ("txt",)),
    "adding-100": CorpusBuilder(_make_adding_task_writer(100), ("txt",)),
    "copy-8": CorpusBuilder(_make_copy_task_writer(2, 8), ("conll",)),
    "copy-20": CorpusBuilder(_make_copy_task_writer(3, 20), ("conll",)),
    "sentences": CorpusBuilder(_write_tagging_corpus, ("conll",)),
    "series": CorpusBuilder(_write_regression_corpus, ("txt",)),
    "multi30k": CorpusBuilder(_write_multi30k, ("en", "de")),
    "mixed-ende": CorpusBuilder(_write_mixed_ende, ("en", "de")),
    "mixed-enfr": CorpusBuilder(_write_mixed_enfr, ("en", "fr"), gold="test.align", gold_offset=1),
    "technical-ende": CorpusBuilder(_make_technical_corpus_writer("de"), ("en", "de")),
    "technical-enfr": CorpusBuilder(_make_technical_corpus_writer("fr"), ("en", "fr")),
    "ud-english-ewt": CorpusBuilder(_write_ud_english_ewt, ("conllu",), has_dev_set=False),
}
