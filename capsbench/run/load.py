"""Finished runs, read back from their folders: the network, what it was trained on, and what came of it."""

import difflib
import warnings
import zipfile
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from capsbench.data.tasks.augmentation import standardise
from capsbench.data.tasks.cropped import SIDE as WHOLE_SIDE
from capsbench.data.tasks.cropped import CroppedOptions, central_crops
from capsbench.data.tasks.stereo import NorbOptions, class_shares, view_of_test
from capsbench.data.tasks.task import evaluation_batch, to_unit_range
from capsbench.errors import InputError
from capsbench.models import Network, build_model, predict, predicted_classes
from capsbench.registry import MODELS, flat_options
from capsbench.run.checkpoint import load_tensors
from capsbench.run.finished import FINISHED
from capsbench.run.folder import ABOUT, RunFolder
from capsbench.study import Data, Run, Training, catalogue

if TYPE_CHECKING:
    import pandas as pd

_IDENTITY = ("study", "experiment", "variant", "label", "seed")
_MOST_KEYS = 12  # that a message names
_TRAINING = ("parameters", "epochs", "seconds", "started", "commit")


class LoadedRun:
    """A finished run.

    Attributes:
        path: folder of the run.
        record: run.yaml: status, versions, machine, commit, what was trained on.
        config: what was trained, with all defaults filled in: data, model, options, training, seed.
        model: the trained network, on the CPU, in evaluation mode; `model(images)` takes what the network saw in
            training, see `prepare`.
    """

    def __init__(self, folder: RunFolder, record: Mapping[str, Any]):
        self.path = folder.path
        self.record = dict(record)
        self.config = configuration(folder, record)
        self.model = _trained(folder, self.config)
        self._folder = folder

    def __repr__(self) -> str:
        return f"LoadedRun({self.config.key}: {self.config.label}, {self.record['status']})"

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """metrics.csv as a data frame: one row per epoch."""
        import pandas as pd

        self._folder.check(self._folder.metrics_path, self.record)
        try:
            return pd.read_csv(self._folder.metrics_path)
        except FileNotFoundError:
            raise InputError(f"{self._folder.metrics_path}: not there; train the run again") from None
        except (ValueError, pd.errors.EmptyDataError) as error:
            raise InputError(f"{self._folder.metrics_path}: damaged ({error}); train the run again") from None

    @cached_property
    def predictions(self) -> dict[str, np.ndarray]:
        """predictions.npz: arrays of the test set.

        scores [N, K] and labels [N] (or [N, S] for S objects in an image), for a network with a decoder also
        squared_errors [N]. A run that diverged has none.
        """
        path = self._folder.predictions_path
        if not path.exists():
            evaluate = f"'capsbench evaluate STUDY {self.config.key}' writes it"
            raise InputError(f"{path}: not there; {evaluate}, a reference has none")
        self._folder.check(path, self.record)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except (ValueError, OSError, zipfile.BadZipFile, EOFError):
            raise InputError(f"{path}: damaged; delete it and evaluate the run again") from None

    @cached_property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Results by protocol: {"accuracy": {"error": 1.5, ...}, ...}; empty for a run that is not evaluated."""
        return _evaluations(self._folder, self.record)

    def predict(self, images: Tensor | np.ndarray) -> Tensor:
        """Return the predicted classes of images.

        The images are prepared as those of the test set were, see `prepare`. The network computes on the device it
        is on.

        Args:
            images: [N, C, H, W], uint8 or floats in [0, 1], as `capsbench.data.load` gives them.

        Returns:
            int64 [N], or [N, S] ascending for a data set with S objects in an image; on the CPU.

        Raises:
            InputError: the images have another shape or other values.
        """
        objects = self.config.data.facts.objects
        device = next(self.model.parameters()).device
        given = self._checked(images)
        scores = [torch.empty(0, self.config.data.facts.num_classes)]
        with torch.no_grad():
            for part in filter(len, given.split(evaluation_batch(device))):
                found = [predict(self.model, view.to(device), objects) for view in self.prepare(part)]
                shares = [class_shares(output.scores, output.activations) for output in found]
                scores.append((found[0].scores if len(found) == 1 else torch.stack(shares).mean(dim=0)).cpu())
        return predicted_classes(torch.cat(scores), objects)

    def prepare(self, images: Tensor | np.ndarray) -> list[Tensor]:
        """Make of images what the network sees.

        Bytes become floats in [0, 1]. Whole images of smallNORB, toynorb and CIFAR-10 (48x48, 64x64 or 32x32, by the
        run's options) are cropped and standardised as in the run's test: in the centre, or 13 times with `test_crops:
        13`. Crops of the network's size are only standardised; they are refused where the run standardised images
        before it cropped them. The images of other data sets stay as they are.

        Args:
            images: [N, C, H, W], uint8 or floats in [0, 1].

        Returns:
            One float tensor [N, C, H, W] per crop; `predict` averages over them.

        Raises:
            InputError: the images have another shape or other values.
        """
        given = _unit_range(self._checked(images))
        options = self.config.data.options
        if isinstance(options, CroppedOptions):
            crop = central_crops(given, options.crop)
            return [standardise(crop) if options.standardise else crop]
        if not isinstance(options, NorbOptions):
            return [given]
        views = options.test_crops if given.shape[2] > options.crop else 1
        return [view_of_test(given, options, view)[0] for view in range(views)]

    def _checked(self, images: Tensor | np.ndarray) -> Tensor:
        """Return images as a tensor of a shape that the network, or its test, takes."""
        given = _tensor(images)
        data = self.config.data
        shapes = image_shapes(data)
        if given.ndim != 4 or tuple(given.shape[1:]) not in shapes:
            wanted = " or ".join(f"N x {' x '.join(map(str, shape))}" for shape in shapes)
            found = " x ".join(map(str, given.shape)) or "a number"
            raise InputError(f"images of {data.name} are {wanted}, not {found}")
        return given


def load_run(path: str | PathLike[str], run: str | None = None) -> LoadedRun:
    """Load a finished run from its folder. Raises InputError, see `capsbench.load_run`."""
    path = Path(path) if run is None else _run_of_study(Path(path), run)
    folder = RunFolder(path)
    record = folder.read_record()
    if record is None:
        if run is None and (runs := _runs_of(path)) is not None:
            raise InputError(f"{path}: a study; name one of its runs, load_run('{path}', RUN): {_named(_keys(runs))}")
        raise InputError(f"{path}: no run here (no run.yaml); runs are in results/STUDY/runs/EXPERIMENT/VARIANT/seedN")
    if record["status"] not in FINISHED:
        problem = f" ({record['problem']})" if record.get("problem") else ""
        raise InputError(f"{path}: the run is not finished, its status is {record['status']}{problem}; train it first")
    return LoadedRun(folder, record)


def _run_of_study(study: Path, run: str) -> Path:
    """Return the folder of a run below results/STUDY, or below STUDY in results/ of the working folder."""
    runs = _runs_of(study)
    if runs is None:
        raise InputError(f"{study}: no runs here, nor in {'results' / study}")
    if not (runs / run / "run.yaml").is_file():
        keys = _keys(runs)
        near = difflib.get_close_matches(run, keys, n=1) or keys[:1]
        hint = f"; there is {near[0]}" if near else ""
        raise InputError(f"{runs}: no run '{run}'{hint}")
    return runs / run


def _runs_of(study: Path) -> Path | None:
    """Return the folder with the runs of a study, below it or below its name in results/ of the working folder."""
    return next((root / "runs" for root in (study, "results" / study) if (root / "runs").is_dir()), None)


def _keys(runs: Path) -> list[str]:
    return [path.parent.relative_to(runs).as_posix() for path in sorted(runs.glob("*/*/*/run.yaml"))]


def _named(keys: list[str]) -> str:
    rest = len(keys) - _MOST_KEYS
    return ", ".join(keys[:_MOST_KEYS]) + (f" and {rest} more" if rest > 0 else "") if keys else "it has none"


def read_results(path: str | PathLike[str]) -> "pd.DataFrame":
    """Return all runs below results/STUDY as a data frame. Raises InputError, see `capsbench.results`."""
    import pandas as pd

    paths = sorted(Path(path).glob("runs/*/*/*/run.yaml"), key=_natural_order)
    if not paths:
        raise InputError(f"{path}: no runs here; the folder of a study is results/STUDY")
    return pd.DataFrame([_row(RunFolder(path.parent)) for path in paths])


def _row(folder: RunFolder) -> dict[str, Any]:
    record = folder.read_record() or {}
    try:
        config = record["config"]
        row = {key: record.get(key, record["variant"]) for key in _IDENTITY}
        row |= {"data_set": config["data"]["name"], "model": config["model"], "status": record["status"]}
        row |= {"key": "/".join(folder.path.parts[-3:])}
        options = {f"option.{name}": value for name, value in flat_options(config["options"]).items()}
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{folder.record_path}: damaged; delete the folder and train the run again") from None
    for protocol, found in _evaluations(folder, record).items():
        numbers = {key: value for key, value in found.items() if _is_number(value)}
        row |= {f"{'test' if protocol == 'accuracy' else protocol}_{key}": value for key, value in numbers.items()}
    row |= {key: record.get(key) for key in _TRAINING}
    return row | {"train_images": record.get("data", {}).get("train_images")} | options


def _evaluations(folder: RunFolder, record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read the results of all protocols that belong to this training of the run."""
    about = set(ABOUT) - {"commit"}
    return {
        protocol: {key: value for key, value in found.items() if key not in about}
        for protocol, found in folder.read_evaluations(record).items()
    }


def configuration(folder: RunFolder, record: Mapping[str, Any]) -> Run:
    """Make the configuration of a run from its record. Raises InputError if another version of the package wrote it."""
    try:
        config = dict(record["config"])
        given = dict(config["data"])
        options = catalogue()[given["name"]].options(**given["options"])
        identity = {key: record.get(key, record["variant"]) for key in _IDENTITY}
        MODELS.options(config["model"])(**config["options"])  # known to this version
        return Run(
            **identity,
            data=Data(**{**given, "options": options}),
            model=config["model"],
            options=config["options"],
            training=Training(**config["training"]),
            matched_digest=config.get("matched_digest"),
        )
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        first = f"{type(error).__name__} {error}"
        if isinstance(error, ValidationError):
            problem = error.errors()[0]
            first = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        raise InputError(_of_another_version(folder, record, first)) from None


def _trained(folder: RunFolder, config: Run) -> Network:
    """Build the network of a run and give it its weights."""
    with torch.random.fork_rng(devices=[]):  # what the caller draws does not depend on what was loaded
        try:
            model = build_model(config.model, config.data.image_shape, config.data.facts.num_classes, **config.options)
        except ValueError as error:
            raise InputError(_of_another_version(folder, folder.read_record() or {}, str(error))) from None
    folder.check(folder.model_path, folder.read_record() or {})
    load_weights(model, folder.model_path)
    return model.eval()


def load_weights(model: Network, path: Path) -> None:
    """Give a network the weights of a model.pt.

    Raises:
        InputError: the file is missing, damaged, or does not hold the weights of this network.
    """
    if not path.is_file():
        problem = "not a file" if path.exists() else "not there"
        raise InputError(f"{path}: {problem}; train the run again, with --again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about some of the files that it then refuses
            model.load_state_dict(load_tensors(path))
    except Exception as error:  # torch raises a dozen kinds for what is no file of its own
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        differs = len(lines) > 1 and "loading state_dict" in lines[0]  # then the next line says in what
        problem = (lines[1] if differs else "".join(lines[:1])).split(". ")[0][:160]
        problem = problem if " " in problem else "not a file that torch.save wrote"  # such as a bare KeyError
        raise InputError(
            f"{path}: damaged, or of another network ({problem}); train the run again, with --again"
        ) from None


def _of_another_version(folder: RunFolder, record: Mapping[str, Any], problem: str) -> str:
    commit = record.get("commit", "unknown")
    return f"{folder.record_path}: written by another version of capsbench, commit {commit} ({problem})"


def image_shapes(data: Data) -> list[tuple[int, int, int]]:
    """Return which (C, H, W) `prepare` takes: that of the network, and that of whole images."""
    options, seen = data.options, data.image_shape
    if isinstance(options, CroppedOptions):
        return list(dict.fromkeys([seen, (seen[0], WHOLE_SIDE, WHOLE_SIDE)]))
    if not isinstance(options, NorbOptions):
        return [seen]
    whole = (seen[0], options.side, options.side)
    by_whole = options.augment == "after_standardising" and options.standardise_by == "image"
    return [whole] if by_whole else list(dict.fromkeys([seen, whole]))


def _tensor(images: object) -> Tensor:
    """Return images, whatever was given for them, as a tensor."""
    try:
        if not isinstance(images, Tensor):
            return torch.from_numpy(np.array(images))  # a copy: torch takes no views that run backwards
        if images.layout == torch.strided:
            return images.detach()
    except (TypeError, ValueError, RuntimeError):
        pass
    kind = f"{type(images).__name__} of {images.dtype}" if hasattr(images, "dtype") else type(images).__name__
    raise InputError(f"images are an array or a tensor of uint8 or floats in [0, 1], not {kind}")


def _unit_range(images: Tensor) -> Tensor:
    """Return images as floats in [0, 1]."""
    if images.dtype == torch.uint8:
        return to_unit_range(images)
    if not images.is_floating_point():
        raise InputError(f"images are uint8 or floats in [0, 1], not {images.dtype}")
    if len(images) and not (float(images.min()) >= 0 and float(images.max()) <= 1):
        raise InputError(f"float images lie in [0, 1], not {float(images.min()):g} to {float(images.max()):g}")
    return images.float()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _natural_order(path: Path) -> tuple[str, str, int, str]:
    """Sort seed10 after seed9."""
    experiment, variant, seed = path.parts[-4:-1]
    digits = seed.removeprefix("seed")
    return experiment, variant, int(digits) if digits.isdecimal() else 0, seed
