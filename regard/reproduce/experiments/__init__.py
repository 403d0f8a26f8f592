"""The experiments, one module each."""

from regard.reproduce.experiment import Experiment
from regard.reproduce.experiments.attention_entropy import ATTENTION_SPARSITY
from regard.reproduce.experiments.bahdanau2015_figure2_lengths import BLEU_BY_LENGTH
from regard.reproduce.experiments.cho2014_cells import CELL_COMPARISON
from regard.reproduce.experiments.deng2018_table1_hard import HARD_ATTENTION
from regard.reproduce.experiments.luong2015_attention_cost import ATTENTION_COST
from regard.reproduce.experiments.luong2015_table1_ladder import LADDER
from regard.reproduce.experiments.luong2015_table4_architectures import ARCHITECTURES
from regard.reproduce.experiments.mino2017_key_value import KEY_VALUE
from regard.reproduce.experiments.schuster1997_directions import DIRECTIONS
from regard.reproduce.experiments.sutskever2014_table1 import SUTSKEVER
from regard.reproduce.experiments.vaswani2017_scaling import DOT_PRODUCT_SCALING
from regard.reproduce.experiments.vaswani2017_table3_transformer import TRANSFORMER

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        LADDER,
        ARCHITECTURES,
        BLEU_BY_LENGTH,
        ATTENTION_COST,
        SUTSKEVER,
        CELL_COMPARISON,
        DIRECTIONS,
        ATTENTION_SPARSITY,
        HARD_ATTENTION,
        KEY_VALUE,
        DOT_PRODUCT_SCALING,
        TRANSFORMER,
    )
}
