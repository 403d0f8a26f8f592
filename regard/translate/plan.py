"""What is to be translated, in pieces that a model can take, and what is asked of their translations."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.search import Phrase
from regard.text import Tokenizers
from regard.translate.carrying import Carried
from regard.translate.options import Options
from regard.translate.segments import Segment
from regard.translate.translation import Translation, joined
from regard.translate.wording import ForbiddenWords, Glossary, bans, opening, phrase


class Piece(NamedTuple):
    """A segment on its way through the model."""

    segment: Segment
    ids: list[int]
    words: list[int]  # the word that each id is part of
    prefix: list[int]
    force: list[Phrase]


class Draft(NamedTuple):
    """Texts on their way: without what is not for the model, and in pieces."""

    carried: Sequence[Carried]
    plain: Sequence[str]
    cut: list[list[Segment]]  # of each plain text
    pieces: list[Piece]  # of all of them

    def finished(self, made: Iterable[Translation]) -> list[Translation]:
        """The translations of the texts, of those of the pieces."""
        each = iter(made)
        whole = [
            joined(text, some, [next(each) for _ in some]) if some else Translation(text, text)
            for text, some in zip(self.plain, self.cut, strict=True)
        ]
        every = iter(whole)
        return [one.finished([next(every) for _ in one.plain]) for one in self.carried]

    def wishes(self, options: Options) -> Options:
        """The options, with alignments where they must say where something belongs."""
        return dataclasses.replace(options, tags=True) if any(one.places for one in self.carried) else options


class Plan:
    """Options as a translator's vocabularies spell them, made once for any number of texts."""

    def __init__(self, options: Options, tokenizers: Tokenizers) -> None:
        target = tokenizers.target
        self.options = options
        self.domain = [] if options.domain is None else [tokenizers.source.tag(options.domain)]
        self.prefix = opening(target, options.prefix)
        self.force = [phrase(target, words) for words in options.force]
        self.glossary = Glossary(target, options.glossary)
        self.bans, self.rules = bans(target, options.forbid)
        for words in (*options.force, *options.glossary.values()):
            if options.forbid and ForbiddenWords(target, options.forbid).would_end(target.encode(words)):
                raise UserError(f"{words!r} is to be forced and forbidden at once")

    def wishing(self, options: Options) -> Plan:
        """The same for options that differ in what is to be known of a translation, not in what is to be found."""
        other = copy.copy(self)
        other.options = options
        return other

    @property
    def limits(self) -> dict[str, Any]:
        """What holds for targets however they come about, as `search` and `sample` call it."""
        return {
            "max_length": self.options.max_length,
            "min_length": self.options.min_length,
            "no_repeat": self.options.no_repeat,
            "forbid": self.bans,
            "rules": self.rules,
            "attention": self.looks,
        }

    @property
    def ranks(self) -> dict[str, Any]:
        """How targets are searched for, as `search` calls it."""
        return {
            "beam": self.options.beam,
            "n_best": self.options.n_best,
            "length_penalty": self.options.length_penalty,
            "coverage_penalty": self.options.coverage_penalty,
        }

    @property
    def plain(self) -> bool:
        """Whether nothing is asked of targets but to be the best."""
        options = self.options
        limits = options.max_length is None and options.min_length == 1 and options.no_repeat is None
        return limits and not (options.sample or options.coverage_penalty or self.bans or self.rules)

    @property
    def looks(self) -> bool:
        """Whether anybody wants to know where the model looked."""
        options = self.options
        return options.alignments or options.tags or options.replace_unknown or bool(options.coverage_penalty)
