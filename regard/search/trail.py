"""How the rows of a sentence came about, to walk back from a hypothesis' end to its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from regard.models.hypothesis import Floats


@dataclass
class Backpointers:
    """One entry a step, on the host; rows are numbered within their sentence."""

    parents: list[Sequence[int]] = field(default_factory=list)  # row at step t -> the one at t−1 that it extends …
    tokens: list[Sequence[int]] = field(default_factory=list)  # … and the token it was extended by
    attention: list[Floats] = field(default_factory=list)  # row at step t -> weights over the source for its next token

    def record_attention(self, attention: Floats | None) -> None:
        """What each row looked at for its next token: rows × source."""
        if attention is not None:
            self.attention.append(attention)

    def record_step(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """The rows of the next step."""
        self.parents.append(parents)
        self.tokens.append(tokens)

    def backtrack(self, row: int, token: int, source_length: int) -> tuple[list[int], Floats | None]:
        """Tokens and attention of the hypothesis that extends `row` of the newest step by `token`."""
        tokens, attention_rows = [token], []
        for step in range(len(self.parents), -1, -1):
            if self.attention:
                attention_rows.append(self.attention[step][row, :source_length])
            if step:
                tokens.append(self.tokens[step - 1][row])
                row = self.parents[step - 1][row]
        return tokens[::-1], np.stack(attention_rows[::-1]) if attention_rows else None
