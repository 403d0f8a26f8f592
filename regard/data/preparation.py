"""From files of text to encoded pairs that are mapped from the disk: done once, kept, and found again by content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from regard import text
from regard.console import bar
from regard.data import cache, disk
from regard.data.corpus import Pair, read
from regard.data.encoding import Encoder, Raw, encoded
from regard.data.examples import Examples, Noise
from regard.data.links import Link
from regard.data.order import Part
from regard.data.ragged import Ragged, RaggedWriter
from regard.data.settings import Corpus, DataSettings, corpora
from regard.data.survey import Survey, languages_of
from regard.errors import UserError
from regard.text import TextSettings, Tokenizers

Links = Sequence[AbstractSet[Link]]


class Prepared(NamedTuple):
    """What there is to train on, and how many pairs were left out for what."""

    examples: Examples
    empty: int
    too_long: int
    longest: int  # ids on either side
    sentences: int | None  # most that a tenth of the sources have; None: they were not counted


def vocabularies(data: DataSettings, settings: TextSettings, found: Survey) -> Tokenizers:
    """The vocabularies of the training pairs."""
    wanted = corpora(data)
    tags = sorted({corpus.tag for corpus in wanted if corpus.tag})
    key = {
        "corpora": found.content,
        "languages": languages_of(data),
        "held": digest(found.held),
        "text": {**dataclasses.asdict(settings), "dropout": None},  # which is of training, not of the vocabulary
        "tags": tags,
    }
    folder = cache.entry("vocabulary", key, partial(learn, data=data, settings=settings, found=found, tags=tags))
    return text.load(settings, folder)


def learn(folder: Path, data: DataSettings, settings: TextSettings, found: Survey, tags: Sequence[str]) -> None:
    """Learns vocabularies from what is trained on, however often it comes in an epoch."""
    sources, targets = (partial(side, data, found, number) for number in (0, 1))
    text.save(text.learn(settings, sources, targets, tags), settings, folder)


def side(data: DataSettings, found: Survey, number: int) -> Iterator[str]:
    """One side of the training pairs."""
    return (pair[number] for corpus in corpora(data) for pair in training_pairs(corpus, data, found))


def training_pairs(corpus: Corpus, data: DataSettings, found: Survey) -> Iterator[Pair]:
    """The pairs of a corpus without those that are held out."""
    return (pair for pair in read(corpus.paths, *languages_of(data)) if pair.source not in found.held)


def prepare(
    data: DataSettings, settings: TextSettings, tokenizers: Tokenizers, found: Survey, links: Links | None = None
) -> Prepared:
    """The training pairs as ids, mapped from the disk. `links` are the word alignments of all pairs, one by one."""
    wanted = corpora(data)
    key = {
        "corpora": found.content,
        "languages": languages_of(data),
        "held": digest(found.held),
        "tokenizers": [fingerprint(tokenizer) for tokenizer in tokenizers],
        "tags": [corpus.tag for corpus in wanted],
        "max_length": data.max_length,
        "links": None if links is None else digest(f"{number}:{sorted(some)}" for number, some in enumerate(links)),
    }
    folder = cache.entry("pairs", key, partial(write, data=data, tokenizers=tokenizers, found=found, links=links))
    known = json.loads((folder / "known.json").read_text(encoding="utf-8"))
    sums = json.loads((folder / cache.MANIFEST).read_text(encoding="utf-8"))["files"]
    if not sum(known["pairs"]):
        raise UserError(
            f"no pair is left to train on: {known['empty']} have an empty side, {known['too_long']} are longer than "
            f"data.max_length={data.max_length}"
        )
    if known["longest"] < data.max_length:  # which is what the run will ask for when it goes on
        cache.entry("pairs", {**key, "max_length": known["longest"]}, partial(link, folder=folder))
    parts = [Part(count, corpus.weight) for count, corpus in zip(known["pairs"], wanted, strict=True)]
    if not sum(part.pairs * part.weight for part in parts):
        raise UserError(f"no pair is left to train on: data.weights={[part.weight for part in parts]} leave out all")
    examples = Examples(
        Ragged.load(folder, "source"),
        Ragged.load(folder, "target"),
        None if links is None else Ragged.load(folder, "links"),
        parts,
        noise(settings, tokenizers),
        digest(sums[name] for name in contents(links is not None)),
    )
    return Prepared(examples, known["empty"], known["too_long"], known["longest"], known["sentences"])


def contents(linked: bool) -> list[str]:
    """The files that tell one set of pairs from another."""
    sides = ("source", "target", "links") if linked else ("source", "target")
    return [f"{side}.{part}" for side in sides for part in ("kind", "numbers", "offsets")]


def link(beside: Path, folder: Path) -> None:
    """The same files under another name; copies, on a file system without hard links."""
    for path in folder.iterdir():
        if path.name != cache.MANIFEST:
            try:
                (beside / path.name).hardlink_to(path)
            except OSError:
                shutil.copyfile(path, beside / path.name)


def write(folder: Path, data: DataSettings, tokenizers: Tokenizers, found: Survey, links: Links | None) -> None:
    """Encodes everything."""
    encoder = Encoder(tokenizers, data.max_length, data.source)
    sizes = {"source": tokenizers.source.size, "target": tokenizers.target.size} | (
        {} if links is None else {"links": 1 << 16}
    )
    writers = {name: RaggedWriter(folder, name, size) for name, size in sizes.items()}
    counts, empty, too_long, longest, sentences = [], 0, 0, 0, Counter[int]()
    given = None if links is None else iter(links)
    with bar(threaded=False) as progress:  # because processes are forked meanwhile
        task = progress.add_task("preparing", total=sum(found.counts), note="")
        for corpus in corpora(data):
            counts.append(0)
            for chunk in encoded(raws(corpus, data, found, given), encoder):
                for name, writer in writers.items():
                    writer.write(getattr(chunk, name))
                empty, too_long = empty + chunk.empty, too_long + chunk.too_long
                counts[-1] += len(chunk.source)
                sentences += chunk.sentences
                longest = max(longest, *(int(side.lengths.max(initial=0)) for side in (chunk.source, chunk.target)))
                progress.advance(task, len(chunk.source) + chunk.empty + chunk.too_long)
                progress.refresh()
    for writer in writers.values():
        writer.close()
    known = {
        "pairs": counts,
        "empty": empty,
        "too_long": too_long,
        "longest": longest,
        "sentences": find_max_sentences(sentences),
    }
    (folder / "known.json").write_text(json.dumps(known), encoding="utf-8")


def find_max_sentences(counts: Counter[int]) -> int | None:
    """Return the largest number of sentences that at least one source in ten has, given sources by number of sentences.

    Models that see two sentences in fewer sources omit the second more often: docs/translate.md has the measurements.
    None where sentences were not counted.
    """
    rest = counts.total()
    enough = None
    for number, sources in sorted(counts.items()):
        if 10 * rest >= counts.total():
            enough = number
        rest -= sources
    return enough


def raws(corpus: Corpus, data: DataSettings, found: Survey, links: Iterator[AbstractSet[Link]] | None) -> Iterator[Raw]:
    """The pairs of a corpus, with tag and links."""
    for pair in training_pairs(corpus, data, found):
        yield Raw(pair, corpus.tag, None if links is None else next(links))


def noise(settings: TextSettings, tokenizers: Tokenizers) -> Noise | None:
    """BPE dropout on both sides, where there is any."""
    if not settings.dropout:
        return None

    def cut_otherwise(source: Ragged, target: Ragged, seed: int) -> tuple[Ragged, Ragged]:
        both = zip((source, target), tokenizers, (0, 1), strict=True)
        left, right = (
            Ragged.of(
                tokenizer.resample([side[row].tolist() for row in range(len(side))], settings.dropout, seed ^ flip)
            )
            for side, tokenizer, flip in both
        )
        return left, right

    return cut_otherwise


def fingerprint(tokenizer: text.Tokenizer) -> str:
    """Tells one vocabulary from another, by its file: that names the version and the normalization rule as well."""
    with TemporaryDirectory() as folder:
        saved = Path(folder) / "tokenizer"
        tokenizer.save(saved)
        return digest([str(tokenizer.lowercase), disk.digest(saved)])


def digest(parts: AbstractSet[str] | Sequence[str] | Iterator[str]) -> str:
    """SHA-256 of texts; of a set, whatever its order."""
    found = hashlib.sha256()
    for part in sorted(parts) if isinstance(parts, AbstractSet) else parts:
        found.update(part.encode())
        found.update(b"\0")
    return found.hexdigest()
