"""One step of training: forward pass, loss, backward pass, Adam; as one CUDA graph where a study asks for that."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from capsbench.data.tasks.task import Batch
from capsbench.models.output import Network, Output
from capsbench.run.metrics import sums_over_images
from capsbench.study import Training

log = logging.getLogger(__name__)

_Forward = Callable[[Tensor, Tensor, Tensor], tuple[Output, dict[str, Tensor]]]


class Measured(NamedTuple):
    """What a step leaves behind, on the device.

    Attributes:
        names: of the values.
        values: float [1 + P], the norm of the gradient and the P parts of the loss.
        sums: float [4], see `sums_over_images`.
        couplings: float [B, I, K], of a network that has them; of a captured step only until the next one.
        has_capsules: the network has class capsules.
    """

    names: list[str]
    values: Tensor
    sums: Tensor
    couplings: Tensor | None
    has_capsules: bool


def make_optimizer(model: Network, learning_rate: float, weight_decay: float = 0.0) -> torch.optim.AdamW:
    """Return Adam for a network, in one kernel."""
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)


class Step:
    """Takes steps operation by operation.

    Attributes:
        model: in training mode.
        optimizer: of its parameters.
        training: whose `l2` and `gradient_clip` count.
    """

    def __init__(
        self, model: Network, optimizer: torch.optim.Optimizer, training: Training, forward: _Forward | None = None
    ):
        self.model, self.optimizer, self.training = model, optimizer, training
        self.parameters = list(model.parameters())
        self._kernels = [p for p in self.parameters if p.ndim > 1]
        self._forward = forward or self.forward

    def __call__(self, batch: Batch, rate: float) -> Measured:
        """Change the network by a batch, at a learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return self.take(batch)

    def forward(self, images: Tensor, targets: Tensor, labels: Tensor) -> tuple[Output, dict[str, Tensor]]:
        """Return what the network says, and the parts of its loss."""
        output = self.model(images, labels)
        return output, self.model.loss(output, targets, labels)

    def take(self, batch: Batch) -> Measured:
        """Change the network by a batch, at the learning rate of the optimizer."""
        output, parts = self._forward(batch.images, batch.targets, batch.labels)
        if self.training.l2:
            parts["l2"] = self.training.l2 * torch.stack([kernel.square().sum() for kernel in self._kernels]).sum()
        self.optimizer.zero_grad()
        torch.stack(list(parts.values())).sum().backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if self.training.gradient_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.training.gradient_clip, norm)
        self.optimizer.step()

        activations = output.scores if output.activations is None else output.activations
        return Measured(
            ["gradient_norm", *parts],
            torch.stack([norm, *parts.values()]).detach(),
            sums_over_images(output.scores.detach(), activations.detach(), batch.labels),
            None if output.couplings is None else output.couplings.detach(),
            output.poses is not None,
        )


# What records a function that reads and writes only tensors which stay where they are -> what it returned, and what
# does the same again into the same tensors.
Capture = Callable[[Callable[[], Measured]], tuple[Measured, Callable[[], None]]]


