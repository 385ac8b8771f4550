"""What no study needs, and what would fill the memory or the disk, is one line before anything runs."""

import time

import pytest

from capsbench.errors import InputError
from capsbench.study import load_plan
from capsbench.study.grid import MOST_RUNS

STUDY = """\
name: {name}
seeds: {seeds}
training: {{epochs: {epochs}, threads: {threads}, device: cpu}}
experiments: {{{experiment}: {{data: {{name: digits}}}}}}
variants: {{{variant}: {{model: capsnet, options: {{conv_channels: {channels}}}, grid: {{{grid}}}}}}}
"""
USUAL = {
    "name": "small", "seeds": "[0, 1]", "epochs": 1, "threads": 1, "experiment": "e", "variant": "v", "channels": 8,
    "grid": "routing.iterations: [1, 3]",
}  # fmt: skip
MANY = list(range(1, 61))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "reference"}, "name: results/reference is for what is committed"),
        ({"name": "mlflow.db"}, "name: results/mlflow.db is the store"),
        ({"name": "mlruns"}, "name: results/mlruns"),
        ({"name": "n" * 101}, "at most 100 characters"),
        ({"experiment": "e" * 101}, "at most 100 characters"),
        ({"variant": "v" * 101}, "at most 100 characters"),
        (
            {"grid": f"decoder.hidden: [{list(range(100))[1:]}, [1, 2]], decoder.name: [fully_connected]"},
            "has a name of [23].. letters",
        ),
        ({"epochs": 10**12}, "training.epochs: .* less than or equal to 10000000"),
        ({"threads": 2000}, "training.threads: .* less than or equal to 1024"),
        ({"channels": 10**9}, "options.conv_channels: .* less than or equal to 10000000"),
        ({"grid": "routing.iterations: [3, 101]"}, "iterations: 101 .* less than or equal to 100"),
        (
            {"grid": f"primary_types: {MANY}, primary_dim: {MANY}, class_dim: {MANY}"},
            r"variants\.v\.grid: has 216,000 combinations; a study has at most 20,000 runs",
        ),
        (
            {"grid": f"primary_types: {MANY}, primary_dim: {MANY}", "seeds": list(range(10))},
            "experiments: 3,600 cells x 10 seeds are more runs than a study has at most, 20,000",
        ),
    ],
)
def test_it_is_one_line_and_takes_no_time(tmp_path, changes, words):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(**USUAL | changes))
    start = time.perf_counter()
    with pytest.raises(InputError, match=words) as raised:
        load_plan(path)
    assert time.perf_counter() - start < 10 and "\n" not in str(raised.value)
    assert str(raised.value).startswith(str(path))


def test_what_is_below_the_limits_is_a_study(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(**USUAL | {"name": "n" * 100, "experiment": "e" * 100}))
    assert len(load_plan(path).runs) == 4 < MOST_RUNS
