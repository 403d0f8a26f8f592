"""The corpora that experiments train on: those of the small scale are made, those of the full scale are put together.

Real text is read from the folder that `REGARD_DATA` names, and written down once as plain files.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from regard.console import say
from regard.data.corpus import Pair, read
from regard.data.files import lines
from regard.data.grammar import Pair as Linked
from regard.data.grammar import make
from regard.data.links import pharaoh
from regard.errors import UserError
from regard.reproduce import hansards
from regard.reproduce.documents import Line, split
from regard.reproduce.documents import joined as joined_splits
from regard.tasks import regression, tagging

HELD = {"test": 300, "dev": 150}  # pairs of the simple corpus that are not trained on
COMMON, LONGEST = 250, 10  # words that a simple sentence is made of, and how many it has at most
DRAWN = 60_000  # sentences that the simple ones are chosen from
JOINED = 4  # simple sentences that one line of the joined corpus has at most
SYMBOLS = "abcdefgh"

# What there is under REGARD_DATA, by corpus and language: a pattern for each file of two sides, source first.
NEWS = "newstest/{year}.{pair}"
TECHNICAL = ("libreoffice/libreoffice", "manpages/manpages", "ddtp/ddtp")
EARLY = ("news-test2008", "newstest2009", "newstest2010", "newstest2011", "newstest2012")
LATE = ("newstest2016", "newstest2017", "newstest2018")


@dataclass(frozen=True)
class Corpus:
    """Files to train, validate and test on, and gold alignments of the test set, counted from `first`."""

    train: tuple[Path, ...]
    dev: tuple[Path, ...] | None
    test: tuple[Path, ...]
    gold: Path | None = None
    first: int = 0


@dataclass(frozen=True)
class Source:
    """How a corpus comes about, and what its files are called."""

    write: Callable[[Path], None]
    endings: tuple[str, ...]
    gold: str | None = None
    first: int = 0
    held_out: bool = True  # whether there is a dev set; else some of the training data is held out

    def corpus(self, folder: Path) -> Corpus:
        """Its files in a folder."""
        train, dev, test = (
            tuple(folder / f"{name}.{ending}" for ending in self.endings) for name in ("train", "dev", "test")
        )
        gold = folder / self.gold if self.gold else None
        return Corpus(train, dev if self.held_out else None, test, gold, self.first)


def located(name: str, folder: Path) -> Corpus:
    """Where the files of a corpus are, or will be."""
    return SOURCES[name].corpus(folder / name)


def prepared(name: str, folder: Path) -> Corpus:
    """The files of a corpus, written where they are not there; a folder is whole or it is not there."""
    place = folder / name
    if not place.is_dir():
        beside = folder / f".{name}.part"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        SOURCES[name].write(beside)
        beside.rename(place)
        say(f"corpus {name} in {place}")
    return located(name, folder)


# The small scale: made by the grammar, or by dice.


def simple(folder: Path) -> None:
    """Short sentences of common words, with their gold alignments: what a small model learns in half a minute."""
    made = simple_pairs()
    for name, size in HELD.items():
        write_linked(folder, name, made[:size])
        made = made[size:]
    write_linked(folder, "train", made)


def simple_pairs() -> list[Linked]:
    """Those sentences of the grammar that have few and common words; no two are the same."""
    drawn = make(train=DRAWN, dev=0, test=0)["train"]
    counts = Counter(word for pair in drawn for word in pair.source.split())
    common = {word for word, _ in counts.most_common(COMMON)}
    split = ((pair, pair.source.split()) for pair in drawn)
    return [pair for pair, words in split if len(words) <= LONGEST and common.issuperset(words)]


def joined(folder: Path) -> None:
    """Lines of one to four simple sentences: as many words as long sentences have."""
    made, random = simple_pairs(), Random(1)
    for name, size in HELD.items():
        write_linked(folder, name, list(in_lines(made[:size] * JOINED, random)))
        made = made[size:]
    write_linked(folder, "train", list(in_lines(made * 2, random)))


def in_lines(made: list[Linked], random: Random) -> Iterator[Linked]:
    """All the pairs, in another order, so many at once in a line as the dice say."""
    made = random.sample(made, len(made))
    while made:
        count = random.randint(1, JOINED)
        yield one_line(made[:count])
        made = made[count:]


def one_line(some: list[Linked]) -> Linked:
    """Several pairs as one, with the links of all of them."""
    links, source, target = [], 0, 0
    for pair in some:
        links += [(source + left, target + right) for left, right in pair.alignment]
        source, target = source + len(pair.source.split()), target + len(pair.target.split())
    return Linked(" ".join(pair.source for pair in some), " ".join(pair.target for pair in some), tuple(sorted(links)))


def write_linked(folder: Path, name: str, made: list[Linked]) -> None:
    """A split as two sides and their links."""
    write_lines(folder / f"{name}.en", (pair.source for pair in made))
    write_lines(folder / f"{name}.de", (pair.target for pair in made))
    write_lines(folder / f"{name}.align", (pharaoh(pair.alignment) for pair in made))


def adding(steps: int) -> Callable[[Path], None]:
    """The adding problem (Hochreiter & Schmidhuber 1997): of many numbers two are marked, the last step has their sum.

    The first mark is in the first tenth of a series, so that it must be remembered almost to the end. The last step is
    marked −1; before it 0 is to be given.
    """

    def write(folder: Path) -> None:
        random = Random(1)
        for name, size in (("train", 3000), ("dev", 100), ("test", 300)):
            write_lines(folder / f"{name}.txt", (added(random, steps) for _ in range(size)))

    return write


def added(random: Random, steps: int) -> str:
    """One series: number, mark, and what is to be given."""
    numbers = [random.random() for _ in range(steps)]
    first, second = random.randrange(max(1, steps // 10)), random.randrange(steps // 2, steps - 1)
    marks = {first: 1, second: 1, steps - 1: -1}
    total = {steps - 1: numbers[first] + numbers[second]}
    rows = ((numbers[step], marks.get(step, 0), total.get(step, 0.0)) for step in range(steps))
    return "".join(f"{number:.4f} {mark} {sought:.4f}\n" for number, mark, sought in rows)


def copying(symbols: int, pause: int) -> Callable[[Path], None]:
    """The copy problem: symbols, a pause, and then the symbols again, which must have been remembered over it."""

    def write(folder: Path) -> None:
        random = Random(1)
        for name, size in (("train", 4000), ("dev", 100), ("test", 300)):
            write_lines(folder / f"{name}.conll", (copied(random, symbols, pause) for _ in range(size)))

    return write


def copied(random: Random, symbols: int, pause: int) -> str:
    """One sentence, a word and its label a line."""
    told = [random.choice(SYMBOLS) for _ in range(symbols)]
    rows = [
        *((word, "wait") for word in told),
        *(("-", "wait") for _ in range(pause)),
        *(("say", word) for word in told),
    ]
    return "".join(f"{word} {label}\n" for word, label in rows)


def sentences(folder: Path) -> None:
    """The tagging task's own."""
    tagging.embedded(folder)


