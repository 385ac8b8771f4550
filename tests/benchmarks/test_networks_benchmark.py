from pathlib import Path

import pandas as pd
import pytest
import torch

from capsbench.benchmarks import networks
from capsbench.benchmarks.networks import (
    COLUMNS,
    add_speeds,
    distinct_networks,
    network_digest,
    networks_benchmark,
    read_speeds,
    time_training,
)
from capsbench.errors import InputError
from capsbench.registry import LOSSES, MODELS
from capsbench.run import timing
from capsbench.study import load_plan

STUDY = """\
name: small
seeds: [0, 1]
training: {batch_size: 4}
experiments:
  digits: {data: {name: digits}}
  again: {data: {name: mnist}}
  pairs: {data: {name: multidigits}, variants: [capsnet]}
variants:
  capsnet: {model: capsnet, options: {conv_channels: 4, primary_types: 1, decoder: null}}
  resnet: {model: resnet20, options: {widths: [4, 8], blocks: 1}}
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    return load_plan(tmp_path / "study.yaml")


@pytest.fixture
def make_plan(tmp_path):
    def make(text: str):
        (tmp_path / "other.yaml").write_text(text)
        return load_plan(tmp_path / "other.yaml")

    return make


def row(network: str, speed: float, machine: str = "a CPU, 2 cores", threads: int | None = 1) -> dict:
    facts = dict.fromkeys(COLUMNS, "x") | {"batch_size": 4, "peak_mb": 1.5}
    return facts | {"machine": machine, "threads": threads, "network": network, "images_per_second": speed}


def test_a_network_is_measured_once_whatever_seeds_and_data_sets_share_it(plan):
    assert [f"{run.experiment}/{run.variant}" for run in distinct_networks(plan)] == [
        "digits/capsnet", "digits/resnet", "pairs/capsnet",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("seeds: [0, 1]", "seeds: [5]", True),
        ("training: {batch_size: 4}", "training: {batch_size: 4, learning_rate: 0.1}", True),
        ("training: {batch_size: 4}", "training: {batch_size: 5}", False),
        ("conv_channels: 4", "conv_channels: 5", False),
        ("name: digits", "name: cifar10", False),
        ("name: digits", "name: multidigits", False),
    ],
)
def test_the_digest_knows_what_decides_the_time_of_a_step(plan, make_plan, old, new, same):
    other = make_plan(STUDY.replace(old, new))
    assert (network_digest(other.runs[0]) == network_digest(plan.runs[0])) == same


def test_speed_and_memory_are_measured_in_a_process_of_its_own(plan):
    first = next(networks_benchmark(plan, "cpu", steps=1))
    assert tuple(first) == COLUMNS
    assert first["images_per_second"] > 0
    assert first["peak_mb"] >= 0  # above what importing torch took, which may be more than the network
    assert (first["model"], first["image_shape"], first["batch_size"], first["threads"]) == ("capsnet", "1x28x28", 4, 1)
    assert first["network"] == network_digest(plan.runs[0])
    assert first["torch"] == torch.__version__
    assert "cores" in first["machine"]


def test_a_network_that_cannot_be_measured_is_named_and_left_out(plan, monkeypatch, caplog):
    ends = iter([(10.0, 2e6), "not enough memory", (20.0, 3e6)])
    monkeypatch.setattr(networks, "in_own_process", lambda *_: next(ends))
    found = list(networks_benchmark(plan, "cpu", steps=1))
    assert [line["images_per_second"] for line in found] == [10.0, 20.0]
    assert [line["peak_mb"] for line in found] == [2.0, 3.0]
    assert [r.message for r in caplog.records] == ["digits/resnet: not measured: not enough memory"]


SMALL = {
    "capsnet": "{conv_channels: 4, primary_types: 1}",
    "cnn_hinton_norb": "{conv_channels: [4, 4], hidden: 8}",
    "cnn_matched": "{matched_to: {name: resnet20, widths: [4, 8], blocks: 1}}",
    "cnn_sabour_mnist": "{conv_channels: [4, 4, 4], hidden: [8, 8]}",
    "cnn_sabour_multimnist": "{conv_channels: [4, 4], hidden: 8}",
    "deepcaps": "{conv_channels: 4, cell_types: [2, 2, 2, 2], cell_dims: [2, 2, 2, 2], class_dim: 4}",
    "efficient_capsnet": "{}",
    "matrix_capsnet": "{conv_channels: 4, primary_types: 2, conv_types: [2, 2]}",
    "resnet20": "{widths: [4, 8], blocks: 1}",
    "self_routing_capsnet": "{}",
}


@pytest.mark.parametrize("model", MODELS.names())
def test_every_network_can_be_timed(make_plan, model):
    text = "name: one\nseeds: [0]\ntraining: {batch_size: 2}\nexperiments: {e: {data: {name: cifar10}}}\n"
    run = make_plan(text + f"variants: {{v: {{model: {model}, options: {SMALL.get(model, '{}')}}}}}\n").runs[0]
    assert time_training(run, "cpu", 1)[0] > 0


def test_pairs_have_two_labels_and_two_targets(plan, monkeypatch):
    seen = []
    monkeypatch.setattr(timing, "random_batch", lambda *a, was=timing.random_batch: seen.append(was(*a)) or seen[-1])
    time_training(plan.cell("pairs", "capsnet", 0), "cpu", 1)
    images, labels, targets = seen[0]
    assert (images.shape, labels.shape, targets.shape) == ((4, 1, 36, 36), (4, 2), (4, 2, 1, 36, 36))
    assert (labels[:, 0] < labels[:, 1]).all()


def test_a_loss_with_a_schedule_knows_that_training_begins(plan, make_plan, monkeypatch):
    begun = []
    monkeypatch.setattr(LOSSES["spread"].factory, "begin", lambda loss, *length: begun.append(length))
    spread = make_plan(STUDY.replace("decoder: null", "decoder: null, routing: em, loss: spread"))
    time_training(spread.runs[0], "cpu", 3)
    assert begun == [(5, 1.0)]


def test_speeds_are_added_and_replaced(tmp_path):
    path = tmp_path / "new/speeds.csv"
    add_speeds(path, [row("one", 1.0), row("two", 2.0), row("one", 3.0, "a GPU", None)])
    add_speeds(path, [row("one", 4.0), row("one", 5.0, "a GPU", None), row("one", 6.0, threads=2)])
    found = read_speeds(path)
    assert list(found.columns) == list(COLUMNS)
    kept = [
        (r.machine, None if pd.isna(r.threads) else r.threads, r.network, r.images_per_second)
        for r in found.itertuples()
    ]
    assert kept == [
        ("a CPU, 2 cores", 1, "two", 2.0), ("a CPU, 2 cores", 1, "one", 4.0), ("a GPU", None, "one", 5.0),
        ("a CPU, 2 cores", 2, "one", 6.0),
    ]  # fmt: skip


def test_a_digest_of_digits_alone_stays_text(tmp_path):
    add_speeds(tmp_path / "speeds.csv", [row("0123456789012345", 1.0), row("12345e67", 2.0)])
    assert list(read_speeds(tmp_path / "speeds.csv")["network"]) == ["0123456789012345", "12345e67"]


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "{}", ",".join(COLUMNS) + "\n" + ",".join("x" * len(COLUMNS))])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "speeds.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=r"speeds\.csv: not a file of 'capsbench bench networks'"):
        add_speeds(path, [row("one", 1.0)])
    assert path.read_text() == content
    with pytest.raises(InputError, match="no such file of speeds"):
        read_speeds(Path("nowhere.csv"))


def test_a_gpu_that_is_not_there_is_a_problem_of_input(plan):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="no GPU here"):
        next(networks_benchmark(plan, "cuda", 1))
