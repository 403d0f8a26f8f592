"""Classification data: labelled texts of TSV, JSON lines or folders; their encoding, BPE dropout and padded batches."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import Count
from regard.data.dataset import Indices, RaggedArray, SequenceBatch, TrainingDataset, hash_arrays, pad_rows
from regard.data.ngrams import NUM_AFFIXES, NgramHasher
from regard.data.readers.dispatch import find_format_suffix, open_rows
from regard.data.readers.text import (
    STANDARD_INPUT,
    format_path,
    iterate_json_lines,
    iterate_lines,
    iterate_tsv_rows,
    number_lines,
)
from regard.data.split import BaseDataSettings
from regard.errors import UserError, format_suggestion, short_repr
from regard.special_tokens import PAD
from regard.tokenizers.segmentation import split_sentences
from regard.tokenizers.tokenizer import Tokenizer, VocabularySettings, check_unicode, save_tokenizer
from regard.tokenizers.words import LabelVocabulary, is_valid_label

_JSON_EXAMPLE = '{"text": "…", "label": "…"}'


class LabelledText(NamedTuple):
    """A text, its label, and its location for messages."""

    text: str
    label: str
    where: str


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(BaseDataSettings):
    """The `data` section of a classification recipe: files, columns of label and text, and length limits.

    `label` and `text` are columns of a TSV file, by number or name, or keys of JSON objects; `header` tells whether the
    first line has names.
    """

    label: int | str | None = None
    text: int | str | None = None
    header: bool | None = None
    unlabelled: tuple[str, ...] | None = None
    language: str = "en"
    max_length: Count = 400
    max_sentences: Count = 40
    dev_pairs: Count = 1000

    def __post_init__(self) -> None:
        for name in ("label", "text"):
            column = getattr(self, name)
            if column in (0, "") or (type(column) is int and column < 0):
                raise ValueError(f"{name} is a column's number, from 1, or its name, not {column!r}")
        if self.label is not None and self.label == self.text:
            raise ValueError(f"label and text must be different columns, not both {self.label!r}")


def read_labelled_texts(paths: Sequence[Path], data: ClassificationSettings) -> Iterator[LabelledText]:
    """Yield the texts of files and folders; raise UserError for a missing or invalid label."""
    for example in chain.from_iterable(read_texts(path, data) for path in paths):
        if not example.label:
            column = "" if data.label is None else f" in {data.label!r}"
            raise UserError(f"{example.where}: there is no label{column} (data.label)")
        check_unicode(example.label, example.where)
        if not is_valid_label(example.label):
            raise UserError(
                f"{example.where}: a label is one line of text without tabs, not {short_repr(example.label)}"
            )
        yield example


def has_labelled_texts(path: Path) -> bool:
    """Return whether a path is a folder or a file type with labels (TSV, JSON lines)."""
    return path.is_dir() or find_format_suffix(path) in _TEXT_PARSERS


def read_texts(path: Path, settings: ClassificationSettings) -> Iterator[LabelledText]:
    """Yield the texts of a file or folder; a missing label is empty."""
    if path.is_dir():
        return _read_text_folder(path)
    if not (path.exists() or path == STANDARD_INPUT or has_labelled_texts(path)):
        raise UserError(f"there is no file and no folder {path}")
    suffix, lines = open_rows(path, "neither a folder nor a file of labelled texts")
    return _TEXT_PARSERS[suffix](lines, path, settings)


def _parse_text_tsv(rows: Iterator[str], path: Path, settings: ClassificationSettings) -> Iterator[LabelledText]:
    """Yield texts from TSV lines: label, text, or the configured columns. Blank lines are ignored."""
    for index, (where, cells) in enumerate(iterate_tsv_rows(rows, format_path(path))):
        if index == 0:
            label_index, text_index, is_header = _find_columns(cells, settings, where)
            if is_header:
                continue
        if not cells:
            continue
        if len(cells) <= text_index:
            line = "\t".join(cells)
            raise UserError(
                f"{where}: the text is expected in column {text_index + 1} (data.text), but the line has "
                f"{len(cells)} tab-separated column{'s' * (len(cells) > 1)}: {short_repr(line)}"
            )
        label = cells[label_index].strip() if label_index < len(cells) else ""
        yield LabelledText(cells[text_index], label, where)


def _find_columns(cells: Sequence[str], settings: ClassificationSettings, where: str) -> tuple[int, int, bool]:
    """Return the columns of label and text, from 0, and whether the first line is a header."""
    names = [cell.strip() for cell in cells]
    if settings.header or isinstance(settings.label, str) or isinstance(settings.text, str):
        label = _find_column_index(settings.label, "label", 0, names, where)
        text = _find_column_index(settings.text, "text", 1, names, where)
        if label == text:
            raise UserError(f"{where}: label and text are both in column {label + 1} (data.label, data.text)")
        return label, text, True
    label, text = (settings.label or 1) - 1, (settings.text or 2) - 1
    headers = [names[index].lower() if index < len(names) else "" for index in (label, text)]
    return label, text, settings.header is None and headers == ["label", "text"]


def _find_column_index(
    setting: int | str | None, default_name: str, default_index: int, names: Sequence[str], where: str
) -> int:
    """Return the index of a column that is given by number, by name, or by default."""
    if isinstance(setting, int):
        return setting - 1
    if setting is None:
        return names.index(default_name) if default_name in names else default_index
    if setting not in names:
        raise UserError(f"{where}: there is no column {setting!r}{format_suggestion(setting, names)}")
    return names.index(setting)


def _parse_text_jsonl(rows: Iterator[str], path: Path, settings: ClassificationSettings) -> Iterator[LabelledText]:
    text_key, label_key = settings.text or "text", settings.label or "label"
    if isinstance(text_key, int) or isinstance(label_key, int):
        number = text_key if isinstance(text_key, int) else label_key
        raise UserError(
            f"{format_path(path)}: JSON objects have keys, not column {number}; set data.label and data.text to keys"
        )
    expected = f"expected {_JSON_EXAMPLE} (data.text, data.label)"
    for where, row in iterate_json_lines(number_lines(rows, format_path(path)), expected):
        text, label = row.get(text_key), _parse_json_label(row.get(label_key))
        if not isinstance(text, str) or label is None:
            raise UserError(f"{where}: {expected}, not {short_repr(row)}")
        check_unicode(text, where)
        yield LabelledText(text, label, where)


def _parse_json_label(value: Any) -> str | None:
    """Return a label: text, a number, a boolean, or null, which is none and becomes ""; None for other values."""
    if value is None or isinstance(value, str):
        return (value or "").strip()
    is_label = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return json.dumps(value) if is_label else None


_TEXT_PARSERS = {".tsv": _parse_text_tsv, ".jsonl": _parse_text_jsonl}


def _read_text_folder(path: Path) -> Iterator[LabelledText]:
    """Yield the texts of a folder with a subfolder for each label, or of one such subfolder.

    Files are sorted by name regardless of label, so that the first texts are of all labels.
    """
    folders = [folder for folder in path.iterdir() if folder.is_dir() and _list_text_files(folder)] or [path]
    files = sorted((file.name, folder.resolve().name, file) for folder in folders for file in _list_text_files(folder))
    if not files:
        raise UserError(f"{path} contains no texts; expected a subfolder for each label, with .txt files")
    for _, label, file in files:
        yield LabelledText("\n".join(iterate_lines(file)), label, str(file))


def _list_text_files(path: Path) -> list[Path]:
    """Return the text files in a folder, compressed or not."""
    return [file for file in path.iterdir() if find_format_suffix(file) == ".txt" and file.is_file()]


class TextEncoder(NamedTuple):
    """Encodes a text as one sequence of ids or sentence by sentence, and truncates what is too long."""

    tokenizer: Tokenizer
    is_hierarchical: bool
    language: str
    max_length: int
    max_sentences: int
    ngrams: NgramHasher | None = None

    def encode_untruncated(self, text: str) -> list[list[int]]:
        """Return the ids of each nonempty sentence, or of the text as one."""
        parts = split_sentences(text, self.language) if self.is_hierarchical else [text]
        encoded = [self.tokenizer.encode(part) for part in parts]
        return [ids for ids in encoded if ids]

    def truncate(self, encoded: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Return the first `max_sentences` sentences, each cut at `max_length` tokens."""
        return [ids[: self.max_length] for ids in encoded[: self.max_sentences]]


