"""Within how many points two errors count as the same."""

import math

TENTH, ITEMS_IN_MARGIN = 10, 5  # what counts as the same: a tenth of the error, or five test items


def margin_of(error: float, items: float | None) -> float:
    """Return within how many points of an error in % another one counts as the same as that.

    A tenth of it, or five of the `items` of the test if that is more; None or nan: their number is not known.
    """
    of_test = 100 * ITEMS_IN_MARGIN / items if items and not math.isnan(items) else 0.0
    return max(error / TENTH, of_test)
