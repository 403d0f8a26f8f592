"""Corpora of the experiments: synthetic ones (small scale) and real ones under REGARD_DATA (full scale).

In the Hansards with gold alignments, text is tokenised, French elisions and contractions are written out (« l'ordre du
jour » is « le ordre de le jour »), and an English "n't" is "not". Training text for them is normalised in the same way.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random

from regard.console import log_message
from regard.data.readers.dispatch import iterate_pairs
from regard.data.readers.text import Pair, iterate_lines
from regard.errors import UserError
from regard.paths import create_folder_atomically
from regard.synthetic.corpora import write_regression_corpus, write_tagging_corpus
from regard.synthetic.grammar.sentences import AlignedPair
from regard.synthetic.translation import generate_corpus, write_aligned_pairs

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
    """Tokenise French like the Hansards: « C'est l'ordre du jour. » → « Ce est le ordre de le jour . »."""
    text = ELIDED.sub(lambda match: f"{match[1]}e ", _normalize_apostrophes(text))
    return _separate_tokens(CONTRACTED.sub(_expand_contraction, text))


def tokenize_hansard_english(text: str) -> str:
    """Tokenise English like the Hansards: `I don't, Mr. Speaker.` → `I do not , Mr. Speaker .`."""
    text = _normalize_apostrophes(text)
    text = NEGATION.sub(lambda match: IRREGULAR_NEGATIONS.get(match[1].lower(), f"{match[1]} not"), text)
    return _separate_tokens(SHORTENED_VERB.sub(lambda match: f"{match[1]} {VERB_EXPANSIONS[match[2].lower()]}", text))


def _normalize_apostrophes(text: str) -> str:
    return text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def _separate_tokens(text: str) -> str:
    return " ".join(HANSARD_TOKEN.findall(text))


def _expand_contraction(match: re.Match[str]) -> str:
    """Write a contraction out, and keep an initial capital."""
    expansion = CONTRACTION_EXPANSIONS[match[0].lower()]
    return expansion[0].upper() + expansion[1:] if match[0][0].isupper() else expansion


COMMON_WORDS, MAX_SENTENCE_WORDS = 250, 10  # of simple sentences: vocabulary and maximum length
DRAWN_SENTENCES = 60_000  # simple sentences are chosen from these
MAX_JOINED_SENTENCES = 4  # per line of the joined corpus
COPY_SYMBOLS = "abcdefgh"

# Files under REGARD_DATA, by corpus: stems of parallel files.
TECHNICAL_STEMS = ("libreoffice/libreoffice", "manpages/manpages", "ddtp/ddtp")
EARLY_NEWSTESTS = ("news-test2008", "newstest2009", "newstest2010", "newstest2011", "newstest2012")
LATE_NEWSTESTS = ("newstest2016", "newstest2017", "newstest2018")


@dataclass(frozen=True)
class CorpusFiles:
    """Files of train, dev and test set, and gold alignments of the test set, which count words from `gold_offset`."""

    train: tuple[Path, ...]
    dev: tuple[Path, ...] | None
    test: tuple[Path, ...]
    gold: Path | None = None
    gold_offset: int = 0


@dataclass(frozen=True)
class CorpusBuilder:
    """Function that writes a corpus, and the extensions of its files."""

    write: Callable[[Path], object]
    extensions: tuple[str, ...]
    gold: str | None = None
    gold_offset: int = 0
    has_dev_set: bool = True  # False: part of the training data is held out

    def find_files(self, folder: Path) -> CorpusFiles:
        """Return the paths of its files in a folder."""
        names = ("train", "dev", "test")
        train, dev, test = (tuple(folder / f"{name}.{extension}" for extension in self.extensions) for name in names)
        gold = folder / self.gold if self.gold else None
        return CorpusFiles(train, dev if self.has_dev_set else None, test, gold, self.gold_offset)

    def prepare(self, folder: Path) -> CorpusFiles:
        """Return its files in a folder, written atomically if they do not exist."""
        if not folder.is_dir():
            with create_folder_atomically(folder) as partial_folder:
                self.write(partial_folder)
            log_message(f"wrote corpus {folder.name} to {folder}")
        return self.find_files(folder)


def prepare_corpus(name: str, folder: Path) -> CorpusFiles:
    """Return the files of a corpus, written if they do not exist."""
    return CORPUS_BUILDERS[name].prepare(folder / name)


# Small scale: synthetic corpora.


def _write_simple_corpus(folder: Path) -> None:
    """Write short sentences of common words, with gold alignments; a small model learns them in half a minute."""
    for name, pairs in _split_simple_pairs().items():
        write_aligned_pairs(folder, name, pairs)


def _write_joined_corpus(folder: Path) -> None:
    """Write lines of one to four simple sentences, which are as long as long sentences."""
    random = Random(1)
    for name, pairs in _split_simple_pairs().items():
        repeated = pairs * (2 if name == "train" else MAX_JOINED_SENTENCES)
        write_aligned_pairs(folder, name, list(_iterate_joined_pairs(repeated, random)))


def _split_simple_pairs() -> dict[str, list[AlignedPair]]:
    """Return test, dev and training set: the distinct sentences of the grammar that are short and of common words."""
    drawn = generate_corpus(train=DRAWN_SENTENCES, dev=0, test=0)["train"]
    counts = Counter(word for pair in drawn for word in pair.source.split())
    common = {word for word, _ in counts.most_common(COMMON_WORDS)}
    pairs_with_words = ((pair, pair.source.split()) for pair in drawn)
    pairs = [pair for pair, words in pairs_with_words if len(words) <= MAX_SENTENCE_WORDS and common.issuperset(words)]
    return {"test": pairs[:300], "dev": pairs[300:450], "train": pairs[450:]}


def _iterate_joined_pairs(pairs: list[AlignedPair], random: Random) -> Iterator[AlignedPair]:
    """Shuffle the pairs, and yield groups of random size joined to lines."""
    pairs = random.sample(pairs, len(pairs))
    while pairs:
        count = random.randint(1, MAX_JOINED_SENTENCES)
        yield join_aligned_pairs(pairs[:count])
        pairs = pairs[count:]


def join_aligned_pairs(pairs: list[AlignedPair]) -> AlignedPair:
    """Join several pairs to one, with all their links."""
    links, source, target = [], 0, 0
    for pair in pairs:
        links += [(source + left, target + right) for left, right in pair.alignment]
        source, target = source + len(pair.source.split()), target + len(pair.target.split())
    return AlignedPair(
        " ".join(pair.source for pair in pairs), " ".join(pair.target for pair in pairs), tuple(sorted(links))
    )


def _make_generated_corpus(extension: str, train_size: int, make_example: Callable[[Random], str]) -> CorpusBuilder:
    """Return the builder of a corpus of random examples."""

    def write(folder: Path) -> None:
        random = Random(1)
        for name, size in (("train", train_size), ("dev", 100), ("test", 300)):
            write_lines(folder / f"{name}.{extension}", (make_example(random) for _ in range(size)))

    return CorpusBuilder(write, (extension,))


def make_adding_series(random: Random, steps: int) -> str:
    """Return a series of the adding problem (Hochreiter & Schmidhuber 1997): number, mark and target at each step.

    The first mark is in the first tenth of a series, so that it must be remembered almost to the end. The last step has
    the mark −1 and the sum of the two marked numbers; the target of all steps before it is 0.
    """
    numbers = [random.random() for _ in range(steps)]
    first, second = random.randrange(max(1, steps // 10)), random.randrange(steps // 2, steps - 1)
    marks = {first: 1, second: 1, steps - 1: -1}
    total = {steps - 1: numbers[first] + numbers[second]}
    rows = ((numbers[step], marks.get(step, 0), total.get(step, 0.0)) for step in range(steps))
    return "".join(f"{number:.4f} {mark} {target:.4f}\n" for number, mark, target in rows)


def make_copy_sentence(random: Random, symbols: int, pause: int) -> str:
    """Return a sentence of the copy problem: symbols, a pause, and then the same symbols as labels."""
    copied = [random.choice(COPY_SYMBOLS) for _ in range(symbols)]
    waiting = [f"{word} wait\n" for word in (*copied, *"-" * pause)]
    return "".join([*waiting, *(f"say {word}\n" for word in copied)])


# Full scale: real text.


def find_data_file(name: str) -> Path:
    """Return a file under REGARD_DATA, compressed or not."""
    variable = os.environ.get("REGARD_DATA")
    if not variable:
        raise UserError(
            "--scale full needs real corpora: set REGARD_DATA to their folder; "
            "regard data get --all-experiments downloads the public ones"
        )
    folder = Path(variable)
    if not folder.is_dir():
        raise UserError(f"REGARD_DATA is {folder}, which is not a folder")
    for path in (folder / f"{name}{compression}" for compression in ("", ".xz", ".gz", ".zst")):
        if path.is_file():
            return path
    raise UserError(f"{folder} has no file {name}, also not with .xz, .gz or .zst")


def read_parallel_files(stem: str, *codes: str) -> Iterator[Pair]:
    """Yield the pairs of two files, source first."""
    return iterate_pairs([find_data_file(f"{stem}.{code}") for code in codes])


def read_tatoeba(name: str) -> Iterator[Pair]:
    """Yield the pairs of a Tatoeba file, whose first two columns they are; the rest is attribution."""
    for line in iterate_lines(find_data_file(f"tatoeba/{name}.txt")):
        source, target, *_ = [*line.split("\t"), "", ""]
        yield Pair(source, target)


def _write_multi30k(folder: Path) -> None:
    """Write Multi30k captions, English to German; the test set is that of 2016."""
    for name, stem in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        write_pairs(folder, name, read_parallel_files(f"multi30k/{stem}", "en", "de"), ("en", "de"))


def _write_mixed_ende(folder: Path) -> None:
    """Write everyday sentences, technical prose, parliament and news; dev newstest2013, test newstest2014."""
    years = (*EARLY_NEWSTESTS, *LATE_NEWSTESTS)
    news = [read_parallel_files(f"newstest/{year}.de-en", "en", "de") for year in years]
    prose = [read_parallel_files(f"{stem}.en-de", "en", "de") for stem in TECHNICAL_STEMS]
    dev, test = (list(read_parallel_files(f"newstest/newstest{year}.de-en", "en", "de")) for year in (2013, 2014))
    parts = [read_tatoeba("eng-deu"), *prose, read_parallel_files("europarl20k-de-en/train", "en", "de"), *news]
    write_split(folder, parts, dev, test, ("en", "de"))


def _write_mixed_enfr(folder: Path) -> None:
    """Write mixed English–French text, normalised like the Hansards, which are the test set; dev newstest2013."""
    news = [read_parallel_files(f"newstest/{year}.en-fr", "en", "fr") for year in EARLY_NEWSTESTS]
    prose = [read_parallel_files(f"{stem}.en-fr", "en", "fr") for stem in TECHNICAL_STEMS]
    dev = read_parallel_files("newstest/newstest2013.en-fr", "en", "fr")
    parts = [map(_tokenize_pair_like_hansards, part) for part in (read_tatoeba("eng-fra"), *prose, *news)]
    columns = (line.split("|||") for line in iterate_lines(find_data_file("align/enfr.src-tgt")))
    test = [Pair(" ".join(source.split()), " ".join(target.split())) for source, target in columns]
    write_split(folder, parts, [*map(_tokenize_pair_like_hansards, dev)], test, ("en", "fr"))
    write_lines(folder / "test.align", iterate_lines(find_data_file("align/enfr.gold")))


def _tokenize_pair_like_hansards(pair: Pair) -> Pair:
    return Pair(tokenize_hansard_english(pair.source), tokenize_hansard_french(pair.target))


def write_split(
    folder: Path, parts: Iterable[Iterable[Pair]], dev: list[Pair], test: list[Pair], codes: tuple[str, str]
) -> None:
    """Write a corpus of several parts, with each pair once and without the sources of dev and test set."""
    held_out_sources = {pair.source for pair in (*dev, *test)}
    filled = (pair for pair in chain.from_iterable(parts) if pair.source.strip() and pair.target.strip())
    train = dict.fromkeys(pair for pair in filled if pair.source not in held_out_sources)
    for name, pairs in (("train", train), ("dev", dev), ("test", test)):
        write_pairs(folder, name, pairs, codes)


def write_pairs(folder: Path, name: str, pairs: Iterable[Pair], codes: tuple[str, str]) -> None:
    """Write a split as two sides."""
    pair_list = list(pairs)
    write_lines(folder / f"{name}.{codes[0]}", (pair.source for pair in pair_list))
    write_lines(folder / f"{name}.{codes[1]}", (pair.target for pair in pair_list))


def _write_ud_english_ewt(folder: Path) -> None:
    """Write Universal Dependencies English EWT; its dev set is the test set here."""
    for name, stem in (("train", "train"), ("test", "dev")):
        write_lines(folder / f"{name}.conllu", iterate_lines(find_data_file(f"ud-english-ewt/en_ewt-ud-{stem}.conllu")))


def write_lines(path: Path, text_lines: Iterable[str]) -> None:
    """Write lines of text to a file."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in text_lines)


