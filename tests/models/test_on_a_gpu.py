"""A GPU computes what the CPU does; `make gpu-check` runs these, and elsewhere they are skipped."""

from pathlib import Path

import pytest
import torch
from small_networks import CLASSES, NOTHING_DRAWN, SHAPE, build_small
from small_runs import go, metrics, run_of

from capsbench.data.tasks.task import Batch
from capsbench.models import predict
from capsbench.registry import MODELS
from capsbench.run.precision import float32
from capsbench.run.step import QuickStep, Step, make_optimizer
from capsbench.study import Training

DEVICES = [pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
TOLERANCE = 1e-3  # of the largest value of a tensor, in float32: sums in another order, a dozen layers deep
pytestmark = pytest.mark.gpu


def close(found: torch.Tensor, expected: torch.Tensor, what: str, least: float = 1e-6) -> None:
    scale = max(float(expected.abs().max()), least)
    difference = float((found.cpu() - expected).abs().max())
    assert difference <= TOLERANCE * scale, f"{what}: {difference:.3g} of {scale:.3g}"


def step(name: str, device: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Scores, loss and gradients of one batch, from the same weights and images."""
    torch.manual_seed(0)
    model = build_small(name, **NOTHING_DRAWN.get(name, {})).to(device).train()
    torch.manual_seed(1)
    images, labels = torch.rand(8, *SHAPE).to(device), (torch.arange(8) % CLASSES).to(device)
    with float32():
        output = model(images, labels)
        loss = torch.stack(list(model.loss(output, images, labels).values())).sum()
        loss.backward()
    gradients = {key: p.grad.detach().cpu() for key, p in model.named_parameters() if p.grad is not None}
    return output.scores.detach().cpu(), loss.detach().cpu(), gradients


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS.names())
def test_a_step_of_every_network_is_that_of_the_cpu(name, device):
    scores, loss, gradients = step(name, device)
    expected_scores, expected_loss, expected = step(name, "cpu")
    close(scores, expected_scores, "scores")
    close(loss, expected_loss, "loss")
    assert gradients.keys() == expected.keys()
    # a gradient that is zero but for rounding, such as that of a bias before a softmax, is as exact as the others
    least = 1e-3 * max(float(gradient.abs().max()) for gradient in expected.values())
    for key, gradient in gradients.items():
        close(gradient, expected[key], key, least)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS.names())
def test_every_network_predicts_what_it_does_on_the_cpu(name, device):
    model, images = build_small(name).eval(), torch.rand(16, *SHAPE)
    with torch.inference_mode(), float32():
        expected = predict(model, images)
        found = predict(model.to(device), images.to(device))
    close(found.scores, expected.scores, "scores")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["capsnet", "cnn_matched"])
def test_a_training_follows_that_of_the_cpu(tmp_path: Path, model, device):
    losses = {}
    for where in ("cpu", device):
        run = run_of(tmp_path, model, NOTHING_DRAWN.get(model), device=where)
        _, folder = go(run, tmp_path / where)
        losses[where] = [float(row["train_loss"]) for row in metrics(folder)]
    assert losses[device] == pytest.approx(losses["cpu"], rel=0.02)


def steps_of(name: str, form: str | None, device: str) -> tuple[list[torch.Tensor], Step | QuickStep]:
    """Take eight steps, one of them of half a batch -> the values of each, and what took them."""
    torch.manual_seed(0)
    model = build_small(name).to(device).train()
    step = Step(model, make_optimizer(model, 1e-3), Training())
    take = step if form is None else QuickStep(step, form, torch.device(device))
    source = torch.Generator().manual_seed(1)
    values = []
    with float32():
        for size in (8, 8, 8, 8, 8, 4, 8, 8):
            images = torch.rand(size, *SHAPE, generator=source).to(device)
            labels = torch.randint(CLASSES, (size,), generator=source).to(device)
            values.append(take(Batch(images, labels, images), 1e-3).values.cpu())
    return values, take


# a study refuses scae in any form, whose loss asks at which step it is
FORMS = [(name, "graph") for name in MODELS.names() if name != "scae"]
FORMS += [("capsnet", "inductor"), ("cnn_sabour_mnist", "inductor")]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_steps_in_another_form_are_the_plain_ones(name, form, device):
    expected, _ = steps_of(name, None, device)
    found, taken = steps_of(name, form, device)
    if (name, form) == ("capsnet", "inductor") and taken.reason:  # torch 2.11, for the trial of the kernel
        pytest.skip(f"torch refuses to compile CapsNet: {taken.reason}")
    assert taken.form == form, taken.reason
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=2e-2, atol=1e-4), (one, other)
