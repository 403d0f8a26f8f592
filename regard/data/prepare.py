"""Pairs of sentences as ids, many at a time, on all cores."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from regard import paths, tokenizers
from regard.console import make_progress_bar
from regard.data import cache
from regard.data.dataset import Augmentation, ParallelDataset
from regard.data.indexed_dataset import RaggedArray, RaggedArrayWriter
from regard.data.readers.dispatch import Pair, iterate_pairs
from regard.data.sampler import DatasetPart
from regard.data.sentence_pair import Link
from regard.data.settings import DataSettings, TrainingCorpus, list_corpora
from regard.data.split import CorpusSplit, find_requested_languages
from regard.errors import UserError
from regard.tokenizers import TextSettings, Tokenizers
from regard.tokenizers.sentence_splitter import find_sentencex_version, split_sentences

PAIRS_PER_CHUNK = 5000  # pairs that a worker takes at a time


class RawPair(NamedTuple):
    """A pair as it was read."""

    pair: Pair
    tag: str | None = None
    links: AbstractSet[Link] | None = None


class EncodedPairs(NamedTuple):
    """Pairs as ids, and how many were left out for what."""

    source: RaggedArray
    target: RaggedArray
    links: RaggedArray
    empty: int
    too_long: int
    sentence_counts: Counter[int]  # how many sources have so many; empty without sentencex


class PairEncoder:
    """Encodes pairs; those with an empty side or one of more than `max_length` ids are left out and counted."""

    def __init__(self, tokenizers: Tokenizers, max_length: int, language: str | None = None) -> None:
        self.tokenizers = tokenizers
        self.max_length = max_length
        self.language = language  # of the sources

    def __call__(self, raw: Sequence[RawPair]) -> EncodedPairs:
        """Some pairs."""
        sources, targets, linked, empty, too_long, counted = [], [], [], 0, 0, Counter[int]()
        for pair, tag, links in raw:
            source, target = self.tokenizers.source.encode(pair.source), self.tokenizers.target.encode(pair.target)
            if not source or not target:
                empty += 1
                continue
            source = source if tag is None else [self.tokenizers.source.find_tag_id(tag), *source]
            if max(len(source), len(target)) > self.max_length:
                too_long += 1
                continue
            if find_sentencex_version() is not None:
                counted[len(split_sentences(pair.source, self.language))] += 1
            sources.append(source)
            targets.append(target)
            linked.append([] if links is None else self._make_token_links(pair, links, tag is not None))
        return EncodedPairs(
            RaggedArray.from_rows(sources),
            RaggedArray.from_rows(targets),
            RaggedArray.from_rows(linked),
            empty,
            too_long,
            counted,
        )

    def _make_token_links(self, pair: Pair, links: AbstractSet[Link], tagged: bool) -> list[int]:
        """Links of words as links of all their tokens: source token, target token, and so on."""
        of_source, of_target = (
            tokenizer.encode_with_word_ids(tokenizers)[1]
            for tokenizer, tokenizers in zip(self.tokenizers, pair, strict=True)
        )
        return [
            token
            for left, source in enumerate(of_source)
            for right, target in enumerate(of_target)
            if (source, target) in links
            for token in (left + tagged, right)
        ]


def encode_in_parallel(
    raw: Iterable[RawPair], encoder: PairEncoder, num_processes: int | None = None
) -> Iterator[EncodedPairs]:
    """All pairs, some at a time and in order; few are encoded here, many on all cores."""
    chunks = _iterate_chunks(iter(raw))
    first = next(chunks, None)
    if first is None:
        return
    yield encoder(first)
    second = next(chunks, None)
    if second is None:
        return
    workers = num_processes or (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)
    try:
        with ProcessPoolExecutor(
            workers, _choose_start_method(), initializer=_init_worker, initargs=(encoder,)
        ) as pool:
            yield from _encode_in_order(pool, second, chunks, 2 * workers)
    except BrokenProcessPool as error:
        raise UserError("a process that encoded text was ended from outside, perhaps for want of memory") from error


def _encode_in_order(
    pool: ProcessPoolExecutor, first: list[RawPair], rest: Iterator[list[RawPair]], max_pending: int
) -> Iterator[EncodedPairs]:
    """Results in order, with no more than `window` chunks on their way."""
    waiting: deque[Future[EncodedPairs]] = deque([pool.submit(_encode_chunk, first)])
    for chunk in rest:
        waiting.append(pool.submit(_encode_chunk, chunk))
        if len(waiting) > max_pending:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _iterate_chunks(raw: Iterator[RawPair]) -> Iterator[list[RawPair]]:
    """Lists of `AT_ONCE`."""
    while chunk := list(islice(raw, PAIRS_PER_CHUNK)):
        yield chunk


def _choose_start_method() -> multiprocessing.context.BaseContext:
    """Forked where that is safe: a spawned worker would run the user's own script again."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else None)


