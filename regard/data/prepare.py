"""Data preparation: train tokenizers, and encode sentence pairs as token ids in parallel, cached on disk."""

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

PAIRS_PER_CHUNK = 5000


class RawPair(NamedTuple):
    """A sentence pair as text, with its tag and word alignment."""

    pair: Pair
    tag: str | None = None
    links: AbstractSet[Link] | None = None


class EncodedPairs(NamedTuple):
    """Sentence pairs as token ids, and the number of pairs that were skipped as empty or too long."""

    source: RaggedArray
    target: RaggedArray
    links: RaggedArray
    empty: int
    too_long: int
    sentence_counts: Counter[int]  # number of sentences -> number of sources; empty without sentencex


class PairEncoder:
    """Encode pairs; those with an empty side or one longer than `max_length` ids are skipped and counted."""

    def __init__(self, tokenizers: Tokenizers, max_length: int, language: str | None = None) -> None:
        self.tokenizers = tokenizers
        self.max_length = max_length
        self.language = language  # of the sources

    def __call__(self, raw: Sequence[RawPair]) -> EncodedPairs:
        """Encode a chunk of pairs."""
        sources, targets, token_links, empty, too_long, sentence_counts = [], [], [], 0, 0, Counter[int]()
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
                sentence_counts[len(split_sentences(pair.source, self.language))] += 1
            sources.append(source)
            targets.append(target)
            token_links.append([] if links is None else self._make_token_links(pair, links, tag is not None))
        return EncodedPairs(
            RaggedArray.from_rows(sources),
            RaggedArray.from_rows(targets),
            RaggedArray.from_rows(token_links),
            empty,
            too_long,
            sentence_counts,
        )

    def _make_token_links(self, pair: Pair, links: AbstractSet[Link], tagged: bool) -> list[int]:
        """Convert links between words to links between all their tokens: source token, target token, and so on."""
        source_word_ids, target_word_ids = (
            tokenizer.encode_with_word_ids(text)[1] for tokenizer, text in zip(self.tokenizers, pair, strict=True)
        )
        return [
            token
            for source_token, source_word in enumerate(source_word_ids)
            for target_token, target_word in enumerate(target_word_ids)
            if (source_word, target_word) in links
            for token in (source_token + tagged, target_token)
        ]


def encode_in_parallel(
    raw: Iterable[RawPair], encoder: PairEncoder, num_processes: int | None = None
) -> Iterator[EncodedPairs]:
    """Yield all pairs encoded, chunk by chunk and in order; only the first chunk is encoded in this process."""
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
        raise UserError("a process that encodes text was killed, perhaps because memory ran out") from error


def _encode_in_order(
    pool: ProcessPoolExecutor, first: list[RawPair], rest: Iterator[list[RawPair]], max_pending: int
) -> Iterator[EncodedPairs]:
    """Yield results in order, with at most `max_pending` chunks in flight."""
    pending: deque[Future[EncodedPairs]] = deque([pool.submit(_encode_chunk, first)])
    for chunk in rest:
        pending.append(pool.submit(_encode_chunk, chunk))
        if len(pending) > max_pending:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _iterate_chunks(raw: Iterator[RawPair]) -> Iterator[list[RawPair]]:
    """Yield lists of `PAIRS_PER_CHUNK` pairs."""
    while chunk := list(islice(raw, PAIRS_PER_CHUNK)):
        yield chunk


