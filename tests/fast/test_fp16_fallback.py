"""Fallback to fp32 products, reported once, where there are no fp16 kernels; runs on any processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.fast import selftest
from regard.fast.gemm import TORCH_GEMM
from regard.fast.kernels import build as native_build
from regard.fast.kernels import fp16
from regard.fast.kernels.fp16 import Fp16Gemm, select_gemm, use_fp16_gemm


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Forget compiled kernels and results of their self-test."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    fp16.load_fp16_gemm.cache_clear()
    yield
    fp16.load_fp16_gemm.cache_clear()


def check_fallback(capsys: pytest.CaptureFixture[str]) -> str:
    """Check that products stay in fp32 and that this is reported once; return the message."""
    with use_fp16_gemm():
        assert select_gemm(torch.zeros(1)) is TORCH_GEMM
        message = capsys.readouterr().err
        assert select_gemm(torch.zeros(1)) is TORCH_GEMM
    assert not capsys.readouterr().err
    assert "fp16 kernels: not used on this CPU, products stay in fp32: " in message
    return message


def write_compiler(folder: Path, script: str) -> Path:
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_nothing_is_reported_unless_fp16_is_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert select_gemm(torch.zeros(1)) is TORCH_GEMM
    assert not capsys.readouterr().err


@pytest.mark.parametrize("named", ["no-such-compiler", "no-such-compiler -O1"])
def test_missing_compiler_is_named(
    named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", named)
    assert "there is no C compiler no-such-compiler; set CC to another" in check_fallback(capsys)


def test_processor_without_fp16_arithmetic_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "cc -U__ARM_FEATURE_FP16_VECTOR_ARITHMETIC")
    assert "stay in fp32: this CPU has no fp16 arithmetic" in check_fallback(capsys)


def test_compiler_error_is_reported_and_leaves_no_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    knows_its_name = "case $* in *-dM*) exit 0;; esac"
    failing = write_compiler(tmp_path, f"{knows_its_name}; echo 'gemm.c:1: error: no such thing' >&2; exit 1")
    monkeypatch.setenv("CC", f"{failing} -O1")
    assert "gemm.c:1: error: no such thing" in check_fallback(capsys)
    assert not list((tmp_path / "cache" / "kernels").iterdir()), "files were left behind"


def test_library_that_cannot_be_loaded_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo none > "$2"; fi; shift; done"""
    monkeypatch.setenv("CC", str(write_compiler(tmp_path, script)))
    assert "fp16-" in check_fallback(capsys)


def test_cache_folder_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("CC", str(write_compiler(tmp_path, "exit 0")))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file" / "cache"))
    assert "file" in check_fallback(capsys)


def test_missing_home_directory_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_error() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("CC", str(write_compiler(tmp_path, "exit 0")))
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", raise_error)
    assert "Could not determine home directory" in check_fallback(capsys)


class FakeLibrary:
    """A library without functions, but with a file beside which the result of the self-test is kept."""

    def __init__(self, folder: Path) -> None:
        self._name = str(folder / "fp16.so")


@pytest.mark.parametrize("wrong", [True, False])
def test_kernels_that_failed_their_self_test_are_not_tested_again(
    wrong: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fp16, "load_kernels", lambda: FakeLibrary(tmp_path))
    monkeypatch.setattr(Fp16Gemm, "mm", lambda self, a, b: a @ b + 10 * wrong)
    monkeypatch.setattr(selftest, "cpu_time_ratio", lambda *_: 3.0)
    reason = "wrong results" if wrong else "3.00 times as long"
    assert reason in check_fallback(capsys)
    monkeypatch.setattr(Fp16Gemm, "mm", lambda self, a, b: a @ b)
    monkeypatch.setattr(selftest, "cpu_time_ratio", lambda *_: 1.0)
    fp16.load_fp16_gemm.cache_clear()
    assert reason in check_fallback(capsys)


def test_truncated_self_test_result_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fp16, "load_kernels", lambda: FakeLibrary(tmp_path))
    monkeypatch.setattr(Fp16Gemm, "mm", lambda self, a, b: a @ b + 10)
    (tmp_path / "fp16.selftest").write_text("", encoding="utf-8")
    assert "wrong results" in check_fallback(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["fp16.selftest"], "files were left behind"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_self_test_ignores_the_default_dtype(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fp16, "load_kernels", lambda: FakeLibrary(tmp_path))
    monkeypatch.setattr(selftest, "cpu_time_ratio", lambda *_: 0.5)
    monkeypatch.setattr(Fp16Gemm, "mm", lambda self, a, b: torch.full_like(a @ b, a.dtype != torch.float32) + a @ b)
    torch.set_default_dtype(dtype)
    try:
        assert isinstance(fp16.load_fp16_gemm(), Fp16Gemm)
    finally:
        torch.set_default_dtype(torch.float32)


def test_kernels_that_passed_their_self_test_are_not_tested_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fp16, "load_kernels", lambda: FakeLibrary(tmp_path))
    monkeypatch.setattr(Fp16Gemm, "mm", lambda self, a, b: a @ b)
    for time in (0.5, 1.5):
        monkeypatch.setattr(selftest, "cpu_time_ratio", lambda *_, time=time: time)
        assert isinstance(fp16.load_fp16_gemm(), Fp16Gemm)
        fp16.load_fp16_gemm.cache_clear()


def test_thread_library_is_the_one_pytorch_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    home = Path("/home/some one")
    line = "7f00-7f01 r-xp 00000000 08:01 1234                       {}\n"
    others = Path("/a"), Path(torch.__file__).parent.parent / "another.libs", Path("/usr/lib")
    maps = "".join(line.format(path / "libgomp.so.1") for path in (*others[:2], own.parent, others[2]))
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: maps)
    assert native_build.find_torch_openmp() == str(own)
    maps = line.format(home / "libgomp.so.1")
    assert native_build.find_torch_openmp() == str(home / "libgomp.so.1")
    maps = ""
    assert native_build.find_torch_openmp() is None