def cuda_graph(function: Callable[[], Measured]) -> tuple[Measured, Callable[[], None]]:
    """Capture the work of a function for the GPU, which does none of it yet."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        measured = function()
    return measured, graph.replay


class QuickStep:
    """Takes steps in the form that `training.compile` asks for, once that has shown that it does what `Step` does.

    The first steps are plain ones: libraries choose their kernels in them, and Adam makes its moments. Then two steps
    are tried in both forms from the same state, with different batches and rates, so that nothing that should change
    from step to step can have become a constant. Where they differ, or torch refuses, all steps are plain ones; so are
    those of a batch of another size, such as the last one of an epoch.

    Attributes:
        plain: takes a step operation by operation.
        form: of the steps: "graph", "inductor", or "plain".
        reason: why the steps are plain, although something else was asked for.
    """

    WARM_UP = 3
    LIMITS = (("values", 1e-3), ("changes of weights", 0.1))  # differences of two forms, relative in the norm

    def __init__(self, plain: Step, wanted: str, device: torch.device, capture: Capture = cuda_graph):
        self._wanted = wanted
        self.plain, self.form = plain, "plain" if wanted == "off" else wanted
        self.reason: str | None = None
        self._device, self._capture, self._captured = device, capture, device.type == "cuda" or capture != cuda_graph
        self._shapes: list[torch.Size] = []
        self._steps = 0
        self._again: Callable[[Batch, float], Measured] | None = None
        if wanted == "graph" and not self._captured:
            self._stay_plain("a graph is for a GPU, and this is none")

    def __call__(self, batch: Batch, rate: float) -> Measured:
        """Change the network by a batch, at a learning rate."""
        shapes = [part.shape for part in batch]
        self._shapes = self._shapes or shapes
        if self.form == "plain" or shapes != self._shapes:
            return self.plain(batch, rate)
        if self._again is None:
            if self._steps < self.WARM_UP:
                self._steps += 1
                return self.plain(batch, rate)
            self._prepare(batch, rate)
            return self(batch, rate)
        return self._again(batch, rate)

    def described(self) -> dict[str, dict[str, str | None]]:
        """Return what run.yaml says of the form of the steps: nothing where none was asked for."""
        return {"step": {"form": self.form, "reason": self.reason}} if self._wanted != "off" else {}

    def _prepare(self, batch: Batch, rate: float) -> None:
        try:
            with self._undone():
                self._again = self._made(batch, rate)
            for trial, its_rate in ((batch, rate), (_other(batch), rate / 2)):
                found = [self._tried(take, trial, its_rate) for take in (self._again, self.plain)]
                for (name, limit), one, other in zip(self.LIMITS, *found, strict=True):
                    difference = float((one - other).norm() / other.norm())
                    if not difference <= limit:  # nan is no agreement either
                        raise RuntimeError(f"the {name} of a trial step differ by {difference:.2g} of their norm")
        except Exception as error:  # torch raises many kinds where it cannot capture or compile
            self._stay_plain((str(error).strip().splitlines() or [type(error).__name__])[0])

    def _made(self, batch: Batch, rate: float) -> Callable[[Batch, float], Measured]:
        """Return the step in the form that is wanted."""
        step = self.plain
        if self.form == "inductor":
            torch._inductor.config.fallback_random = True  # the draws of plain steps
            forward = torch.compile(step.forward, dynamic=False)
            step = Step(step.model, step.optimizer, step.training, forward)
            step(batch, rate)  # compiles
        return _Captured(step, batch, self._capture) if self._captured else step

    def _tried(self, take: Callable[[Batch, float], Measured], batch: Batch, rate: float) -> tuple[Tensor, Tensor]:
        """Take a step and undo it -> its values, and the change of all weights, 1-D."""
        parameters = self.plain.parameters
        with self._undone():
            before = [p.detach().clone() for p in parameters]
            values = take(batch, rate).values.clone()
            changes = [(p.detach() - old).flatten() for p, old in zip(parameters, before, strict=True)]
            return values, torch.cat(changes)

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Bring network, optimizer and random draws back to where they were, in the tensors that they are in."""
        model, optimizer = self.plain.model, self.plain.optimizer
        tensors = [*model.parameters(), *model.buffers()]
        for kept in optimizer.state.values():
            tensors += [value for value in kept.values() if isinstance(value, Tensor)]
        before = [tensor.detach().clone() for tensor in tensors]
        on_gpu = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(on_gpu):
            try:
                yield
            finally:
                with torch.no_grad():
                    for tensor, old in zip(tensors, before, strict=True):
                        tensor.copy_(old)

    def _stay_plain(self, reason: str) -> None:
        self.form, self.reason, self._again = "plain", reason, None
        log.warning("steps are taken operation by operation: %s", reason)


class _Captured:
    """A step that was captured with a batch, and is done again with others of its size."""

    def __init__(self, step: Step, batch: Batch, capture: Capture):
        self._batch = Batch(*(part.clone() for part in batch))
        self._rate = torch.zeros((), device=batch.images.device)
        groups = step.optimizer.param_groups
        before = [(group["lr"], group["capturable"]) for group in groups]
        for group in groups:
            group["lr"], group["capturable"] = self._rate, True
        try:
            self._measured, self._replay = capture(lambda: step.take(self._batch))
        finally:
            for group, (rate, capturable) in zip(groups, before, strict=True):
                group["lr"], group["capturable"] = rate, capturable

    def __call__(self, batch: Batch, rate: float) -> Measured:
        for here, new in zip(self._batch, batch, strict=True):
            here.copy_(new)
        self._rate.fill_(rate)
        self._replay()
        return self._measured._replace(values=self._measured.values.clone(), sums=self._measured.sums.clone())


def _other(batch: Batch) -> Batch:
    """Return the batch with images, labels and targets that do not belong to each other."""
    return Batch(*(part.roll(places, dims=0) for places, part in enumerate(batch, start=1)))