def _choose_start_method() -> multiprocessing.context.BaseContext:
    """Return the fork context on Linux: a spawned worker would run the user's script again."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else None)


_worker_encoder: list[PairEncoder] = []  # the encoder of a worker process


def _init_worker(encoder: PairEncoder) -> None:
    _worker_encoder[:] = [encoder]


def _encode_chunk(raw: Sequence[RawPair]) -> EncodedPairs:
    return _worker_encoder[0](raw)


WordLinks = Sequence[AbstractSet[Link]]


class PreparedCorpus(NamedTuple):
    """The training dataset, and the number of pairs that were skipped as empty or too long."""

    dataset: ParallelDataset
    empty: int
    too_long: int
    longest: int  # ids on either side
    max_sentences: int | None  # as `find_max_sentences` returns it


def load_or_train_tokenizers(data: DataSettings, settings: TextSettings, split: CorpusSplit) -> Tokenizers:
    """Return the tokenizers of the training pairs, trained or from the cache."""
    corpora = list_corpora(data)
    tags = sorted({corpus.tag for corpus in corpora if corpus.tag})
    key = {
        "corpora": split.fingerprints,
        "languages": find_requested_languages(data),
        "held": _hash_texts(split.held_out_sources),
        "text": {**dataclasses.asdict(settings), "dropout": None},  # affects training, not the vocabulary
        "tags": tags,
    }
    folder = cache.find_or_build_entry(
        "vocabulary", key, partial(_train_tokenizers, data=data, settings=settings, split=split, tags=tags)
    )
    return tokenizers.load_tokenizers(settings, folder)


def _train_tokenizers(
    folder: Path, data: DataSettings, settings: TextSettings, split: CorpusSplit, tags: Sequence[str]
) -> None:
    """Train tokenizers on each training pair once, whatever its weight."""
    sources, targets = (partial(_iterate_side, data, split, side_index) for side_index in (0, 1))
    tokenizers.save_tokenizers(tokenizers.train_tokenizers(settings, sources, targets, tags), settings, folder)


def _iterate_side(data: DataSettings, split: CorpusSplit, side_index: int) -> Iterator[str]:
    """Yield one side of the training pairs."""
    return (pair[side_index] for corpus in list_corpora(data) for pair in _iterate_training_pairs(corpus, data, split))


def _iterate_training_pairs(corpus: TrainingCorpus, data: DataSettings, split: CorpusSplit) -> Iterator[Pair]:
    """Yield the pairs of a corpus without those that are held out."""
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
    """Return the training pairs as token ids, memory-mapped from the cache.

    `links` are the word alignments of all training pairs, in order.
    """
    corpora = list_corpora(data)
    key = {
        "corpora": split.fingerprints,
        "languages": find_requested_languages(data),
        "held": _hash_texts(split.held_out_sources),
        "tokenizers": [compute_tokenizer_fingerprint(tokenizer) for tokenizer in tokenizers],
        "tags": [corpus.tag for corpus in corpora],
        "max_length": data.max_length,
        "links": None
        if links is None
        else _hash_texts(f"{index}:{sorted(pair_links)}" for index, pair_links in enumerate(links)),
    }
    folder = cache.find_or_build_entry(
        "pairs", key, partial(_write_encoded_pairs, data=data, tokenizers=tokenizers, split=split, links=links)
    )
    summary = json.loads((folder / "known.json").read_text(encoding="utf-8"))
    checksums = json.loads((folder / cache.MANIFEST).read_text(encoding="utf-8"))["files"]
    if not sum(summary["pairs"]):
        raise UserError(
            f"no pair is left to train on: {summary['empty']} have an empty side, "
            f"{summary['too_long']} are longer than data.max_length={data.max_length}"
        )
    if summary["longest"] < data.max_length:  # which the run requests when it is resumed
        cache.find_or_build_entry(
            "pairs", {**key, "max_length": summary["longest"]}, partial(_hard_link_files, folder=folder)
        )
    parts = [DatasetPart(count, corpus.weight) for count, corpus in zip(summary["pairs"], corpora, strict=True)]
    if not sum(part.num_examples * part.weight for part in parts):
        raise UserError(f"no pair is left to train on: data.weights={[part.weight for part in parts]} leave out all")
    dataset = ParallelDataset(
        RaggedArray.load(folder, "source"),
        RaggedArray.load(folder, "target"),
        None if links is None else RaggedArray.load(folder, "links"),
        parts,
        _make_bpe_dropout(settings, tokenizers),
        _hash_texts(checksums[name] for name in _list_content_files(links is not None)),
    )
    return PreparedCorpus(dataset, summary["empty"], summary["too_long"], summary["longest"], summary["sentences"])


def _list_content_files(linked: bool) -> list[str]:
    """Return the names of the files that make up the dataset's fingerprint."""
    sides = ("source", "target", "links") if linked else ("source", "target")
    return [f"{side}.{part}" for side in sides for part in ("kind", "numbers", "offsets")]


