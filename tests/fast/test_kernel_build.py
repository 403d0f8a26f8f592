"""Compilation and cache of the C kernels, with a kernel of one line."""

from __future__ import annotations

import ctypes
import os
import textwrap
from pathlib import Path

import pytest

from regard.fast.kernels import build
from regard.fast.kernels.build import POINTER, KernelUnavailableError, load_library, read_api


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "api.h").write_text("int one(void);\n", encoding="utf-8")
    (folder / "one.c").write_text("int one(void) { return 1; }\n", encoding="utf-8")
    return folder


def load_path(sources: Path) -> Path:
    library = load_library(sources)
    assert library.one() == 1
    return Path(library._name)


def test_kernels_are_compiled_once_per_processor(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_path(sources)
    stamp = first.stat().st_mtime_ns
    assert load_path(sources) == first
    assert first.stat().st_mtime_ns == stamp
    monkeypatch.setattr(build, "describe_cpu", lambda: "another")
    assert load_path(sources) != first


def test_kernels_are_compiled_again_with_other_options_in_cc(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_path(sources)
    monkeypatch.setenv("CC", "cc -fno-tree-vectorize")
    assert load_path(sources) != first


def test_compiled_kernels_are_used_without_a_compiler(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = load_path(sources)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert load_path(sources) == compiled
    (sources / "one.c").write_text("int one(void) { return 3 - 2; }\n", encoding="utf-8")
    with pytest.raises(KernelUnavailableError, match="no C compiler no-such-compiler; set CC to another"):
        load_library(sources)


@pytest.mark.parametrize("umask", [0o022, 0o002])
def test_other_users_may_read_kernels_but_not_write_them(sources: Path, cache: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        kernel = load_path(sources)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (cache, kernel)] == [0o755, 0o755]


def test_kernels_that_others_may_write_are_refused(sources: Path, cache: Path) -> None:
    kernel = load_path(sources)
    for path in (kernel, cache):
        mode = path.stat().st_mode
        for shared in (0o020, 0o002):
            path.chmod(mode | shared)
            with pytest.raises(KernelUnavailableError, match=f"other users may write to {path}; set REGARD_CACHE"):
                load_library(sources)
        path.chmod(mode)
    assert load_path(sources) == kernel


def test_kernels_of_another_user_are_refused(sources: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = load_path(sources)
    owner = kernel.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner == 0:  # kernels of root are trusted
        assert load_path(sources) == kernel
    else:
        with pytest.raises(KernelUnavailableError, match=f"other users may write to {cache}"):
            load_library(sources)


def test_functions_and_structs_have_the_types_of_the_header(sources: Path) -> None:
    header = """
    typedef struct { /* a pair; of two */
      const float *first, *second;
      long size;
    } Pair;
    /* Comments, int two(int) { are ignored. */
    int one(void);
    float sum(const Pair *pair, Pair by_value,
              const int64_t *ids, int exact);
    """
    (sources / "api.h").write_text(textwrap.dedent(header), encoding="utf-8")
    structs, functions = read_api(sources)
    assert structs["Pair"]._fields_ == [("first", POINTER), ("second", POINTER), ("size", ctypes.c_long)]
    pointer = ctypes.POINTER(structs["Pair"])
    assert functions == {
        "one": (ctypes.c_int, []),
        "sum": (ctypes.c_float, [pointer, structs["Pair"], POINTER, ctypes.c_int]),
    }


def test_loaded_functions_have_the_types_of_the_header(sources: Path) -> None:
    assert load_library(sources).one.restype is ctypes.c_int
