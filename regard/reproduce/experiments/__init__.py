"""The experiments, one file each."""

from regard.reproduce.experiment import Experiment
from regard.reproduce.experiments.architectures import ARCHITECTURES
from regard.reproduce.experiments.cells import CELL
from regard.reproduce.experiments.cost import COST
from regard.reproduce.experiments.directions import DIRECTIONS
from regard.reproduce.experiments.hard import HARD
from regard.reproduce.experiments.keyvalue import KEY_VALUE
from regard.reproduce.experiments.ladder import LADDER
from regard.reproduce.experiments.lengths import LENGTHS
from regard.reproduce.experiments.scaling import SCALING
from regard.reproduce.experiments.sparse import SPARSE
from regard.reproduce.experiments.sutskever import SUTSKEVER
from regard.reproduce.experiments.transformer import TRANSFORMER

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        LADDER,
        ARCHITECTURES,
        LENGTHS,
        COST,
        SUTSKEVER,
        CELL,
        DIRECTIONS,
        SPARSE,
        HARD,
        KEY_VALUE,
        SCALING,
        TRANSFORMER,
    )
}
