"""How the rows of a search came about, to walk back from a hypothesis' end to its beginning."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from regard.search.hypothesis import Floats

Ints = npt.NDArray[np.int64]


@dataclass
class Trail:
    """One entry a step, on the host."""

    parents: list[Ints] = field(default_factory=list)  # row at step t -> the row at step t−1 that it extends …
    tokens: list[Ints] = field(default_factory=list)  # … and the token it was extended by
    attention: list[Floats] = field(default_factory=list)  # row at step t -> weights over the source for its next token

    def look(self, attention: Tensor | None) -> None:
        """What each row looked at for its next token: rows × source."""
        if attention is not None:
            self.attention.append(attention.float().cpu().numpy())

    def go(self, parents: Tensor, tokens: Tensor) -> None:
        """The rows of the next step, as the host knows them."""
        self.parents.append(parents.numpy())
        self.tokens.append(tokens.numpy())

    def back(self, row: int, token: int, source_length: int) -> tuple[list[int], Floats | None]:
        """Tokens and attention of the hypothesis that extends `row` of the newest step by `token`."""
        tokens, looks = [token], []
        for step in range(len(self.parents), -1, -1):
            if self.attention:
                looks.append(self.attention[step][row, :source_length])
            if step:
                tokens.append(int(self.tokens[step - 1][row]))
                row = int(self.parents[step - 1][row])
        return tokens[::-1], np.stack(looks[::-1]) if looks else None