def series(folder: Path) -> None:
    """The regression task's own."""
    regression.embedded(folder)


# The full scale: real text.


def data() -> Path:
    """The folder with real corpora."""
    named = os.environ.get("REGARD_DATA")
    if not named:
        raise UserError("--scale full reads real corpora: set REGARD_DATA to the folder that holds them")
    if not Path(named).is_dir():
        raise UserError(f"REGARD_DATA names {named}, which is not a folder")
    return Path(named)


def found(name: str) -> Path:
    """A file under REGARD_DATA, however it is compressed."""
    for path in (data() / f"{name}{packing}" for packing in ("", ".xz", ".gz", ".zst")):
        if path.is_file():
            return path
    raise UserError(f"there is no {name} in {data()}, nor one that ends in .xz, .gz or .zst")


def sides(stem: str, *codes: str) -> Iterator[Pair]:
    """The pairs of two files, source first."""
    return read([found(f"{stem}.{code}") for code in codes])


def tatoeba(name: str) -> Iterator[Pair]:
    """Pairs in columns; what follows them says whose they are."""
    for line in lines(found(f"tatoeba/{name}.txt")):
        source, target, *_ = [*line.split("\t"), "", ""]
        yield Pair(source, target)


def multi30k(folder: Path) -> None:
    """Captions, English to German; the test set is that of 2016."""
    for name, stem in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        write_pairs(folder, name, sides(f"multi30k/{stem}", "en", "de"), ("en", "de"))


