from pathlib import Path

import pytest
from small_studies import ONE, STUDY

from capsbench.study import Plan, load_plan


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.yaml"


@pytest.fixture
def plan_of(path):
    def load(old: str = "", new: str = "", study: str = STUDY) -> Plan:
        assert old in study
        path.write_text(study.replace(old, new) if old else study + new)
        return load_plan(path)

    return load


@pytest.fixture
def runs_of(plan_of):
    """Return the runs of a study with one variant."""
    return lambda variant: plan_of("VARIANT", variant, ONE).runs


@pytest.fixture
def options_of(runs_of):
    """Return the options of a CapsNet of which a study sets some."""

    def load(options: str, model: str = "capsnet") -> dict:
        (run,) = runs_of(f"{{model: {model}, options: {options}}}")
        return run.options

    return load
