"""The figures of a study, each as png and svg: readable in print and by colour-blind people.

Colour never stands alone: lines also differ in dashes and markers. A plot that has no data says so.
"""

import matplotlib

matplotlib.use("Agg")  # before the plots import pyplot: no display is needed

from capsbench.analysis.plots.contrasts import plot_contrasts
from capsbench.analysis.plots.error_by_variant import plot_error_by_variant
from capsbench.analysis.plots.files import PLOTS, write_plots
from capsbench.analysis.plots.learning_curves import plot_learning_curves
from capsbench.analysis.plots.reconstructions import plot_reconstructions
from capsbench.analysis.plots.routing_iterations import plot_routing_iterations

__all__ = [
    "PLOTS",
    "plot_contrasts",
    "plot_error_by_variant",
    "plot_learning_curves",
    "plot_reconstructions",
    "plot_routing_iterations",
    "write_plots",
]
