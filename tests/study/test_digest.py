"""Digests of runs: what is kept of results must outlive options that come later."""

from pathlib import Path

import pytest
import yaml

from capsbench.registry import MODELS
from capsbench.study import load_plan

REFERENCE = Path(__file__).parents[2] / "results/reference/fair"


def runs_of(tmp_path, variant):
    path = tmp_path / "study.yaml"
    path.write_text(
        f"name: one\nseeds: [0]\nexperiments: {{digits: {{data: {{name: digits}}}}}}\nvariants: {{v: {variant}}}\n"
    )
    return load_plan(path).runs


def test_the_runs_of_the_committed_study_have_the_digests_that_they_were_trained_under():
    trained = yaml.safe_load((REFERENCE / "provenance.yaml").read_text())["runs"]
    expected = {f"{run['experiment']}/{run['variant']}/seed{run['seed']}": run["digest"] for run in trained}
    plan = load_plan(REFERENCE / "study.yaml")
    assert {run.key: run.digest for run in plan.runs} == expected
    assert any("backbone" in run.options for run in plan.runs)  # which has come since
    assert any("backbone" in run.options.get("matched_to", {}) for run in plan.runs)


@pytest.mark.parametrize("nested", [False, True])
def test_an_option_that_came_later_counts_where_it_is_not_at_its_default(tmp_path, nested):
    form = (
        "{model: cnn_matched, options: {matched_to: {OPTIONS}}}" if nested else "{model: capsnet, options: {OPTIONS}}"
    )
    digests = [
        runs_of(tmp_path, form.replace("OPTIONS", given))[0].digest
        for given in ("padding: valid", "backbone: conv", "backbone: resnet20", "padding: same")
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_options_are_all_there_though_the_digest_leaves_some_out(tmp_path):
    run = runs_of(tmp_path, "{model: capsnet}")[0]
    assert {"name": "capsnet", **run.options} == MODELS.options("capsnet")().plain()
    assert run.options.keys() - run.lasting_options.keys() == {"backbone"}
