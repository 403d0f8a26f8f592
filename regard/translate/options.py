"""Translation options: their checks, and their compilation for a translator's vocabularies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields

from regard.errors import UserError
from regard.search import Constraint, LengthPenalty, Phrase, SearchOptions
from regard.tokenizers import Tokenizers
from regard.translate.lexical_options import ForbiddenWords, Glossary, compile_forbidden, encode_phrase, encode_prefix

SEARCH_ONLY_OPTIONS = ("length_penalty", "coverage_penalty", "prefix", "force", "glossary")
SAMPLING_ONLY_OPTIONS = ("temperature", "top_k", "top_p", "seed")


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
        for name in ("beam", "n_best", "min_length", "max_length", "no_repeat", "top_k"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        self._check_ranges()
        self._check_combinations()

    def _check_ranges(self) -> None:
        penalty = 0.0 if self.length_penalty == "average" else self.length_penalty
        if isinstance(penalty, str) or not abs(penalty) <= 10:
            raise UserError(f"length_penalty must be a number from -10 to 10, or 'average', not {penalty!r}")
        if not 0 <= self.coverage_penalty < math.inf:
            raise UserError(f"coverage_penalty must be at least 0, not {self.coverage_penalty}")
        if not 1e-3 <= self.temperature < math.inf:
            raise UserError(
                f"temperature must be at least 0.001, not {self.temperature}; for greedy search use a beam of 1"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be more than 0 and at most 1, not {self.top_p}")
        if self.seed < 0:
            raise UserError(f"seed must be at least 0, not {self.seed}")

    def _check_combinations(self) -> None:
        if not self.sample and self.n_best > self.beam:
            raise UserError(f"n_best must be between 1 and the beam size: n_best {self.n_best}, beam {self.beam}")
        if self.max_length is not None and self.min_length > self.max_length:
            raise UserError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        names, why = (
            (SEARCH_ONLY_OPTIONS, "cannot be combined with sample")
            if self.sample
            else (SAMPLING_ONLY_OPTIONS, "needs sample")
        )
        for option in fields(self):
            default = option.default if option.default_factory is MISSING else option.default_factory()
            value = getattr(self, option.name)
            if option.name in names and value != default and value not in ((), [], {}, ""):
                raise UserError(f"{option.name} {why}; otherwise it has no effect")


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
        return SearchOptions(
            beam=options.beam,
            n_best=1 if options.sample else options.n_best,
            max_length=options.max_length,
            min_length=options.min_length,
            length_penalty=options.length_penalty,
            coverage_penalty=options.coverage_penalty,
            no_repeat=options.no_repeat,
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
        encode_prefix(target, options.prefix) if options.prefix else [],
        [encode_phrase(target, words) for words in options.force],
        Glossary(target, options.glossary) if options.glossary else None,
        *(compile_forbidden(target, options.forbid) if options.forbid else ([], [])),
    )
    for words in (*options.force, *options.glossary.values()):
        if options.forbid and ForbiddenWords(target, options.forbid).ends_in_forbidden(target.encode(words)):
            raise UserError(f"{words!r} is both forced and forbidden")
    return compiled