LABELS_FILE = "labels.txt"


class ClassificationVocabulary(NamedTuple):
    """Tokens of the texts, and the labels."""

    encoder: TextEncoder
    labels: LabelVocabulary
    settings: VocabularySettings

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of tokens and of labels."""
        return self.encoder.tokenizer.vocab_size, len(self.labels.names)

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the texts."""
        return self.encoder.tokenizer

    def describe(self) -> str:
        """Return the numbers of tokens and labels as text."""
        return f"vocabulary {self.sizes[0]:,}, {self.sizes[1]} labels"

    def save(self, folder: Path) -> None:
        """Write tokenizer and labels into a folder."""
        save_tokenizer(self.encoder.tokenizer, self.settings, folder, "text")
        self.labels.save(folder / LABELS_FILE)

    def encode_labels(self, examples: Sequence[LabelledText]) -> list[int]:
        """Return the ids of the labels, 0 for none; raise UserError with the location of an unknown label."""
        ids = []
        for example in examples:
            try:
                ids.append(self.labels.find_id(example.label) if example.label else 0)
            except UserError as error:
                raise UserError(f"{example.where}: {error}") from error
        return ids


@dataclass(frozen=True)
class ClassificationBatch(SequenceBatch):
    """A batch of B right-padded texts, (B, S); for hierarchical models each has up to N sentences, (B, N, S).

    Their lengths are (B, N), and 0 behind the last sentence.
    """

    labels: Tensor  # (B,)


