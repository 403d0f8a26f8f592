"""How texts are translated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields

from regard.errors import UserError
from regard.search import LengthPenalty

SEARCHED = ("length_penalty", "coverage_penalty", "prefix", "force", "glossary")  # nothing that is drawn has these
DRAWN = ("temperature", "top_k", "top_p", "seed")  # nothing that is searched for has these


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
        self.check_numbers()
        self.check_company()

    def check_numbers(self) -> None:
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

    def check_company(self) -> None:
        """Options that go together."""
        if not self.sample and self.n_best > self.beam:
            raise UserError(f"n_best must be between 1 and the beam: n_best {self.n_best}, beam {self.beam}")
        if self.max_length is not None and self.min_length > self.max_length:
            raise UserError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        names, why = (SEARCHED, "cannot be had with sample") if self.sample else (DRAWN, "needs sample")
        for one in fields(self):
            usual = one.default if one.default_factory is MISSING else one.default_factory()
            value = getattr(self, one.name)
            if one.name in names and value != usual and value not in ((), [], {}, ""):
                raise UserError(f"{one.name} {why}; alone it would do nothing")
