"""The papers' equations as plain PyTorch modules; imports nothing but torch."""

from regard.nn.alignment import Alignment, Drawn, Global, Hard, LocalMonotonic, LocalPredictive
from regard.nn.attention import Attention
from regard.nn.cell import Cell, ElmanCell, GRUCell, LSTMCell, State
from regard.nn.coverage import Coverage, Covered, LinguisticCoverage, NeuralCoverage
from regard.nn.mask import masked_softmax, prefix_mask
from regard.nn.memory import Attended, Memory, joined
from regard.nn.multihead import MultiHeadAttention
from regard.nn.pooling import (
    AttentionOverAttention,
    Document,
    HierarchicalAttention,
    MaxPooling,
    MeanPooling,
    StructuredSelfAttention,
)
from regard.nn.position import LearnedPositions, NoPositions, SinusoidalPositions, steps
from regard.nn.recurrent import Recurrent, hidden, mirrored, parts
from regard.nn.score import Concat, Dot, General, Location, ScaledDot, Score

__all__ = [
    "Alignment",
    "Attended",
    "Attention",
    "AttentionOverAttention",
    "Cell",
    "Concat",
    "Coverage",
    "Covered",
    "Document",
    "Dot",
    "Drawn",
    "ElmanCell",
    "GRUCell",
    "General",
    "Global",
    "Hard",
    "HierarchicalAttention",
    "LSTMCell",
    "LearnedPositions",
    "LinguisticCoverage",
    "LocalMonotonic",
    "LocalPredictive",
    "Location",
    "MaxPooling",
    "MeanPooling",
    "Memory",
    "MultiHeadAttention",
    "NeuralCoverage",
    "NoPositions",
    "Recurrent",
    "ScaledDot",
    "Score",
    "SinusoidalPositions",
    "State",
    "StructuredSelfAttention",
    "hidden",
    "joined",
    "masked_softmax",
    "mirrored",
    "parts",
    "prefix_mask",
    "steps",
]