_worker_encoder: list[PairEncoder] = []  # of a worker process, the one that it works with


def _init_worker(encoder: PairEncoder) -> None:
    """Makes a process a worker."""
    _worker_encoder[:] = [encoder]


def _encode_chunk(raw: Sequence[RawPair]) -> EncodedPairs:
    """What a worker does."""
    return _worker_encoder[0](raw)


WordLinks = Sequence[AbstractSet[Link]]


class PreparedCorpus(NamedTuple):
    """What there is to train on, and how many pairs were left out for what."""

    dataset: ParallelDataset
    empty: int
    too_long: int
    longest: int  # ids on either side
    max_sentences: int | None  # most that a tenth of the sources have; None: they were not counted


def load_or_train_tokenizers(data: DataSettings, settings: TextSettings, split: CorpusSplit) -> Tokenizers:
    """The vocabularies of the training pairs."""
    wanted = list_corpora(data)
    tags = sorted({corpus.tag for corpus in wanted if corpus.tag})
    key = {
        "corpora": split.fingerprints,
        "languages": find_requested_languages(data),
        "held": _hash_texts(split.held_out_sources),
        "text": {**dataclasses.asdict(settings), "dropout": None},  # which is of training, not of the vocabulary
        "tags": tags,
    }
    folder = cache.find_or_build_entry(
        "vocabulary", key, partial(_train_tokenizers, data=data, settings=settings, split=split, tags=tags)
    )
    return tokenizers.load_tokenizers(settings, folder)


def _train_tokenizers(
    folder: Path, data: DataSettings, settings: TextSettings, split: CorpusSplit, tags: Sequence[str]
) -> None:
    """Learns vocabularies from what is trained on, however often it comes in an epoch."""
    sources, targets = (partial(_iterate_side, data, split, number) for number in (0, 1))
    tokenizers.save_tokenizers(tokenizers.train_tokenizers(settings, sources, targets, tags), settings, folder)


def _iterate_side(data: DataSettings, split: CorpusSplit, side_index: int) -> Iterator[str]:
    """One side of the training pairs."""
    return (pair[side_index] for corpus in list_corpora(data) for pair in _iterate_training_pairs(corpus, data, split))


def _iterate_training_pairs(corpus: TrainingCorpus, data: DataSettings, split: CorpusSplit) -> Iterator[Pair]:
    """The pairs of a corpus without those that are held out."""
    return (
        pair
        for pair in iterate_pairs(corpus.paths, *find_requested_languages(data))
        if pair.source not in split.held_out_sources
    )


def prepare_training_pairs(
    data: DataSettings,
    settings: TextSettings,
    tokenizers: Tokenizers,
    split: CorpusSplit,
    links: WordLinks | None = None,
) -> PreparedCorpus:
    """The training pairs as ids, mapped from the disk. `links` are the word alignments of all pairs, one by one."""
    wanted = list_corpora(data)
    key = {
        "corpora": split.fingerprints,
        "languages": find_requested_languages(data),
        "held": _hash_texts(split.held_out_sources),
        "tokenizers": [compute_tokenizer_fingerprint(tokenizer) for tokenizer in tokenizers],
        "tags": [corpus.tag for corpus in wanted],
        "max_length": data.max_length,
        "links": None
        if links is None
        else _hash_texts(f"{number}:{sorted(some)}" for number, some in enumerate(links)),
    }
    folder = cache.find_or_build_entry(
        "pairs", key, partial(_write_encoded_pairs, data=data, tokenizers=tokenizers, split=split, links=links)
    )
    known = json.loads((folder / "known.json").read_text(encoding="utf-8"))
    sums = json.loads((folder / cache.MANIFEST).read_text(encoding="utf-8"))["files"]
    if not sum(known["pairs"]):
        raise UserError(
            f"no pair is left to train on: {known['empty']} have an empty side, {known['too_long']} are longer than "
            f"data.max_length={data.max_length}"
        )
    if known["longest"] < data.max_length:  # which is what the run will ask for when it goes on
        cache.find_or_build_entry(
            "pairs", {**key, "max_length": known["longest"]}, partial(_hard_link_files, folder=folder)
        )
    parts = [DatasetPart(count, corpus.weight) for count, corpus in zip(known["pairs"], wanted, strict=True)]
    if not sum(part.num_examples * part.weight for part in parts):
        raise UserError(f"no pair is left to train on: data.weights={[part.weight for part in parts]} leave out all")
    examples = ParallelDataset(
        RaggedArray.load(folder, "source"),
        RaggedArray.load(folder, "target"),
        None if links is None else RaggedArray.load(folder, "links"),
        parts,
        _make_bpe_dropout(settings, tokenizers),
        _hash_texts(sums[name] for name in _list_content_files(links is not None)),
    )
    return PreparedCorpus(examples, known["empty"], known["too_long"], known["longest"], known["sentences"])


