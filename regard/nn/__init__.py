"""Attention scores, alignments, recurrent cells, masks and positional encodings as plain PyTorch modules.

Each module states the equation of its paper. The package imports nothing but torch.
"""

from regard.nn.alignments import Alignment as Alignment
from regard.nn.alignments import Global as Global
from regard.nn.alignments import Hard as Hard
from regard.nn.alignments import HardSample as HardSample
from regard.nn.alignments import LocalMonotonic as LocalMonotonic
from regard.nn.alignments import LocalPredictive as LocalPredictive
from regard.nn.attention import Attention as Attention
from regard.nn.attention import MultiHeadAttention as MultiHeadAttention
from regard.nn.coverage import Coverage as Coverage
from regard.nn.coverage import LinguisticCoverage as LinguisticCoverage
from regard.nn.coverage import NeuralCoverage as NeuralCoverage
from regard.nn.memory import Attended as Attended
from regard.nn.memory import Memory as Memory
from regard.nn.memory import masked_softmax as masked_softmax
from regard.nn.memory import prefix_mask as prefix_mask
from regard.nn.pooling import AttentionOverAttention as AttentionOverAttention
from regard.nn.pooling import HierarchicalAttention as HierarchicalAttention
from regard.nn.pooling import MaxPooling as MaxPooling
from regard.nn.pooling import MeanPooling as MeanPooling
from regard.nn.pooling import StructuredSelfAttention as StructuredSelfAttention
from regard.nn.positional_encoding import LearnedPositions as LearnedPositions
from regard.nn.positional_encoding import NoPositions as NoPositions
from regard.nn.positional_encoding import SinusoidalPositions as SinusoidalPositions
from regard.nn.positional_encoding import position_ids as position_ids
from regard.nn.recurrent import Cell as Cell
from regard.nn.recurrent import ElmanCell as ElmanCell
from regard.nn.recurrent import GRUCell as GRUCell
from regard.nn.recurrent import LSTMCell as LSTMCell
from regard.nn.recurrent import Recurrent as Recurrent
from regard.nn.recurrent import State as State
from regard.nn.recurrent import hidden_state as hidden_state
from regard.nn.recurrent import state_tensors as state_tensors
from regard.nn.scores import SCORES as SCORES
from regard.nn.scores import Concat as Concat
from regard.nn.scores import Dot as Dot
from regard.nn.scores import General as General
from regard.nn.scores import Location as Location
from regard.nn.scores import ScaledDot as ScaledDot
from regard.nn.scores import Score as Score
