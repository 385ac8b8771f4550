"""What a protocol is given: the run, its network, and its images, each made when it is first asked for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from capsbench.data import Raw, make_task, read_split
from capsbench.data.tasks.splits import split_indices
from capsbench.data.tasks.task import Task
from capsbench.errors import InputError
from capsbench.evaluation.items import Items, shown_items
from capsbench.evaluation.predictions import Predictions, collect_predictions
from capsbench.models import Network, build_model
from capsbench.run.folder import RunFolder
from capsbench.run.load import load_weights
from capsbench.streams import stream, stream_seed
from capsbench.study import Run, Split

Made = TypeVar("Made")


@dataclass(frozen=True)
class Context:
    """A trained network and what it is measured on.

    Attributes:
        run: the run, as its study has it.
        model: its network, on `device`, in evaluation mode.
        device: where to compute.
        results: the folder of results.
        root: the folder of raw data.
    """

    run: Run
    model: Network
    device: torch.device
    results: Path
    root: Path
    _made: dict[tuple[str, Any], Any] = field(default_factory=dict, repr=False)

    def raw(self, split: Split = "test") -> Raw:
        """Return the arrays that the images of a split are made of."""
        return self._once("raw", split, lambda: read_split(self.run.data, self.root, split))

    def task(self, split: Split = "test") -> Task:
        """Return the images of a split, which `eval_batches` shows; on the device."""
        return self._once("task", split, lambda: make_task(self.run.data, self.raw(split), split, self.device))

    def items(self, split: Split = "test") -> Items:
        """Return what the images of a split show: factors, digits, one hash of all."""
        made = shown_items
        return self._once("items", split, lambda: made(self.run.data, self.raw(split), self.task(split), self.root))

    def predictions(self, split: Split = "test") -> Predictions:
        """Return what the network says of all images of a split; one pass, whoever asks."""
        return self._once("predictions", split, lambda: collect_predictions(self.model, self.task(split)))

    def training_images(self) -> Task:
        """Return the images that the run was trained on, shown as in a test: not augmented, cropped in the centre."""

        def make() -> Task:
            raw = self.raw("train")
            indices, _ = split_indices(self.run.data, raw, self.run.data.split_seed)
            return make_task(self.run.data, raw.take(indices.numpy()), "validation", self.device)

        return self._once("training images", None, make)

    def trained(self, variant: str) -> Network:
        """Return the network of another variant, of the same experiment and seed, on the device.

        Raises:
            InputError: there is no such run, or it is not finished.
        """
        key = f"{self.run.experiment}/{variant}/seed{self.run.seed}"
        folder = RunFolder.of(self.results, self.run.study, key)
        record = folder.read_record()
        if record is None or record["status"] != "ok":
            raise InputError(f"{folder.path}: is not trained, and {self.run.key} is measured with it; train it first")
        config = record["config"]
        shape, classes = self.run.data.image_shape, self.run.data.facts.num_classes
        model = build_model(config["model"], shape, classes, **config["options"])
        folder.check(folder.model_path, record)
        load_weights(model, folder.model_path)
        return model.to(self.device).eval()

    def untrained(self, images: Int[Tensor, " chosen"]) -> Network:
        """Return the network as it was before its training, on the device.

        Batch normalisation has the statistics of the training images that these indices name, as at the beginning of a
        training. With means of 0 and variances of 1, which it is made with, values may differ by next to nothing.
        """
        run, task = self.run, self.training_images()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(run.seed, "initialisation"))
            model = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)
            norms = [module for module in model.to(self.device).modules() if isinstance(module, _BatchNorm)]
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a mean over all batches
            with torch.no_grad():
                for part in images.split(run.training.batch_size) if norms else ():
                    model.train()(task.eval_batch(part, 0).images)
        return model.eval()

    def rng(self) -> torch.Generator:
        """Return a generator on the CPU for what a protocol draws: the same for all runs, and anew with each call."""
        return stream(0, "evaluation")

    def _once(self, what: str, split: Split | None, make: Callable[[], Made]) -> Made:
        if (what, split) not in self._made:
            self._made[what, split] = make()
        found: Made = self._made[what, split]
        return found
