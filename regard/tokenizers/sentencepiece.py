"""SentencePiece tokenizer: byte-pair encoding (BPE) with BPE dropout, unigram pieces, or single characters."""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Literal

import regex
import sentencepiece

from regard.errors import UserError
from regard.special_tokens import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from regard.tokenizers.segmentation import find_word_spans, has_unspaced_script, split_graphemes
from regard.tokenizers.tokenizer import (
    NORMALIZATION_VERSION,
    Tokenizer,
    check_unicode,
    format_tag,
    normalize,
)


class BpeMerges:
    """The merges of a BPE vocabulary: two neighbours become one piece; merges learnt first are applied first.

    BPE dropout (Provilkov et al. 2020) segments words differently each time by skipping merges at random. SentencePiece
    can sample as well, but its samples differ between processes even with the same seed.
    """

    def __init__(self, ranks: Mapping[str, float], pieces: Sequence[str]) -> None:
        """Take the rank of each piece that a merge produces (higher: learnt earlier), and all pieces in order."""
        self.ranks = ranks
        self.ids = {piece: id for id, piece in enumerate(pieces)}
        self.starts_word = [piece.startswith(WORD_START) for piece in pieces]
        # The characters that each piece was merged from, or the piece itself if they are not all pieces.
        self.characters = [
            list(piece) if piece in ranks and set(piece) <= self.ids.keys() else [piece] for piece in pieces
        ]

    def segment_with_dropout(self, symbols: Sequence[str], dropout: float, random: Random) -> list[str]:
        """Merge symbols by Algorithm 1: each round drops merges at random and applies the best one left."""
        parts = list(symbols)
        while True:
            best_rank, best_index = float("-inf"), -1
            for index in range(len(parts) - 1):
                rank = self.ranks.get(parts[index] + parts[index + 1])
                if rank is not None and random.random() >= dropout and rank > best_rank:
                    best_rank, best_index = rank, index
            if best_index < 0:
                return parts
            parts[best_index : best_index + 2] = [parts[best_index] + parts[best_index + 1]]


WORD_START = "▁"  # SentencePiece's mark at the beginning of a word
WORD_BOUNDARY = "\x1f"  # in training text of scripts without spaces: a control character, and a piece that no text has
_WORD = re.compile(r"\S+")
_LETTER = regex.compile(r"[\p{L}\p{M}\p{N}\u200c\u200d]")  # with marks and joiners, which continue a word
# Ends a model file: `normalizer_spec.name`, which SentencePiece ignores. A field may occur again in such a file.
_RULE = b"\x1a\x0a\x0a\x08regard-%d" % NORMALIZATION_VERSION
_RECORDED_RULE = re.compile(rb"\x1a\x0a\x0a\x08regard-(\d)\Z")


