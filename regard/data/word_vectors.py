"""Word vectors: pretrained ones (word2vec, fastText .vec, GloVe), and ones that are learned from the texts at hand.

The latter are a truncated SVD of positive pointwise mutual information (PPMI): Levy, Goldberg & Dagan 2015,
doi:10.1162/tacl_a_00134, with eigenvalue weighting 0.5 and context distribution smoothing 0.75. Contexts on the left
and on the right are different, so that the vectors tell parts of speech as well as topics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.console import log_message
from regard.data.dataset import Integers, RaggedArray
from regard.data.readers.text import open_decompressed, peek_bytes
from regard.errors import UserError
from regard.models.hypothesis import Floats
from regard.special_tokens import SPECIAL_TOKENS, UNK
from regard.tokenizers.tokenizer import Tokenizer
from regard.tokenizers.words import JOINER, SPACER

_FASTTEXT_MODEL_MAGIC = b"\xba\x16\x4f\x2f"
_CHUNK_BYTES = 1 << 20
_WORD_START = "▁"  # of subwords that begin a word


_MEMBER_EMBEDDING = re.compile(r"members\.[0-9]+\.embedding")  # of an ensemble


def use_word_vectors_(model: nn.Module, tokenizer: Tokenizer | None, text: Mapping[str, Any], is_new: bool) -> None:
    """Give the input embeddings of a new model the vectors in `text.vectors`; freeze them unless they are tuned."""
    inputs = _find_input_embeddings(model)
    if not inputs or tokenizer is None:
        raise UserError("text.vectors is for recurrent models and classifiers; leave it out")
    if is_new:
        ids_by_word = _index_words(tokenizer)
        vectors = read_word_vectors(Path(text["vectors"]), ids_by_word, inputs[0].embedding_dim)
        with torch.no_grad():
            for embedding, (id, vector) in product(inputs, vectors.items()):
                embedding.weight[id] = torch.from_numpy(vector)
        percent = 100 * len(vectors) / max(1, inputs[0].num_embeddings - len(SPECIAL_TOKENS))
        log_message(
            f"{len(vectors):,} tokens of the vocabulary ({percent:.0f} %) have a vector in {text['vectors']}; the "
            "others keep their initialisation"
        )
    for embedding in inputs:
        embedding.weight.requires_grad_(text["tune_vectors"])


def init_embeddings_from_texts_(model: nn.Module, texts: RaggedArray, seed: int) -> None:
    """Give the input embeddings vectors that are learned from token ids, with the variance of their initialisation."""
    inputs = _find_input_embeddings(model)
    vectors = learn_word_vectors(texts, inputs[0].num_embeddings, inputs[0].embedding_dim, seed)
    is_known = vectors.any(1)
    log_message(f"{int(is_known.sum()):,} embeddings start from vectors learned from {len(texts.values):,} words")
    with torch.no_grad():
        for embedding in inputs:
            embedding.weight[is_known] = vectors[is_known] * embedding.weight.std()


def _find_input_embeddings(model: nn.Module) -> list[nn.Embedding]:
    modules = {name: module for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    inputs = [modules[name] for name in ("embedding", "encoder.embedding", "decoder.embedding") if name in modules][:1]
    return inputs or [modules[name] for name in modules if _MEMBER_EMBEDDING.fullmatch(name)]


def _index_words(tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Return the ids of each word of a vocabulary; of subwords, those that begin a word."""
    tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    has_word_starts = any(token.startswith(_WORD_START) for token in tokens)
    ids_by_word: dict[str, list[int]] = {}
    for id, token in enumerate(tokens[len(SPECIAL_TOKENS) :], len(SPECIAL_TOKENS)):
        if token.startswith(_WORD_START) or not has_word_starts:
            ids_by_word.setdefault(token.strip(_WORD_START + JOINER + SPACER), []).append(id)
    return ids_by_word


class _Entry(NamedTuple):
    """A word, its numbers, still as text or as bytes, and its place in the file for messages."""

    word: bytes
    numbers: list[bytes] | bytes
    where: str


def read_word_vectors(path: Path, ids_by_word: Mapping[str, list[int]], size: int) -> dict[int, Floats]:
    """Return the vectors of a vocabulary's words by id; a word that only occurs in lower case takes that vector.

    Raise UserError if the vectors do not have `size` numbers, or if a line is not a word and its numbers.
    """
    ids_by_lowered: dict[str, list[int]] = {}
    for word, ids in ids_by_word.items():
        ids_by_lowered.setdefault(word.lower(), []).extend(ids)
    exact: dict[int, Floats] = {}
    lowered: dict[int, Floats] = {}
    with open_decompressed(path) as file:
        for entry in _iterate_entries(file, path, size):
            word = entry.word.decode("utf-8", "replace")  # large files have broken words
            if word in ids_by_word or word in ids_by_lowered:
                vector = _parse_vector(entry)
                exact |= dict.fromkeys(ids_by_word.get(word, ()), vector)
                lowered |= dict.fromkeys(ids_by_lowered.get(word, ()), vector)
    return lowered | exact


