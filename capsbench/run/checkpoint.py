"""Checkpoints: where a run continues after an interruption, and with what."""

import logging
import time
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsbench.models.output import Network
from capsbench.run.folder import RunFolder, write_whole

log = logging.getLogger(__name__)

SECONDS_BETWEEN = {"cuda": 30.0}  # checkpoints


@dataclass
class Progress:
    """How far a training is.

    familiar_error in %, of the last look; matched: it is that of the run to be matched. segments: on which machine and
    with which versions it went on after which epoch, see `provenance.note_segment`.
    """

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)  # metrics.csv so far
    best_epoch: int = 0
    best_accuracy: float = -1.0
    familiar_error: float | None = None
    matched: bool = False
    segments: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class State:
    """All that a training changes. best: the weights of the best validation epoch, under early stopping."""

    progress: Progress
    model: Network
    optimizer: torch.optim.Optimizer
    best: dict[str, Tensor] = field(default_factory=dict)


def resume(folder: RunFolder, identity: Mapping[str, Any], state: State) -> None:
    """Bring a new training to where its checkpoint is, if that is whole and of the same configuration and code."""
    if not folder.checkpoint_path.exists():
        return
    device = next(state.model.parameters()).device
    try:
        saved = load_tensors(folder.checkpoint_path, device)
        same, progress = saved["identity"] == dict(identity), Progress(**saved["progress"])
    except Exception:  # torch raises many kinds for a torn file, and one of another kind has other keys
        log.warning("the checkpoint is damaged: training starts afresh")
        return
    if not same:
        log.warning("the checkpoint has another configuration or another version of the code: training starts afresh")
        return
    state.progress = progress
    state.model.load_state_dict(saved["model"])
    if saved["optimizer"] is not None:
        state.optimizer.load_state_dict(saved["optimizer"])
    state.best = saved["best"]
    log.info("continues after epoch %d", state.progress.epoch)


class Saver:
    """Writes the checkpoints of a training after each epoch; on a GPU, where that may take as long as the epoch, less.

    Attributes:
        folder: of the run.
        identity: see `resume`.
        seconds: that pass between two checkpoints.
    """

    def __init__(self, folder: RunFolder, identity: Mapping[str, Any], device: torch.device):
        self.folder, self.identity = folder, dict(identity)
        self.seconds = SECONDS_BETWEEN.get(device.type, 0.0)
        self._last = time.perf_counter()

    def save(self, state: State) -> None:
        """Write a checkpoint, if it is time for one."""
        if time.perf_counter() - self._last >= self.seconds:
            save_checkpoint(self.folder, self.identity, state)
            self._last = time.perf_counter()


def save_checkpoint(folder: RunFolder, identity: Mapping[str, Any], state: State, finished: bool = False) -> None:
    """Write the checkpoint; a finished training needs no optimizer, which is most of the size."""
    content = {
        "identity": dict(identity), "progress": asdict(state.progress), "model": state.model.state_dict(),
        "best": state.best, "optimizer": None if finished else state.optimizer.state_dict(),
    }  # fmt: skip
    save_tensors(folder.checkpoint_path, content)


def load_tensors(path: Path, device: torch.device | str = "cpu") -> Any:
    """Load what `save_tensors` wrote. Raises ValueError for a file whose checksums are wrong, torch's own for others.

    torch.load does not look at the checksums of its archive: a flipped bit would come back as another weight.
    """
    with zipfile.ZipFile(path) as archive:
        if (wrong := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {wrong} is wrong")
    return torch.load(path, map_location=device, weights_only=True)


def save_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Save tensors whole. The same tensors give the same bytes: torch names an archive after a path, not a handle."""

    def write(aside: Path) -> None:
        with aside.open("wb") as file:
            torch.save(content, file)

    write_whole(path, write, lasting=True)
