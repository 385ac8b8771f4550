"""What the MLflow store says of runs: parameters, tags, numbers, data sets, notes and saved views. Plain values only.

A study is an MLflow experiment. Each experiment and variant of it is a run (`kind` variant) whose children are its
seeds (`kind` seed); one more run (`kind` study) holds tables, plots and report.
"""

import csv
import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from capsbench.registry import MODELS, flat_options
from capsbench.run.folder import RunFolder, whole
from capsbench.study import Plan, Run

FORMAT = 4  # of what is written: runs of an older format are replaced
TRAINING = "training/"  # metrics per epoch: MLflow shows them as a section, apart from and below the test results
AXES = ("routing", "decoder", "loss")  # options for which runs are found that differ in nothing else
VIEW_PREFIX = "capsbench-"
_VIEW_TAG = "mlflow.sharedViewState."
_TEST_ERRORS = "test-errors-"
_COMMIT, _DIRTY = "mlflow.source.git.commit", "mlflow.source.git.dirty"
_DECIMALS = 4  # of means: the table cuts off what is longer
_NOT_METRICS = {"epoch", "step"}
_NOT_LOGGED = {"accuracy", "images", "errors"}  # they follow from the error and the data set
FIRST = "test_error"  # the compare page draws the metric that a run got first
PARAMETERS = "trained_parameters"
_DIGEST = 8  # characters, as of MLflow's own digests: longer ones fill the table; the profile has the whole
_FEWEST = 3  # seeds for an interval
MOST_LETTERS = 7900  # of a note: MLflow takes 8,000
_REST = "\n\nMore is in the tables, which are artifacts of this run."
_MOST_CONTRASTS = 15  # in a note
_FILES = (".csv", ".html", ".md", ".pdf", ".png", ".svg", ".tex", ".yaml")
_NUMBERS = ("params.`label`", "metrics.`test_error`", "metrics.`test_error_low`", "metrics.`test_error_high`")
_COLUMNS = {  # of saved views: MLflow sorts them, and few fit beside the name
    "": ("params.`routing`", "params.`routing.iterations`", "params.`decoder`", "params.`loss`", "tags.`status`"),
    "routing": ("params.`routing`", "params.`routing.iterations`"), "decoder": ("params.`decoder`",),
    "loss": ("params.`loss`",),
}  # fmt: skip


# One run


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """Read metrics.csv: one row per epoch, numbers or None."""
    if not folder.metrics_path.exists():
        return []
    folder.check(folder.metrics_path, folder.read_record() or {})
    with whole(folder.metrics_path), folder.metrics_path.open(newline="") as file:
        return [{k: float(v) if v else None for k, v in row.items()} for row in csv.DictReader(file)]


def flat_parameters(run: Run) -> dict[str, Any]:
    """Return what runs are filtered and compared by: study, data set, variant, seed, routing, options, protocol."""
    flat: dict[str, Any] = {
        "study": run.study, "experiment": run.experiment, "data_set": run.data.name,
        "variant": run.variant, "label": run.label, "seed": run.seed, "model": run.model,
        "routing": MODELS[run.model].facts.get("routing", "none"), "routing.iterations": "none", "decoder": "none",
        "loss": "none",
    }  # fmt: skip
    flat.update({name: "none" if value is None else value for name, value in flat_options(run.options).items()})
    for section in ("data", "training"):
        for key, value in getattr(run, section).model_dump(mode="json", exclude={"name"}).items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            flat.update({f"{section}.{key}" + (f".{k}" if k else ""): v for k, v in inner})
    return flat


def same_but(run: Run, axis: str) -> str:
    """Name the runs that have all in common but one option, with what belongs to it, and the seed.

    Equal for two runs exactly if data, model, all other options and the whole protocol of training (device aside) are
    equal: EXPERIMENT/MODEL/HASH.
    """
    others = {name: value for name, value in run.options.items() if name != axis}
    training = run.training.model_dump(mode="json", exclude={"device"})
    data = run.data.model_dump(mode="json")
    if run.data.split == "per_seed":  # the seed was added, see `Data.drawn_for`
        data["split_seed"] = (run.data.split_seed - run.seed) % 2**31
    facts = [data, run.model, others, training]
    return f"{run.experiment}/{run.model}/{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]}"


