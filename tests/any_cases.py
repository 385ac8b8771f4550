"""How many cases a property is tried with, and which: the same each time, from a fixed seed, kept in no database."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy


def cases(few: int, many: int) -> pytest.MarkDecorator:
    """Run a test with few cases, and with many where the slow tests run."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


def for_each(strategy: SearchStrategy, count: int, check: Callable) -> None:
    """Check so many cases. A slow machine fails no case, and the case that fails is made small before it is shown."""
    chosen = settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip

    def property_(case) -> None:
        check(case)

    chosen(given(strategy)(property_))()
