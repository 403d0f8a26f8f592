"""Data preparation: train tokenizers, and encode sentence pairs as token ids in parallel, cached on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import os
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from regard.console import make_progress_bar
from regard.data.dataset import DatasetPart, ParallelDataset, RaggedArray, RaggedArrayWriter
from regard.data.readers.dispatch import iterate_pairs
from regard.data.readers.text import Link, Pair
from regard.data.split import CorpusSplit, DataSettings, TrainingCorpus, cache_data, compute_weights, list_corpora
from regard.errors import UserError
from regard.paths import CACHE_MANIFEST, compute_sha256
from regard.tokenizers.segmentation import find_sentencex_version, split_sentences
from regard.tokenizers.tokenizer import (
    TextSettings,
    Tokenizer,
    Tokenizers,
    load_tokenizers,
    save_tokenizers,
    train_tokenizers,
)

PAIRS_PER_CHUNK = 5000
WINDOWS_PROCESSES = 61  # at most in a pool there


class RawPair(NamedTuple):
    """A sentence pair as text, with its tag and word alignment."""

    pair: Pair
    tag: str | None = None
    links: AbstractSet[Link] | None = None


class EncodedPairs(NamedTuple):
    """Sentence pairs as token ids, and the number of pairs that were skipped, as `empty` or `too long`."""

    source: RaggedArray
    target: RaggedArray
    links: RaggedArray
    left_out: Counter[str]
    sentence_counts: Counter[int]  # number of sentences -> number of sources; empty without sentencex


class PairEncoder:
    """Encode pairs; those with an empty side or one longer than `max_length` ids are skipped and counted."""

    def __init__(self, tokenizers: Tokenizers, max_length: int, language: str | None = None) -> None:
        self.tokenizers = tokenizers
        self.max_length = max_length
        self.language = language  # of the sources

    def __call__(self, raw: Sequence[RawPair]) -> EncodedPairs:
        """Encode a chunk of pairs."""
        sources, targets, token_links, left_out, sentence_counts = [], [], [], Counter[str](), Counter[int]()
        for pair, tag, links in raw:
            source, target = self.tokenizers.source.encode(pair.source), self.tokenizers.target.encode(pair.target)
            if not source or not target:
                left_out["empty"] += 1
                continue
            source = source if tag is None else [self.tokenizers.source.find_tag_id(tag), *source]
            if max(len(source), len(target)) > self.max_length:
                left_out["too long"] += 1
                continue
            if find_sentencex_version() is not None:
                sentence_counts[len(split_sentences(pair.source, self.language))] += 1
            sources.append(source)
            targets.append(target)
            token_links.append([] if links is None else self._make_token_links(pair, links, tag is not None))
        source_rows, target_rows, link_rows = map(RaggedArray.from_rows, (sources, targets, token_links))
        return EncodedPairs(source_rows, target_rows, link_rows, left_out, sentence_counts)

    def _make_token_links(self, pair: Pair, links: AbstractSet[Link], tagged: bool) -> list[int]:
        """Convert links between the words between spaces to links of all their tokens: source, target, and so on."""
        _, source_word_ids = self.tokenizers.source.encode_with_word_ids(pair.source)
        _, target_word_ids = self.tokenizers.target.encode_with_word_ids(pair.target)
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
    pairs = iter(raw)
    chunks = iter(lambda: list(islice(pairs, PAIRS_PER_CHUNK)), [])
    for chunk in islice(chunks, 1):
        yield encoder(chunk)
    second = next(chunks, None)
    if second is None:
        return
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else min(os.cpu_count() or 1, WINDOWS_PROCESSES)
    workers = num_processes or cores
    # A spawned worker would run the user's script again.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    try:
        with ProcessPoolExecutor(workers, context, initializer=_init_worker, initargs=(encoder,)) as pool:
            pending: deque[Future[EncodedPairs]] = deque()
            for chunk in chain([second], chunks):
                pending.append(pool.submit(_encode_chunk, chunk))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise UserError("a process that encodes text was killed, perhaps because memory ran out") from error


_worker_encoder: list[PairEncoder] = []  # the encoder of a worker process


def _init_worker(encoder: PairEncoder) -> None:
    _worker_encoder[:] = [encoder]


def _encode_chunk(raw: Sequence[RawPair]) -> EncodedPairs:
    return _worker_encoder[0](raw)


WordLinks = Sequence[AbstractSet[Link]]


class PreparedCorpus(NamedTuple):
    """The training dataset, and the number of pairs that were skipped, as `empty` or `too long`."""

    dataset: ParallelDataset
    left_out: dict[str, int]
    longest: int  # ids on either side
    max_sentences: int | None  # as `find_max_sentences` returns it


def load_or_train_tokenizers(data: DataSettings, settings: TextSettings, split: CorpusSplit) -> Tokenizers:
    """Return the tokenizers of the training pairs, trained or from the cache."""
    tags = sorted({corpus.tag for corpus in list_corpora(data) if corpus.tag})
    key = {
        **_make_pairs_key(data, split),
        # Keys that affect training, not the vocabulary, are left out.
        "text": {**dataclasses.asdict(settings), **dict.fromkeys(("dropout", "vectors", "tune_vectors"))},
        "tags": tags,
    }
    folder = cache_data("vocabulary", key, lambda folder: _train_tokenizers(folder, data, settings, split, tags))
    return load_tokenizers(settings, folder, data.languages)


def _make_pairs_key(data: DataSettings, split: CorpusSplit) -> dict[str, Any]:
    """Return the part of a cache key that identifies the training pairs."""
    held_out = _hash_texts(sorted(split.held_out_sources))
    return {"corpora": split.fingerprints, "languages": data.languages, "held": held_out}


def _train_tokenizers(
    folder: Path, data: DataSettings, settings: TextSettings, split: CorpusSplit, tags: Sequence[str]
) -> None:
    """Train tokenizers on each training pair once, whatever its weight."""

    def iterate_side(side_index: int) -> Iterator[str]:
        corpora = list_corpora(data)
        return (pair[side_index] for corpus in corpora for pair in _iterate_training_pairs(corpus, data, split))

    sources, targets = partial(iterate_side, 0), partial(iterate_side, 1)
    tokenizers = train_tokenizers(settings, sources, targets, tags, data.languages)
    save_tokenizers(tokenizers, settings, folder)


def _iterate_training_pairs(corpus: TrainingCorpus, data: DataSettings, split: CorpusSplit) -> Iterator[Pair]:
    """Yield the pairs of a corpus without those that are held out."""
    pairs = iterate_pairs(corpus.paths, *data.languages)
    return (pair for pair in pairs if pair.source not in split.held_out_sources)


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
    links_hash = None if links is None else _hash_texts(f"{index}:{sorted(row)}" for index, row in enumerate(links))
    key = {
        **_make_pairs_key(data, split),
        "tokenizers": [compute_tokenizer_fingerprint(tokenizer) for tokenizer in tokenizers],
        "tags": [corpus.tag for corpus in corpora],
        "max_length": data.max_length,
        "links": links_hash,
    }
    folder = cache_data("pairs", key, lambda folder: _write_encoded_pairs(folder, data, tokenizers, split, links))
    summary = json.loads((folder / "known.json").read_text(encoding="utf-8"))
    checksums = json.loads((folder / CACHE_MANIFEST).read_text(encoding="utf-8"))["files"]
    if not sum(summary["pairs"]):
        left_out = summary["left_out"]
        raise UserError(
            f"no pair is left to train on: {left_out['empty']} have an empty side, "
            f"{left_out['too long']} are longer than data.max_length={data.max_length}"
        )
    weights = compute_weights(corpora, summary["pairs"], data.mix_fraction)
    parts = [DatasetPart(count, weight) for count, weight in zip(summary["pairs"], weights, strict=True)]
    if not sum(part.num_examples * part.weight for part in parts):
        raise UserError(f"no pair is left to train on: data.weights={[part.weight for part in parts]} leave out all")
    arrays = ("source", "target") if links is None else ("source", "target", "links")
    dataset = ParallelDataset(
        **{name: RaggedArray.load(folder, name) for name in arrays},
        parts=parts,
        tokenizers=tokenizers if settings.dropout else (),
        dropout=settings.dropout,
        fingerprint=_hash_texts(checksums[f"{name}.{part}"] for name in arrays for part in RaggedArray.FILES),
    )
    return PreparedCorpus(dataset, summary["left_out"], summary["longest"], summary["sentences"])


def _write_encoded_pairs(
    folder: Path, data: DataSettings, tokenizers: Tokenizers, split: CorpusSplit, links: WordLinks | None
) -> None:
    """Encode all training pairs and write them to the folder."""
    encoder = PairEncoder(tokenizers, data.max_length, data.source)
    sizes = dict(zip(("source", "target"), tokenizers.vocab_sizes, strict=True))
    if links is not None:
        sizes["links"] = 1 << 16
    writers = {name: RaggedArrayWriter(folder, name, size) for name, size in sizes.items()}
    counts, left_out, longest, sentences = [], Counter({"empty": 0, "too long": 0}), 0, Counter[int]()
    remaining_links = repeat(None) if links is None else iter(links)
    with make_progress_bar(threaded=False, transient=True) as progress:  # because worker processes are forked meanwhile
        task = progress.add_task("preparing", total=sum(split.counts), note="")
        for corpus in list_corpora(data):
            counts.append(0)
            pairs = _iterate_training_pairs(corpus, data, split)
            raw = (RawPair(pair, corpus.tag, next(remaining_links)) for pair in pairs)
            for chunk in encode_in_parallel(raw, encoder):
                for name, writer in writers.items():
                    writer.write(getattr(chunk, name))
                left_out.update(chunk.left_out)
                counts[-1] += len(chunk.source)
                sentences += chunk.sentence_counts
                longest = max(longest, *(int(side.lengths.max(initial=0)) for side in (chunk.source, chunk.target)))
                progress.advance(task, len(chunk.source) + chunk.left_out.total())
                progress.refresh()
    for writer in writers.values():
        writer.close()
    max_sentences = find_max_sentences(sentences)
    summary = {"pairs": counts, "left_out": left_out, "longest": longest, "sentences": max_sentences}
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


def compute_tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Return a hash that identifies a tokenizer, by its file, which includes the version and the normalization rule."""
    with TemporaryDirectory() as folder:
        saved = Path(folder) / "tokenizer"
        tokenizer.save(saved)
        casing = "dotless i" if tokenizer.has_dotless_i else str(tokenizer.lowercase)
        return _hash_texts([casing, compute_sha256(saved)])


def _hash_texts(parts: Iterable[str]) -> str:
    """Return the SHA-256 of texts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()