def _list_content_files(linked: bool) -> list[str]:
    """The files that tell one set of pairs from another."""
    sides = ("source", "target", "links") if linked else ("source", "target")
    return [f"{side}.{part}" for side in sides for part in ("kind", "numbers", "offsets")]


def _hard_link_files(new_folder: Path, folder: Path) -> None:
    """The same files under another name; copies, on a file system without hard links."""
    for path in folder.iterdir():
        if path.name != cache.MANIFEST:
            try:
                (new_folder / path.name).hardlink_to(path)
            except OSError:
                shutil.copyfile(path, new_folder / path.name)


def _write_encoded_pairs(
    folder: Path, data: DataSettings, tokenizers: Tokenizers, split: CorpusSplit, links: WordLinks | None
) -> None:
    """Encodes everything."""
    encoder = PairEncoder(tokenizers, data.max_length, data.source)
    sizes = {"source": tokenizers.source.vocab_size, "target": tokenizers.target.vocab_size} | (
        {} if links is None else {"links": 1 << 16}
    )
    writers = {name: RaggedArrayWriter(folder, name, size) for name, size in sizes.items()}
    counts, empty, too_long, longest, sentences = [], 0, 0, 0, Counter[int]()
    given = None if links is None else iter(links)
    with make_progress_bar(threaded=False) as progress:  # because processes are forked meanwhile
        task = progress.add_task("preparing", total=sum(split.counts), note="")
        for corpus in list_corpora(data):
            counts.append(0)
            for chunk in encode_in_parallel(_iterate_raw_pairs(corpus, data, split, given), encoder):
                for name, writer in writers.items():
                    writer.write(getattr(chunk, name))
                empty, too_long = empty + chunk.empty, too_long + chunk.too_long
                counts[-1] += len(chunk.source)
                sentences += chunk.sentence_counts
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


def _iterate_raw_pairs(
    corpus: TrainingCorpus, data: DataSettings, split: CorpusSplit, links: Iterator[AbstractSet[Link]] | None
) -> Iterator[RawPair]:
    """The pairs of a corpus, with tag and links."""
    for pair in _iterate_training_pairs(corpus, data, split):
        yield RawPair(pair, corpus.tag, None if links is None else next(links))


def _make_bpe_dropout(settings: TextSettings, tokenizers: Tokenizers) -> Augmentation | None:
    """BPE dropout on both sides, where there is any."""
    if not settings.dropout:
        return None

    def apply_dropout(source: RaggedArray, target: RaggedArray, seed: int) -> tuple[RaggedArray, RaggedArray]:
        both = zip((source, target), tokenizers, (0, 1), strict=True)
        left, right = (
            RaggedArray.from_rows(
                tokenizer.apply_bpe_dropout(
                    [side[row].tolist() for row in range(len(side))], settings.dropout, seed ^ flip
                )
            )
            for side, tokenizer, flip in both
        )
        return left, right

    return apply_dropout


def compute_tokenizer_fingerprint(tokenizer: tokenizers.Tokenizer) -> str:
    """Tells one vocabulary from another, by its file: that names the version and the normalization rule as well."""
    with TemporaryDirectory() as folder:
        saved = Path(folder) / "tokenizer"
        tokenizer.save(saved)
        return _hash_texts([str(tokenizer.lowercase), paths.compute_sha256(saved)])


def _hash_texts(parts: AbstractSet[str] | Sequence[str] | Iterator[str]) -> str:
    """SHA-256 of texts; of a set, whatever its order."""
    found = hashlib.sha256()
    for part in sorted(parts) if isinstance(parts, AbstractSet) else parts:
        found.update(part.encode())
        found.update(b"\0")
    return found.hexdigest()
