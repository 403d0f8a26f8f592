"""How texts are translated."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.search import LengthPenalty, Phrase
from regard.tokenizers import Tokenizers
from regard.translate.lexical_options import ForbiddenWords, Glossary, compile_forbidden, encode_phrase, encode_prefix
from regard.translate.protected_spans import ProtectedText
from regard.translate.segmentation import Segment, Translation, join_segments

SEARCH_ONLY_OPTIONS = (
    "length_penalty",
    "coverage_penalty",
    "prefix",
    "force",
    "glossary",
)  # nothing that is drawn has these
SAMPLING_ONLY_OPTIONS = ("temperature", "top_k", "top_p", "seed")  # nothing that is searched for has these


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `Translator.translate` takes, the same for all texts of a call.

    Lengths, `no_repeat` and the like hold for each piece of a text that is cut.
    """

    beam: int = 5  # hypotheses kept open; 1 is greedy
    n_best: int = 1  # translations a text
    alignments: bool = True
    length_penalty: LengthPenalty = 0.6
    coverage_penalty: float = 0.0
    max_length: int | None = None  # tokens of a translation, EOS included; None: by the length of the source
    min_length: int = 1
    no_repeat: int | None = None  # so many tokens in a row never come twice
    prefix: str = ""  # what each translation begins with
    force: Sequence[str] = ()  # words or phrases that each translation holds
    forbid: Sequence[str] = ()  # words or phrases that none holds
    glossary: Mapping[str, str] = field(default_factory=dict)  # a term of the source -> how it must be translated
    replace_unknown: bool = False  # put the source word that it looked at in the place of <unk> …
    dictionary: Mapping[str, str] = field(default_factory=dict)  # … or that word's entry in here
    tags: bool = False  # carry inline tags and placeholders over to the words that theirs became
    addresses: bool = True  # of pages and of mail pass through as they are; the model does not get them
    domain: str | None = None  # the tag of the corpus that the texts are like, where a model was trained with tags
    sample: bool = False  # draw the translations instead of searching for the best
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
        """Penalties and chances are numbers within reason."""
        penalty = 0.0 if self.length_penalty == "average" else self.length_penalty
        if isinstance(penalty, str) or not abs(penalty) <= 10:
            raise UserError(f"length_penalty is a number from -10 to 10, or 'average', not {penalty!r}")
        if not 0 <= self.coverage_penalty < math.inf:
            raise UserError(f"coverage_penalty must be at least 0, not {self.coverage_penalty}")
        if not 1e-3 <= self.temperature < math.inf:
            raise UserError(
                f"temperature must be at least 0.001, not {self.temperature}; a beam of 1 takes the likeliest"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be more than 0 and at most 1, not {self.top_p}")
        if self.seed < 0:
            raise UserError(f"seed must be at least 0, not {self.seed}")

    def _check_combinations(self) -> None:
        """Options that go together."""
        if not self.sample and self.n_best > self.beam:
            raise UserError(f"n_best must be between 1 and the beam: n_best {self.n_best}, beam {self.beam}")
        if self.max_length is not None and self.min_length > self.max_length:
            raise UserError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        names, why = (
            (SEARCH_ONLY_OPTIONS, "cannot be had with sample")
            if self.sample
            else (SAMPLING_ONLY_OPTIONS, "needs sample")
        )
        for one in fields(self):
            usual = one.default if one.default_factory is MISSING else one.default_factory()
            value = getattr(self, one.name)
            if one.name in names and value != usual and value not in ((), [], {}, ""):
                raise UserError(f"{one.name} {why}; alone it would do nothing")


class EncodedSegment(NamedTuple):
    """A segment on its way through the model."""

    segment: Segment
    ids: list[int]
    word_ids: list[int]  # the word that each id is part of
    prefix_ids: list[int]
    forced_phrases: list[Phrase]


class PreparedTexts(NamedTuple):
    """Texts on their way: without what is not for the model, and in pieces."""

    protected_texts: Sequence[ProtectedText]
    plain_texts: Sequence[str]
    segments_of_texts: list[list[Segment]]  # of each plain text
    encoded_segments: list[EncodedSegment]  # of all of them

    def restore_texts(self, translations: Iterable[Translation]) -> list[Translation]:
        """The translations of the texts, of those of the pieces."""
        each = iter(translations)
        whole = [
            join_segments(text, some, [next(each) for _ in some]) if some else Translation(text, text)
            for text, some in zip(self.plain_texts, self.segments_of_texts, strict=True)
        ]
        every = iter(whole)
        return [one.restore([next(every) for _ in one.translatable_texts]) for one in self.protected_texts]

    def enable_needed_alignments(self, options: Options) -> Options:
        """The options, with alignments where they must say where something belongs."""
        return (
            dataclasses.replace(options, tags=True)
            if any(one.needs_alignment for one in self.protected_texts)
            else options
        )


class CompiledOptions:
    """Options as a translator's vocabularies spell them, made once for any number of texts."""

    def __init__(self, options: Options, tokenizers: Tokenizers) -> None:
        target = tokenizers.target
        self.options = options
        self.domain_ids = [] if options.domain is None else [tokenizers.source.find_tag_id(options.domain)]
        self.prefix_ids = encode_prefix(target, options.prefix)
        self.forced_phrases = [encode_phrase(target, words) for words in options.force]
        self.glossary = Glossary(target, options.glossary)
        self.forbidden_sequences, self.constraints = compile_forbidden(target, options.forbid)
        for words in (*options.force, *options.glossary.values()):
            if options.forbid and ForbiddenWords(target, options.forbid).ends_in_forbidden(target.encode(words)):
                raise UserError(f"{words!r} is to be forced and forbidden at once")

    def with_output_options(self, options: Options) -> CompiledOptions:
        """The same for options that differ in what is to be known of a translation, not in what is to be found."""
        other = copy.copy(self)
        other.options = options
        return other

    @property
    def constraint_arguments(self) -> dict[str, Any]:
        """What holds for targets however they come about, as `search` and `sample` call it."""
        return {
            "max_length": self.options.max_length,
            "min_length": self.options.min_length,
            "no_repeat": self.options.no_repeat,
            "forbid": self.forbidden_sequences,
            "constraints": self.constraints,
            "attention": self.needs_attention,
        }

    @property
    def beam_arguments(self) -> dict[str, Any]:
        """How targets are searched for, as `search` calls it."""
        return {
            "beam": self.options.beam,
            "n_best": self.options.n_best,
            "length_penalty": self.options.length_penalty,
            "coverage_penalty": self.options.coverage_penalty,
        }

    @property
    def is_unconstrained(self) -> bool:
        """Whether nothing is asked of targets but to be the best."""
        options = self.options
        limits = options.max_length is None and options.min_length == 1 and options.no_repeat is None
        return limits and not (
            options.sample or options.coverage_penalty or self.forbidden_sequences or self.constraints
        )

    @property
    def needs_attention(self) -> bool:
        """Whether anybody wants to know where the model looked."""
        options = self.options
        return options.alignments or options.tags or options.replace_unknown or bool(options.coverage_penalty)
