"""Makes the run in this folder as the first release writes it. Not run by the tests: what it made is kept.

    python tests/first-release/make.py

`run/` is the run, `train.*` and `dev.*` its text, `expected.json` what it does: translations, and the dev loss after it
has gone on for a few updates.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from regard.data.embedded import write
from regard.runs import Run
from regard.training import train
from regard.translate import load

HERE = Path(__file__).parent
PAIRS, STEPS, MORE = 120, 150, 8
SETTINGS: dict[str, Any] = {
    "model.size": 8,
    "model.initialisation": "torch",
    "text.kind": "word",
    "text.vocabulary": 160,
    "training.steps": STEPS,
    "training.batch_tokens": 200,
    "training.optimizer": "adam",
    "training.learning_rate": 0.03,
    "training.warmup": 50,
    "training.schedule": "inverse-sqrt",
    "training.validate_every": STEPS,
    "training.checkpoint_every": STEPS,
    "training.validate_pairs": 12,
    "training.log_every": 50,
    "training.keep": 1,
    "training.ema": 0.9,
    "training.tensorboard": False,
    "training.precision": "fp32",
    "training.device": "cpu",
}


def make() -> None:
    """The run, its text, and what is expected of it."""
    torch.set_num_threads(1)
    shutil.rmtree(HERE / "run", ignore_errors=True)
    with TemporaryDirectory() as folder:
        os.environ["REGARD_CACHE"] = str(Path(folder) / "cache")
        write(Path(folder) / "corpus", PAIRS)
        for path in (Path(folder) / "corpus").glob("*.??"):
            if path.stem != "test":
                shutil.copy(path, HERE / path.name)
        run = train("bahdanau2015", files("train"), HERE / "run", dev=files("dev"), **SETTINGS)
        neutral(run)
        sources = (HERE / "dev.en").read_text(encoding="utf-8").splitlines()[:6]
        translations = [
            {"source": made.source, "text": made.text, "score": made.score}
            for made in load(run.folder).translate(sources, beam=3)
        ]
        shutil.copytree(run.folder, Path(folder) / "more")
        more = {"training.steps": STEPS + MORE, "training.validate_every": MORE}
        longer = train(None, files("train"), Path(folder) / "more", dev=files("dev"), resume=True, **more)
        loss = [row["loss"] for row in longer.metrics() if row["kind"] == "dev"][-1]
    expected = {"translations": translations, "steps": STEPS + MORE, "dev_loss": loss}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def files(split: str) -> list[Path]:
    """The two sides of a split."""
    return [HERE / f"{split}.en", HERE / f"{split}.de"]


def neutral(run: Run) -> None:
    """Where the text was on the machine that made this is nobody's business."""
    config = run.config()
    for split in ("train", "dev"):
        config["data"][split] = [f"/corpus/{split}.{side}" for side in ("en", "de")]
    run.write_config(config)


if __name__ == "__main__":
    make()