@dataclass(frozen=True)
class NgramClassificationBatch(ClassificationBatch):
    """A batch for a model that also reads the n-grams of a text."""

    ngrams: Tensor  # (B, N), hashed, padded with 0
    affixes: Tensor | None  # (B, S, 3): hashed prefix, suffix and shape of the word of each token; None: not read
    positions: Tensor | None  # (B, N): index of the first token of each n-gram; None: tokens are not words


class ClassificationDataset(TrainingDataset):
    """Encoded texts with label ids; each text is a list of sentences, a single one for flat models."""

    def __init__(
        self, examples: Sequence[LabelledText], vocabulary: ClassificationVocabulary, dropout: float = 0.0
    ) -> None:
        """With BPE `dropout`, the texts of each batch are segmented anew."""
        encoder = vocabulary.encoder
        untruncated = [encoder.encode_untruncated(example.text) for example in examples]
        self.num_cut_sentences = sum(len(ids) > encoder.max_length for document in untruncated for ids in document)
        self.num_cut_texts = sum(len(document) > encoder.max_sentences for document in untruncated)
        documents = list(map(encoder.truncate, untruncated))
        self.sentences = RaggedArray.from_rows(ids for document in documents for ids in document)
        self.offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)  # index of the first sentence of each text
        self.labels = np.array(vocabulary.encode_labels(examples), dtype=np.int64)
        self.encoder = encoder
        self.dropout = dropout
        longest = [max(map(len, document), default=0) for document in documents]
        self.sizes = np.maximum(np.diff(self.offsets) * np.asarray(longest, dtype=np.int64), 1).astype(np.int32)
        hasher, ids = encoder.ngrams, self.sentences.values.astype(np.int64)
        pairs = [hasher.hash_text(example.text) for example in examples] if hasher else []
        self.ngrams = RaggedArray.from_rows(ngrams for ngrams, _ in pairs) if hasher else None
        self.ngram_words = RaggedArray.from_rows(words for _, words in pairs)
        self.affixes = self._hash_affixes(examples) if hasher and hasher.affix_buckets else None
        features = [self.ngrams] if self.ngrams is not None else []
        self.fingerprint = hash_arrays(ids, self.sentences.offsets, self.offsets, self.labels, *features)

    def describe_truncation(self) -> list[str]:
        """Return how many sentences and texts were cut."""
        noun = "sentences" if self.encoder.is_hierarchical else "texts"
        counts = {
            f"{noun} cut at {self.encoder.max_length} tokens": self.num_cut_sentences,
            f"texts cut at {self.encoder.max_sentences} sentences": self.num_cut_texts,
        }
        return [f"{count:,} {what}" for what, count in counts.items() if count]

    def get_token_ids(self, row: int) -> list[list[int]]:
        """Return the ids of a text, sentence by sentence."""
        return [self.sentences[sentence].tolist() for sentence in range(self.offsets[row], self.offsets[row + 1])]

    def make_batch(self, rows: Indices, seed: int = 0) -> ClassificationBatch:
        """Return the texts at `rows`; `seed` determines BPE dropout."""
        documents: list[list[Sequence[int]]] = [list(self.get_token_ids(int(row))) for row in rows]
        if self.dropout:
            documents = self._apply_bpe_dropout(documents, seed)
        ids, lengths = _pad_documents(documents)
        if not self.encoder.is_hierarchical:
            ids, lengths = ids[:, 0], lengths[:, 0]
        labels = torch.from_numpy(self.labels[rows])
        if self.ngrams is None:
            return ClassificationBatch(ids, lengths, labels)
        affixes = positions = None
        if self.affixes is not None:  # tokens are words
            padded = torch.from_numpy(pad_rows(self.affixes, rows)[0])
            affixes = padded.view(len(rows), padded.shape[1] // NUM_AFFIXES, NUM_AFFIXES)
            affixes = F.pad(affixes, (0, 0, 0, ids.shape[1] - affixes.shape[1]))  # if all texts of the batch are empty
            positions = torch.from_numpy(pad_rows(self.ngram_words, rows)[0])
        ngrams = torch.from_numpy(pad_rows(self.ngrams, rows)[0])
        return NgramClassificationBatch(ids, lengths, labels, ngrams, affixes, positions)

    def _hash_affixes(self, examples: Sequence[LabelledText]) -> RaggedArray:
        """Return the affix ids of the word of each token, text by text."""
        hasher, rows = self.encoder.ngrams, []
        assert hasher is not None
        for row, example in enumerate(examples):
            size = NUM_AFFIXES * sum(map(len, self.get_token_ids(row)))
            rows.append([*hasher.hash_affixes(example.text), *[PAD] * size][:size])
        return RaggedArray.from_rows(rows)

    def _apply_bpe_dropout(self, documents: Sequence[Sequence[Sequence[int]]], seed: int) -> list[list[Sequence[int]]]:
        flat = [ids for document in documents for ids in document]
        resegmented = iter(self.encoder.tokenizer.apply_bpe_dropout(flat, self.dropout, seed))
        return [self.encoder.truncate([next(resegmented) for _ in document]) for document in documents]


def _pad_documents(documents: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """Return ids (B, N, S) and sentence lengths (B, N); N and S are at least 1."""
    max_sentences = max([1, *map(len, documents)])
    max_length = max([1, *(len(ids) for document in documents for ids in document)])
    ids = np.full((len(documents), max_sentences, max_length), PAD, dtype=np.int64)
    lengths = np.zeros((len(documents), max_sentences), dtype=np.int64)
    for row, document in enumerate(documents):
        for index, sentence in enumerate(document):
            ids[row, index, : len(sentence)] = sentence
            lengths[row, index] = len(sentence)
    return torch.from_numpy(ids), torch.from_numpy(lengths)