CORPUS_BUILDERS = {
    "simple": CorpusBuilder(_write_simple_corpus, ("en", "de"), gold="test.align"),
    "joined": CorpusBuilder(_write_joined_corpus, ("en", "de"), gold="test.align"),
    "adding-30": _make_generated_corpus("txt", 3000, partial(make_adding_series, steps=30)),
    "adding-100": _make_generated_corpus("txt", 3000, partial(make_adding_series, steps=100)),
    "copy-8": _make_generated_corpus("conll", 4000, partial(make_copy_sentence, symbols=2, pause=8)),
    "copy-20": _make_generated_corpus("conll", 4000, partial(make_copy_sentence, symbols=3, pause=20)),
    "sentences": CorpusBuilder(write_tagging_corpus, ("conll",)),
    "series": CorpusBuilder(write_regression_corpus, ("txt",)),
    "multi30k": CorpusBuilder(_write_multi30k, ("en", "de")),
    "mixed-ende": CorpusBuilder(_write_mixed_ende, ("en", "de")),
    "mixed-enfr": CorpusBuilder(_write_mixed_enfr, ("en", "fr"), gold="test.align", gold_offset=1),
    "ud-english-ewt": CorpusBuilder(_write_ud_english_ewt, ("conllu",), has_dev_set=False),
}
