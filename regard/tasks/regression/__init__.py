"""Time series regression: output numbers for each step of a series of input numbers."""

from regard.synthetic.regression import write_regression_corpus
from regard.tasks.base import Task
from regard.tasks.regression.predictor import RegressionPredictor, load, make_dev_example_series
from regard.tasks.regression.series import NoTextSettings, RegressionSettings
from regard.tasks.regression.task import RegressionValidator, load_regression_dev_set, prepare_regression

__all__ = ["TASK", "RegressionPredictor", "RegressionValidator", "write_regression_corpus"]

TASK = Task(
    RegressionSettings,
    NoTextSettings,
    prepare_regression,
    load,
    load_regression_dev_set,
    write_regression_corpus,
    make_dev_example_series,
)
