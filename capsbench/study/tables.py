"""The tables that a study may ask for: those that are always there, by name, and its own, in a few lines."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from capsbench.registry import no_such
from capsbench.study.data_sets import Table
from capsbench.study.files import refuse

BuiltIn = Literal[Table, "claims", "questions", "contrasts", "test_items", "routings", "cost", "summary", "coverage"]
BUILT_IN: tuple[str, ...] = get_args(BuiltIn)
# columns of a user's own table that are no experiment
FIELDS = (
    "error", "interval", "verdict", "published", "n", "parameters", "multiply_adds", "ms_per_step", "images_per_second",
    "peak_memory_mb", "training_time",
)  # fmt: skip

Patterns = Annotated[list[str], Field(min_length=1)]


class OwnTable(BaseModel):
    """A table of the user's own: which variants, which experiments or fields, which error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="of its files: tables/NAME.csv, .md, .tex")
    title: str = Field("", max_length=120, description="its caption; left out: the name")
    rows: Patterns = Field(["*"], description="variants, as expanded, or patterns: em-*; in this order")
    columns: Patterns = Field(
        ["*"],
        description="experiments or patterns, a column each; or fields (error, verdict, parameters, ...): then a row "
        "per variant and experiment",
    )
    error: Literal["test", "familiar", "per_digit"] = Field("test", description="which error the cells show")
    contrasts: list[str] = Field([], description="families of contrasts that stand below")


def _kind(content: Any) -> str:
    return "own" if isinstance(content, Mapping | OwnTable) else "named"


AnyTable = Annotated[
    Annotated[OwnTable, Tag("own")] | Annotated[BuiltIn, Tag("named")],
    Discriminator(_kind),
]


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that a pattern fits, in the order of the patterns."""
    return list(dict.fromkeys(name for pattern in patterns for name in names if fnmatchcase(name, pattern)))


def check_own_tables(
    path: Path,
    tables: Sequence[Any],
    variants: Iterable[str],
    experiments: Sequence[str],
    families: Iterable[str],
) -> None:
    """Refuse own tables that ask for what the study does not have, or that take a name twice.

    Args:
        path: the study file, for messages.
        tables: of the study.
        variants: as expanded.
        experiments: by name.
        families: of contrasts.

    Raises:
        InputError: naming the key and what there is.
    """
    known = {
        "rows": ("variant", list(dict.fromkeys(variants))),
        "columns": ("experiment or field", [*experiments, *FIELDS]),
        "contrasts": ("family of contrasts", list(dict.fromkeys(families))),
    }
    taken = set(BUILT_IN)
    for place, own in enumerate(tables):
        if not isinstance(own, OwnTable):
            continue
        if own.name in taken or own.name.startswith("protocol-"):
            refuse(path, f"tables.{place}.name", f"there is a table '{own.name}' already; take another name")
        taken.add(own.name)
        for key, (what, names) in known.items():
            for pattern in getattr(own, key):
                if not matching(names, [pattern]):
                    refuse(path, f"tables.{place}.{key}", no_such(what, pattern, names or ["none"]))
