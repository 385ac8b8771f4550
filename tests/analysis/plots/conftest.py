import pytest
from matplotlib import pyplot as plt

from capsbench.analysis.collect import collect


@pytest.fixture
def finished(plan, write_run):
    for number, run in enumerate(plan.runs):
        write_run(run, error=1.0 + number / 10)
    return plan


@pytest.fixture
def figure_of(results):
    yield lambda draw, plan: draw(plan, results, collect(plan, results))
    plt.close("all")
