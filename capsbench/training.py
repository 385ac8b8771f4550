"""The training of one run, top to bottom: data, model, epochs, checkpoints, the end.

The run folder is the truth. A run killed at any moment goes on from its last epoch and ends with the weights it
would have had: every random draw comes from a stream of (seed, purpose, epoch).
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsbench import data, provenance
from capsbench.config import Run, Training
from capsbench.data.batches import Feed
from capsbench.data.catalogue import CATALOGUE, Role
from capsbench.data.splits import stratified_split
from capsbench.device import claimed_device, describe
from capsbench.errors import InputError, RunError
from capsbench.models import Output, answer, build_model, count_parameters, loss_parts, predicted_classes
from capsbench.randomness import stream_seed
from capsbench.run_folder import RunFolder, write_whole
from capsbench.sources import content_hash, training_sources
from capsbench.tracking import Tracker

STEPS_BETWEEN_CHECKS = 50  # of finiteness: each one waits for the GPU
EVALUATION_BATCH = 500


class Diverged(Exception):
    """The loss or the gradient is no longer finite; carries the step and the parts."""

    def __init__(self, step: int, parts: dict[str, float]):
        super().__init__(f"step {step}: " + ", ".join(f"{k} {v:g}" for k, v in parts.items()))
        self.step, self.parts = step, parts


@dataclass
class Progress:
    """What a checkpoint holds beside the weights."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)  # metrics.csv so far
    best_epoch: int = 0
    best_accuracy: float = -1.0
    familiar_accuracy: float = -1.0


