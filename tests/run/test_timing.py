import sys

import pytest
import torch

from capsbench.run.timing import WARM_UP, Measured, Repeats, forget_peak, in_own_process, measure, peak_bytes, timed
from tests.small_runs import run_of


def test_calls_are_timed_after_the_warm_up_and_until_the_seconds_are_over(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr("capsbench.run.timing.time.perf_counter", lambda: now[0])

    def once():
        calls.append(1)
        now[0] += 100.0 if len(calls) <= WARM_UP else 2.0

    assert timed(once, "cpu", Repeats(3, 3)) == [2.0] * 3
    assert len(calls) == WARM_UP + 3
    calls.clear()
    assert len(timed(once, "cpu", Repeats(2, 50, seconds=7.0))) == 4  # the fourth ends at 8 s
    calls.clear()
    assert len(timed(once, "cpu", Repeats(10, 50, seconds=7.0))) == 10
    calls.clear()
    assert len(timed(once, "cpu", Repeats(1, 3, seconds=7.0))) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak cannot be forgotten")
def test_peak_memory_is_that_since_it_was_forgotten():
    grown = in_own_process(_grown)  # this one may have freed memory at hand, which takes none from the system
    assert isinstance(grown, float) and 30 * 2**20 < grown < 40 * 2**20


def _grown():
    torch.ones(16 * 2**20).add_(1)  # 64 MB, gone again
    before = forget_peak("cpu")
    torch.ones(8 * 2**20).add_(1)
    return peak_bytes("cpu") - before


def test_forward_passes_and_training_steps_of_a_run(tmp_path):
    run = run_of(tmp_path)
    found = measure(run, "cpu", 8, Repeats(3, 3), Repeats(2, 2))
    assert (len(found.forward), len(found.step)) == (3, 2)
    assert 0 < min(found.forward) < min(found.step)
    assert 0 <= found.forward_bytes <= found.step_bytes
    assert measure(run, "cpu", 8, Repeats(0, 0), Repeats(1, 1)).forward == []


def _fail():
    raise RuntimeError("no memory\nand a long trace")


def test_what_goes_wrong_in_another_process_is_said_in_one_line(tmp_path):
    assert in_own_process(_fail) == "no memory"
    found = in_own_process(measure, run_of(tmp_path), "cpu", 4, Repeats(1, 1), Repeats(1, 1))
    assert isinstance(found, Measured)
    assert len(found.step) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_new_process_times_a_run_on_a_gpu(tmp_path):
    """In which nothing has used the GPU before."""
    found = in_own_process(measure, run_of(tmp_path), "cuda:0", 4, Repeats(1, 1), Repeats(1, 1))
    assert isinstance(found, Measured), found
    assert 0 < found.forward_bytes <= found.step_bytes
