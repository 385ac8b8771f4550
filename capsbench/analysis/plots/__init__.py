"""The figures of a study, each as png and svg: a column wide, readable in print, in grey and by colour-blind people.

Colour never stands alone: lines also differ in dashes and markers. A plot that has no data says so.
"""

import matplotlib

matplotlib.use("Agg")  # before the plots import pyplot: no display is needed

from capsbench.analysis.plots.accuracy_cost import pareto_front, plot_accuracy_cost
from capsbench.analysis.plots.contrasts import plot_contrasts
from capsbench.analysis.plots.coupling_entropy import plot_coupling_entropy
from capsbench.analysis.plots.error_by_variant import plot_error_by_variant
from capsbench.analysis.plots.familiar_novel import plot_familiar_novel
from capsbench.analysis.plots.files import write_plots
from capsbench.analysis.plots.learning_curves import plot_learning_curves
from capsbench.analysis.plots.published import plot_published
from capsbench.analysis.plots.reconstructions import plot_reconstructions
from capsbench.analysis.plots.registry import NEED_RUN_FOLDERS, PLOTS
from capsbench.analysis.plots.routing_iterations import plot_routing_iterations

__all__ = [
    "NEED_RUN_FOLDERS",
    "PLOTS",
    "pareto_front",
    "plot_accuracy_cost",
    "plot_contrasts",
    "plot_coupling_entropy",
    "plot_error_by_variant",
    "plot_familiar_novel",
    "plot_learning_curves",
    "plot_published",
    "plot_reconstructions",
    "plot_routing_iterations",
    "write_plots",
]