class SentencePieceTokenizer(Tokenizer):
    """A trained SentencePiece model. No piece spans white space."""

    def __init__(self, model: bytes, lowercase: bool = False) -> None:
        self.model = model
        self.lowercase = lowercase
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._encode_cached_word = lru_cache(maxsize=300_000)(self._encode_word)  # few words make up most of a text
        # The first models contain SentencePiece's normalization rule nmt_nfkc (² becomes 2) and still use it.
        recorded = _RECORDED_RULE.search(model)
        is_identity = "²" in self.processor.normalize("²")
        self.normalization = (int(recorded[1]) if recorded else 1) if is_identity else 0

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"has_dotless_i": self.has_dotless_i}
        return type(self), (self.model, self.lowercase), state  # the cache cannot be pickled

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        size: int,
        kind: Literal["bpe", "unigram", "char"],
        byte_fallback: bool = True,
        lowercase: bool = False,
        tags: Sequence[str] = (),
        within_words: bool = False,
    ) -> SentencePieceTokenizer:
        """Train on text; the vocabulary is smaller than `size` if the text does not contain that many pieces.

        A tag gets an id that no text can produce. Characters with byte fallback have 256 byte pieces besides `size`.
        With `within_words`, pieces are parts of words in scripts without spaces, too.
        """
        model, lines = io.BytesIO(), (normalize(line, lowercase) for line in lines)
        if within_words:
            lines = map(_mark_word_boundaries, lines)
        clusters: list[str] = []
        if kind == "char":
            lines, clusters = _find_frequent_clusters(lines, size - len(SPECIAL_TOKENS) - len(tags))
        byte_pieces = 256 if byte_fallback and kind == "char" else 0
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                model_type=kind,
                vocab_size=size + byte_pieces,
                hard_vocab_limit=False,
                byte_fallback=byte_fallback,
                normalization_rule_name="identity",
                character_coverage=1.0 if kind == "char" else 0.9999,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                pad_piece=SPECIAL_TOKENS[PAD],
                unk_piece=SPECIAL_TOKENS[UNK],
                unk_surface=SPECIAL_TOKENS[UNK],
                bos_piece=SPECIAL_TOKENS[BOS],
                eos_piece=SPECIAL_TOKENS[EOS],
                control_symbols=[format_tag(tag) for tag in tags],
                user_defined_symbols=clusters,
                required_chars="".join(sorted(set("".join(clusters)))),  # for unknown clusters, if there is room
                pretokenization_delimiter=WORD_BOUNDARY if within_words else "",
                max_sentence_length=1_000_000,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise UserError(
                f"text.vocabulary={size} does not suit this text for text.kind={kind}: "
                f"{_format_trainer_error(str(error))}"
            ) from error
        return cls(model.getvalue() + _RULE, lowercase)

    @classmethod
    def load(cls, path: Path, lowercase: bool = False) -> SentencePieceTokenizer:
        """Read the model that `save` wrote."""
        model = path.read_bytes()
        try:
            if not model:
                raise RuntimeError("empty file")  # which SentencePiece accepts as "no model"
            loaded = cls(model, lowercase)
            # All pieces, so that one that is not UTF-8 is noticed here.
            pieces = loaded.pieces
        except (RuntimeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not a SentencePiece model") from error
        if tuple(pieces[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
            raise UserError(
                f"{path} is not a regard vocabulary: its first four pieces are not {' '.join(SPECIAL_TOKENS)}"
            )
        return loaded

    def save(self, path: Path) -> None:
        """Write one model file, which every SentencePiece tool reads."""
        path.write_bytes(self.model)

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self.pieces)

    @cached_property
    def pieces(self) -> list[str]:
        """All pieces, by id."""
        return [str(self.processor.id_to_piece(id)) for id in range(self.processor.get_piece_size())]

    def encode_by_word(self, text: str) -> list[list[int]]:
        """Return the ids of each white-space word, without BOS and EOS."""
        return self._encode_words(self.lower_dotless_i(text))

    def _encode_words(self, text: str) -> list[list[int]]:
        return [self._encode_cached_word(word) for word in text.split()]

    def encode_phrase(self, text: str) -> list[int]:
        """Return the ids of a phrase inside a text; in scripts without spaces nothing marks its beginning."""
        ids = self.encode(text)
        if not ids or ids[0] == UNK or not has_unspaced_script(text.strip()[0]):
            return ids
        first = self.pieces[ids[0]].removeprefix(WORD_START)
        parts = [first] if self.find_piece(first) != UNK else first
        return [*(self.find_piece(part) for part in parts if part), *ids[1:]]

    def find_piece(self, piece: str) -> int:
        """Return the id of a piece; UNK if there is none."""
        return int(self.processor.piece_to_id(piece))

    def _encode_word(self, word: str) -> list[int]:
        """Return the ids of one word, which do not depend on the words around it."""
        check_unicode(word)
        ids: list[int] = self.processor.encode(self.normalize(word))
        return ids

    def apply_bpe_dropout(self, sentences: Sequence[Sequence[int]], dropout: float, seed: int) -> list[list[int]]:
        """Segment sentences again, skipping each merge with probability `dropout`.

        The result depends on the seed only. Ids that no merge produced (tags, unknown pieces) stay as they are.
        """
        random = Random(seed)
        return [
            [
                self.merges.ids[part]
                for word in self._iterate_words(ids)
                for part in self.merges.segment_with_dropout(
                    [character for id in word for character in self.merges.characters[id]], dropout, random
                )
            ]
            for ids in sentences
        ]

    @cached_property
    def merges(self) -> BpeMerges:
        """The BPE merges of the vocabulary."""
        processor = self.processor
        not_merged = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
        ranks = {
            piece: processor.get_score(id)
            for id, piece in enumerate(self.pieces)
            if len(piece) > 1 and not any(test(id) for test in not_merged)
        }
        return BpeMerges(ranks, self.pieces)

    def _iterate_words(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield the ids of each word; merges do not cross words."""
        start = 0
        for end in range(1, len(ids) + 1):
            if end == len(ids) or self.merges.starts_word[ids[end]]:
                yield ids[start:end]
                start = end

    def is_byte(self, id: int) -> bool:
        """Return True if the id is that of a byte."""
        return bool(self.processor.is_byte(int(id)))

    def is_tag(self, id: int) -> bool:
        """Return True if the id is that of a tag."""
        return id >= len(SPECIAL_TOKENS) and self._is_control(int(id))

    def _is_control(self, id: int) -> bool:
        return bool(self.processor.is_control(id))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return str(self.processor.decode([id for id in ids if id not in (PAD, BOS, EOS)]))

    def find_word_ids(self, ids: Sequence[int]) -> list[int]:
        """Return, for each id, the index of the word of `decode(ids)` that it belongs to.

        A lone space belongs to the next word, if there is one; an id without text belongs to the previous word.
        """
        pieces = [self._decode_piece(id) for id in ids]
        ends = _find_word_end_offsets(b"".join(pieces))
        word_ids, word_id, offset = [], 0, 0
        for piece in pieces:
            if piece:
                word_id = min(bisect_right(ends, offset), max(0, len(ends) - 1))
            word_ids.append(word_id)
            offset += len(piece)
        return word_ids

    def _decode_piece(self, id: int) -> bytes:
        """Return the UTF-8 bytes that an id adds to a text; a byte piece may be only a part of a character."""
        if id in (PAD, BOS, EOS) or self.is_tag(id):
            return b""
        piece = self.pieces[id]
        return bytes([int(piece[3:5], 16)]) if self.is_byte(id) else piece.replace(WORD_START, " ").encode()

    def measure_tokens(self, ids: Sequence[int]) -> list[int]:
        """Return the number of UTF-8 bytes, without spaces, that each id adds to a text."""
        return [len(self._decode_piece(id).strip(b" ")) for id in ids]

    def find_word_boundary_ids(self) -> frozenset[int]:
        """Return the ids that end the previous word: EOS, and pieces that begin with a space or a punctuation mark.

        Letters of a script without spaces end a word of another script, too.
        """
        return self._word_boundary_ids

    @cached_property
    def _word_boundary_ids(self) -> frozenset[int]:
        boundaries = {
            id
            for id, piece in enumerate(self.pieces)
            if not self.is_byte(id)
            and not self.is_tag(id)
            and (not _LETTER.match(piece) or has_unspaced_script(piece[0]))
        }
        return frozenset(boundaries - {PAD, UNK, BOS} | {EOS})

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces, with `▁` at the beginning of words."""
        return [self.pieces[id] for id in ids]


def _mark_word_boundaries(line: str) -> str:
    """Separate the words of a line that no space separates."""
    if not has_unspaced_script(line):
        return line
    starts = [start for (_, end), (start, _) in pairwise(find_word_spans(line)) if start == end]
    return WORD_BOUNDARY.join(line[start:end] for start, end in pairwise([0, *starts, len(line)]))


def _find_frequent_clusters(lines: Iterable[str], size: int) -> tuple[list[str], list[str]]:
    """Return all lines, and the grapheme clusters of several characters among the `size` most frequent ones."""
    lines, counts = list(lines), Counter[str]()
    has_marks = re.compile("[\u0300-\U0010ffff]").search  # below these each character is a cluster
    for line in lines:
        counts.update(split_graphemes(line) if has_marks(line) else line)
    frequent = [cluster for cluster, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]]
    is_splittable = re.compile(rf"[\s{WORD_START}]").search
    return lines, [cluster for cluster in frequent if len(cluster) > 1 and not is_splittable(cluster)]


def _find_word_end_offsets(text: bytes) -> list[int]:
    """Return the byte offset at which each white-space word ends; invalid bytes count as letters."""
    characters = text.decode("utf-8", "surrogateescape")
    return [len(characters[: word.end()].encode("utf-8", "surrogateescape")) for word in _WORD.finditer(characters)]


def _format_trainer_error(error: str) -> str:
    """Return the reason that SentencePiece's trainer gives, without the names of its options."""
    too_few = re.search(r"required_chars\. \d+ vs (\d+)", error)
    if too_few:
        return f"its characters and the special tokens alone need {too_few[1]}; set it to at least that"
    return error.rsplit("] ", 1)[-1].strip() or "the text has no pieces"
