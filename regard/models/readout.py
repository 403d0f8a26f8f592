"""The deep output with maxout units that Cho 2014 and Bahdanau 2015 share (Goodfellow 2013)."""

from __future__ import annotations

from torch import Tensor, nn


class DeepOutput(nn.Module):
    """t_i = maxout(U_o s + V_o E y_{i-1} + C_o c_i) and the logits W_o t_i (appendix A.2.2)."""

    def __init__(
        self, state_size: int, word_size: int, context_size: int, maxout: int, vocabulary: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.U_o = nn.Linear(state_size, 2 * maxout)
        self.V_o = nn.Linear(word_size, 2 * maxout, bias=False)
        self.C_o = nn.Linear(context_size, 2 * maxout, bias=False)
        self.W_o = nn.Linear(maxout, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        """States B,T,n, embedded words B,T,m, contexts B,T,· -> logits B,T,V."""
        logits: Tensor = self.W_o(self.features(state, word, context))
        return logits

    def features(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        """The same -> t_i B,T,·, with dropout."""
        t = (self.U_o(state) + self.V_o(word) + self.C_o(context)).unflatten(-1, (-1, 2)).amax(-1)
        dropped: Tensor = self.dropout(t)
        return dropped
