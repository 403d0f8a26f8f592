"""How texts are translated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from regard.errors import UserError
from regard.search import LengthPenalty


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `Translator.translate` takes, the same for all texts of a call."""

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
    sample: bool = False  # draw the translations instead of searching for the best
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.sample and not 1 <= self.n_best <= self.beam:
            raise UserError(f"n_best must be between 1 and the beam: n_best {self.n_best}, beam {self.beam}")
        if self.sample and (self.force or self.prefix or self.glossary):
            raise UserError(
                "what is drawn cannot be made to hold words; sample goes without force, prefix and glossary"
            )
