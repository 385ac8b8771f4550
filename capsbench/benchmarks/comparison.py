"""A measurement against an earlier one of the same machine: what is slower, beyond the noise."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from capsbench.errors import InputError

SLOWER = 1.2  # a regression: the fastest pass takes this much longer, and more than the quartiles are apart


def read_measured(path: Path, columns: Sequence[str], command: str) -> pd.DataFrame:
    """Read a file that a benchmark wrote.

    Args:
        path: of the file.
        columns: that it must have, in their order.
        command: what writes it, for the message.

    Raises:
        InputError: it is not there or is something else.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; '{command}' writes it")
    try:
        found = pd.read_csv(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError:  # pandas: no columns, a row too long, no text
        found = pd.DataFrame()
    if list(found.columns) != list(columns) or found.empty:
        raise InputError(f"{path}: not a file of '{command.split(' --')[0]}', which has columns {', '.join(columns)}")
    return found


def check_conditions(now: Mapping[str, Any] | pd.Series, before: pd.DataFrame, names: Sequence[str]) -> None:
    """Raise InputError where conditions are not those of an earlier measurement, columns with one value each."""
    for name in names:
        was, found = before[name].iloc[0], now[name]
        if str(was) != str(found):
            raise InputError(f"the earlier file was measured with another {name}: {was}, not {found}")


def slower_than(found: pd.DataFrame, before: pd.DataFrame, key: Sequence[str]) -> list[str]:
    """Name what is slower than before, beyond the noise, and what had times and has none now.

    Args:
        found: with the columns `fastest_ms` and `quartiles_apart_ms`.
        before: the same, from earlier.
        key: the columns that name a row.
    """
    both = found.merge(before[before["fastest_ms"].notna()], on=list(key), suffixes=("", "_before"))
    lines = []
    for row in both.to_dict("records"):
        name = ", ".join(str(row[column]) for column in key if row[column])
        if pd.isna(row["fastest_ms"]):
            lines.append(f"{name}: {row.get('note') or 'no time'}, {row['fastest_ms_before']:.3g} ms before")
            continue
        noise = max(row["quartiles_apart_ms"], row["quartiles_apart_ms_before"])
        slower = row["fastest_ms"] - row["fastest_ms_before"]
        if row["fastest_ms"] > SLOWER * row["fastest_ms_before"] and slower > noise:
            lines.append(f"{name}: {row['fastest_ms']:.3g} ms, {row['fastest_ms_before']:.3g} before")
    return lines
