import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from capsbench.data import make_task
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.readers.raw import Raw
from capsbench.errors import InputError
from capsbench.evaluation.adversarial import TABLE_EPS, adversarial, smallest_eps, summarised
from capsbench.evaluation.attacks import (
    Squares,
    ascend,
    fgsm,
    input_gradient,
    is_fooled,
    is_hit,
    margin,
    square_attack,
    square_side,
    target_margin,
    towards_grey,
)
from capsbench.evaluation.victim import victim_of
from capsbench.losses import margin_loss, present_classes
from capsbench.models import Network, Output, build_model
from capsbench.registry import PROTOCOLS
from capsbench.study import Data

CPU = torch.device("cpu")
SHAPE = (1, 4, 4)


def seeded(number=0):
    return torch.Generator().manual_seed(number)


class Linear(Network):
    """Two or three classes by a linear map of the pixels, trained by the margin of its scores."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)  # [K, pixels]

    def forward(self, images, labels=None):
        return Output((images - 0.5).flatten(1) @ self.weight.T)

    def loss(self, output, targets, labels):
        return {"cross_entropy": nn.functional.cross_entropy(output.scores, labels)}


class Flat(Linear):
    """The same decisions as scores of 1 and 0, which have no slope anywhere; a loss of them is as flat."""

    def forward(self, images, labels=None):
        scores = super().forward(images).scores
        return Output(scores - scores.detach() + present_classes(scores.argmax(1), scores.shape[1]) - scores)

    def loss(self, output, targets, labels):
        return {"margin": margin_loss(output.scores * 0 + output.scores.detach(), present_classes(labels, 2))}


def pictures(count=40):
    return torch.randint(100, 156, (count, *SHAPE), generator=seeded(1), dtype=torch.uint8)


def task_of(model, count=40):
    """A task whose labels are what the model says of it."""
    images = pictures(count)
    labels = model(images / 255).scores.argmax(dim=1)
    data = Data(name="digits")
    return make_task(data, Raw(images.numpy(), labels.numpy()), "test", CPU)


def context_of(model, task, trained=None, variant="v"):
    data = SimpleNamespace(facts=SimpleNamespace(num_classes=model.weight.shape[0] if hasattr(model, "weight") else 10))
    return SimpleNamespace(
        run=SimpleNamespace(data=data, variant=variant),
        model=model.eval(),
        task=lambda: task,
        rng=lambda: seeded(5),
        trained=trained,
    )


def weights(classes=2):
    return torch.randn(classes, math.prod(SHAPE), generator=seeded(2))


def test_the_margin_is_below_zero_exactly_where_an_image_is_wrong():
    scores = torch.tensor([[0.9, 0.5, 0.1], [0.2, 0.5, 0.1]])
    torch.testing.assert_close(margin(scores, torch.tensor([0, 0])), torch.tensor([0.4, -0.3]))
    pairs = torch.tensor([[0, 1], [0, 2]])
    torch.testing.assert_close(margin(scores, pairs), torch.tensor([0.4, -0.4]))
    drawn, labels = torch.randn(200, 5, generator=seeded()), torch.randint(5, (200,), generator=seeded())
    assert torch.equal(margin(drawn, labels) < 0, is_fooled(drawn, labels))
    both = torch.stack([labels, (labels + 1) % 5], 1).sort(dim=1).values
    assert torch.equal(margin(drawn, both) < 0, is_fooled(drawn, both))


@pytest.mark.parametrize("objects", [1, 2])
def test_a_target_leads_exactly_where_it_is_predicted(objects):
    scores, targets = torch.randn(200, 5, generator=seeded()), torch.randint(5, (200,), generator=seeded(1))
    lead = target_margin(scores, targets, objects)
    assert torch.equal(lead > 0, is_hit(scores, targets, objects))
    assert 0 < int((lead > 0).sum()) < 200


def test_fgsm_of_a_linear_network_in_closed_form():
    """Its margin falls by eps times the sum of |w_true - w_other|, so the eps that fools an image is known."""
    model = Linear(weights())
    task = task_of(model)
    victim = victim_of(model, task, torch.arange(40), 1 - task.labels)
    difference = model.weight[0] - model.weight[1]
    needed = (margin(model(victim.pixels).scores, task.labels) / difference.abs().sum()).detach()
    assert needed.max() < 0.3  # no pixel reaches 0 or 1
    gradient, _ = input_gradient(victim.negative_margin, victim.pixels, victim.all)
    signs = torch.where(task.labels == 0, -1.0, 1.0)[:, None] * difference
    torch.testing.assert_close(gradient.flatten(1), signs.detach())
    torch.testing.assert_close(
        fgsm(victim.pixels, gradient, 0.1), victim.pixels + 0.1 * gradient.sign(), rtol=0, atol=1e-6
    )
    found = adversarial(context_of(model, task), eps=(0.005, 0.02, 0.05), restarts=1, queries=5)
    for name in ("fgsm", "fgsm_margin", "bim", "pgd", "all"):
        expected = [100 * float((needed < eps).float().mean()) for eps in found["eps"][1:]]
        assert found["error_by_eps"][name] == pytest.approx([0.0, *expected]), name
        assert 0 < expected[0] < expected[1] < 100
    alone = [100 * float((needed < eps).float().mean()) for eps in found["eps"]]  # each eps by itself
    assert found["fgsm_error_at_each_eps_alone"] == pytest.approx(alone)
    assert found["targeted_success_by_eps"] == found["error_by_eps"]["all"]  # of two classes


class Quadratic(Network):
    """Class 0 scores 0.01, class 1 the square of how far the first pixel has moved: no slope to start with."""

    def forward(self, images, labels=None):
        away = (images[:, 0, 0, 0] - torch.tensor(127) / 255).square()
        return Output(torch.stack([torch.full_like(away, 0.01), away], 1))

    def loss(self, output, targets, labels):
        return {"cross_entropy": nn.functional.cross_entropy(output.scores, labels)}


def test_random_restarts_succeed_where_the_image_itself_has_no_slope():
    images, labels = torch.full((40, *SHAPE), 127, dtype=torch.uint8), torch.zeros(40, dtype=torch.long)
    task = make_task(Data(name="digits"), Raw(images.numpy(), labels.numpy()), "test", CPU)
    model = Quadratic()
    model.weight = weights()  # names the classes
    found = adversarial(context_of(model, task), eps=(0.2,), restarts=1, queries=1)
    at = found["eps"].index(0.2)
    assert found["zero_gradient"] == found["zero_gradient_of_margin"] == 100.0
    for name in ("fgsm", "fgsm_margin", "bim", "bim_margin"):
        assert found["error_by_eps"][name][at] == 0.0
    assert found["error_by_eps"]["pgd"][at] == found["error_by_eps"]["pgd_margin"][at] == 100.0
    assert found["restarts_alone_by_eps"][at] == 100.0
    assert found["restarts_alone"] == 100.0


def test_a_targeted_attack_reaches_its_own_class_and_not_the_nearest():
    """Class 1 is three times as near as class 2: an attack without a target always ends there."""
    weight = torch.zeros(3, math.prod(SHAPE))
    weight[1, 0], weight[2, 1] = 3.0, 1.0
    images = torch.full((40, *SHAPE), 127, dtype=torch.uint8)
    images[:, :, 0, :2] = 115
    task = make_task(Data(name="digits"), Raw(images.numpy(), np.zeros(40, dtype=np.int64)), "test", CPU)
    found = adversarial(context_of(Linear(weight), task), eps=(0.2,), restarts=1, queries=1)
    assert found["error"] == 0.0
    assert found["targeted_success_by_eps"][found["eps"].index(0.2)] == 100.0


def test_many_steps_stay_in_the_ball_and_find_the_corner_of_a_linear_network():
    images = torch.rand(20, *SHAPE, generator=seeded())
    slope = torch.randn(SHAPE, generator=seeded(3))

    def objective(pixels, numbers):
        return (pixels * slope).sum(), torch.zeros(len(pixels), dtype=torch.bool)

    corner = (images + 0.2 * slope.sign()).clamp(0, 1)
    start = (images + 0.2 * (2 * torch.rand(images.shape, generator=seeded(4)) - 1)).clamp(0, 1)
    for point in (None, start):
        torch.testing.assert_close(ascend(objective, images, 0.2, steps=10, start=point), corner)
    assert not torch.allclose(ascend(objective, images, 0.2, steps=10), images + 0.2 * slope.sign())


def test_an_image_at_the_goal_is_left_as_it_is_unless_all_steps_are_wanted():
    images = torch.full((2, *SHAPE), 0.5)

    def objective(pixels, numbers):
        return pixels.sum(), numbers == 0

    stopped = ascend(objective, images, 0.1, steps=4)
    assert torch.equal(stopped[0], images[0])
    assert stopped[1].mean() == pytest.approx(0.6)
    assert ascend(objective, images, 0.1, steps=4, stop=False)[0].mean() == pytest.approx(0.6)


def test_at_half_the_range_all_images_are_one_grey():
    images = torch.rand(20, *SHAPE, generator=seeded())
    assert torch.equal(towards_grey(images, 0.5), torch.full_like(images, 0.5))
    assert (towards_grey(images, 0.1) - images).abs().max() == pytest.approx(0.1)


def test_the_square_attack_stays_in_the_ball_and_climbs_without_gradients():
    images = torch.rand(20, 1, 8, 8, generator=seeded())
    slope = torch.randn(1, 8, 8, generator=seeded(3))
    asked = []

    def objective(pixels, numbers):
        asked.append(len(numbers))
        return (pixels * slope).flatten(1).sum(1), torch.zeros(len(pixels), dtype=torch.bool)

    reached = []
    for queries in (1, 200):
        squares = Squares.drawn((20, 1, 8, 8), queries, seeded(7))
        found = square_attack(objective, images, 0.1, squares)
        assert (found - images).abs().max() <= 0.1 + 1e-6
        assert found.min() >= 0 and found.max() <= 1
        reached.append((found * slope).flatten(1).sum(1))
    assert (reached[1] > reached[0]).all()
    assert len(asked) == 2 + 201
    best = ((images + 0.1 * slope.sign()).clamp(0, 1) * slope).flatten(1).sum(1)
    assert ((reached[1] - (images * slope).flatten(1).sum(1)) / (best - (images * slope).flatten(1).sum(1))).min() > 0.5


def test_squares_shrink_as_in_the_paper():
    assert square_side(0, 10_000, 28, 28) == 25  # 80 % of the image
    sides = [square_side(query, 100, 28, 28) for query in range(100)]
    assert sides == sorted(sides, reverse=True)
    assert sides[-1] == round((0.8 / 2**8 * 784) ** 0.5)


def test_only_what_still_stands_is_attacked_and_no_error_falls():
    asked = []

    def attack(numbers, eps):
        asked.append((eps, numbers.tolist()))
        return torch.tensor([number in {0.1: (1,), 0.2: (2,), 0.5: ()}[eps] for number in numbers.tolist()])

    found = smallest_eps(attack, torch.tensor([True, False, False, False]), [0.0, 0.1, 0.2, 0.5])
    assert found.tolist() == [0.0, 0.1, 0.2, math.inf]
    assert asked == [(0.1, [1, 2, 3]), (0.2, [2, 3]), (0.5, [3])]


def test_signs_of_masked_gradients_are_counted():
    inf = math.inf
    nothing = [0.0, inf, inf, inf]
    smallest = {name: np.array(nothing) for name in ("fgsm", "bim", "bim_margin", "pgd", "pgd_margin", "targeted")}
    smallest["pgd"][1] = 0.1  # from a random point alone
    smallest |= {"grey": np.array(nothing), "square": np.array([0.0, 0.2, 0.2, inf])}
    found = summarised(smallest, [0.0, 0.1, 0.2])
    assert found["error_by_eps"]["all"] == [25.0, 50.0, 75.0]
    assert found["masked_by_eps"] == [0.0, 0.0, 25.0]
    assert found["masked"] == 25.0
    assert found["restarts_alone_by_eps"] == [0.0, 25.0, 25.0]
    assert found["half_eps"] == pytest.approx(0.1)
    assert found["smallest_eps"].tolist() == [0.0, 0.1, 0.2, inf]


def test_a_network_without_slopes_looks_robust_to_gradients_and_is_not():
    model = Flat(weights())
    task = task_of(model)
    found = adversarial(context_of(model, task), eps=(0.5,), queries=50)
    assert found["zero_gradient"] == found["zero_gradient_of_margin"] == 100.0
    assert found["error_by_eps"]["bim"][-1] == 0.0
    assert found["error_by_eps"]["square"][-1] > 50.0
    assert found["masked"] > 25.0
    open_found = adversarial(context_of(Linear(weights()), task), eps=(0.5,), queries=50)
    assert (open_found["zero_gradient"], open_found["masked"]) == (0.0, 0.0)


def test_transfer_is_from_another_network_and_not_applicable_otherwise():
    model = Linear(weights())
    task = task_of(model)

    def trained(variant):
        if variant == "none":
            raise InputError("none: is not trained")
        return Linear(weights()) if variant == "twin" else Linear(torch.flip(weights(), (0,)))

    def run(variant):
        return adversarial(context_of(model, task, trained), eps=(0.5,), queries=1, transfer_from=variant)

    twin = run("twin")
    assert twin["transfer"] == {"status": "ok", "from": "twin"}
    assert twin["error_by_eps"]["transfer"] == twin["error_by_eps"]["bim"]
    assert twin["transfer_error"] > 50.0
    assert run("opposite")["transfer_error"] == 0.0  # what raises the one's loss lowers the other's
    for variant, why in ((None, "names no variant"), ("v", "this variant"), ("none", "is not trained")):
        found = run(variant)
        assert found["transfer"]["status"] == "not applicable"
        assert why in found["transfer"]["reason"]
        assert "transfer_error" not in found
    assert PROTOCOLS["adversarial"].facts["beside"] == "transfer_from"


CASES = {
    "digits": ("capsnet", {"conv_channels": 4, "primary_types": 1}, (1, 28, 28), {}),
    "multidigits": ("capsnet", {"conv_channels": 4, "primary_types": 1}, (1, 36, 36), {"test_pairs": 12}),
    "toynorb": ("matrix_capsnet", {"conv_channels": 4, "primary_types": 2, "conv_types": (2, 2)}, (2, 32, 32), {}),
    "cifar10": ("resnet20", {"widths": (4, 8), "blocks": 1}, (3, 24, 24), {"crop": 24, "standardise": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_real_networks_on_every_kind_of_task(name):
    """Error at eps 0 is that of the test, to the image; none falls; and a second time gives the same."""
    network, options, shape, data_options = CASES[name]
    images = {"toynorb": (12, 2, 48, 48), "cifar10": (12, 3, 32, 32)}.get(name, (12, 1, 28, 28))
    raw = Raw(np.random.default_rng(0).integers(0, 256, images, dtype=np.uint8), np.arange(12) % 4)
    data = Data(name=name, options=CATALOGUE[name].options(**data_options))
    task = make_task(data, raw, "test", CPU)
    torch.manual_seed(0)
    model = build_model(network, shape, 10, **options).eval()
    context = context_of(model, task)
    settings = {"images": 8, "eps": (0.05, 0.5), "steps": 2, "queries": 3}
    found = adversarial(context, **settings)
    chosen = torch.from_numpy(found["chosen"])
    with torch.no_grad():
        wrong = is_fooled(model(task.eval_batch(chosen, 0).images).scores, task.labels[chosen])
    assert found["error"] == 100 * float(wrong.float().mean())
    assert found["images"] == 8
    for errors in found["error_by_eps"].values():
        assert errors == sorted(errors)
        assert errors[0] == found["error"]
        assert all(a <= b for a, b in zip(errors, found["error_by_eps"]["all"], strict=True))
    assert TABLE_EPS in found["eps"]
    again = adversarial(context, **settings)
    assert again["error_by_eps"] == found["error_by_eps"]
    assert np.array_equal(again["smallest_eps"], found["smallest_eps"])
    assert set(PROTOCOLS["adversarial"].facts["shows"]) <= set(found)


def test_the_gradient_is_that_of_pixels_before_standardisation():
    images = np.random.default_rng(0).integers(60, 200, (6, 2, 48, 48), dtype=np.uint8)
    data = Data(name="smallnorb", options=CATALOGUE["smallnorb"].options(test_crops=13))
    task = make_task(data, Raw(images, np.arange(6) % 3), "test", CPU)
    model = Linear(torch.randn(3, 2 * 32 * 32, generator=seeded(2)) / 30)
    victim = victim_of(model, task, torch.arange(6), torch.zeros(6, dtype=torch.long))
    gradient, _ = input_gradient(victim.negative_margin, victim.pixels, victim.all)
    direction = torch.randn(victim.pixels.shape, generator=seeded())
    ahead, behind = (victim.negative_margin(victim.pixels + step * direction, victim.all)[0] for step in (3e-3, -3e-3))
    slope = (ahead - behind) / 6e-3
    assert slope.abs().min() > 0.1
    torch.testing.assert_close((gradient * direction).flatten(1).sum(1), slope, rtol=0.02, atol=0.01)


def test_the_study_can_set_what_it_needs():
    options = PROTOCOLS.options("adversarial")
    assert options(eps=[0.1, 0.2], transfer_from="cnn").plain()["transfer_from"] == "cnn"
    for wrong in ({"eps": []}, {"eps": [2.0]}, {"restarts": 0}, {"queries": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            options(**wrong)
    assert {0.1, 0.2, 0.5} <= set(options().eps)  # of H18's claims
