"""The networks of runs as MLflow's models."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from test_store import NOWHERE, client_of, found, write_study

from capsbench.run.folder import RunFolder
from capsbench.run.load import load_run
from capsbench.run.store import store_uri
from capsbench.run.tracking import track_study
from capsbench.run.train import train


@pytest.fixture
def plan(tmp_path):
    return write_study(tmp_path / "study.yaml")


@pytest.fixture
def results(tmp_path):
    (tmp_path / "r").mkdir()
    return tmp_path / "r"


def test_a_model_is_logged_on_request_and_loads_where_capsbench_is(plan, results):
    run = plan.cell("digits", "em", 0)
    train(run, results, NOWHERE, tracking=False)
    folder = RunFolder.of(results, run.study, run.key)
    track_study(plan, results)
    assert "capsbench.model" not in found(results)[run.key].data.tags
    assert track_study(plan, results, models=True)["written"] == 1
    assert track_study(plan, results, models=True)["current"] == 1
    identity = found(results)[run.key].data.tags["capsbench.model"]
    images = np.random.default_rng(0).random((7, *run.data.image_shape), dtype=np.float32)
    np.save(results / "images.npy", images)
    code = (
        "import sys, numpy as np, mlflow\n"
        "mlflow.set_tracking_uri(sys.argv[1])\n"
        "model = mlflow.pyfunc.load_model(f'models:/{sys.argv[2]}')\n"
        "print(model.metadata.signature.inputs.inputs[0].shape)\n"
        "print(model.predict(np.load(sys.argv[3])).tolist())\n"
    )
    # in another folder: nothing of the model points back to the run folder
    shutil.rmtree(results / "small")
    done = subprocess.run(
        [sys.executable, "-c", code, store_uri(results), identity, str(results / "images.npy")],
        capture_output=True, text=True, check=False, cwd=results,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shape, classes = done.stdout.strip().splitlines()[-2:]
    assert shape == str((-1, *run.data.image_shape))
    assert len(json.loads(classes)) == 7
    assert not folder.path.exists()


def test_a_model_predicts_what_the_run_does(plan, results):
    from capsbench.run.store_model import _load_pyfunc

    run = plan.cell("digits", "em", 0)
    train(run, results, NOWHERE, tracking=False)
    folder = RunFolder.of(results, run.study, run.key)
    images = np.random.default_rng(0).random((20, *run.data.image_shape), dtype=np.float32)
    expected = load_run(folder.path).predict(images).numpy()
    assert np.array_equal(_load_pyfunc(str(folder.path)).predict(images), expected)


def test_the_model_of_a_run_that_is_trained_again_goes(plan, results):
    run = plan.cell("digits", "em", 0)
    train(run, results, NOWHERE, tracking=False)
    track_study(plan, results, models=True)
    folder = RunFolder.of(results, run.study, run.key)
    folder.write_record({**folder.read_record(), "started": "2030-01-01T00:00:00Z"})
    track_study(plan, results, models=True)
    client = client_of(results)
    experiment = client.get_experiment_by_name("small").experiment_id
    models = client.search_logged_models([experiment])
    assert [model.model_id for model in models] == [found(results)[run.key].data.tags["capsbench.model"]]
    assert [model.source_run_id for model in models] == [found(results)[run.key].info.run_id]
