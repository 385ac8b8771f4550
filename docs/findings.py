"""What the committed runs of a study say: its summary, the rows of one method. Used by docs/generate.py."""

import math
import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
from remembered import remembered
from summaries import BY_SEED, LATER, MAIN, NOTES, SIZED, SUMMARY, TITLES

from capsbench.analysis.collect import NEAR_CHANCE
from capsbench.analysis.measures import NAME as MEASURES
from capsbench.analysis.measures import load_measures
from capsbench.analysis.statistics import summarise
from capsbench.analysis.verify import trained_by_this_code
from capsbench.study import catalogue, load_plan

LOST = 25.0  # a class with an error of so many % or more counts as lost
SMALLNORB_TITLES = {  # experiments -> their title
    "smallnorb-seen": "smallNORB",
    "smallnorb-centred": "smallNORB with central crops",
    "smallnorb-seen-centred": "smallNORB with central crops",
}


def read_runs(reference: Path, study: str) -> pd.DataFrame:
    """Read the committed runs of a study; a run without a valid result has no test error."""
    runs = pd.read_csv(reference / study / "runs.csv", low_memory=False)
    return runs.assign(test_error=runs["test_error"].where(runs["status"] == "ok"))


def cell(runs: pd.DataFrame, experiment: str, variant: str) -> pd.DataFrame:
    """Return the runs of one variant in one experiment. Raises KeyError where there is none."""
    found = runs[(runs["experiment"] == experiment) & (runs["variant"] == variant)]
    if found.empty:
        raise KeyError(f"no run of {experiment}/{variant}")
    return found


def is_at_chance(runs: pd.DataFrame) -> bool:
    """Tell whether every run of a cell is at chance: its error is not below 95 % of the error of guessing."""
    errors = runs["test_error"].dropna()
    return len(errors) > 0 and bool(errors.min() >= NEAR_CHANCE * catalogue()[runs["data_set"].iloc[0]].chance_error)


def data_title(runs: pd.DataFrame, experiment: str) -> str:
    """Name the data of an experiment, and what files that are not the official ones are."""
    unofficial = runs.loc[runs["experiment"] == experiment, "unofficial"].dropna()
    title = TITLES.get(experiment) or SMALLNORB_TITLES.get(experiment, experiment)
    return named(title, unofficial.iloc[0] if len(unofficial) else "")


def named(title: str, unofficial: str) -> str:
    """Return the title of data, with what runs.csv says of its files: "smallNORB (JPEG-75 copy)".

    unofficial: "smallNORB (JPEG-75 copy): train.mat: md5 ..."; empty for the official files.
    """
    said = unofficial.partition(": ")[0]
    return said if said.startswith(f"{title} (") else f"{title}, not the official files" if said else title


def summary(reference: Path, study: str, form: str = "") -> str:
    """Return the rows that stand for a study, or few of them; data on which nothing was trained yet are left out.

    form: "main" for the few.
    """
    declared = MAIN if form == "main" else SUMMARY
    runs = read_runs(reference, study)
    begun = set(runs.loc[runs["test_error"].notna(), "experiment"])
    rows = {method: {k: v for k, v in variants.items() if k in begun} for method, variants in declared[study].items()}
    rows = {method: variants for method, variants in rows.items() if variants}
    named = dict.fromkeys(name for variants in rows.values() for name in variants)
    experiments = sorted(named, key=lambda name: [*TITLES, name].index(name))
    sized = [name for name in experiments if name in SIZED] or experiments
    sizes_of = f" ({' / '.join(TITLES.get(name, name) for name in sized)})" if len(sized) > 1 else ""
    lines = [["method", f"parameters{sizes_of}", *(f"{data_title(runs, name)}, error %" for name in experiments)]]
    for method, variants in rows.items():
        sizes = [_size(cell(runs, name, variants[name])) for name in sized if name in variants]
        found = (_short(cell(runs, name, variants[name])) if name in variants else "" for name in experiments)
        lines.append([method, " / ".join(dict.fromkeys(filter(None, sizes))), *found])
    return f"{table(lines)}\n\n{NOTES.get(f'{study} {form}'.strip(), '')}"


def commits(reference: Path) -> str:
    """Return the number of runs of each committed study, of those by this checkout's code, and of their commits."""
    lines = [["study", "runs", "of these by the training code of this checkout", "commits"]]
    for path in sorted(reference.glob("*/runs.csv")):
        runs = pd.read_csv(path, low_memory=False)
        there = runs["commit"].count()
        number = str(there) if there == len(runs) else f"{there} of {len(runs)}"
        same = trained_by_this_code(load_plan(path.parent / "study.yaml"), runs)
        lines.append([f"`{path.parent.name}`", number, str(same), str(runs["commit"].nunique())])
    return table(lines)


def by_seed(reference: Path, study: str) -> str:
    """Return the error of every seed of some variants, in order, and how far apart they are."""
    runs = read_runs(reference, study)
    heads, rows = BY_SEED[study]
    lines = [["error % by seed (largest minus smallest)", *heads]]
    for name, keys in rows.items():
        found = [_seeds_of(cell(runs, *key.split("/"))) if key else "" for key in keys]
        lines.append([name, *found])
    return table(lines)