def _iterate_entries(file: IO[bytes], path: Path, size: int) -> Iterator[_Entry]:
    """Yield the words and vectors of a file, whose format its first bytes tell."""
    if peek_bytes(file).startswith(_FASTTEXT_MODEL_MAGIC):
        raise UserError(f"{path} is a model of fastText; take the file with its vectors, .vec")
    first = file.readline()
    header = first.split()
    has_header = len(header) == 2 and all(field.isdigit() for field in header)
    num_numbers = int(header[1]) if has_header else len(header) - 1
    if num_numbers < 1:
        raise UserError(f"{path}:1: expected a word and its vector, or the numbers of words and dimensions")
    if num_numbers != size:
        raise UserError(
            f"{path} has vectors of {num_numbers} numbers, but the model's embeddings have {size}: set "
            f"model.embedding={num_numbers}"
        )
    if has_header and any(byte < 9 for byte in peek_bytes(file)):  # never in text
        yield from _iterate_binary_entries(file, path, int(header[0]), size)
        return
    if not has_header:
        yield _split_line(first, f"{path}:1", size)
    for number, line in enumerate(file, 2):
        if line.strip():
            yield _split_line(line, f"{path}:{number}", size)


def _split_line(line: bytes, where: str, size: int) -> _Entry:
    """Return word and numbers of a line; a word of GloVe may contain spaces."""
    word, *numbers = line.rstrip().rsplit(b" ", size)
    if len(numbers) != size:
        raise UserError(f"{where}: expected a word and {size} numbers, found {len(numbers)}")
    return _Entry(word, numbers, where)


def _iterate_binary_entries(file: IO[bytes], path: Path, count: int, size: int) -> Iterator[_Entry]:
    """Yield the vectors of word2vec's binary format: a word, a space and 32-bit numbers."""
    buffer, start = b"", 0
    for index in range(count):
        while (space := buffer.find(b" ", start)) < 0 or len(buffer) < space + 1 + 4 * size:
            chunk = file.read(_CHUNK_BYTES)
            if not chunk:
                raise UserError(f"{path} ends after {index:,} of {count:,} vectors")
            buffer, start = buffer[start:] + chunk, 0
        end = space + 1 + 4 * size
        yield _Entry(buffer[start:space].lstrip(b"\n"), buffer[space + 1 : end], f"{path}, vector {index + 1}")
        start = end


def _parse_vector(entry: _Entry) -> Floats:
    """Return the numbers of a vector; raise UserError if they are none."""
    try:
        if isinstance(entry.numbers, bytes):
            vector = np.frombuffer(entry.numbers, dtype="<f4").astype(np.float32)
        else:
            vector = np.array([float(number) for number in entry.numbers], dtype=np.float32)
        if math.isfinite(float(vector.sum())):
            return vector
    except ValueError:
        pass
    raise UserError(f"{entry.where}: the vector of {entry.word.decode('utf-8', 'replace')!r} is not made of numbers")


_WINDOW = 3
_CHUNK_TOKENS = 1 << 21
_MAX_CONTEXTS = 20_000  # most frequent words that are counted as contexts
_SMOOTHING = 0.75


def learn_word_vectors(texts: RaggedArray, vocabulary_size: int, vector_size: int, seed: int) -> Tensor:
    """Return vectors of unit variance (V, vector_size); 0 for special tokens and for words that do not occur."""
    tokens = np.asarray(texts.values, dtype=np.int64)
    text_ids = np.repeat(np.arange(len(texts.offsets) - 1), np.diff(texts.offsets))
    frequencies = np.bincount(tokens, minlength=vocabulary_size).astype(np.float64)
    frequencies[: UNK + 1] = 0
    contexts = np.argsort(-frequencies, kind="stable")[:_MAX_CONTEXTS]
    columns = np.full(vocabulary_size, -1)
    columns[contexts] = np.arange(len(contexts))
    shape = torch.Size((vocabulary_size, 2 * len(contexts)))
    counts = _count_pairs(tokens[:0], text_ids[:0], columns, shape)
    for start in range(0, len(tokens), _CHUNK_TOKENS):
        chunk = slice(start, start + _CHUNK_TOKENS)
        counts = (counts + _count_pairs(tokens[chunk], text_ids[chunk], columns, shape)).coalesce()
    rows, cols = counts.indices()
    values = counts.values().double()
    per_word, per_context = (torch.zeros(size).double() for size in shape)
    per_word.index_add_(0, rows, values)
    per_context.index_add_(0, cols, values)
    per_context = per_context**_SMOOTHING / (per_context**_SMOOTHING).sum()
    information = (values / (per_word[rows] * per_context[cols])).log().clamp(min=0)
    matrix = torch.sparse_coo_tensor(counts.indices(), information.float(), shape, check_invariants=False).coalesce()
    rank = min(vector_size, *shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, singular, _ = torch.svd_lowrank(matrix, rank, niter=3)
    vectors = torch.nn.functional.normalize(left * singular.sqrt()) * vector_size**0.5
    vectors[per_word == 0] = 0.0
    return torch.nn.functional.pad(vectors, (0, vector_size - rank))


def _count_pairs(tokens: Integers, text_ids: Integers, columns: Integers, shape: torch.Size) -> Tensor:
    """Return counts of words and their contexts, each divided by the distance: those on the right, then on the left."""
    keys, weights = [], []
    for distance in range(1, _WINDOW + 1):
        first, second = tokens[:-distance], tokens[distance:]
        same_text = text_ids[:-distance] == text_ids[distance:]
        for word, context, offset in ((first, second, 0), (second, first, shape[1] // 2)):
            kept = same_text & (columns[context] >= 0) & (word > UNK)
            keys.append(np.stack((word[kept], columns[context[kept]] + offset)))
            weights.append(np.full(keys[-1].shape[1], 1 / distance, dtype=np.float32))
    indices, values = torch.from_numpy(np.concatenate(keys, 1)), torch.from_numpy(np.concatenate(weights))
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False).coalesce()
