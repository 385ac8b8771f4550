import math
import time

import pytest
import torch

from capsbench.benchmarks import turns
from capsbench.benchmarks.turns import LEAST_MS, Case, Timed, ready, start_on, take_turns
from capsbench.errors import InputError


def slow_case(name: str, seen: list[str], seconds: float = 0.012) -> Case:
    def once() -> None:
        seen.append(name)
        time.sleep(seconds)

    return Case(ready(once), {"name": name})


def test_all_take_a_turn_in_each_round_after_two_calls_that_are_not_timed():
    seen: list[str] = []
    found = take_turns([slow_case("a", seen), slow_case("b", seen)], "cpu", 3)
    assert seen == ["a", "a", "b", "b", *("a", "b") * 3]
    assert [len(timed.ms) for timed in found] == [3, 3]
    assert all(12 <= ms < 1000 for timed in found for ms in timed.ms)
    assert [timed.peak_mb for timed in found] == [None, None]


def test_a_short_call_is_repeated_until_a_sample_is_long_enough(monkeypatch):
    asked = []
    monkeypatch.setattr(turns, "milliseconds", lambda once, calls, device: asked.append(calls) or 2.1)
    (timed,) = take_turns([slow_case("short", [])], "cpu", 2)
    assert asked == [1, 1, *[math.ceil(LEAST_MS / 2.1)] * 2]
    assert timed.ms == [2.1, 2.1]


def test_several_calls_give_the_time_of_one():
    seen: list[str] = []
    found = turns.milliseconds(slow_case("a", seen).prepare(), 3, "cpu")
    assert len(seen) == 3
    assert 12 <= found < 1000


def test_no_round_begins_that_would_end_too_late_but_the_first():
    seen: list[str] = []
    (timed,) = take_turns([slow_case("a", seen)], "cpu", 1000, seconds=0.0)
    assert len(timed.ms) == 1
    (timed,) = take_turns([slow_case("a", seen)], "cpu", 1000, seconds=0.2)
    assert 1 <= len(timed.ms) < 50


def test_what_has_no_room_has_a_note_and_stops_nothing(monkeypatch):
    def no_room() -> object:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    calls = iter([1, 2])  # those that warm up have room

    def no_room_later() -> None:
        if next(calls, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        time.sleep(0.012)

    seen: list[str] = []
    monkeypatch.setattr(turns, "_free_bytes", lambda: 1e9)
    large = Case(ready(lambda: seen.append("large")), {}, least_needed=2e9)
    cases = [large, Case(ready(no_room), {}), Case(ready(no_room_later), {}), slow_case("a", seen)]
    found = take_turns(cases, "cpu", 2)
    assert [timed.note for timed in found] == [
        "needs 2.0 GB of memory, 1.0 GB are free", "does not fit into memory", "does not fit into memory", "",
    ]  # fmt: skip
    assert [len(timed.ms) for timed in found] == [0, 0, 0, 2]
    assert "large" not in seen
    assert all(math.isnan(value) for value in found[0].summary().values())


class FakeEvent:
    """A CUDA event for machines without a GPU: the time between two is 3 ms."""

    def __init__(self, enable_timing: bool):
        assert enable_timing

    def record(self) -> None:
        pass

    def elapsed_time(self, end: "FakeEvent") -> float:
        return 3.0


def test_a_gpu_is_timed_by_events_and_its_memory_is_measured_but_not_what_a_processor_does(monkeypatch):
    memory = iter([5e6, 8e6])
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(turns, "forget_peak", lambda device: next(memory))
    monkeypatch.setattr(turns, "peak_bytes", lambda device: next(memory))
    seen: list[str] = []
    by_the_clock = Case(slow_case("b", seen).prepare, {}, by_the_clock=True)
    large = Case(slow_case("a", seen).prepare, {}, least_needed=1e30)  # a GPU says itself that it is full
    on_gpu, on_processor = take_turns([large, by_the_clock], "cuda", 2)
    assert on_gpu.ms == [3 / 4, 3 / 4]  # of four calls
    assert on_gpu.peak_mb == 3.0
    assert min(on_processor.ms) >= 12
    assert on_processor.peak_mb is None


def test_any_other_error_is_one():
    def wrong() -> None:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        take_turns([Case(ready(wrong), {})], "cpu", 1)


def test_the_summary_is_of_all_samples():
    assert Timed([4.0, 1.0, 2.0, 3.0]).summary() == {"fastest_ms": 1.0, "median_ms": 2.5, "quartiles_apart_ms": 1.5}


def test_a_gpu_that_is_not_there_is_a_problem_of_input():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="no GPU here"):
        start_on("cuda", 1)
