"""Trained networks in the MLflow store, as models that `mlflow.pyfunc.load_model` loads where capsbench is installed.

A model holds run.yaml and model.pt and no pickled code: capsbench builds the network from them, as `load_run` does.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsbench import __version__
from capsbench.run.folder import RunFolder
from capsbench.run.load import LoadedRun, image_shapes, load_run

if TYPE_CHECKING:
    from capsbench.run.store import Store


class ImageClassifier:
    """What `mlflow.pyfunc.load_model` gives, inside MLflow's own wrapper."""

    def __init__(self, run: LoadedRun):
        self.run = run

    def predict(self, images: np.ndarray, params: dict[str, Any] | None = None) -> np.ndarray:
        """Return the predicted classes, int64 [N] or [N, S], of float32 images [N, C, H, W] in [0, 1].

        The images are cropped and standardised as those of the run's test were, see `LoadedRun.prepare`. `params` is
        for MLflow; there are none.
        """
        found: np.ndarray = self.run.predict(np.asarray(images)).numpy()
        return found


def _load_pyfunc(data_path: str) -> ImageClassifier:
    """Load a model from its data; the name is that which MLflow calls."""
    return ImageClassifier(load_run(data_path))


def log_model(store: "Store", run_id: str, folder: RunFolder) -> None:
    """Log the trained network of a run with its signature, and tag the run with the id of the model.

    Raises:
        InputError: the run cannot be loaded.
    """
    import mlflow
    import torch
    from mlflow.models import Model, ModelSignature
    from mlflow.types.schema import Schema, TensorSpec

    data = load_run(folder.path).config.data
    objects = data.facts.objects
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("float32"), (-1, *image_shapes(data)[0]))]),
        outputs=Schema([TensorSpec(np.dtype("int64"), (-1,) if objects == 1 else (-1, objects))]),
    )
    # a model goes to the store and the experiment of the process; both are put into its environment, and taken out
    chosen = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID")}
    mlflow.set_tracking_uri(store.uri)
    os.environ["MLFLOW_EXPERIMENT_ID"] = store.client.get_run(run_id).info.experiment_id
    try:
        with tempfile.TemporaryDirectory() as aside:
            files = Path(aside) / "run"
            files.mkdir()
            for path in (folder.record_path, folder.model_path):
                shutil.copy(path, files)
            info = Model.log(
                None,
                flavor=mlflow.pyfunc,
                name="model",
                run_id=run_id,
                loader_module=__name__,
                data_path=str(files),
                signature=signature,
                # given, else MLflow loads the model in another process to guess them
                pip_requirements=[f"capsbench=={__version__}", f"torch=={torch.__version__.split('+')[0]}"],
            )
    finally:
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]
        for name, value in chosen.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    store.client.set_tag(run_id, "capsbench.model", info.model_id)