def mixed_ende(folder: Path) -> None:
    """Everyday sentences, technical prose, parliament and news; dev newstest2013, test newstest2014."""
    news = [sides(NEWS.format(year=year, pair="de-en"), "en", "de") for year in (*EARLY, *LATE)]
    prose = [sides(f"{stem}.en-de", "en", "de") for stem in TECHNICAL]
    dev, test = (list(sides(NEWS.format(year=f"newstest{year}", pair="de-en"), "en", "de")) for year in (2013, 2014))
    both = [tatoeba("eng-deu"), *prose, sides("europarl20k-de-en/train", "en", "de"), *news]
    write_split(folder, both, dev, test, ("en", "de"))


def mixed_enfr(folder: Path) -> None:
    """The same of English and French, spelt as the Hansards, whose gold alignments are the test; dev newstest2013."""
    news = [sides(NEWS.format(year=year, pair="en-fr"), "en", "fr") for year in EARLY]
    prose = [sides(f"{stem}.en-fr", "en", "fr") for stem in TECHNICAL]
    dev = sides(NEWS.format(year="newstest2013", pair="en-fr"), "en", "fr")
    both = [map(spelt, part) for part in (tatoeba("eng-fra"), *prose, *news)]
    halves = (line.split("|||") for line in lines(found("align/enfr.src-tgt")))
    test = [Pair(" ".join(source.split()), " ".join(target.split())) for source, target in halves]
    write_split(folder, both, [*map(spelt, dev)], test, ("en", "fr"))
    write_lines(folder / "test.align", lines(found("align/enfr.gold")))


def spelt(pair: Pair) -> Pair:
    """An English and a French sentence as the Hansards have them."""
    return Pair(hansards.english(pair.source), hansards.french(pair.target))


def technical(code: str) -> Callable[[Path], None]:
    """Technical prose out of English, split by document; a `.doc` file has the document of each line."""

    def write(folder: Path) -> None:
        parts = joined_splits(split(list(documented(stem, code))) for stem in TECHNICAL)
        Random(1).shuffle(parts["dev"])  # so that its first sentences, on which BLEU is measured, are of every kind
        for name, some in parts.items():
            write_pairs(folder, name, (Pair(line.source, line.target) for line in some), ("en", code))
            write_lines(folder / f"{name}.doc", (line.document for line in some))

    return write


def documented(stem: str, code: str) -> Iterator[Line]:
    """The pairs of two files and the documents that a third one names, the kind of text before them."""
    both = zip(sides(f"{stem}.en-{code}", "en", code), lines(found(f"{stem}.en-{code}.doc")), strict=True)
    for pair, name in both:
        if pair.source.strip() and pair.target.strip():
            yield Line(pair.source, pair.target, f"{Path(stem).name}/{name}")


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
        write_pairs(folder, name, some, codes)


def write_pairs(folder: Path, name: str, pairs: Iterable[Pair], codes: tuple[str, str]) -> None:
    """A split as two sides."""
    some = list(pairs)
    write_lines(folder / f"{name}.{codes[0]}", (pair.source for pair in some))
    write_lines(folder / f"{name}.{codes[1]}", (pair.target for pair in some))


def parts_of_speech(folder: Path) -> None:
    """Universal Dependencies, English EWT; its dev set is the test set here."""
    for name, stem in (("train", "train"), ("test", "dev")):
        write_lines(folder / f"{name}.conllu", lines(found(f"ud-english-ewt/en_ewt-ud-{stem}.conllu")))


def write_lines(path: Path, some: Iterable[str]) -> None:
    """Lines as a file."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in some)


SOURCES = {
    "simple": Source(simple, ("en", "de"), gold="test.align"),
    "joined": Source(joined, ("en", "de"), gold="test.align"),
    "adding-30": Source(adding(30), ("txt",)),
    "adding-100": Source(adding(100), ("txt",)),
    "copy-8": Source(copying(2, 8), ("conll",)),
    "copy-20": Source(copying(3, 20), ("conll",)),
    "sentences": Source(sentences, ("conll",)),
    "series": Source(series, ("txt",)),
    "multi30k": Source(multi30k, ("en", "de")),
    "mixed-ende": Source(mixed_ende, ("en", "de")),
    "mixed-enfr": Source(mixed_enfr, ("en", "fr"), gold="test.align", first=1),
    "technical-ende": Source(technical("de"), ("en", "de")),
    "technical-enfr": Source(technical("fr"), ("en", "fr")),
    "ud-english-ewt": Source(parts_of_speech, ("conllu",), held_out=False),
}
