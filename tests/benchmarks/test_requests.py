from pathlib import Path

import pandas as pd

from capsbench.benchmarks.networks import COLUMNS, network_digest
from capsbench.benchmarks.requests import Request, requests
from capsbench.study import load_plan

STUDY = """\
name: small
seeds: [0, 1]
training: {epochs: 10, batch_size: 100}
experiments:
  digits: {data: {name: mnist, train_images: 6000}}
variants:
  capsnet: {model: capsnet}
  cnn: {model: resnet20, training: {device: cpu}}
"""


def test_time_and_memory_come_from_the_slowest_measured_machine(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    plan = load_plan(tmp_path / "study.yaml")
    capsnet, cnn = plan.cell("digits", "capsnet", 0), plan.cell("digits", "cnn", 0)
    rows = [
        ("a", None, capsnet, 100.0, 900.0),  # images per second, MB on the GPU
        ("b", None, capsnet, 50.0, 900.0),
        ("c", 1, capsnet, 20.0, 700.0),
        ("c", 1, cnn, 40.0, 1000.5),
    ]
    speeds = tmp_path / "speeds.csv"
    pd.DataFrame(
        [
            dict.fromkeys(COLUMNS, "x")
            | {"machine": m, "threads": t, "network": network_digest(r), "batch_size": 100}
            | {"images_per_second": s, "peak_mb": p}
            for m, t, r, s, p in rows
        ],
        columns=list(COLUMNS),
    ).to_csv(speeds, index=False)
    images = 10 * capsnet.data.trained_images
    found = requests(plan, gpus=True, source=speeds)
    assert set(found) == {run.key for run in plan.runs}
    minutes = 30 + round(2 * images / 50 / 60)
    assert found[capsnet.key] == Request(16000, minutes, minutes)  # an evaluation takes as long as ten epochs
    assert found[cnn.key] == Request(6001, 30 + round(2 * images / 40 / 60), 30 + round(2 * images / 40 / 60))
    # no GPU there: the CPU's speed and memory
    minutes = 30 + round(2 * images / 20 / 60)
    assert requests(plan, gpus=False, source=speeds)[capsnet.key] == Request(5400, minutes, minutes)


def test_a_network_that_was_not_measured_is_assumed_to_be_slow(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    plan = load_plan(tmp_path / "study.yaml")
    images = 10 * plan.runs[0].data.trained_images
    found = requests(plan, gpus=True, source=Path("nowhere.csv"))
    assert found["digits/capsnet/seed0"].training_minutes == 30 + -(-2 * images // (500 * 60))
    assert found["digits/cnn/seed1"].training_minutes == 30 + -(-2 * images // (10 * 60))