def train(
    run: Run,
    results: Path,
    root: Path,
    tracking: bool = True,
    say: Callable[[str], None] = print,
    runs_in_study: int = 1,
    reached: Callable[[int], None] = lambda epoch: None,
    again: bool = False,
) -> str:
    """Train one run into results/STUDY/runs/KEY, going on from its checkpoint if there is one.

    A finished run of this configuration and code is left as it is; `again` trains it afresh.
    root: folder of raw data. reached: called with each epoch once its checkpoint is safe (tests stop here).
    Returns the status, `ok` or `diverged`. Raises InputError for a run that cannot be and RunError for a fault of
    the machine, which run.yaml then holds with status `failed`.
    """
    folder = RunFolder.of(results, run.study, run.key)
    with folder.locked(say):
        torch.set_num_threads(run.training.threads)
        if run.training.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts
        record = _first_record(run)
        if again:
            folder.checkpoint_path.unlink(missing_ok=True)
        elif (finished := _finished(folder, record)) is not None:
            say(f"{run.key}: already finished ({finished}), left as it is; --again trains it afresh")
            return finished
        folder.forget_results()
        folder.write_record(record)
        number = len(list((results / run.study / "runs").glob("*/*/*/run.yaml")))
        label = f"[{min(number, runs_in_study)}/{runs_in_study}] {run.key}"
        tracker = Tracker.start(run, record, results, say) if tracking else Tracker.none()
        try:
            with claimed_device(run.training.device) as device:
                record["machine"]["device"] = describe(device)
                _train_on(device, run, folder, record, root, tracker, lambda text: say(f"{label}  {text}"), reached)
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
    say: Callable[[str], None],
    reached: Callable[[int], None],
) -> None:
    """Fill the run folder; leaves the outcome in `record`."""
    training = run.training
    torch.use_deterministic_algorithms(training.deterministic)
    torch.backends.cudnn.benchmark = not training.deterministic

    # data: whole arrays on the device
    facts = CATALOGUE[run.data.name]
    raw = _read(run, root, "train")
    train_indices, validation_indices = stratified_split(
        torch.from_numpy(raw.labels), run.data.validation_images, run.data.train_images, run.data.split_seed
    )
    feed = _feed(run, raw.take(train_indices.numpy()), "train", device)
    validation, familiar = None, None
    if len(validation_indices):
        validation = _feed(run, raw.take(validation_indices.numpy()), "validation", device)
    if training.stop_at_familiar_accuracy:
        familiar = _feed(run, _read(run, root, "familiar"), "familiar", device)
    record["data"] = {
        "fingerprint": data.fingerprint([raw.images, raw.labels, *raw.factors.values()]),
        "train_images": len(train_indices), "validation_images": len(validation_indices), "epoch_images": feed.items,
        "unofficial": list(raw.unofficial),
    }  # fmt: skip

    # model: initialised on the CPU, alike on every device
    torch.manual_seed(stream_seed(run.seed, "initialisation"))
    try:
        image_shape = facts.shape(run.data.options)
        model = build_model(run.model, image_shape, facts.num_classes, **run.options).to(device)
    except ValueError as error:
        raise InputError(str(error)) from None
    record["parameters"] = count_parameters(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
    )
    steps_an_epoch = math.ceil(feed.items / training.batch_size)

    identity = {"digest": run.digest, "sources": record["sources"]}
    progress, best_weights = _resume(folder, identity, model, optimizer, say)
    tracker.log(progress.rows)
    last_said = -math.inf

    try:
        while progress.epoch < training.epochs and not _stops_early(progress, training):
            started = time.perf_counter()
            epoch = progress.epoch + 1
            torch.manual_seed(stream_seed(run.seed, "dropout", epoch))
            row = _train_epoch(model, optimizer, feed, run, epoch, progress.step, steps_an_epoch)
            speed = feed.items / (time.perf_counter() - started)
            row |= {f"validation_{k}": v for k, v in _validate(model, validation, facts.objects).items()}
            if familiar is not None:
                row["familiar_accuracy"] = _validate(model, familiar, facts.objects)["accuracy"]
                progress.familiar_accuracy = row["familiar_accuracy"]
            seconds = time.perf_counter() - started
            row |= {"seconds": round(seconds, 3), "images_per_second": round(speed, 1)}

            progress.epoch, progress.step = epoch, progress.step + steps_an_epoch
            progress.seconds += seconds
            progress.rows.append(row)
            if training.early_stopping and row["validation_accuracy"] > progress.best_accuracy:
                progress.best_epoch, progress.best_accuracy = epoch, row["validation_accuracy"]
                best_weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
            _save_checkpoint(folder, identity, progress, model, best_weights, optimizer)
            folder.write_metrics(progress.rows)
            tracker.log([row])
            if time.perf_counter() - last_said > 5 or epoch == training.epochs:
                say(_progress_line(row, training.epochs, progress))
                last_said = time.perf_counter()
            reached(epoch)
        record["status"] = "ok"
    except Diverged as error:
        record["status"] = "diverged"
        record["divergence"] = {"step": error.step, **{k: float(v) for k, v in error.parts.items()}}
        say(f"diverged at {error}")

    if best_weights:
        model.load_state_dict(best_weights)
    weights = {k: v.cpu() for k, v in model.state_dict().items()}
    folder.write_metrics(progress.rows)
    write_whole(folder.model_path, lambda aside: torch.save(weights, aside))
    if record["status"] == "ok":  # without the optimizer, most of its size: all that is left to do is the end
        _save_checkpoint(folder, identity, progress, model, best_weights, None)
    record |= {
        "epochs": progress.epoch, "kept_epoch": progress.best_epoch or progress.epoch, "steps": progress.step,
        "seconds": round(progress.seconds, 3), "finished": provenance.now(),
    }  # fmt: skip


def _read(run: Run, root: Path, role: Role) -> data.Raw:
    return data.read_raw(run.data.name, root, role, run.data.allow_unofficial, run.data.options)