def _hard_link_files(new_folder: Path, folder: Path) -> None:
    """Hard-link the files of a folder into another one; copy them on a file system without hard links."""
    for path in folder.iterdir():
        if path.name != cache.MANIFEST:
            try:
                (new_folder / path.name).hardlink_to(path)
            except OSError:
                shutil.copyfile(path, new_folder / path.name)


def _write_encoded_pairs(
    folder: Path, data: DataSettings, tokenizers: Tokenizers, split: CorpusSplit, links: WordLinks | None
) -> None:
    """Encode all training pairs and write them to the folder."""
    encoder = PairEncoder(tokenizers, data.max_length, data.source)
    sizes = {"source": tokenizers.source.vocab_size, "target": tokenizers.target.vocab_size} | (
        {} if links is None else {"links": 1 << 16}
    )
    writers = {name: RaggedArrayWriter(folder, name, size) for name, size in sizes.items()}
    counts, empty, too_long, longest, sentences = [], 0, 0, 0, Counter[int]()
    remaining_links = None if links is None else iter(links)
    with make_progress_bar(threaded=False) as progress:  # because worker processes are forked meanwhile
        task = progress.add_task("preparing", total=sum(split.counts), note="")
        for corpus in list_corpora(data):
            counts.append(0)
            for chunk in encode_in_parallel(_iterate_raw_pairs(corpus, data, split, remaining_links), encoder):
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
    summary = {
        "pairs": counts,
        "empty": empty,
        "too_long": too_long,
        "longest": longest,
        "sentences": find_max_sentences(sentences),
    }
    (folder / "known.json").write_text(json.dumps(summary), encoding="utf-8")


def find_max_sentences(counts: Counter[int]) -> int | None:
    """Return the largest number of sentences that at least one source in ten has, given sources by number of sentences.

    Models that see two sentences in fewer sources omit the second more often: docs/translate.md has the measurements.
    None if sentences were not counted.
    """
    num_sources = counts.total()
    max_sentences = None
    for num_sentences, count in sorted(counts.items()):
        if 10 * num_sources >= counts.total():
            max_sentences = num_sentences
        num_sources -= count
    return max_sentences


def _iterate_raw_pairs(
    corpus: TrainingCorpus, data: DataSettings, split: CorpusSplit, links: Iterator[AbstractSet[Link]] | None
) -> Iterator[RawPair]:
    """Yield the training pairs of a corpus with tag and links."""
    for pair in _iterate_training_pairs(corpus, data, split):
        yield RawPair(pair, corpus.tag, None if links is None else next(links))


def _make_bpe_dropout(settings: TextSettings, tokenizers: Tokenizers) -> Augmentation | None:
    """Return the augmentation of both sides by BPE dropout, or None without dropout."""
    if not settings.dropout:
        return None

    def apply_dropout(source: RaggedArray, target: RaggedArray, seed: int) -> tuple[RaggedArray, RaggedArray]:
        sides = zip((source, target), tokenizers, (0, 1), strict=True)
        new_source, new_target = (
            RaggedArray.from_rows(
                tokenizer.apply_bpe_dropout(
                    [side[row].tolist() for row in range(len(side))], settings.dropout, seed ^ side_index
                )
            )
            for side, tokenizer, side_index in sides
        )
        return new_source, new_target

    return apply_dropout


def compute_tokenizer_fingerprint(tokenizer: tokenizers.Tokenizer) -> str:
    """Return a hash that identifies a tokenizer, by its file, which includes the version and the normalization rule."""
    with TemporaryDirectory() as folder:
        saved = Path(folder) / "tokenizer"
        tokenizer.save(saved)
        return _hash_texts([str(tokenizer.lowercase), paths.compute_sha256(saved)])


def _hash_texts(parts: AbstractSet[str] | Sequence[str] | Iterator[str]) -> str:
    """Return the SHA-256 of texts; that of a set does not depend on its order."""
    digest = hashlib.sha256()
    for part in sorted(parts) if isinstance(parts, AbstractSet) else parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()
