"""Where there are no products in half precision, on any processor: they stay as they are, and that is said once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.fast import compiled
from regard.fast.halves import way
from regard.fast.halves.product import Halved
from regard.fast.halves.way import halved, multiplying
from regard.fast.products import EXACT


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Without anything kept."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    way.halves.cache_clear()
    yield
    way.halves.cache_clear()


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """Why products stay in fp32; it is said once."""
    with halved():
        assert multiplying(torch.zeros(1)) is EXACT
        said = capsys.readouterr().err
        assert multiplying(torch.zeros(1)) is EXACT
    assert not capsys.readouterr().err
    assert "products on this CPU stay in fp32: " in said
    return said


def compiler(folder: Path, script: str) -> Path:
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_without_being_asked_for_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert multiplying(torch.zeros(1)) is EXACT
    assert not capsys.readouterr().err


@pytest.mark.parametrize("named", ["no-such-compiler", "no-such-compiler -O1"])
def test_no_compiler(named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CC", named)
    assert "there is no C compiler no-such-compiler; CC names another" in refused(capsys)


def test_a_processor_without_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CC", "cc -U__ARM_FEATURE_FP16_VECTOR_ARITHMETIC")
    assert "stay in fp32: this processor has no arithmetic in half precision" in refused(capsys)


def test_a_compiler_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    knows_its_name = "case $* in *-dM*) exit 0;; esac"
    failing = compiler(tmp_path, f"{knows_its_name}; echo 'halves.c:1: error: no such thing' >&2; exit 1")
    monkeypatch.setenv("CC", f"{failing} -O1")
    assert "halves.c:1: error: no such thing" in refused(capsys)
    assert not list((tmp_path / "cache").iterdir()), "nothing is left behind"


def test_what_was_compiled_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo none > "$2"; fi; shift; done"""
    monkeypatch.setenv("CC", str(compiler(tmp_path, script)))
    assert "halves-" in refused(capsys)


def test_nowhere_to_keep_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("CC", str(compiler(tmp_path, "exit 0")))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file" / "cache"))
    assert "file" in refused(capsys)


def test_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("CC", str(compiler(tmp_path, "exit 0")))
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert "Could not determine home directory" in refused(capsys)


class Kernels:
    """None, but with a place where a verdict is kept."""

    def __init__(self, folder: Path) -> None:
        self._name = str(folder / "halves.so")


@pytest.mark.parametrize("wrong", [True, False])
def test_wrong_or_slow_products_are_not_taken_then_or_later(
    wrong: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(way, "library", lambda: Kernels(tmp_path))
    monkeypatch.setattr(Halved, "mm", lambda self, a, b: a @ b + 10 * wrong)
    monkeypatch.setattr(way, "ratio", lambda *_: 3.0)
    why = "wrong numbers" if wrong else "3.00 times as long"
    assert why in refused(capsys)
    monkeypatch.setattr(Halved, "mm", lambda self, a, b: a @ b)
    monkeypatch.setattr(way, "ratio", lambda *_: 1.0)
    way.halves.cache_clear()
    assert why in refused(capsys)


def test_a_verdict_that_was_not_written_to_its_end_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(way, "library", lambda: Kernels(tmp_path))
    monkeypatch.setattr(Halved, "mm", lambda self, a, b: a @ b + 10)
    (tmp_path / "halves.verdict").write_text("", encoding="utf-8")
    assert "wrong numbers" in refused(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["halves.verdict"], "nothing else is left"


@pytest.mark.parametrize("usual", [torch.float64, torch.bfloat16])
def test_the_default_precision_has_no_say_in_a_trial(
    usual: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(way, "library", lambda: Kernels(tmp_path))
    monkeypatch.setattr(way, "ratio", lambda *_: 0.5)
    monkeypatch.setattr(Halved, "mm", lambda self, a, b: torch.full_like(a @ b, a.dtype != torch.float32) + a @ b)
    torch.set_default_dtype(usual)
    try:
        assert isinstance(way.halves(), Halved)
    finally:
        torch.set_default_dtype(torch.float32)


def test_fast_products_are_taken_also_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(way, "library", lambda: Kernels(tmp_path))
    monkeypatch.setattr(Halved, "mm", lambda self, a, b: a @ b)
    for ours in (0.5, 1.5):
        monkeypatch.setattr(way, "ratio", lambda *_, ours=ours: ours)
        assert isinstance(way.halves(), Halved)
        way.halves.cache_clear()


def test_threads_are_taken_from_pytorch_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    home = Path("/home/some one")
    line = "7f00-7f01 r-xp 00000000 08:01 1234                       {}\n"
    others = Path("/a"), Path(torch.__file__).parent.parent / "another.libs", Path("/usr/lib")
    maps = "".join(line.format(path / "libgomp.so.1") for path in (*others[:2], own.parent, others[2]))
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: maps)
    assert compiled.shared_threads() == str(own)
    maps = line.format(home / "libgomp.so.1")
    assert compiled.shared_threads() == str(home / "libgomp.so.1")
    maps = ""
    assert compiled.shared_threads() is None
