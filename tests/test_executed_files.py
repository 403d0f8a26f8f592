"""Size of the code path: how many files of regard a reader must open to follow `regard train` and `regard translate`.

Each command runs in a process of its own, and every file with a function that is called counts, except those of
`regard/fast`: which fast paths run depends on the machine. What Python runs while it imports a module does not count,
nor do lambdas and comprehensions of the module level.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.commands import environment

ROOT = Path(__file__).parent.parent
TRAIN_FILES, TRANSLATE_FILES = 45, 30  # limits; lower them when the path gets shorter, never raise them

pytestmark = pytest.mark.slow  # tracing every call takes a while

PROGRAM = """
import sys, threading
from pathlib import Path
from regard.cli import main

package, called = str(Path(sys.argv.pop(1)) / "regard") + "/", set()

def is_import(frame):
    while frame and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(package)

def record(frame, event, _):
    file = frame.f_code.co_filename
    if event == "call" and file.startswith(package) and file not in called and not is_import(frame):
        called.add(file)

threading.settrace(record)
sys.settrace(record)
try:
    main()
finally:
    sys.settrace(None)
    Path("called").write_text("\\n".join(sorted(file.removeprefix(package) for file in called)))
"""


def find_called_files(arguments: Sequence[object], folder: Path, input: str = "") -> list[str]:
    """Run `regard …` in `folder` and return the files of regard outside `fast` that have a called function."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT), *map(str, arguments)],
        cwd=folder,
        env=environment(),
        input=input,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [file for file in (folder / "called").read_text().split("\n") if not file.startswith("fast/")]


OVERRIDES = ("training.steps=4", "training.validate_every=4", "model.size=16", "model.layers=1", "model.heads=2")


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Train the default recipe; return the run and the files that training called."""
    folder = tmp_path_factory.mktemp("train")
    texts = [corpus / f"train.{language}" for language in ("en", "de")]
    return folder / "run", find_called_files(["train", *texts, "--out", "run", *OVERRIDES], folder)


def test_train_runs_through_few_files(trained: tuple[Path, list[str]]) -> None:
    assert len(trained[1]) <= TRAIN_FILES, "\n".join(trained[1])


def test_translate_runs_through_few_files(trained: tuple[Path, list[str]], tmp_path: Path) -> None:
    files = find_called_files(["translate", trained[0]], tmp_path, "The old teacher gives a book .\n")
    assert len(files) <= TRANSLATE_FILES, "\n".join(files)
