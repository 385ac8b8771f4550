"""A step in another form is the same step, or is not taken."""

import functools
import logging
import shutil

import pytest
import torch
from recorded_steps import one_hot_of_a_gpu, recorded  # noqa: F401
from small_networks import CLASSES, SHAPE, build_small
from small_runs import Stop, go, metrics, run_of, stop_after

from capsbench.data.tasks.task import Batch
from capsbench.registry import MODELS, ROUTINGS
from capsbench.run import train as module
from capsbench.run.step import QuickStep, Step, cuda_graph, make_optimizer
from capsbench.study import Training

CPU = torch.device("cpu")
UNCAPTURED = {"scae"}  # its loss asks at which step it is


def batches(sizes=(8, 8, 8, 8, 8, 4, 8, 8)) -> list[Batch]:
    source = torch.Generator().manual_seed(1)
    found = []
    for size in sizes:
        images = torch.rand(size, *SHAPE, generator=source)
        found.append(Batch(images, torch.randint(CLASSES, (size,), generator=source), images))
    return found


def trained(build, form=None, capture=recorded, **training):
    """Take eight steps, one of half a batch, each at a lower rate -> all that they leave, and what took them."""
    torch.manual_seed(0)
    model = build().train()
    step = Step(model, make_optimizer(model, 1e-3), Training(**training))
    take = step if form is None else QuickStep(step, form, CPU, capture)
    torch.manual_seed(2)
    left = []
    for number, batch in enumerate(batches()):
        measured = take(batch, 2.0 ** (-10 - number))  # without more digits than the graph's float32
        left += [measured.values, measured.sums, *([] if measured.couplings is None else [measured.couplings.clone()])]
    moments = [value for kept in step.optimizer.state.values() for value in kept.values()]
    left += [tensor.detach() for tensor in [*model.parameters(), *model.buffers(), *moments, torch.rand(3)]]
    return left, take


def same(one, other) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("name", MODELS.names())
def test_a_captured_step_of_every_network_changes_no_bit(name):
    build = functools.partial(build_small, name)
    expected, _ = trained(build, gradient_clip=1.0, l2=1e-4)
    found, step = trained(build, "graph", gradient_clip=1.0, l2=1e-4)
    assert step.form == ("plain" if name in UNCAPTURED else "graph"), step.reason
    assert same(found, expected)


@pytest.mark.parametrize("name", ROUTINGS.names())
def test_a_captured_step_of_every_routing_changes_no_bit(name):
    routing = {"name": name}
    model = "matrix_capsnet" if "matrix" in name else "capsnet"
    build = functools.partial(build_small, model, routing=routing)
    expected, _ = trained(build)
    found, step = trained(build, "graph")
    assert step.form == "graph" and same(found, expected)


def test_dropout_is_drawn_anew_in_each_captured_step():
    build = functools.partial(build_small, "cnn_sabour_mnist", dropout=0.5)
    expected, _ = trained(build)
    found, step = trained(build, "graph")
    assert step.form == "graph" and same(found, expected)


def with_its_own_images(function):
    """A capture that keeps the images it began with."""
    measured, replay = recorded(function)
    images = replay.__self__.calls[0][1][0]
    kept = images.clone()

    def again():
        images.copy_(kept)
        replay()

    return measured, again


def that_fails(function):
    raise RuntimeError("operation not permitted when stream is capturing\nmore lines")


def with_its_own_rate(function):
    """A capture that keeps the learning rate it began with."""
    measured, replay = recorded(function)
    calls = replay.__self__.calls
    for number, (operation, args, kwargs, new) in enumerate(calls):
        if "lr" in kwargs:
            calls[number] = (operation, args, kwargs | {"lr": torch.tensor(1e-3)}, new)
    return measured, replay


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        (that_fails, "operation not permitted when stream is capturing"),
        (with_its_own_images, "the changes of weights of a trial step differ"),
        (with_its_own_rate, "the changes of weights of a trial step differ"),
    ],
)
def test_a_graph_that_does_something_else_is_not_taken_and_leaves_nothing_behind(capture, reason, caplog):
    build = functools.partial(build_small, "cnn_sabour_mnist", dropout=0.5)
    expected, _ = trained(build)
    with caplog.at_level(logging.WARNING):
        found, step = trained(build, "graph", capture)
    assert step.form == "plain" and step.reason.startswith(reason) and "\n" not in step.reason
    assert same(found, expected)
    assert [record.getMessage() for record in caplog.records] == [
        f"steps are taken operation by operation: {step.reason}"
    ]


def test_a_training_by_graph_leaves_the_same_bytes(tmp_path, monkeypatch):
    rate = {"learning_rate": 2**-10, "lr_decay": 1.0}  # which has no more digits than the graph's float32
    _, plain = go(run_of(tmp_path, **rate), tmp_path / "plain")
    monkeypatch.setattr(module, "QuickStep", functools.partial(QuickStep, capture=recorded))
    run = run_of(tmp_path, device="auto", compile="graph", **rate)
    _, captured = go(run, tmp_path / "captured")
    assert captured.read_record()["step"] == {"form": "graph", "reason": None}
    assert "step" not in plain.read_record()
    assert captured.model_path.read_bytes() == plain.model_path.read_bytes()
    assert metrics(captured) == metrics(plain)

    with pytest.raises(Stop):
        go(run, tmp_path / "resumed", reached=stop_after(2))
    go(run, tmp_path / "resumed")
    assert (tmp_path / "resumed" / captured.model_path.relative_to(tmp_path / "captured")).read_bytes() == (
        plain.model_path.read_bytes()
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_steps_are_plain_and_run_yaml_says_why(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        _, folder = go(run_of(tmp_path, device="auto", compile="graph"), tmp_path / "r")
    step = folder.read_record()["step"]
    assert step == {"form": "plain", "reason": "a graph is for a GPU, and this is none"}
    assert step["reason"] in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs g++ on a CPU")
def test_a_compiled_step_is_the_plain_one():
    build = functools.partial(build_small, "cnn_sabour_mnist", dropout=0.5)
    expected, _ = trained(build)
    found, step = trained(build, "inductor", capture=cuda_graph)
    assert step.form == "inductor", step.reason
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
