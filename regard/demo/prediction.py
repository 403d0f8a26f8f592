"""Demo of every task but translation: metrics, and predictions with the words that the model attends to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.demo.next_steps import format_next_steps
from regard.plot import WeightedWords
from regard.report import write_report
from regard.runs import Run
from regard.tasks import DevExample, Prediction, SyntheticCorpus, Task, get_task

SAMPLES = 3
MAX_LISTED_WORDS = 5  # per line of attention weights
MIN_LISTED_WEIGHT = 0.005  # lower weights would be printed as 0.00


@dataclass(frozen=True)
class PredictionDemo:
    """A trained model's metrics, sample predictions, and the files that the metrics are measured on."""

    run: Run
    task: Task
    metrics: dict[str, Any]
    samples: Sequence[tuple[DevExample, Prediction]]
    test_files: Sequence[Path]

    @classmethod
    def evaluate(cls, run: Run, corpus: SyntheticCorpus) -> PredictionDemo:
        """Evaluate the run's model on the test set, and predict a few dev examples."""
        task = get_task(run.read_config())
        predictor = task.load(run.folder)
        examples = list(task.load_dev_set(task.make_config(run.read_config())))[:SAMPLES]
        predictions = predictor.predict([example.input for example in examples])
        samples = list(zip(examples, predictions, strict=True))
        return cls(run, task, predictor.evaluate(corpus.test), samples, corpus.test)

    def write_report(self, results: Mapping[str, Any]) -> None:
        """Write the report of the run."""
        write_report(self.run)

    def format(self, results: Mapping[str, Any]) -> str:
        """Format samples, metrics and suggested commands for the end of a demo."""
        samples = ["\n".join(_format_prediction_sample(*sample)) for sample in self.samples]
        values = {name: value for name, value in results.items() if isinstance(value, float)}
        numbers = [f"{name:<12} {value:.{2 if abs(value) >= 1 else 4}f}" for name, value in values.items()]
        figures = "\n".join([*numbers, f"report       {self.run.folder / 'report.html'}"])
        run, *test = (shlex.quote(str(path)) for path in (self.run.folder, *self.test_files))
        commands = format_next_steps(
            f"{{regard}} evaluate {run} {' '.join(test)}",
            f"{{regard}} predict {run} {test[0]}",
            f"{{regard}} serve {run}",
        )
        notes = [self.task.demo_note] if self.task.demo_note else []
        return "\n\n".join([*samples, *notes, figures, commands])


def _format_prediction_sample(example: DevExample, prediction: Prediction) -> list[str]:
    """Format reference, prediction, and the words with the highest attention weights."""
    lines = [line for line in prediction.make_attention_lines() if max(line.weights, default=0.0) >= MIN_LISTED_WEIGHT]
    return [
        f"reference    {example.reference_text}",
        f"model        {prediction.to_text()}",
        *map(_format_strongest_words, lines),
    ]


def _format_strongest_words(line: WeightedWords) -> str:
    """Format the words of a line that have the highest attention weights."""
    strongest = sorted(zip(line.weights, line.words, strict=True), key=lambda pair: -pair[0])[:MAX_LISTED_WORDS]
    strongest = [pair for pair in strongest if pair[0] >= MIN_LISTED_WEIGHT]
    line_weight = "" if line.weight is None else f" ({line.weight:.2f})"
    return f"  {line.label}{line_weight}: " + ", ".join(f"{word} {weight:.2f}" for weight, word in strongest)
