"""The training of one run, top to bottom: data, model, epochs, checkpoints, the end.

The run folder is the truth. A run killed at any moment continues from its last epoch and ends with the weights of a
run that was never interrupted: every random draw comes from a stream of (seed, purpose, epoch).
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
from capsbench.data.tasks.splits import stratified_split
from capsbench.data.tasks.task import Task
from capsbench.errors import InputError, RunError
from capsbench.models.output import Network, count_parameters
from capsbench.registry import MODELS
from capsbench.run import provenance
from capsbench.run.checkpoint import Progress, State, resume, save_checkpoint, save_tensors
from capsbench.run.device import claimed_device, describe
from capsbench.run.folder import RunFolder
from capsbench.run.metrics import Diverged, check_finite, correct_and_lengths, coupling_entropy, validate
from capsbench.run.record import finished_status, first_record
from capsbench.run.tracking import Tracker
from capsbench.streams import stream_seed
from capsbench.study import Run, Training

log = logging.getLogger(__name__)

STEPS_BETWEEN_CHECKS = 50  # of finiteness: each one waits for the GPU
SECONDS_BETWEEN_LINES = 5


def train(
    run: Run,
    results: Path,
    root: Path,
    *,
    tracking: bool = True,
    again: bool = False,
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
        runs_in_study: for the count in progress lines.
        reached: called with each epoch once its checkpoint is safe (tests stop here).

    Returns:
        The status, `ok` or `diverged`.

    Raises:
        InputError: the run cannot be trained as it is configured.
        RunError: a fault of the machine; run.yaml then has the status `failed`.
    """
    folder = RunFolder.of(results, run.study, run.key)
    with folder.locked():
        record = first_record(run)
        if again:
            folder.checkpoint_path.unlink(missing_ok=True)
        elif (finished := finished_status(folder, record)) is not None:
            log.info("%s: already finished (%s); --again trains it afresh", run.key, finished)
            return finished
        torch.set_num_threads(run.training.threads)
        if run.training.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts
        folder.forget_results()
        folder.write_record(record)
        number = len(list((results / run.study / "runs").glob("*/*/*/run.yaml")))
        label = f"[{min(number, runs_in_study)}/{runs_in_study}] {run.key}"
        tracker = Tracker.start(run, record, results) if tracking else Tracker.none()
        try:
            with claimed_device(run.training.device) as device:
                record["machine"]["device"] = describe(device)
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
    return str(record["status"])


def _train_on(
    device: torch.device,
    run: Run,
    folder: RunFolder,
    record: dict[str, Any],
    root: Path,
    tracker: Tracker,
    label: str,
    reached: Callable[[int], None],
) -> None:
    """Fill the run folder; leaves the outcome in `record`."""
    training = run.training
    torch.use_deterministic_algorithms(training.deterministic)
    torch.backends.cudnn.benchmark = not training.deterministic
    task, validation, familiar = _tasks(run, root, device, record)
    steps_per_epoch = math.ceil(task.epoch_images / training.batch_size)

    # initialised on the CPU, alike on every device
    torch.manual_seed(stream_seed(run.seed, "initialisation"))
    try:
        model: Network = MODELS.build(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)
    except ValueError as error:
        raise InputError(str(error)) from None
    model.to(device)
    record["parameters"] = count_parameters(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
    )
    state = State(Progress(), model, optimizer)
    identity = {"digest": run.digest, "code": record["code"]}
    resume(folder, identity, state)
    progress = state.progress
    tracker.log(progress.rows)
    last_line = -math.inf

    try:
        while progress.epoch < training.epochs and not _stops_early(progress, training):
            started = time.perf_counter()
            epoch = progress.epoch + 1
            torch.manual_seed(stream_seed(run.seed, "dropout", epoch))
            row = _train_epoch(model, optimizer, task, run, epoch, progress.step, steps_per_epoch)
            speed = task.epoch_images / (time.perf_counter() - started)
            row |= {f"validation_{k}": v for k, v in validate(model, validation, run.data.facts.objects).items()}
            if familiar is not None:
                row["familiar_accuracy"] = validate(model, familiar, run.data.facts.objects)["accuracy"]
                progress.familiar_accuracy = row["familiar_accuracy"]
            seconds = time.perf_counter() - started
            row |= {"seconds": round(seconds, 3), "images_per_second": round(speed, 1)}

            progress.epoch, progress.step = epoch, progress.step + steps_per_epoch
            progress.seconds += seconds
            progress.rows.append(row)
            if training.early_stopping and row["validation_accuracy"] > progress.best_accuracy:
                progress.best_epoch, progress.best_accuracy = epoch, row["validation_accuracy"]
                state.best = {k: v.detach().clone() for k, v in model.state_dict().items()}
            save_checkpoint(folder, identity, state)
            folder.write_metrics(progress.rows)
            tracker.log([row])
            if time.perf_counter() - last_line > SECONDS_BETWEEN_LINES or epoch == training.epochs:
                log.info("%s  %s", label, _progress_line(row, training.epochs, progress))
                last_line = time.perf_counter()
            reached(epoch)
        record["status"] = "ok"
    except Diverged as error:
        record["status"] = "diverged"
        record["divergence"] = {"step": error.step, **{k: float(v) for k, v in error.parts.items()}}
        log.info("%s  diverged at %s", label, error)

    if state.best:
        model.load_state_dict(state.best)
    weights = {k: v.cpu() for k, v in model.state_dict().items()}
    folder.write_metrics(progress.rows)
    save_tensors(folder.model_path, weights)
    if record["status"] == "ok":
        save_checkpoint(folder, identity, state, finished=True)
    record |= {
        "epochs": progress.epoch, "kept_epoch": progress.best_epoch or progress.epoch, "steps": progress.step,
        "seconds": round(progress.seconds, 3), "finished": provenance.now(),
    }  # fmt: skip


