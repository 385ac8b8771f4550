"""A study file -> checked, typed runs. The only part of the package that knows the file format."""

from capsbench.study.contrasts import Contrast
from capsbench.study.data_sets import DataOptions, DataSet, Split, catalogue
from capsbench.study.grid import Plan, load_plan
from capsbench.study.schema import Data, Run, Study
from capsbench.study.training import Augmentation, Training
from capsbench.study.validation import default_training

__all__ = [
    "Augmentation",
    "Contrast",
    "Data",
    "DataOptions",
    "DataSet",
    "Plan",
    "Run",
    "Split",
    "Study",
    "Training",
    "catalogue",
    "default_training",
    "load_plan",
]
