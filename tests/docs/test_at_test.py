"""docs/at_test.py: networks tested with one routing iteration, from what the protocol `routing` measured."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from at_test import at_test, one_iteration_at_test  # noqa: E402

HEAD = "experiment,data_set,variant,label,model,option.routing,seed,status,key,test_error,unofficial\n"


@pytest.fixture
def reference(tmp_path):
    """Three seeds of: three iterations, of which one is worse; three without a difference; one; no routing."""
    measured = {"three": [(2.0, 5.1), (2.2, 5.2), (2.4, 5.6)], "same": [(3.0, 3.0)] * 3, "one": [(4.0, 4.0)] * 3}
    iterations = {"three": [3], "same": [2, 3], "one": [1]}
    rows, measures = [], {}
    for variant in (*measured, "cnn"):
        for seed in range(3):
            key = f"mnist/{variant}/seed{seed}"
            routing = "em" if variant == "same" else "dynamic"
            rows.append(f"mnist,mnist,{variant},CapsNet {variant},capsnet,{routing},{seed},ok,{key},2.5,\n")
            if variant in measured:
                error, at_one = measured[variant][seed]
                found = {"error": error, "error_at_one": at_one, "entropy": 0.9 + seed / 100, "images": 1000}
                measures[key] = {"routing": {**found, "iterations_as_trained": iterations[variant]}}
            else:
                measures[key] = {"routing": {"status": "not applicable"}}
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "runs.csv").write_text(HEAD + "".join(rows))
    (folder / "measures.json").write_text(json.dumps(measures))
    return tmp_path


def test_networks_with_more_than_one_iteration_are_compared_seed_by_seed(reference):
    found = one_iteration_at_test(reference, "tiny").set_index("contrast")
    assert list(found.index) == ["three", "same"]
    three = found.loc["three"]  # differences 3.1, 3.0 and 3.2
    assert three["mean"] == pytest.approx(3.1)
    assert (three["low"], three["high"]) == pytest.approx((3.1 - 0.2484, 3.1 + 0.2484), abs=1e-4)  # 4.3027 x 0.1 / √3
    assert (three["as_trained"], three["with_one"], three["trained"]) == (pytest.approx(2.2), pytest.approx(5.3), "3")
    assert [part.split(": ")[0] for part in three["differences"].split("; ")] == ["0", "1", "2"]
    assert three["p_holm"] == three["p"] < 0.001  # the other has no p value and is no test
    assert tuple(found.loc["same", ["mean", "low", "high"]]) == (0, 0, 0)
    assert three["margin"] == pytest.approx(0.22)  # a tenth of the error as trained
    assert three["p_same"] > 0.99


def test_a_seed_that_was_not_measured_is_no_seed_of_a_comparison(reference):
    path = reference / "tiny/measures.json"
    measures = json.loads(path.read_text())
    del measures["mnist/three/seed1"]
    path.write_text(json.dumps(measures))
    assert list(one_iteration_at_test(reference, "tiny")["contrast"]) == ["same"]  # two seeds have no interval


def test_the_table_has_a_row_per_method_and_says_how_many_images_there_were(reference):
    lines = at_test(reference, "tiny").splitlines()
    assert lines[0] == "| network | iterations in training | coupling entropy (MNIST) | MNIST |"
    assert lines[2:4] == [
        "| CapsNet three | 3 | 0.910 | 2.20 → 5.30 (**+3.10 [+2.85, +3.35]**) |",
        "| CapsNet same | 2 or 3 | 0.910 | 3.00 → 3.00 (equal in every seed) |",
    ]
    assert "mean over 3 seeds" in lines[5]
    assert "on 1,000 test images" in lines[5]
    assert "for all 1 cells" in lines[5]
