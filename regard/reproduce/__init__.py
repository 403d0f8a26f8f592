"""The papers' comparisons, run again, and what holds of them, claim by claim."""

from regard.reproduce.experiment import Claim, Experiment, Row, Training
from regard.reproduce.experiments import EXPERIMENTS
from regard.reproduce.lab import Lab
from regard.reproduce.running import conduct, described, plan, summary
from regard.reproduce.scales import SCALES
from regard.reproduce.together import together

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "Claim",
    "Experiment",
    "Lab",
    "Row",
    "Training",
    "conduct",
    "described",
    "plan",
    "summary",
    "together",
]
