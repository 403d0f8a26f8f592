"""Attention scores, alignments, recurrent cells, masks and positional encodings as plain PyTorch modules.

Each module states the equation of its paper. The package imports nothing but torch.
"""

from regard.nn.alignments import Alignment, Global, Hard, HardSample, LocalMonotonic, LocalPredictive
from regard.nn.attention import Attention, MultiHeadAttention
from regard.nn.coverage import Coverage, LinguisticCoverage, NeuralCoverage
from regard.nn.crf import LinearChainCRF
from regard.nn.memory import Attended, Memory, masked_softmax, prefix_mask
from regard.nn.pooling import (
    AttentionOverAttention,
    HierarchicalAttention,
    MaxPooling,
    MeanPooling,
    NgramLinear,
    StructuredSelfAttention,
)
from regard.nn.positional_encoding import LearnedPositions, NoPositions, SinusoidalPositions, position_ids
from regard.nn.recurrent import Cell, ElmanCell, GRUCell, LSTMCell, Recurrent, State, hidden_state, state_tensors
from regard.nn.scores import SCORES, Concat, Dot, General, Location, ScaledDot, Score

__all__ = [
    "SCORES",
    "Alignment",
    "Attended",
    "Attention",
    "AttentionOverAttention",
    "Cell",
    "Concat",
    "Coverage",
    "Dot",
    "ElmanCell",
    "GRUCell",
    "General",
    "Global",
    "Hard",
    "HardSample",
    "HierarchicalAttention",
    "LSTMCell",
    "LearnedPositions",
    "LinearChainCRF",
    "LinguisticCoverage",
    "LocalMonotonic",
    "LocalPredictive",
    "Location",
    "MaxPooling",
    "MeanPooling",
    "Memory",
    "MultiHeadAttention",
    "NeuralCoverage",
    "NgramLinear",
    "NoPositions",
    "Recurrent",
    "ScaledDot",
    "Score",
    "SinusoidalPositions",
    "State",
    "StructuredSelfAttention",
    "hidden_state",
    "masked_softmax",
    "position_ids",
    "prefix_mask",
    "state_tensors",
]
