"""capsbench: a reproducible benchmark and ablation pipeline for capsule networks.

    run = capsbench.load_run("results/quick/runs/digits/cnn_matched/seed0")   # a trained network and all about it
    frame = capsbench.results("results/quick")                                # one row per run
    plan = capsbench.load_study("configs/quick.yaml")                         # a study, checked, as runs

The packages capsbench.data, .models, .routing, .layers and .losses are loaded when they are first used.
"""

import importlib
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from capsbench.run.load import LoadedRun
    from capsbench.study import Plan

__version__ = "0.2.0"
__all__ = ["__version__", "load_run", "load_study", "results"]

_PACKAGES = ("data", "errors", "layers", "losses", "models", "registry", "routing", "study")


def load_run(folder: str | PathLike[str], run: str | None = None) -> "LoadedRun":
    """Load a finished run from its folder, or from that of its study.

    Args:
        folder: results/STUDY/runs/EXPERIMENT/VARIANT/seedN; with `run`, results/STUDY, or STUDY alone in the folder
            that has results/.
        run: EXPERIMENT/VARIANT/seedN, for example "mnist/resnet20/seed0".

    Returns:
        The trained network in evaluation mode, its configuration, metrics, predictions and evaluations.

    Raises:
        InputError: in one line, if there is no run in the folder, it is not finished, or its files are damaged.
    """
    from capsbench.run.load import load_run

    return load_run(folder, run)


def load_study(study: str | PathLike[str]) -> "Plan":
    """Load and check a study.

    Args:
        study: path of a study file, or a name in configs/ or among the studies that capsbench ships.

    Returns:
        The study and its runs, with all defaults filled in.

    Raises:
        InputError: in one line, if there is no such study or something in it is wrong.
    """
    from capsbench.study import load_plan
    from capsbench.study.shipped import find_study

    return load_plan(find_study(study))


def results(folder: str | PathLike[str]) -> "pd.DataFrame":
    """Return the runs of a study as a data frame with one row per run.

    Args:
        folder: results/STUDY.

    Returns:
        The columns `experiment`, `data_set`, `variant`, `label`, `model`, `seed`, `status`, the numbers of the
        evaluations (`test_error` in %, `familiar_error`, ...), of the training (`parameters`, `seconds`, ...) and
        the options of the network (`option.routing.iterations`, ...). A run that is not evaluated has no numbers.

    Raises:
        InputError: in one line, if there are no runs in the folder, or a file is damaged.
    """
    from capsbench.run.load import read_results

    return read_results(folder)


def __getattr__(name: str) -> Any:
    """Load a package of capsbench when it is first used."""
    if name in _PACKAGES:
        return importlib.import_module(f"capsbench.{name}")
    raise AttributeError(f"module 'capsbench' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *_PACKAGES]
