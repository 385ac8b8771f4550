"""Which plots there are. Each takes the plan, the folder of all results (None: no run folders) and the runs."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from capsbench.analysis.plots.accuracy_cost import plot_accuracy_cost
from capsbench.analysis.plots.contrasts import plot_contrasts
from capsbench.analysis.plots.coupling_entropy import plot_coupling_entropy
from capsbench.analysis.plots.error_by_variant import plot_error_by_variant
from capsbench.analysis.plots.familiar_novel import plot_familiar_novel
from capsbench.analysis.plots.learning_curves import plot_learning_curves
from capsbench.analysis.plots.published import plot_published
from capsbench.analysis.plots.reconstructions import plot_reconstructions
from capsbench.analysis.plots.routing_iterations import plot_routing_iterations
from capsbench.analysis.plots.templates import plot_templates
from capsbench.study import Plan

PLOTS: dict[str, Callable[[Plan, Path | None, pd.DataFrame], Figure]] = {
    "contrasts": plot_contrasts,
    "published": plot_published,
    "error_by_variant": plot_error_by_variant,
    "learning_curves": plot_learning_curves,
    "routing_iterations": plot_routing_iterations,
    "accuracy_cost": plot_accuracy_cost,
    "familiar_novel": plot_familiar_novel,
    "coupling_entropy": plot_coupling_entropy,
    "reconstructions": plot_reconstructions,
    "templates": plot_templates,
}
OF_IMAGES = ("reconstructions", "templates", "perturbation", "segmentation")  # with plots of protocols
NEED_RUN_FOLDERS = ("learning_curves", "coupling_entropy", *OF_IMAGES)
