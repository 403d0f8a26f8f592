"""Parallel batches on a CPU: the translations of sequential decoding, one thread per batch."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Barrier

import pytest
import torch
from support.combinations import slow_after
from support.training import corpus_files

from regard.data.readers.dispatch import read_all_pairs
from regard.errors import UserError
from regard.runs import Run
from regard.translate import load
from regard.translate.backends import base as torch_backend
from regard.translate.backends.base import TorchBackend, choose_worker_count, map_in_threads
from regard.translate.options import Options


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == 2, "the number of threads is restored"


def test_two_batches_run_in_parallel_with_one_thread_each() -> None:
    met = Barrier(2, timeout=600)

    def work(number: int) -> tuple[int, int]:
        met.wait()
        return number, torch.get_num_threads()

    assert map_in_threads(work, range(6), 2) == [(number, 1) for number in range(6)]


def test_other_threads_keep_their_number_of_threads_while_batches_run() -> None:
    numbers: list[int] = []

    def work(number: int) -> None:
        other = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
        other.start()
        other.join()

    map_in_threads(work, range(2), 2)
    assert numbers == [2, 2]


def test_number_of_threads_is_restored_if_workers_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted(ThreadPoolExecutor):
        """Starts one worker and no second one."""

        def submit(self, *given: object) -> object:  # type: ignore[override]
            if self._threads:
                raise RuntimeError("can't start new thread")
            return super().submit(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("regard.translate.backends.base.ThreadPoolExecutor", Exhausted)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        map_in_threads(str, range(4), 2)
    assert torch.get_num_threads() == 2


def test_error_in_a_batch_stops_further_batches() -> None:
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        raise UserError(f"{number} failed")

    with pytest.raises(UserError, match=r"[01] failed"):
        map_in_threads(work, range(1000), 2)
    assert set(begun) <= {0, 1}, "only the batches that were already running"


def test_error_is_raised_even_if_an_earlier_batch_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(ThreadPoolExecutor):
        """Runs the items in reverse order."""

        def map(self, work: Callable[[int], None], items: Iterable[int]) -> Iterator[None]:  # type: ignore[override]
            begun = [self.submit(work, item) for item in reversed(list(items))]
            wait(begun)
            return (one.result() for one in reversed(begun))

    def work(number: int) -> None:
        raise UserError(f"{number} failed")

    monkeypatch.setattr("regard.translate.backends.base.ThreadPoolExecutor", Later)
    with pytest.raises(UserError, match=r"[678] failed"):
        map_in_threads(work, range(9), 2)


def test_worker_threads_get_no_nested_parallelism() -> None:
    assert choose_worker_count(5) == 2
    assert choose_worker_count(1) == 1
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(choose_worker_count, 5).result() == 1


@pytest.mark.parametrize("engine", slow_after(1, ["torch", "onnx"]))
def test_parallel_translations_equal_sequential_ones(
    fluent_run: Run, corpus: Path, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [pair.source for pair in read_all_pairs(corpus_files(corpus, "test"))]
    loaded = load(shutil.copytree(fluent_run.folder, tmp_path / "run"), device="cpu", engine=engine)
    monkeypatch.setattr(torch_backend, "BATCH_TOKENS", 60)
    seen: set[str] = set()
    find = TorchBackend.search_batch

    def spy(self: TorchBackend, *given: object) -> object:
        seen.add(threading.current_thread().name)
        return find(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(TorchBackend, "search_batch", spy)
    together = loaded.translate(texts, beam=3)
    assert seen
    assert all(name.startswith("batch") for name in seen)
    torch.set_num_threads(1)
    alone = loaded.translate(texts, beam=3)
    torch.set_num_threads(2)
    assert "MainThread" in seen
    assert [one.text for one in together] == [one.text for one in alone]
    assert [one.score for one in together] == pytest.approx([one.score for one in alone], abs=1e-4)


def test_training_mode_and_sampling_are_sequential(fluent_run: Run) -> None:
    loaded = load(fluent_run.folder, device="cpu")
    plan, backend = loaded.compile_options(Options()), loaded.backend
    assert isinstance(backend, TorchBackend)
    assert backend.count_parallel_batches(4, plan) == 2
    assert backend.count_parallel_batches(4, loaded.compile_options(Options(sample=True))) == 1
    loaded.models[0].train()
    assert backend.count_parallel_batches(4, plan) == 1
