"""The training of one run, top to bottom: data, model, epochs of steps, checkpoints, the end.

The run folder is the truth. A run killed at any moment continues from its last checkpoint and ends with the weights of
a run that was never interrupted: every random draw comes from a stream of (seed, purpose, epoch).
"""

import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsbench.data import fingerprint, make_task, read_split
from capsbench.data.tasks.splits import split_indices
from capsbench.data.tasks.task import Task
from capsbench.errors import InputError, RunError
from capsbench.losses import Loss
from capsbench.models.output import Network, count_parameters
from capsbench.registry import MODELS
from capsbench.run import provenance
from capsbench.run.checkpoint import Progress, Saver, State, resume, save_checkpoint, save_tensors
from capsbench.run.device import claimed_device, describe
from capsbench.run.diagnostics import diagnose
from capsbench.run.folder import RunFolder
from capsbench.run.match import Goal, matched_run, outcome
from capsbench.run.metrics import (
    Diverged,
    chance,
    check_end,
    check_finite,
    coupling_entropy,
    never_left_chance,
    validate,
)
from capsbench.run.precision import float32, set_precision
from capsbench.run.progress import study_progress
from capsbench.run.record import checkpoint_identity, finished_record, first_record
from capsbench.run.schedule import Schedule
from capsbench.run.shared import take_shared
from capsbench.run.step import QuickStep, Step, make_optimizer
from capsbench.run.tracking import Tracker
from capsbench.streams import stream_seed
from capsbench.study import Run, Training

log = logging.getLogger(__name__)

STEPS_BETWEEN_CHECKS = 50  # of finiteness: each one waits for the GPU
SECONDS_BETWEEN_LINES = 5
DIAGNOSED_IMAGES = 100


def train(
    run: Run,
    results: Path,
    root: Path,
    *,
    tracking: bool = True,
    again: bool = False,
    sharing: bool = True,
    runs_in_study: int = 1,
    reached: Callable[[int], None] = lambda epoch: None,
) -> str:
    """Train one run into results/STUDY/runs/KEY, continuing from its checkpoint if there is one.

    A finished run of the same configuration and code is left as it is.

    Args:
        run: what to train.
        results: the folder of results.
        root: the folder of raw data.
        tracking: log to MLflow.
        again: train a finished run afresh.
        sharing: take it from another study of the same folder of results, if that has the same training.
        runs_in_study: progress lines say how far the study is, where it has more than one.
        reached: called with each epoch once its checkpoint is safe, as it is on a CPU (tests stop here).

    Returns:
        The status, `ok` or `diverged`.

    Raises:
        InputError: the run cannot be trained as it is configured, or the run that it is matched to is to come first.
        RunError: a fault of the machine, or the run that it is matched to diverged; run.yaml then has the status
            `failed`.
    """
    folder = RunFolder.of(results, run.study, run.key)
    with folder.locked():
        record = first_record(run) | {"match": matched_run(run, results)}
        if again:
            folder.again_path.touch()  # until it has ended: the call after an interruption shall not find it elsewhere
            folder.checkpoint_path.unlink(missing_ok=True)
        elif (finished := finished_record(folder, record)) is not None:
            log.info("%s: already finished (%s); --again trains it afresh", run.key, finished["status"])
            return str(finished["status"])
        elif sharing and (shared := take_shared(run, folder, record, results)) is not None:
            return shared
        torch.set_num_threads(run.training.threads)
        if run.training.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts
        folder.forget_results()
        folder.write_record(record)

        def label() -> str:
            whole = f"[{study_progress(results / run.study, runs_in_study)}] " if runs_in_study > 1 else ""
            return whole + run.key

        tracker = Tracker.start(run, record, results) if tracking else Tracker.none()
        try:
            with claimed_device(run.training.device) as device:
                record["machine"]["device"] = describe(device)
                provenance.note_start(record, device)
                _train_on(device, run, folder, record, root, tracker, label, reached)
        except KeyboardInterrupt:  # a person's doing and no fault: the run is unfinished, as after kill -9
            record["problem"] = "interrupted"
            raise
        except BaseException as error:
            record["status"], record["problem"] = "failed", f"{type(error).__name__}: {error}".strip(": ")
            if isinstance(error, RuntimeError | MemoryError | OSError):
                raise RunError(f"{run.key}: {record['problem'].splitlines()[0]}") from error
            raise
        finally:
            folder.write_record(record)  # before the store, which may be slow
            tracker.close(record)
            record["tracking_seconds"] = round(tracker.seconds, 3)
            folder.write_record(record)
        folder.again_path.unlink(missing_ok=True)
    return str(record["status"])


