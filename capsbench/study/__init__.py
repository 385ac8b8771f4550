"""A study file -> checked, typed runs. The only part of the package that knows the file format."""

from capsbench.study.contrasts import Contrast
from capsbench.study.data_sets import DataOptions, DataSet, Split, catalogue
from capsbench.study.grid import Plan, load_plan
from capsbench.study.schema import Augmentation, Data, Run, Study, Training
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