def after_more_epochs(reference: Path, *studies: str) -> str:
    """Return the error of every seed of some networks after 15 epochs and after 30, from two studies."""
    runs = {study: read_runs(reference, study) for study in studies}
    lines = [["error % by seed (largest minus smallest)", "data", "15 epochs", "30 epochs"]]
    for name, keys in LATER.items():
        cells = [cell(runs[study], *rest) for study, *rest in (key.split("/") for key in keys)]
        experiment = keys[0].split("/")[1]
        lines.append([name, data_title(cells[0], experiment), *map(_seeds_of, cells)])
    return table(lines)


def _seeds_of(runs: pd.DataFrame) -> str:
    """Return "17.4, 14.1, 16.1 (3.3)"; a seed without a result is a dash."""
    errors = runs.sort_values("seed")["test_error"]
    listed = ", ".join("-" if math.isnan(error) else f"{error:.1f}" for error in errors)
    return f"{listed} ({errors.max() - errors.min():.1f})" if errors.notna().sum() > 1 else listed


def epochs(reference: Path, study: str, cells: tuple[str, ...] = ("",)) -> dict[str, pd.DataFrame]:
    """Return metrics.csv of each run whose key begins with one of `cells`, a row per epoch, by the run's key."""
    with tarfile.open(reference / study / "runs.tar.xz", mode="r:xz") as archive:
        return {
            Path(member.name).parent.as_posix(): pd.read_csv(archive.extractfile(member))  # type: ignore[arg-type]
            for member in archive
            if member.name.startswith(cells) and Path(member.name).name == "metrics.csv"
        }


@remembered("runs.tar.xz")
def last_epochs(reference: Path, study: str) -> dict[str, "pd.Series[Any]"]:
    """Return what the last epoch of each run wrote into metrics.csv, by the run's key."""
    return {key: found.iloc[-1] for key, found in epochs(reference, study).items()}


def held_out(reference: Path, study: str) -> str:
    """Return what the last epoch of each run found on training and on held-out images, seed by seed."""
    runs, last = read_runs(reference, study), last_epochs(reference, study)
    lines = [["variant", "training error %", "error % on held-out images", "its mean"]]
    for variant, own in runs[runs["key"].isin(last)].groupby("variant", sort=False):  # a study may be unfinished
        train, validation = (
            [100 * (1 - last[key][f"{kind}_accuracy"]) for key in own["key"]] for kind in ("train", "validation")
        )
        listed = (", ".join(f"{error:.1f}" for error in errors) for errors in (train, validation))
        lines.append([f"`{variant}`", *listed, f"{sum(validation) / len(validation):.1f}"])
    return table(lines)


def lost_classes(reference: Path, study: str) -> str:
    """Return for each variant in how many seeds a class is lost, and which ones: an error of LOST or more."""
    runs = read_runs(reference, study)
    measures = load_measures(reference / study / MEASURES)
    lines = [["variant", "seeds that lose a class", "error % of the classes lost", "test error %"]]
    for variant, own in runs.groupby("variant", sort=False):
        lost = {
            seed: classes
            for seed, key in zip(own["seed"], own["key"], strict=True)
            if (classes := _lost(measures[key]))
        }
        listed = "; ".join(f"seed {seed}: {', '.join(classes)}" for seed, classes in lost.items())
        lines.append([f"`{variant}`", f"{len(lost)} of {len(own)}", listed, mean_and_std(own)])
    return table(lines)


def _lost(measured: dict[str, Any]) -> list[str]:
    """Return "9 (68)" for each class of which LOST % or more are wrong."""
    confusion = measured["confusion"]
    errors = [100 * (1 - row[right] / sum(row)) for right, row in enumerate(confusion["matrix"])]
    return [f"{name} ({error:.0f})" for name, error in zip(confusion["classes"], errors, strict=True) if error >= LOST]


def _short(runs: pd.DataFrame) -> str:
    """Return mean ± standard deviation, and the number of seeds only where one is missing."""
    return mean_and_std(runs).replace(f" (n = {len(runs)})", "")


def _size(runs: pd.DataFrame) -> str:
    """Return the parameters of a variant in thousands, 213K; empty before its first run."""
    counts = runs["parameters"].dropna()
    return f"{counts.iloc[0] / 1000:,.0f}K" if len(counts) else ""


def results(reference: Path, study: str, kind: str, name: str) -> str:
    """Return the rows of a study with one network (KIND model), or with one routing in capsnet (KIND routing)."""
    runs = read_runs(reference, study)
    by_routing = (runs["model"] == "capsnet") & (runs["option.routing"] == name)
    chosen = runs[by_routing if kind == "routing" else runs["model"] == name]
    rows = [["data", "variant", "test error %"]]
    for (experiment, variant), errors in chosen.groupby(["experiment", "variant"], sort=False):
        rows.append([data_title(runs, str(experiment)), f"`{variant}`", mean_and_std(errors)])
    return table(rows) if len(rows) > 1 else f"There are no results yet: the study `{study}` has no run of it."


def mean_and_std(runs: pd.DataFrame) -> str:
    """Return mean ± standard deviation over the seeds, and the number of seeds with a result."""
    errors = runs["test_error"].dropna()
    count = f"{len(errors)}" if len(errors) == len(runs) else f"{len(errors)} of {len(runs)}"
    if errors.empty:
        return f"no result (n = {count})"
    found = summarise(list(errors))
    spread = f" ± {found.std:.2f}" if found.n > 1 else ""
    return f"{found.mean:.2f}{spread} (n = {count})" + (", at chance" if is_at_chance(runs) else "")


def table(rows: list[list[str]]) -> str:
    """Return a Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
