"""Options that commands share, or that would hide what a command does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SEARCH, WORDS, DRAW = "Search", "Words", "Sampling"

Beam = Annotated[int, typer.Option(min=1, help="Hypotheses that are kept open; 1 is greedy.")]
NBest = Annotated[int, typer.Option("--n-best", min=1, help="Translations a line, the best first.")]
Source = Annotated[
    str | None, typer.Option(help="Language code of the source in DATA; as in the run if left out.", metavar="CODE")
]
Target = Annotated[str | None, typer.Option(help="Language code of the target in DATA.", metavar="CODE")]
Gold = Annotated[
    Path | None, typer.Option(help="Gold word alignments (Pharaoh or NAACL form): AER, precision, recall.")
]
GoldFirst = Annotated[int | None, typer.Option(min=0, max=1, help="Number of its first word; else 0, NAACL: 1.")]
Domain = Annotated[
    str | None, typer.Option(help="The tag of the corpus that the text is like, for a model trained with data.tags.")
]
Tags = Annotated[bool, typer.Option("--tags", help="Carry inline tags and placeholders over.")]

LengthPenalty = Annotated[
    str,
    typer.Option(help="A number (0: short ones win, 1: long ones do better), or `average`.", rich_help_panel=SEARCH),
]
CoveragePenalty = Annotated[
    float, typer.Option(help="How much a source word counts that nothing looked at.", rich_help_panel=SEARCH)
]
MaxLength = Annotated[int | None, typer.Option(min=1, help="Tokens of a translation at most.", rich_help_panel=SEARCH)]
MinLength = Annotated[int, typer.Option(min=1, help="Tokens of a translation at least.", rich_help_panel=SEARCH)]
NoRepeat = Annotated[
    int | None, typer.Option(min=1, help="So many tokens in a row never come twice.", rich_help_panel=SEARCH)
]

Prefix = Annotated[str, typer.Option(help="What each translation begins with.", rich_help_panel=WORDS)]
Force = Annotated[
    list[str] | None,
    typer.Option(help="A word or phrase that each translation holds; may be given again.", rich_help_panel=WORDS),
]
Forbid = Annotated[
    list[str] | None, typer.Option(help="A word or phrase that none holds; may be given again.", rich_help_panel=WORDS)
]
Glossary = Annotated[
    Path | None, typer.Option(help="Terms, tab, how they must be translated, one a line.", rich_help_panel=WORDS)
]
ReplaceUnknown = Annotated[
    bool, typer.Option("--replace-unknown", help="Put source words in the place of <unk>.", rich_help_panel=WORDS)
]
Dictionary = Annotated[
    Path | None, typer.Option(help="For these: source word, tab, target word, one a line.", rich_help_panel=WORDS)
]

Sample = Annotated[bool, typer.Option("--sample", help="Draw translations instead of searching.", rich_help_panel=DRAW)]
Temperature = Annotated[float, typer.Option(help="Below 1 the likely are likelier.", rich_help_panel=DRAW)]
TopK = Annotated[int | None, typer.Option(min=1, help="Draw among so many likeliest tokens.", rich_help_panel=DRAW)]
TopP = Annotated[float, typer.Option(help="Draw among those with this probability together.", rich_help_panel=DRAW)]
Seed = Annotated[int, typer.Option(help="Of what is drawn.", rich_help_panel=DRAW)]
