"""Greedy and beam search. It knows `start`, `step` and `select`, and nothing of what is behind them."""

from regard.search.beam import search
from regard.search.hypothesis import Hypothesis, penalised

__all__ = ["Hypothesis", "penalised", "search"]