def _feed(run: Run, raw: data.Raw, role: Role, device: torch.device) -> Feed:
    return data.make_feed(run.data.name, raw, role, run.data.options, device)


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    feed: Feed,
    run: Run,
    epoch: int,
    first_step: int,
    steps_an_epoch: int,
) -> dict[str, Any]:
    """Train one epoch -> its row of metrics. Raises Diverged."""
    training = run.training
    model.train()
    parameters = list(model.parameters())
    history: list[Tensor] = []  # a step: gradient norm and the parts of the loss; stays on the device
    sums = torch.zeros(3, device=feed.labels.device)  # right answers, length of right and of wrong capsules
    step, names, output, rate = first_step, ["gradient_norm"], None, 0.0
    for batch in feed.epoch(training.batch_size, training.augmentation, run.seed, epoch):
        rate = learning_rate(training, step, epoch, steps_an_epoch)
        for group in optimizer.param_groups:
            group["lr"] = rate
        output = model(batch.images, batch.labels)
        parts = loss_parts(model, output, batch.targets, batch.labels)
        optimizer.zero_grad()
        torch.stack(list(parts.values())).sum().backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if training.gradient_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, training.gradient_clip, norm)
        optimizer.step()

        step += 1
        names = ["gradient_norm", *parts]
        history.append(torch.stack([norm, *parts.values()]).detach())
        sums += _answers_and_lengths(output, batch.labels)
        if step % STEPS_BETWEEN_CHECKS == 0:
            _check_finite(history[-STEPS_BETWEEN_CHECKS:], names, step)
    _check_finite(history, names, step)

    assert output is not None
    means = dict(zip(names, torch.stack(history).double().mean(dim=0).tolist(), strict=True))
    right, right_length, wrong_length = (sums / feed.items).tolist()
    has_capsules = output.poses is not None
    return {
        "epoch": epoch, "step": step, "learning_rate": rate,
        "gradient_norm": means.pop("gradient_norm"),
        "train_loss": sum(means.values()),
        **{f"train_{name}_loss": value for name, value in means.items()},
        "train_accuracy": right,
        "right_capsule_length": right_length if has_capsules else None,
        "wrong_capsule_length": wrong_length if has_capsules else None,
        "coupling_entropy": None if output.couplings is None else coupling_entropy(output.couplings),
    }  # fmt: skip


def learning_rate(training: Training, step: int, epoch: int, steps_an_epoch: int) -> float:
    """Return the rate at a step (from 0) of an epoch (from 1): warm-up, then exponential decay down to a floor.

    S17's authors' code decays smoothly by 0.96 every 2000 steps. With `lr_decay_unit` epoch the same holds for
    epochs, which a smooth decay counts in fractions.
    """
    if training.lr_decay_unit == "step":
        time = step / training.lr_decay_every
    else:
        time = step / steps_an_epoch / training.lr_decay_every
    if training.lr_decay_staircase:
        time = math.floor(time)
    rate = max(training.learning_rate * training.lr_decay**time, training.lr_floor)
    if step < training.warmup_steps:
        rate *= (step + 1) / training.warmup_steps
    return rate


def coupling_entropy(couplings: Tensor) -> float:
    """Mean entropy of the rows of couplings [B, I, J], over log J: 1 is uniform, 0 is one parent an input."""
    entropy = -torch.special.xlogy(couplings.detach(), couplings.detach()).sum(dim=2).mean()
    return float(entropy / math.log(couplings.shape[2]))


def _answers_and_lengths(output: Output, labels: Tensor) -> Tensor:
    """Sums over a batch: right answers, mean score of the right classes and of the wrong ones -> [3]."""
    scores = output.scores.detach()
    present = labels.reshape(len(labels), -1)  # [B, S], S = 1 but for pairs
    objects = present.shape[1]
    right_scores = scores.gather(1, present).sum(dim=1)
    wrong_score = (scores.sum(dim=1) - right_scores) / (scores.shape[1] - objects)
    right = _is_right(scores, labels).to(scores.dtype)
    return torch.stack([right.sum(), right_scores.sum() / objects, wrong_score.sum()])


def _is_right(scores: Tensor, labels: Tensor) -> Tensor:
    """Tell for each image whether all its classes are right -> bool [B]."""
    if labels.ndim == 1:
        return predicted_classes(scores) == labels
    return (predicted_classes(scores, labels.shape[1]) == labels).all(dim=1)


def _check_finite(history: list[Tensor], names: list[str], last_step: int) -> None:
    values = torch.stack(history)
    finite = values.isfinite().all(dim=1).tolist()
    if not all(finite):
        first = finite.index(False)
        raise Diverged(last_step - len(history) + first + 1, dict(zip(names, values[first].tolist(), strict=True)))