def run_tags(run: Run, record: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a training from its start on."""
    return {
        "kind": "seed", "capsbench.key": run.key, "capsbench.digest": run.digest,
        "capsbench.started": record["started"], **_axes(run), **source_tags(f"capsbench train {run.study}"),
        **commit_tags(str(record.get("commit"))),
    }  # fmt: skip


def variant_tags(run: Run) -> dict[str, str]:
    """Return the tags of the run that stands for an experiment and variant; `run` is any of its seeds."""
    return {"kind": "variant", **_axes(run), **source_tags(f"capsbench track {run.study}")}


def source_tags(command: str) -> dict[str, str]:
    """Return what MLflow shows as the source of a run."""
    return {"mlflow.source.name": command, "mlflow.source.type": "LOCAL"}


def commit_tags(commit: str) -> dict[str, str]:
    """Return the tags of a commit as run.yaml has it, `+changes` behind it where code was changed, or `unknown`."""
    name, _, changes = commit.partition("+")
    return {} if name in ("unknown", "None") else {_COMMIT: name, _DIRTY: str(bool(changes))}


def epoch_metrics(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float, int, float]]:
    """Give each number of rows of metrics: name, value, epoch, seconds of training by then."""
    seconds = 0.0
    for row in rows:
        seconds += row.get("seconds") or 0.0
        for name, value in row.items():
            if name not in _NOT_METRICS and value is not None:
                yield TRAINING + name, float(value), int(row["epoch"]), seconds


def test_metrics(evaluated: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the results on the test set: `test_error`, `test_familiar_error`, `test_per_digit_error`, ..."""
    found = {}
    for protocol, result in evaluated.items():
        prefix = "test_" if protocol == "accuracy" else f"test_{protocol}_"
        for key, value in result.items():
            if key not in _NOT_LOGGED and isinstance(value, int | float) and not isinstance(value, bool):
                found[prefix + key] = float(value)
    return found


def data_inputs(
    run: Run, record: Mapping[str, Any], evaluated: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Return what was trained and tested on: context, name, digest (8 characters of the fingerprint), facts."""
    found = []
    data = record.get("data") or {}
    sizes = {key: data[key] for key in ("train_images", "validation_images") if key in data}
    trained_on = data.get("shown", {}).get("train") or data.get("fingerprint")
    given = {"training": (trained_on, {"num_rows": data.get("train_images"), **sizes})}
    for context, protocol in (("test", "accuracy"), ("familiar", "familiar")):
        result = evaluated.get(protocol, {})
        given[context] = (result.get("data_fingerprint"), {"num_rows": result.get("images")})
    for context, (fingerprint, facts) in given.items():
        if fingerprint:
            options = run.data.model_dump(mode="json")
            profile = {**facts, "fingerprint": fingerprint, "source": run.data.facts.source, "options": options}
            found.append((context, run.data.name, str(fingerprint)[:_DIGEST], profile))
    return found


def seed_note(run: Run, status: str, error: float | None) -> str:
    """Return the description of a training: MLflow shows it above the metrics, where the answer is among many."""
    outcome = status if error is None else f"test error {error:.2f} %"
    return f"**{run.label}** on {run.data.facts.title}, seed {run.seed}: {outcome}"


# An experiment and variant


def variant_metrics(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each number over seeds; of the test error also spread, count and 95 % t interval of the mean.

    These are `test_error_std`, `test_error_n`, and from three seeds on `test_error_low` and `test_error_high`.
    """
    found = {}
    for name in sorted({name for numbers in seeds for name in numbers}):
        values = [numbers[name] for numbers in seeds if name in numbers]
        found[name] = round(statistics.fmean(values), _DECIMALS)
        if name == "test_error":
            found["test_error_n"] = float(len(values))
            if len(values) > 1:
                found["test_error_std"] = round(std := statistics.stdev(values), _DECIMALS)
            if len(values) >= _FEWEST:
                from scipy.stats import t

                half = t.ppf(0.975, len(values) - 1) * std / math.sqrt(len(values))
                found["test_error_low"] = round(max(0.0, found[name] - half), _DECIMALS)
                found["test_error_high"] = round(found[name] + half, _DECIMALS)
    return found


def variant_note(study: str, runs: Sequence[Run], outcomes: Sequence[tuple[str, float | None]]) -> str:
    """Return the description of an experiment and variant: its label, its seeds with their outcome, the study's text.

    Args:
        study: the study's text.
        runs: the seeds.
        outcomes: status and test error in % of each.
    """
    lines = [f"**{runs[0].label}** on {runs[0].data.facts.title}", "", "| seed | status | test error |", "|--|--|--|"]
    for run, (status, error) in zip(runs, outcomes, strict=True):
        lines.append(f"| {run.seed} | {status} | {'' if error is None else f'{error:.2f} %'} |")
    return "\n".join([*lines, "", study]).strip()


# A study


def study_note(plan: Plan) -> str:
    """Return the description of a study."""
    name = plan.study.name
    return (
        f"{plan.study.description}\n\nA run per experiment and variant, whose `test_error` is the mean over its seeds; "
        f"the seeds are its children. Tables, plots and the report are artifacts of the run *study {name}*. "
        "*Views* has the saved searches: test errors, and runs in which only one option differs."
    ).strip()


def answers_note(folder: Path, most: int = MOST_LETTERS) -> str:
    """Return what a study shows, from its tables as Markdown: its questions, or its contrasts where they are few.

    Empty where there is neither. No longer than `most` letters; what is left out is in the tables, and it says so.
    """
    questions, contrasts = ([*_rows(folder / "tables" / f"{name}.csv")] for name in ("questions", "contrasts"))
    if questions:
        lines = list(_answers(questions))
    elif 0 < len(contrasts) <= _MOST_CONTRASTS:
        lines = [f"- {row['contrast']} ({row['data_set']}): {row['shows']}" for row in contrasts]
    else:
        return ""
    if len("\n".join(lines)) > most:
        while lines and len("\n".join(lines)) + len(_REST) > most:
            lines.pop()
        lines.append(_REST)
    return "\n".join(lines)


def _answers(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Give the lines of the table of questions: a column per experiment, which is called as its data set is."""
    titles = {row["experiment"]: row["data_set"] for row in rows}
    repeated = len(set(titles.values())) < len(titles)
    yield "Test error of the first minus that of the second, in points (negative: the first is better). What was"
    yield "shown has a number; ≈: the same within a tenth; †: not over all contrasts of its question; ‡: post hoc."
    yield ""
    yield f"| | {' | '.join(_cell(name if repeated else title) for name, title in titles.items())} |"
    yield "|--|" + "--|" * len(titles)
    for question in dict.fromkeys(row["question"] for row in rows):
        yield f"| **{_cell(question)}** |" + " |" * len(titles)
        own = [row for row in rows if row["question"] == question]
        for name in dict.fromkeys(row["row"] for row in own):
            cells = {row["experiment"]: _cell(row["outcome"]) for row in own if row["row"] == name}
            yield f"| {_cell(name)} | {' | '.join(cells.get(experiment, '') for experiment in titles)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)


def study_files(folder: Path) -> dict[str, str]:
    """Return the files that were made of the runs of a study: path below its folder -> SHA-256."""
    found = {}
    for path in sorted(folder.rglob("*")):
        below = path.relative_to(folder)
        if below.parts[0] in ("runs", "logs") or path.name.startswith(".") or path.suffix not in _FILES:
            continue
        if path.is_file():
            found[below.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def saved_views(plan: Plan) -> dict[str, str]:
    """Return the saved views of MLflow's run table, as tags of the experiment.

    The test errors of the variants of each experiment, and for each option of AXES and each group of variants in which
    it alone differs the search for them.
    """
    views = []
    for experiment in plan.study.experiments:
        search = f"params.experiment = '{experiment}' and tags.kind = 'variant'"
        views.append(_view(f"{_TEST_ERRORS}{experiment}", f"{experiment}: test errors, mean over seeds", search, ""))
    for axis in AXES:
        groups: dict[str, dict[str, Run]] = {}
        for run in plan.runs:
            groups.setdefault(same_but(run, axis), {})[run.variant] = run
        for name, variants in groups.items():
            if len(variants) > 1:
                first, *others = (run.label for run in variants.values())
                title = f"{name.split('/')[0]}, only {axis} differs: {first} and {len(others)} more"
                search = search_for(axis, name, "variant")
                views.append(_view(f"{axis}-{name.replace('/', '-')}", title, search, axis))
    return dict(views)


def view_links(experiment_id: str, views: Mapping[str, str]) -> str:
    """Return links to the test errors of a study; `views` as from `saved_views`.

    MLflow's own table of runs shows no metric before a person chooses one, and nothing in a store can change that.
    """
    links = []
    for tag, value in views.items():
        key = tag.removeprefix(_VIEW_TAG)
        if key.startswith(VIEW_PREFIX + _TEST_ERRORS):
            name = json.loads(value)["name"]
            links.append(f"[{name}]({runs_page(experiment_id)}&viewStateShareKey={key})")
    return ", ".join(links)


def study_link(experiment_id: str, run_id: str) -> str:
    """Return a link to the run of a study, whose description says what the study shows."""
    return f"[what the study shows](#/experiments/{experiment_id}/runs/{run_id})"


def runs_page(experiment_id: str) -> str:
    """Return the address of an experiment's runs within the UI, which shows pages for language models otherwise."""
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning"


def search_for(axis: str, name: str, kind: str = "seed") -> str:
    """Return the search for runs of a kind in which one option alone differs; `name` is that of `same_but`."""
    return f"tags.same_but_{axis} = '{name}' and tags.kind = '{kind}'"


def is_view(tag: str) -> bool:
    """Tell whether a tag of an experiment is a view that `saved_views` made."""
    return tag.startswith(_VIEW_TAG + VIEW_PREFIX)


def _view(identity: str, name: str, search: str, differs: str) -> tuple[str, str]:
    state = {
        "searchFilter": search, "orderByKey": "metrics.`test_error`", "orderByAsc": True,
        "selectedColumns": [*_NUMBERS, *_COLUMNS[differs]],
    }  # fmt: skip
    return _VIEW_TAG + VIEW_PREFIX + identity, json.dumps({"name": name, "createdAt": 0, "state": json.dumps(state)})


def _axes(run: Run) -> dict[str, str]:
    return {f"same_but_{axis}": same_but(run, axis) for axis in AXES}