def _train_on(
    device: torch.device,
    run: Run,
    folder: RunFolder,
    record: dict[str, Any],
    root: Path,
    tracker: Tracker,
    label: Callable[[], str],
    reached: Callable[[int], None],
) -> None:
    """Fill the run folder; leaves the outcome in `record`."""
    training = run.training
    torch.use_deterministic_algorithms(training.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # which no network reads, and which takes time
    torch.backends.cudnn.benchmark = not training.deterministic
    task, validation, goal = _tasks(run, root, device, record)
    schedule = Schedule(training, task.epoch_images)

    # initialised on the CPU, alike on every device
    torch.manual_seed(stream_seed(run.seed, "initialisation"))
    try:
        model: Network = MODELS.build(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)
    except ValueError as error:
        raise InputError(str(error)) from None
    for module in model.modules():
        if isinstance(module, Loss):
            module.begin(schedule.steps, schedule.stretch)
    model.to(device)
    record["precision"] = set_precision(model, training.precision, device)
    record["parameters"] = count_parameters(model)
    optimizer = make_optimizer(model, training.learning_rate, training.weight_decay)
    state = State(Progress(), model, optimizer)
    resume(folder, checkpoint_identity(record), state)
    folder.write_metrics(state.progress.rows)  # not those of an earlier training
    progress = state.progress
    provenance.note_segment(record, progress.segments, progress.epoch, _is_over(progress, schedule, training))
    tracker.log(progress.rows)
    take_step = QuickStep(Step(model, optimizer, training), training.compile, device)
    saver, last_line = Saver(folder, checkpoint_identity(record), device), -math.inf

    try:
        while not _is_over(progress, schedule, training):
            started = time.perf_counter()
            epoch = progress.epoch + 1
            torch.manual_seed(stream_seed(run.seed, "dropout", epoch))
            looks = goal.seconds
            row = _train_epoch(take_step, state.progress, task, run, schedule, goal)
            speed = row["images"] / (time.perf_counter() - started - (goal.seconds - looks))
            with float32():
                measured = validate(model, validation, run.data.facts.objects)
            row |= {f"validation_{name}": value for name, value in measured.items()}
            check_end(model, row["validation_loss"], row["step"])
            seconds = time.perf_counter() - started
            row |= {"seconds": round(seconds, 3), "images_per_second": round(speed, 1)}

            progress.epoch, progress.step = epoch, row["step"]
            progress.seconds += seconds
            progress.rows.append(row)
            if training.early_stopping and row["validation_accuracy"] > progress.best_accuracy:
                progress.best_epoch, progress.best_accuracy = epoch, row["validation_accuracy"]
                state.best = {k: v.detach().clone() for k, v in model.state_dict().items()}
            over = _is_over(progress, schedule, training)
            saver.save(state)
            folder.write_metrics(progress.rows)
            tracker.log([row])
            if time.perf_counter() - last_line > SECONDS_BETWEEN_LINES or over:
                line = _progress_line(row, schedule, progress, over)
                log.info("%s  %s", label(), line, extra={"passing": not over})
                last_line = time.perf_counter()
            reached(epoch)
        record["status"] = "ok"
    except Diverged as error:
        record["status"] = "diverged"
        record["divergence"] = {"step": error.step, **{k: float(v) for k, v in error.parts.items()}}
        log.info("%s  diverged at %s", label(), error)

    if state.best:
        model.load_state_dict(state.best)
    weights = {k: v.cpu() for k, v in model.state_dict().items()}
    folder.write_metrics(progress.rows)
    save_tensors(folder.model_path, weights)
    if record["status"] == "ok":
        save_checkpoint(folder, checkpoint_identity(record), state, finished=True)
    record |= {
        "epochs": progress.epoch, "kept_epoch": progress.best_epoch or progress.epoch, "steps": progress.step,
        "images": (images := sum(row["images"] for row in progress.rows)),
        "images_per_second": round(images / progress.seconds, 1) if progress.seconds else None,
        "match": outcome(record["match"], goal, progress),
        "stuck_at_chance": _is_stuck(progress, record),
        "seconds": round(progress.seconds, 3), "finished": provenance.now(),
    }  # fmt: skip
    provenance.note_files(record, folder.model_path, folder.metrics_path)
    provenance.note_peak_memory(record, device)
    provenance.note_multiply_adds(record, run)
    record |= take_step.described()
    record |= _why_stuck(record, model, run, task)


def _why_stuck(record: dict[str, Any], model: Network, run: Run, task: Task) -> dict[str, Any]:
    if not record["stuck_at_chance"]:
        return {}
    return {"diagnostics": diagnose(model, run, next(task.eval_batches(DIAGNOSED_IMAGES)).images)}


def _tasks(run: Run, root: Path, device: torch.device, record: dict[str, Any]) -> tuple[Task, Task | None, Goal]:
    """Read the training set onto the device -> the tasks of training and validation, and what ends a matched run."""
    raw = read_split(run.data, root, "train")
    train_indices, validation_indices = split_indices(run.data, raw, run.data.split_seed)
    shown = raw.take(train_indices.numpy())
    task = make_task(run.data, shown, "train", device)
    validation, familiar = None, None
    if len(validation_indices):
        validation = make_task(run.data, raw.take(validation_indices.numpy()), "validation", device)
    if record["match"]:
        familiar = make_task(run.data, read_split(run.data, root, "familiar"), "familiar", device)
    record["data"] = {
        "fingerprint": fingerprint([raw.images, raw.labels, *raw.factors.values()]),
        "train_images": len(train_indices), "validation_images": len(validation_indices),
        "epoch_images": task.epoch_images, "unofficial": list(raw.unofficial), "files": dict(raw.files),
        "chance": chance(shown.labels, run.data.facts.objects, run.data.facts.num_classes),
    }  # fmt: skip
    provenance.note_split(record, run, train_indices, validation_indices)
    return task, validation, Goal(record["match"], run.key, familiar)


def _train_epoch(
    take_step: QuickStep, progress: Progress, task: Task, run: Run, schedule: Schedule, goal: Goal
) -> dict[str, Any]:
    """Train one epoch, or the part of it until the training is over -> its row of metrics. Raises Diverged."""
    training, model = run.training, take_step.plain.model
    epoch, step = progress.epoch + 1, progress.step
    model.train()
    values: list[Tensor] = []  # of each step; they stay on the device
    sums: list[Tensor] = []
    measured, rate, images = None, 0.0, 0
    for batch in task.train_batches(training.batch_size, training.augmentation, run.seed, epoch):
        rate = schedule.learning_rate(step)
        measured = take_step(batch, rate)
        step += 1
        images += len(batch.labels)
        values.append(measured.values)
        sums.append(measured.sums)
        if step % STEPS_BETWEEN_CHECKS == 0:
            check_finite(values[-STEPS_BETWEEN_CHECKS:], measured.names, step)
        if goal.is_set and schedule.looks(step):
            with float32():
                goal.look(model, progress)
        if progress.matched or step == schedule.steps:
            break
    assert measured is not None
    check_finite(values, measured.names, step)

    means = dict(zip(measured.names, torch.stack(values).double().mean(dim=0).tolist(), strict=True))
    accuracy, found, right, wrong = (torch.stack(sums).sum(dim=0) / images).tolist()
    return {
        "epoch": epoch, "step": step, "images": images, "learning_rate": rate,
        "gradient_norm": means.pop("gradient_norm"),
        "train_loss": sum(means.values()),
        **{f"train_{name}_loss": value for name, value in means.items()},
        "train_accuracy": accuracy,
        "train_per_digit_accuracy": found if run.data.facts.objects > 1 else None,
        "right_capsule_length": right if measured.has_capsules else None,
        "wrong_capsule_length": wrong if measured.has_capsules else None,
        "coupling_entropy": None if measured.couplings is None else coupling_entropy(measured.couplings),
        "familiar_error": progress.familiar_error,
    }  # fmt: skip


def _is_over(progress: Progress, schedule: Schedule, training: Training) -> bool:
    if progress.step >= schedule.steps or progress.matched:
        return True
    if training.early_stopping is None or not progress.best_epoch:
        return False
    return progress.epoch - progress.best_epoch >= training.early_stopping


def _is_stuck(progress: Progress, record: dict[str, Any]) -> bool:
    found = [row["train_per_digit_accuracy"] for row in progress.rows]
    accuracies = [row["train_accuracy"] if f is None else f for f, row in zip(found, progress.rows, strict=True)]
    return never_left_chance(accuracies, [row["images"] for row in progress.rows], record["data"]["chance"])


def _progress_line(row: dict[str, Any], schedule: Schedule, progress: Progress, over: bool) -> str:
    accuracy = row["train_accuracy"] if row["validation_accuracy"] is None else row["validation_accuracy"]
    familiar = "" if progress.familiar_error is None else f"familiar error {progress.familiar_error:.2f} %  "
    left = 0 if over else round(progress.seconds / progress.step * (schedule.steps - progress.step))
    return (
        f"epoch {progress.epoch}/{schedule.epochs}  loss {row['train_loss']:.4f}  accuracy {accuracy:.2%}  "
        f"{familiar}{left // 60}m{left % 60:02d}s left"
    )
