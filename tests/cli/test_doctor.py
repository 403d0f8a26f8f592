"""`regard doctor`: implementations, reasons, packages."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import Command

from regard.cli import doctor as doctor_command
from regard.fast.diagnosis import REFERENCE, diagnose_parts


@pytest.fixture
def diagnose(regard: Command) -> Any:
    """Return a function that runs `regard doctor --device cpu --json` in a process and returns its object."""

    def run() -> Any:
        done = regard("doctor", "--device", "cpu", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def by_part(report: Any) -> dict[str, tuple[str, str]]:
    return {row["part"]: (row["implementation"], row["reason"]) for row in report["implementations"]}


def test_every_part_names_its_implementation_and_a_reason(diagnose: Any) -> None:
    report = diagnose()
    parts = by_part(report)
    assert parts["Transformer training"] == ("packed batches", "there is no CUDA GPU")
    assert parts["output layer and loss of RNN models"][0] == "fused linear cross-entropy, in chunks"
    assert parts["training.precision=auto"] == ("fp32", "there is no CUDA GPU")
    assert report["machine"]["torch"] == torch.__version__


def test_regard_fast_0_leaves_the_reference_implementation(diagnose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_FAST", "0")
    parts = by_part(diagnose())
    replaced = {part: found for part, found in parts.items() if not part.startswith("training.precision")}
    assert set(replaced.values()) == {(REFERENCE, "REGARD_FAST is 0")}


def test_missing_compiler_is_the_reason_against_int8(
    diagnose: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    report = diagnose()
    implementation, reason = by_part(report)["--precision int8"]
    assert implementation == "an export to CTranslate2 or ONNX"
    assert reason == "there is no C compiler no-such-compiler; set CC to another"
    assert report["machine"]["C compiler"].startswith("none")


def test_table_has_a_line_for_each_part(regard: Command) -> None:
    done = regard("doctor", "--device", "cpu")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "  Transformer training: packed batches (there is no CUDA GPU)" in lines
    assert f"  torch: {torch.__version__}" in lines
    assert "kernels are compiled the first time" in done.stderr


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr("importlib.metadata.version", find_nothing)
    assert doctor_command.describe_packages()["onnxruntime"] == "not installed (pip install 'regard[export]')"


def test_missing_device_is_an_error(regard: Command) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = regard("doctor", "--device", "cuda")
    assert (done.returncode, done.stderr) == (2, "regard: --device cuda, but this machine has no cuda\n")


def test_unknown_device_is_an_error(regard: Command) -> None:
    done = regard("doctor", "--device", "gpu")
    assert done.returncode == 2
    assert "--device" in done.stderr
    assert "Traceback" not in done.stderr


def test_diagnosis_leaves_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    diagnose_parts(torch.device("cpu"))
    assert torch.equal(torch.rand(2), expected)
