"""Options of translation and of decoding engines: their checks, and their compilation for a translator's vocabularies.

Lexical options are forced phrases, prefix, glossary, forbidden words and <unk> replacement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import contains

import torch
from torch import Tensor

from regard.errors import UserError
from regard.models.hypothesis import Floats, LengthPenalty, SearchOptions, check_sampling
from regard.search.constraints import Constraint, Phrase
from regard.special_tokens import SPECIAL_TOKENS, UNK
from regard.tokenizers.alignment_units import check_units
from regard.tokenizers.segmentation import UNSPACED_CHARACTERS, find_word_spans, has_unspaced_script, split_words
from regard.tokenizers.tokenizer import WORDS, Tokenizer, Tokenizers
from regard.tokenizers.words import JOINER, SPACER

AUTO, TORCH, ONNX, CTRANSLATE2 = ENGINES = ("auto", "torch", "onnx", "ctranslate2")
FP32, INT8 = PRECISIONS = ("fp32", "int8")
SHORTLIST = "shortlist"
SEARCH_ONLY_OPTIONS = ("length_penalty", "coverage_penalty", "prefix", "force", "glossary")
SAMPLING_ONLY_OPTIONS = ("temperature", "top_k", "top_p", "seed")
EDGE_PUNCTUATION = re.compile(r"^\W++|(?<!\W)\W++$")
MAX_TAIL_TOKENS = 64  # last tokens of a hypothesis that are searched for a forbidden word


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `Translator.translate`, the same for all texts of a call.

    Lengths, `no_repeat` and the other constraints apply to each segment of a text that is split.
    """

    beam: int = 5  # beam size; 1 is greedy search
    n_best: int = 1  # translations per text
    alignments: bool = True
    length_penalty: LengthPenalty = 0.6
    coverage_penalty: float = 0.0
    max_length: int | None = None  # tokens of a translation, with EOS; None: derived from the source length
    min_length: int = 1
    no_repeat: int | None = None  # forbid repeated n-grams of this length
    prefix: str = ""  # beginning of each translation
    force: Sequence[str] = ()  # words or phrases that each translation must contain
    forbid: Sequence[str] = ()  # words or phrases that no translation may contain
    glossary: Mapping[str, str] = field(default_factory=dict)  # source term -> required translation
    replace_unknown: bool = False  # replace <unk> by the source word that it attends to most …
    dictionary: Mapping[str, str] = field(default_factory=dict)  # … or by that word's entry in here
    tags: bool = False  # project inline tags and placeholders to the aligned words of the translation
    units: str = WORDS  # what alignments link: words, subwords or characters; with the latter two the model sees URLs
    addresses: bool = True  # copy URLs and e-mail addresses unchanged; the model does not see them
    domain: str | None = None  # domain tag of the texts, for a model that was trained with corpus tags
    sample: bool = False  # sample translations instead of beam search
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("force", "forbid"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is a list of words, not one text: {name}=[{getattr(self, name)!r}]")
        for name in ("beam", "n_best", "min_length", "max_length", "no_repeat"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        if self.units != WORDS:
            check_units(self.units)
            for name in ("tags", "replace_unknown"):
                if getattr(self, name):
                    raise UserError(f"{name} needs the alignment of {WORDS}, so that units cannot be {self.units!r}")
        check_sampling(self.temperature, self.top_k, self.top_p)
        penalty = 0.0 if self.length_penalty == "average" else self.length_penalty
        if isinstance(penalty, str) or not abs(penalty) <= 10:
            raise UserError(f"length_penalty must be a number from -10 to 10, or 'average', not {penalty!r}")
        if not 0 <= self.coverage_penalty < math.inf:
            raise UserError(f"coverage_penalty must be at least 0, not {self.coverage_penalty}")
        if self.seed < 0:
            raise UserError(f"seed must be at least 0, not {self.seed}")
        if not self.sample and self.n_best > self.beam:
            raise UserError(f"n_best must be between 1 and the beam size: n_best {self.n_best}, beam {self.beam}")
        if self.max_length is not None and self.min_length > self.max_length:
            raise UserError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        for name in SEARCH_ONLY_OPTIONS if self.sample else SAMPLING_ONLY_OPTIONS:
            default = getattr(Options, name, {})  # a field with a default factory is no attribute of the class
            if getattr(self, name) not in (default, (), [], ""):
                why = "cannot be combined with sample" if self.sample else "needs sample"
                raise UserError(f"{name} {why}; otherwise it has no effect")


def check_engine_options(engine: str, precision: str | None, shortlist: bool = False) -> None:
    """Raise UserError for an unknown engine or precision, or a combination that does not exist."""
    if engine not in ENGINES:
        raise UserError(f"the engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    if precision not in (None, *PRECISIONS):
        raise UserError(f"the precision must be {' or '.join(PRECISIONS)}, not {precision!r}")
    if shortlist and engine == CTRANSLATE2:
        raise UserError(f"a {SHORTLIST} works with {TORCH} and {ONNX}; for {CTRANSLATE2} export it with the model")


@dataclass(frozen=True)
class CompiledOptions:
    """Options encoded for a translator's vocabularies, once for any number of texts."""

    options: Options
    domain_ids: Sequence[int]  # the domain tag, before every source
    prefix_ids: list[int]
    forced_phrases: Sequence[Phrase]
    glossary: Glossary | None
    forbidden_sequences: Sequence[Sequence[int]]
    constraints: Sequence[Constraint]

    @property
    def search_options(self) -> SearchOptions:
        """The options of the search; prefix, forced phrases and sampling are passed to it beside them."""
        options = self.options
        names = ("beam", "max_length", "min_length", "length_penalty", "coverage_penalty", "no_repeat")
        return SearchOptions(
            **{name: getattr(options, name) for name in names},
            n_best=1 if options.sample else options.n_best,
            forbid=self.forbidden_sequences,
            constraints=self.constraints,
            attention=options.alignments or options.tags or options.replace_unknown or bool(options.coverage_penalty),
        )

    @property
    def is_unconstrained(self) -> bool:
        """True for a beam search without constraints beyond beam size and length penalty."""
        options = self.options
        default_lengths = options.max_length is None and options.min_length == 1
        return default_lengths and not options.sample and not self.search_options.has_constraints


def compile_options(options: Options, tokenizers: Tokenizers) -> CompiledOptions:
    """Encode the words of the options; raise UserError for those that the vocabulary cannot spell."""
    target = tokenizers.target
    compiled = CompiledOptions(
        options,
        [] if options.domain is None else [tokenizers.source.find_tag_id(options.domain)],
        target.encode(options.prefix) if options.prefix else [],
        [encode_phrase(target, words) for words in options.force],
        Glossary(target, options.glossary) if options.glossary else None,
        *(compile_forbidden(target, options.forbid) if options.forbid else ([], [])),
    )
    if UNK in compiled.prefix_ids and SPECIAL_TOKENS[UNK] not in options.prefix:
        raise UserError(
            f"the prefix {options.prefix!r} cannot be spelled: the vocabulary does not have all of its words"
        )
    if options.forbid:
        forbidden = ForbiddenWords(target, options.forbid)
        unspaced = [word.strip().casefold() for word in options.forbid if has_unspaced_script(word)]
        for words in (*options.force, *options.glossary.values()):
            is_forbidden = any(word in words.casefold() for word in unspaced)
            if is_forbidden or forbidden.ends_in_forbidden(target.encode(words)):
                raise UserError(f"{words!r} is both forced and forbidden")
    return compiled


def encode_phrase(tokenizer: Tokenizer, words: str) -> Phrase:
    """Return a phrase to force, as ids of whole words; raise UserError if the vocabulary cannot spell it.

    In scripts without spaces anything may follow it.
    """
    ids = tokenizer.encode_phrase(words)
    if not ids or UNK in ids:
        raise UserError(f"{words!r} cannot be forced: the vocabulary cannot spell it")
    is_unspaced = has_unspaced_script(words.strip()[-1])
    return Phrase(tuple(ids), None if is_unspaced else tokenizer.find_word_boundary_ids())


class Glossary:
    """Source terms and their required translations; of overlapping terms the longest one counts."""

    def __init__(self, tokenizer: Tokenizer, entries: Mapping[str, str]) -> None:
        self.phrases = {term.casefold(): encode_phrase(tokenizer, words) for term, words in entries.items()}
        self.known = "|".join(re.escape(term) for term in sorted(entries, key=len, reverse=True))
        self.pattern = re.compile(rf"(?<![\w-])(?:{self.known})(?![\w-])", re.IGNORECASE)

    def find_phrases(self, text: str) -> list[Phrase]:
        """Return the phrases that the terms of a text must become, one per occurrence."""
        if not has_unspaced_script(text):
            return self._list_phrases(self.pattern.findall(text))
        edges = {edge for span in find_word_spans(text) for edge in span}
        terms = (
            match[0]
            for match in self._unspaced_pattern.finditer(text)
            if (not has_unspaced_script(match[0][0]) or match.start() in edges)
            and (not has_unspaced_script(match[0][-1]) or match.end() in edges)
        )
        return self._list_phrases(terms)

    def _list_phrases(self, terms: Iterable[str]) -> list[Phrase]:
        return [self.phrases[term] for term in map(str.casefold, terms) if term in self.phrases]

    @cached_property
    def _unspaced_pattern(self) -> re.Pattern[str]:
        """Terms whose ends are word boundaries or in a script without spaces, where the segmenter finds boundaries."""
        # Case is ignored in terms only: `re` would expand the ranges of characters one by one, for seconds.
        start = rf"(?-i:(?=[{UNSPACED_CHARACTERS}])|(?<![^\W{UNSPACED_CHARACTERS}])(?<!-))"
        end = rf"(?-i:(?<=[{UNSPACED_CHARACTERS}])|(?![^\W{UNSPACED_CHARACTERS}])(?!-))"
        return re.compile(f"{start}(?:{self.known}){end}", re.IGNORECASE)


class ForbiddenWords:
    """Search constraint that forbids words and phrases, however they are split into subwords, ignoring case."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.forbidden = {tuple(_normalize_word(word) for word in phrase.split()) for phrase in words}
        self.longest = max(map(len, self.forbidden), default=0)
        ends = tokenizer.find_word_boundary_ids()
        self.word_end_ids = torch.tensor(sorted(range(tokenizer.vocab_size) if ends is None else ends))

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """See `regard.search.constraints.Constraint`."""
        tails = written[:, -MAX_TAIL_TOKENS:].tolist()
        forbidden_rows = [row for row, ids in enumerate(tails) if self.ends_in_forbidden(ids)]
        if forbidden_rows:
            rows = torch.tensor(forbidden_rows, device=log_probs.device)[:, None]
            log_probs[rows, self.word_end_ids.to(log_probs.device)] = -torch.inf

    def ends_in_forbidden(self, ids: Sequence[int]) -> bool:
        """Return True if the ids end in a forbidden word or phrase."""
        words = [_normalize_word(word) for word in split_words(self.tokenizer.decode(ids))[-self.longest :]]
        return any(tuple(words[-size:]) in self.forbidden for size in range(1, len(words) + 1))


class ForbiddenSubstrings:
    """Search constraint that forbids words of scripts without spaces, anywhere in the text, ignoring case."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[str]) -> None:
        self.texts = list(map(_get_token_bytes, tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))))
        # For each beginning of a forbidden word, the tokens that complete it.
        self.completions: list[tuple[bytes, list[int]]] = []
        for word in (word.strip().casefold().encode() for word in words):
            for size in range(len(word)):
                rest = word[size:]
                completes = [text.startswith(rest) if size else rest in text for text in self.texts]
                self.completions.append((word[:size], [id for id, found in enumerate(completes) if found]))

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """See `regard.search.constraints.Constraint`."""
        for row, ids in enumerate(written[:, -MAX_TAIL_TOKENS:].tolist()):
            tail = b"".join(self.texts[id] for id in ids)
            for beginning, tokens in self.completions:
                if tokens and tail.endswith(beginning):
                    log_probs[row, tokens] = -torch.inf


_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _get_token_bytes(token: str) -> bytes:
    """Return what a token adds to a text, in UTF-8, in lower case."""
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace("▁", " ").strip(JOINER + SPACER).casefold().encode()


class ForbiddenPhrases:
    """Search constraint for word vocabularies: forbid phrases each of whose words is one token, ignoring case."""

    def __init__(self, phrases: Sequence[Sequence[Collection[int]]]) -> None:
        self.phrases = phrases  # for each word of a phrase the tokens that spell it
        self.longest = max(map(len, phrases))

    def __call__(self, log_probs: Tensor, written: Tensor, sentence: Tensor) -> None:
        """See `regard.search.constraints.Constraint`."""
        for row, ids in enumerate(written[:, -self.longest :].tolist()):
            for *before, last in self.phrases:
                tail = ids[-len(before) :]
                if len(tail) == len(before) and all(map(contains, before, tail)):
                    log_probs[row, list(last)] = -torch.inf


def _normalize_word(word: str) -> str:
    """Strip punctuation around a word and fold its case."""
    return EDGE_PUNCTUATION.sub("", word).casefold()


def compile_forbidden(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[tuple[int, ...]], list[Constraint]]:
    """Return id sequences and search constraints that forbid words: punctuation marks by ids, words by constraints."""
    for word in words:
        if not word.strip():
            raise UserError("the words to forbid contain an empty word")
    marks = [word for word in words if not _normalize_word(word)]
    unspaced = [word for word in words if _normalize_word(word) and has_unspaced_script(word)]
    with_letters = [word for word in words if _normalize_word(word) and not has_unspaced_script(word)]
    substrings: list[Constraint] = [ForbiddenSubstrings(tokenizer, unspaced)] if unspaced else []
    tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    sequences: list[tuple[int, ...]] = [
        (id,) for id, token in enumerate(tokens) if any(mark.strip() in token for mark in marks)
    ]
    sequences += [tuple(ids) for ids in map(tokenizer.encode, marks) if UNK not in ids]
    if not with_letters:
        return sequences, substrings
    if tokenizer.find_word_boundary_ids() is not None:
        return sequences, [ForbiddenWords(tokenizer, with_letters), *substrings]
    ids_by_word: dict[str, list[int]] = {}
    for id, token in enumerate(tokens):
        ids_by_word.setdefault(token.casefold(), []).append(id)
    phrases = [[ids_by_word.get(word.casefold(), []) for word in phrase.split()] for phrase in with_letters]
    sequences += [(id,) for phrase in phrases if len(phrase) == 1 for id in phrase[0]]
    sequences += [tuple(ids) for ids in map(tokenizer.encode, with_letters) if ids and UNK not in ids]
    longer = [phrase for phrase in phrases if len(phrase) > 1 and all(phrase)]
    return list(dict.fromkeys(sequences)), [*([ForbiddenPhrases(longer)] if longer else []), *substrings]


def find_unknown_replacements(
    ids: Sequence[int], attention: Floats, source: Sequence[str], dictionary: Mapping[str, str]
) -> list[str]:
    """Return, for each `<unk>`, the source word with the highest attention, or its dictionary entry.

    Args:
        ids: Target ids.
        attention: Attention of these ids over source tokens, EOS last.
        source: The word of each source token.
        dictionary: Translations that are used instead of the source word.
    """
    rows = [row for row, id in enumerate(ids) if id == UNK]
    attended = [source[int(attention[row, : len(source)].argmax())] for row in rows]
    words = [EDGE_PUNCTUATION.sub("", word) or word for word in attended]  # a token may be punctuation only
    return [dictionary.get(word, word) for word in words]


def replace_unknown(texts: Sequence[str], words: Sequence[str]) -> list[str]:
    """Replace each `<unk>` of the texts by the next of the words."""
    replacements = iter(words)
    return [re.sub(re.escape(SPECIAL_TOKENS[UNK]), lambda match: next(replacements, match[0]), text) for text in texts]
