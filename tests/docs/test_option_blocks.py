"""docs/generate.py: the blocks that list options, of a made-up part and of some that are there."""

import sys
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import generate  # noqa: E402

from capsbench.registry import Count, Fraction  # noqa: E402


class MadeUp(BaseModel):
    name: Literal["made_up"] = "made_up"
    steps: Count = 3
    share: Fraction = Field(0.5, description="of the whole")
    sizes: tuple[Count, ...] = (8, 16)
    mode: Literal["fast", "slow"] = "fast"
    exact: bool = False
    limit: int | None = None


def test_options_say_type_limits_default_and_meaning(monkeypatch):
    monkeypatch.setattr(generate, "_options_of", lambda kind, name: MadeUp)
    rows = generate.options(Path(), "routing", "made_up").splitlines()
    assert rows[0] == "| option | values | default | meaning |"
    assert rows[2:] == [
        "| `steps` | whole number ≥ 1 | `3` |  |",
        "| `share` | number ≥ 0, < 1 | `0.5` | of the whole |",
        "| `sizes` | list of whole numbers ≥ 1 | `[8, 16]` |  |",
        "| `mode` | `fast`, `slow` | `fast` |  |",
        "| `exact` | `true`, `false` | `false` |  |",
        "| `limit` | whole number or `null` | `null` |  |",
    ]


def test_options_of_a_group_are_the_names_that_it_takes():
    table = generate.options(Path(), "model", "capsnet")
    routing = next(line for line in table.splitlines() if line.startswith("| `routing`"))
    assert "`em`" in routing
    assert "`dynamic` |" in routing
    decoder = next(line for line in table.splitlines() if line.startswith("| `decoder`"))
    assert "or `null`" in decoder
    assert "inverse_temperature" not in table


def test_a_thing_without_options_says_so():
    assert generate.options(Path(), "routing", "uniform") == "It has no options."


@pytest.mark.parametrize("part", ["study", "experiment", "variant", "data", "training", "augmentation"])
def test_the_keys_of_each_part_of_a_study_file_are_listed(part):
    assert generate.options(Path(), part).startswith("| key | values | default |")


def test_options_of_a_data_set_are_its_own():
    assert "| `view` | `full`, `azimuth`, `elevation` | `full` |" in generate.options(Path(), "data", "smallnorb")