def _tasks(run: Run, root: Path, device: torch.device, record: dict[str, Any]) -> tuple[Task, Task | None, Task | None]:
    """Read the training set onto the device -> the tasks of training, validation and the familiar test."""
    raw = read_split(run.data, root, "train")
    train_indices, validation_indices = stratified_split(
        torch.from_numpy(raw.labels), run.data.validation_images, run.data.train_images, run.data.split_seed
    )
    task = make_task(run.data, raw.take(train_indices.numpy()), "train", device)
    validation, familiar = None, None
    if len(validation_indices):
        validation = make_task(run.data, raw.take(validation_indices.numpy()), "validation", device)
    if run.training.stop_at_familiar_accuracy:
        familiar = make_task(run.data, read_split(run.data, root, "familiar"), "familiar", device)
    record["data"] = {
        "fingerprint": fingerprint([raw.images, raw.labels, *raw.factors.values()]),
        "train_images": len(train_indices), "validation_images": len(validation_indices),
        "epoch_images": task.epoch_images, "unofficial": list(raw.unofficial),
    }  # fmt: skip
    return task, validation, familiar


def _train_epoch(
    model: Network,
    optimizer: torch.optim.Optimizer,
    task: Task,
    run: Run,
    epoch: int,
    first_step: int,
    steps_per_epoch: int,
) -> dict[str, Any]:
    """Train one epoch -> its row of metrics. Raises Diverged."""
    training = run.training
    model.train()
    parameters = list(model.parameters())
    history: list[Tensor] = []  # per step: gradient norm and the parts of the loss; stays on the device
    scores: list[Tensor] = []
    labels: list[Tensor] = []
    step, names, output, rate = first_step, ["gradient_norm"], None, 0.0
    for batch in task.train_batches(training.batch_size, training.augmentation, run.seed, epoch):
        rate = learning_rate(training, step, steps_per_epoch)
        for group in optimizer.param_groups:
            group["lr"] = rate
        output = model(batch.images, batch.labels)
        parts = model.loss(output, batch.targets, batch.labels)
        optimizer.zero_grad()
        torch.stack(list(parts.values())).sum().backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if training.gradient_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, training.gradient_clip, norm)
        optimizer.step()

        step += 1
        names = ["gradient_norm", *parts]
        history.append(torch.stack([norm, *parts.values()]).detach())
        scores.append(output.scores.detach())
        labels.append(batch.labels)
        if step % STEPS_BETWEEN_CHECKS == 0:
            check_finite(history[-STEPS_BETWEEN_CHECKS:], names, step)
    check_finite(history, names, step)

    assert output is not None
    means = dict(zip(names, torch.stack(history).double().mean(dim=0).tolist(), strict=True))
    sums = correct_and_lengths(torch.cat(scores), torch.cat(labels))
    accuracy, right_length, wrong_length = (sums / task.epoch_images).tolist()
    has_capsules = output.poses is not None
    return {
        "epoch": epoch, "step": step, "learning_rate": rate,
        "gradient_norm": means.pop("gradient_norm"),
        "train_loss": sum(means.values()),
        **{f"train_{name}_loss": value for name, value in means.items()},
        "train_accuracy": accuracy,
        "right_capsule_length": right_length if has_capsules else None,
        "wrong_capsule_length": wrong_length if has_capsules else None,
        "coupling_entropy": None if output.couplings is None else coupling_entropy(output.couplings),
    }  # fmt: skip


def learning_rate(training: Training, step: int, steps_per_epoch: int) -> float:
    """Return the rate at a step (from 0): warm-up, then exponential decay down to a floor.

    S17's authors' code decays smoothly by 0.96 every 2000 steps. With `lr_decay_unit` epoch the same holds for
    epochs, which a smooth decay counts in fractions.
    """
    if training.lr_decay_unit == "step":
        time = step / training.lr_decay_every
    else:
        time = step / steps_per_epoch / training.lr_decay_every
    if training.lr_decay_staircase:
        time = math.floor(time)
    rate: float = max(training.learning_rate * training.lr_decay**time, training.lr_floor)
    if step < training.warmup_steps:
        rate *= (step + 1) / training.warmup_steps
    return rate


def _stops_early(progress: Progress, training: Training) -> bool:
    if training.stop_at_familiar_accuracy:
        return progress.familiar_accuracy >= training.stop_at_familiar_accuracy
    if training.early_stopping is None or not progress.best_epoch:
        return False
    return progress.epoch - progress.best_epoch >= training.early_stopping


def _progress_line(row: dict[str, Any], epochs: int, progress: Progress) -> str:
    accuracy = row["train_accuracy"] if row["validation_accuracy"] is None else row["validation_accuracy"]
    left = round(progress.seconds / progress.epoch * (epochs - progress.epoch))
    return (
        f"epoch {progress.epoch}/{epochs}  loss {row['train_loss']:.4f}  accuracy {accuracy:.2%}  "
        f"{left // 60}m{left % 60:02d}s left"
    )
