"""Run folders as training and evaluation leave them, written by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import FIVE, TABLE1

from capsbench.run.folder import RunFolder, write_json
from capsbench.study import Plan, Run, load_plan

STUDY = """\
name: small_study
description: two variants on digits
seeds: [0, 1, 2]
training: {epochs: 2}
experiments:
  digits: {data: {name: digits, validation_images: 100}}
variants:
  capsnet: {model: capsnet, grid: {routing.iterations: [1, 3]}}
  cnn_matched: {model: cnn_matched}
"""
STARTED = "2026-01-01T00:00:00Z"
OF_THIS = {"training_started": STARTED}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SAMPLES = np.arange(10 * 28 * 28, dtype=np.uint8).reshape(10, 1, 28, 28)
PAIR_SOURCES = np.arange(9 * 2 * 36 * 36, dtype=np.uint8).reshape(9, 2, 1, 36, 36)


@pytest.fixture
def study_text() -> str:
    return STUDY


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def make_plan(tmp_path: Path) -> Callable[..., Plan]:
    def make(text: str = STUDY) -> Plan:
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return load_plan(path)

    return make


@pytest.fixture
def five(make_plan):
    """CapsNet with one, two and three iterations, five seeds."""
    return make_plan(FIVE)


@pytest.fixture
def plan(make_plan: Callable[..., Plan]) -> Plan:
    return make_plan()


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """No plots and no page, for tests that do not look at them: they take most of the time of a reference."""
    for name in ("plots.write_plots", "reference.write_report"):
        monkeypatch.setattr(f"capsbench.analysis.{name}", lambda *_, **__: [])


@pytest.fixture
def write_run(results: Path) -> Callable[..., RunFolder]:
    """Write the folder of a run that ended (or not) with a status; keywords replace values of run.yaml.

    familiar, per_digit: further errors. unofficial: lines about files, the same for training and test.
    """

    def write(
        run: Run,
        status: str = "ok",
        error: float = 1.0,
        evaluated: bool = True,
        familiar: float | None = None,
        per_digit: float | None = None,
        unofficial: tuple[str, ...] = (),
        **record: Any,
    ) -> RunFolder:
        folder = RunFolder.of(results, run.study, run.key)
        facts: dict[str, Any] = {
            "status": status, "study": run.study, "experiment": run.experiment, "variant": run.variant,
            "seed": run.seed, "digest": run.digest, "started": STARTED, "commit": COMMIT,
            "versions": {"python": "3.11.7", "torch": "2.14.1"},
            "machine": {"system": "Linux", "release": "6", "architecture": "x86_64", "device": "a processor"},
            "config": run.model_dump(mode="json", include={"data", "model", "options", "training"}),
        }  # fmt: skip
        if status in ("ok", "diverged"):
            facts |= {
                "data": {
                    "fingerprint": "f" * 64, "train_images": 1158, "validation_images": 100, "epoch_images": 1158,
                    "unofficial": list(unofficial),
                },
                "parameters": 1234567, "epochs": 2, "seconds": 90.0, "finished": "2026-01-01T00:02:00Z",
            }  # fmt: skip
            _write_metrics(folder, run)
            if evaluated:
                _write_evaluations(folder, run, status, error, familiar, per_digit, unofficial)
        folder.write_record(facts | record)
        return folder

    return write


@pytest.fixture
def runs_of(make_plan):
    """The runs of the full study with some text replaced."""

    def load(*changes: tuple[str, str]):
        text = TABLE1
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        return make_plan(text).runs

    return load


@pytest.fixture
def run_on(make_plan):
    """A run of one model on one data set, both as YAML, under a training protocol."""

    def load(data: str, variant: str, training: str = "{}"):
        text = (
            f"name: one\nseeds: [0]\ntraining: {training}\nexperiments: {{e: {{data: {data}}}}}\n"
            f"variants: {{v: {variant}}}\n"
        )
        (run,) = make_plan(text).runs
        return run

    return load


def _write_metrics(folder: RunFolder, run: Run) -> None:
    couplings = {"coupling_entropy": 0.9} if run.options.get("routing") else {}
    rows = [
        {"epoch": epoch, "train_accuracy": 0.8 + epoch / 20, "validation_accuracy": 0.7 + epoch / 10, **couplings}
        for epoch in (1, 2)
    ]
    folder.write_metrics(rows)


def _write_evaluations(
    folder: RunFolder,
    run: Run,
    status: str,
    error: float,
    familiar: float | None,
    per_digit: float | None,
    unofficial: tuple[str, ...],
) -> None:
    if status == "diverged":
        write_json(folder.evaluation_path("accuracy"), {"status": "diverged", **OF_THIS})
        return
    found = {"status": "ok", "images": 539, "error": error, "unofficial": list(unofficial), **OF_THIS}
    if per_digit is not None:
        found |= {"pair_exact_error": error, "per_digit_error": per_digit}
    write_json(folder.evaluation_path("accuracy"), found)
    about_familiar = {"status": "not applicable"} if familiar is None else {"status": "ok", "error": familiar}
    write_json(folder.evaluation_path("familiar"), {**about_familiar, **OF_THIS})
    targets = SAMPLES if per_digit is None else PAIR_SOURCES
    arrays = {"sample_images": SAMPLES if per_digit is None else targets.max(axis=1), "sample_targets": targets}
    classes = np.arange(10) if per_digit is None else np.stack([np.arange(9), np.arange(1, 10)], axis=1)
    arrays |= {"labels": classes, "scores": np.zeros((len(classes), 10), dtype=np.float32)}
    np.put_along_axis(arrays["scores"], classes.reshape(len(classes), -1), 1, axis=1)  # all predicted right
    if run.options.get("decoder"):
        write_json(folder.evaluation_path("reconstruction"), {"status": "ok", "squared_error": 20.5, **OF_THIS})
        arrays["sample_reconstructions"] = 255 - targets
    else:
        write_json(folder.evaluation_path("reconstruction"), {"status": "not applicable", **OF_THIS})
    np.savez(folder.predictions_path, **arrays)
