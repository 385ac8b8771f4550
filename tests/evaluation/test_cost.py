from types import SimpleNamespace

import pytest
import torch

from capsbench.errors import RunError
from capsbench.evaluation import cost as protocol
from capsbench.evaluation.cost import cost, costs
from capsbench.registry import PROTOCOLS
from capsbench.run.timing import Measured
from tests.small_runs import run_of

KNOWN = Measured([0.01, 0.02, 0.03, 0.04, 0.05], 3e6, [0.1, 0.1, 0.1, 0.1, 9.0], 5e6)


@pytest.fixture
def context(tmp_path):
    return SimpleNamespace(run=run_of(tmp_path), device=torch.device("cpu"))


def test_medians_and_quartiles_of_known_times():
    found = costs(KNOWN, 8)
    assert found["forward_ms"] == pytest.approx(30.0)
    assert found["forward_quartiles_ms"] == pytest.approx([20.0, 30.0, 40.0])
    assert found["forward_spread_ms"] == pytest.approx(20.0)
    assert found["training_step_ms"] == pytest.approx(100.0)  # one slow step moves nothing
    assert found["training_images_per_second"] == pytest.approx(80.0)
    assert (found["forward_memory_mb"], found["training_memory_mb"]) == (3.0, 5.0)
    assert found["repeats"] == {"forward": 5, "training_step": 5}


def test_a_network_is_measured_at_the_batch_size_of_its_training_or_another(context, monkeypatch):
    asked = []
    monkeypatch.setattr(protocol, "in_own_process", lambda function, *arguments: asked.append(arguments) or KNOWN)
    assert cost(context)["conditions"]["batch_size"] == context.run.training.batch_size == asked[0][2]
    found = cost(context, batch_size=7)
    assert (found["conditions"]["batch_size"], asked[1][2]) == (7, 7)
    assert found["training_images_per_second"] == pytest.approx(70.0)
    assert found["conditions"]["threads"] == context.run.training.threads


@pytest.mark.parametrize(("load", "warned"), [(0.0, False), (1.0, False), (5.0, True)])
def test_a_busy_machine_is_named(context, monkeypatch, load, warned):
    monkeypatch.setattr(protocol, "in_own_process", lambda *_: KNOWN)
    monkeypatch.setattr(protocol.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(protocol.os, "cpu_count", lambda: 2)
    conditions = cost(context)["conditions"]
    assert conditions["load_average"] == load
    assert ("warning" in conditions) == warned
    assert not warned or "load of 5.0 on 2 cores" in conditions["warning"]


def test_what_could_not_be_measured_is_no_number(context, monkeypatch):
    monkeypatch.setattr(protocol, "in_own_process", lambda *_: "out of memory")
    with pytest.raises(RunError, match="out of memory"):
        cost(context)


def test_it_runs_alone_and_is_measured_for_real(context):
    assert PROTOCOLS["cost"].facts["alone"]
    found = cost(context, batch_size=4, seconds=0.01)
    assert found["status"] == "ok"
    assert 0 < found["forward_ms"] < found["training_step_ms"]
    assert found["repeats"]["forward"] >= protocol.LEAST
    assert 0 < found["forward_memory_mb"] <= found["training_memory_mb"] < 400
    assert set(PROTOCOLS["cost"].facts["shows"]) <= set(found)
