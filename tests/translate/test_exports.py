"""Exports kept beside a run: written by one process at a time, and replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from regard.errors import UserError
from regard.translate.backends import exports


def make_opened(folder: Path) -> Any:
    """Return an opened run as far as exports need one."""
    return SimpleNamespace(
        run=SimpleNamespace(folder=folder),
        compute_fingerprint=lambda: {"weights": "1"},
        is_current_export=lambda made: exports.read_manifest(made).get("of") == {"weights": "1"},
    )


def write(content: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "model.bin").write_text(content, encoding="utf-8")

    return make


def test_second_process_waits_for_an_export_and_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, folder = make_opened(tmp_path), tmp_path / "engines" / "onnx-fp32"
    waiting, found = Event(), []

    def say(message: str) -> None:
        if "waiting for another process" in message:
            waiting.set()

    def second() -> None:
        found.append(exports.write_export(opened, folder, write("second"), reuse=True))

    def make(to: Path) -> None:
        thread.start()
        assert waiting.wait(20), "the second one does not wait"
        write("first")(to)

    monkeypatch.setattr(exports, "log_message", say)
    thread = Thread(target=second)
    found.append(exports.write_export(opened, folder, make, reuse=True))
    thread.join()
    assert found == [folder, folder]
    assert (folder / "model.bin").read_text(encoding="utf-8") == "first"
    assert sorted(path.name for path in folder.parent.iterdir()) == [".lock", "onnx-fp32"]


def test_explicit_export_is_made_again(tmp_path: Path) -> None:
    opened, folder = make_opened(tmp_path), tmp_path / "engines" / "onnx-fp32"
    for content in ("first", "second"):
        exports.write_export(opened, folder, write(content))
    assert (folder / "model.bin").read_text(encoding="utf-8") == "second"
    exports.write_export(opened, folder, write("third"), reuse=True)
    assert (folder / "model.bin").read_text(encoding="utf-8") == "second"


def test_failed_replacement_leaves_the_old_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, folder = make_opened(tmp_path), tmp_path / "engines" / "onnx-fp32"
    exports.write_export(opened, folder, write("old"))
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if target == folder and path.name == folder.name:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(UserError, match="onnx-fp32 cannot be written: No space left on device"):
        exports.write_export(opened, folder, write("new"))
    assert exports.read_manifest(folder)
    assert (folder / "model.bin").read_text(encoding="utf-8") == "old"


def test_folder_of_another_export_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def make(to: Path) -> None:
        write("mine")(to)
        write("another")(out)

    with pytest.raises(UserError, match="out cannot be written: "):
        exports.write_export(make_opened(tmp_path / "run"), out, make)
    assert (out / "model.bin").read_text(encoding="utf-8") == "another"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
