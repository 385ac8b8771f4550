"""Whole networks as cases: a training step, an evaluation pass, and the convolutions and the routing of a step alone.

The parts are not cut out of a step, whose kernels run ahead of the program on a GPU. A step is taken once, each
convolution and each routed layer keeps what it is given, and all of them are then called again with that, forth and
back. Their sum may so be more than the step, where the processor holds up a GPU.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from capsbench.benchmarks.turns import Case, NotThere
from capsbench.data.tasks.task import Batch
from capsbench.losses import Loss
from capsbench.models import Network, build_model, efficient_capsnet, predict
from capsbench.models.matrix_capsnet import ClassMatrixCaps, ConvMatrixCaps
from capsbench.registry import MODELS
from capsbench.routing import Routing
from capsbench.run.multiply_adds import count_multiply_adds
from capsbench.run.precision import has_bfloat16, set_precision, tf32
from capsbench.run.step import QuickStep, Step, make_optimizer
from capsbench.study import Training

NETWORKS = ("capsnet", "cnn_matched", "matrix_capsnet", "efficient_capsnet", "resnet20")
STEP, EVALUATION = "training step", "evaluation"
GRAPH, INDUCTOR = "training step, graph", "training step, inductor"
_COMPILED = {GRAPH: "graph", INDUCTOR: "inductor"}  # on a GPU; torch takes a minute to compile one
INDUCTORS = ("capsnet",)
BFLOAT16, TF32 = "training step, bfloat16", "training step, tf32"
# what counts as which part; the votes are made within these layers, but for those of Efficient-CapsNet
PARTS: dict[str, tuple[type[nn.Module], ...]] = {
    "convolutions": (nn.Conv2d, nn.ConvTranspose2d),
    "routing": (Routing, ConvMatrixCaps, ClassMatrixCaps),
}
_WITHOUT_A_LAYER, _FUNCTION = ("efficient_capsnet", "routing"), "attention_routing"
RATE = 1e-4  # of learning
SCHEDULED_STEPS = 1000  # a loss with a schedule is somewhere within it


def network_cases(names: Sequence[str], batch: int, device: str) -> Iterator[Case]:
    """Yield the cases of networks with their default options, on random images of the size of their papers."""
    for name in names:
        network = functools.cache(functools.partial(Trained, name, batch, device))
        lower = functools.cache(functools.partial(Trained, name, batch, device, bfloat16=True))
        shape, classes = MODELS[name].facts.get("published_on", ((1, 28, 28), 10))
        model = build_model(name, shape, classes)
        forward = 2.0 * batch * count_multiply_adds(model, shape)
        facts = {
            "group": "networks", "name": name, "batch": batch,
            "case": f"{'x'.join(map(str, shape))}, {classes} classes, batch {batch}",
        }  # fmt: skip

        def prepare(
            part: str, network: Callable[[], Trained] = network, lower: Callable[[], Trained] = lower
        ) -> Callable[[], object]:
            return (lower if part == BFLOAT16 else network)().part(part)

        # a gradient takes a product for the weight and one for what comes in
        compiled = [GRAPH] if device == "cuda" else []
        compiled += [INDUCTOR] if device == "cuda" and name in INDUCTORS else []
        has_convolutions = any(type(module) is nn.Conv2d for module in model.modules())
        precise = [BFLOAT16] if has_convolutions and has_bfloat16(torch.device(device)) else []
        precise += [TF32] if device == "cuda" else []
        steps = [(form, 3 * forward) for form in (STEP, *precise, *compiled)]
        for form, operations in (*steps, (EVALUATION, forward)):
            yield Case(functools.partial(prepare, form), facts | {"form": form}, operations, rated=(batch, "images/s"))
        for form, layers in PARTS.items():
            if any(isinstance(module, layers) for module in model.modules()) or (name, form) == _WITHOUT_A_LAYER:
                yield Case(functools.partial(prepare, form), facts | {"form": form})


class Trained:
    """A network, its optimizer, and a batch of random images. bfloat16: of its convolutions in training steps."""

    def __init__(self, name: str, batch: int, device: str, bfloat16: bool = False):
        torch.manual_seed(0)
        shape, classes = MODELS[name].facts.get("published_on", ((1, 28, 28), 10))
        self.model = build_model(name, shape, classes).to(device)
        images = torch.rand(batch, *shape, device=device)
        self.batch = Batch(images, torch.randint(classes, (batch,), device=device), images)
        for module in self.model.modules():
            if isinstance(module, Loss):
                module.begin(SCHEDULED_STEPS, 1.0)
        self.evaluated: Network = copy.deepcopy(self.model).eval()
        if bfloat16:
            set_precision(self.model, "bfloat16", torch.device(device))
        self.step = Step(self.model, make_optimizer(self.model, RATE), Training())

    def part(self, name: str) -> Callable[[], object]:
        """Return what is called for a part of PARTS, STEP or EVALUATION."""
        if name == EVALUATION:
            return self.evaluate
        if name in (STEP, BFLOAT16):
            return self.train
        if name == TF32:
            return self._by_tf32
        if name in _COMPILED:
            return self._compiled(_COMPILED[name])
        with _calls_of(self.model, name) as calls:
            self.train()
        return _Again(calls)

    def train(self) -> None:
        """Take a training step, as `capsbench.run.train` does."""
        self.step(self.batch, RATE)

    def _by_tf32(self) -> None:
        with tf32():
            self.train()

    def _compiled(self, form: str) -> Callable[[], object]:
        quick = QuickStep(self.step, form, self.batch.images.device)
        for _ in range(QuickStep.WARM_UP + 1):
            quick(self.batch, RATE)
        if quick.reason is not None:
            raise NotThere(quick.reason)
        return functools.partial(quick, self.batch, RATE)

    def evaluate(self) -> None:
        """Predict the batch, as evaluations do."""
        with torch.no_grad():
            predict(self.evaluated, self.batch.images)


_Call = tuple[Callable[..., Any], tuple[Any, ...]]  # a layer, and what it was given


@contextmanager
def _calls_of(model: Network, part: str) -> Iterator[list[_Call]]:
    """Keep the calls of the layers of a part meanwhile; tensors as leaves that take gradients where they did."""
    calls: list[_Call] = []

    def keep(layer: Callable[..., Any], given: tuple[Any, ...], *_: Any) -> None:
        calls.append((layer, tuple(_as_leaf(value) for value in given)))

    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, PARTS[part]):
                stack.callback(module.register_forward_pre_hook(keep).remove)
        if part == _WITHOUT_A_LAYER[1]:
            routing = getattr(efficient_capsnet, _FUNCTION)

            @functools.wraps(routing)
            def kept(*given: Any) -> Any:
                keep(routing, given)
                return routing(*given)

            stack.callback(setattr, efficient_capsnet, _FUNCTION, routing)
            setattr(efficient_capsnet, _FUNCTION, kept)
        yield calls


class _Again:
    """Calls layers again with what they were given, forth and back."""

    def __init__(self, calls: list[_Call]):
        self.calls = [(layer, given, _wanted(layer, given)) for layer, given in calls]
        with torch.no_grad():
            self.upstream = [[torch.randn_like(out) for out in _outputs(layer, given)] for layer, given in calls]

    def __call__(self) -> None:
        for (layer, given, wanted), upstream in zip(self.calls, self.upstream, strict=True):
            torch.autograd.grad(_outputs(layer, given), wanted, upstream, allow_unused=True)


def _outputs(layer: Callable[..., Any], given: tuple[Any, ...]) -> list[Tensor]:
    """Return what a layer passes on: a tensor, or poses and activations without the couplings."""
    found = layer(*given)
    return [found] if isinstance(found, Tensor) else list(found)[:2]


def _wanted(layer: Callable[..., Any], given: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors whose gradients a step computes."""
    own = layer.parameters() if isinstance(layer, nn.Module) else ()
    return [value for value in (*own, *given) if isinstance(value, Tensor) and value.requires_grad]


def _as_leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)