@torch.no_grad()
def _validate(model: nn.Module, feed: Feed | None, objects: int) -> dict[str, float | None]:
    """Loss and accuracy on all fixed items of a feed, or None where there is none."""
    if feed is None:
        return {"loss": None, "accuracy": None}
    model.eval()
    loss, right = 0.0, 0
    for batch in feed.in_order(EVALUATION_BATCH):
        output = answer(model, batch.images, objects)
        loss += float(sum(loss_parts(model, output, batch.targets, batch.labels).values())) * len(batch.labels)
        right += int(_is_right(output.scores, batch.labels).sum())
    return {"loss": loss / len(feed.labels), "accuracy": right / len(feed.labels)}


def _stops_early(progress: Progress, training: Training) -> bool:
    if training.stop_at_familiar_accuracy:
        return progress.familiar_accuracy >= training.stop_at_familiar_accuracy
    if training.early_stopping is None or not progress.best_epoch:
        return False
    return progress.epoch - progress.best_epoch >= training.early_stopping


def _resume(
    folder: RunFolder,
    identity: dict[str, str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    say: Callable[[str], None],
) -> tuple[Progress, dict[str, Tensor]]:
    """Load the checkpoint if it is whole and of this very run and code; else start afresh."""
    if not folder.checkpoint_path.exists():
        return Progress(), {}
    device = next(model.parameters()).device
    try:
        saved = torch.load(folder.checkpoint_path, map_location=device, weights_only=True)
    except Exception:  # torch raises many kinds for a torn file
        say("the checkpoint is damaged: starts afresh")
        return Progress(), {}
    if saved["identity"] != identity:
        say("the checkpoint is of another configuration or of other code: starts afresh")
        return Progress(), {}
    progress = Progress(**saved["progress"])
    model.load_state_dict(saved["model"])
    if saved["optimizer"] is not None:
        optimizer.load_state_dict(saved["optimizer"])
    say(f"goes on after epoch {progress.epoch}")
    return progress, saved["best"]


def _save_checkpoint(
    folder: RunFolder,
    identity: dict[str, str],
    progress: Progress,
    model: nn.Module,
    best_weights: dict[str, Tensor],
    optimizer: torch.optim.Optimizer | None,
) -> None:
    content = {
        "identity": identity, "progress": asdict(progress), "model": model.state_dict(), "best": best_weights,
        "optimizer": None if optimizer is None else optimizer.state_dict(),
    }  # fmt: skip
    write_whole(folder.checkpoint_path, lambda aside: torch.save(content, aside))


def _finished(folder: RunFolder, record: dict[str, Any]) -> str | None:
    """Return the status of a finished run of this very configuration and code, or None where there is none."""
    found = folder.read_record()
    if found is None or found["status"] not in ("ok", "diverged"):
        return None
    same = all(found.get(key) == record[key] for key in ("digest", "sources"))
    whole = folder.model_path.exists() and folder.metrics_path.exists()
    return str(found["status"]) if same and whole else None


def _first_record(run: Run) -> dict[str, Any]:
    return {
        "status": "running",
        "study": run.study, "experiment": run.experiment, "variant": run.variant, "seed": run.seed,
        "digest": run.digest, "sources": content_hash(training_sources(run.model, run.modules)),
        "started": provenance.now(),
        "commit": provenance.commit(), "versions": provenance.versions(),
        "machine": provenance.system(),
        "config": run.model_dump(mode="json", include={"data", "model", "options", "training"}),
    }  # fmt: skip


def _progress_line(row: dict[str, Any], epochs: int, progress: Progress) -> str:
    accuracy = row["train_accuracy"] if row["validation_accuracy"] is None else row["validation_accuracy"]
    left = round(progress.seconds / progress.epoch * (epochs - progress.epoch))
    return (
        f"epoch {progress.epoch}/{epochs}  loss {row['train_loss']:.4f}  accuracy {accuracy:.2%}  "
        f"{left // 60}m{left % 60:02d}s left"
    )
