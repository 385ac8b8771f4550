"""Losses: first what holds for every one, so that one that is new is tested by being registered; then each by hand."""

import math

import pytest
import torch
from option_values import option_names, other_value

from capsbench.losses import (
    CrossEntropyLoss,
    Loss,
    MarginLoss,
    SpreadLoss,
    classification_loss,
    margin_loss,
    present_classes,
    reconstruction_loss,
    share_likelihood_loss,
    spread_loss,
)
from capsbench.models.output import Output, class_loss
from capsbench.registry import LOSSES

B, K = 6, 5

every_loss = pytest.mark.parametrize("name", LOSSES.names())
every_option = pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in LOSSES.names() for option in option_names(LOSSES.options(name))]
)


def scores_and_labels(dtype=torch.float32):
    """Scores that may be activations or logits, in [0, 1], of which no two are alike."""
    scores = torch.rand(B, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return scores.to(dtype).requires_grad_(), torch.arange(B) % K


@every_loss
def test_a_loss_is_a_scalar_and_a_mean_over_the_batch(name):
    loss, (scores, labels) = LOSSES.build(name), scores_and_labels()
    assert isinstance(loss, Loss)
    loss.eval()
    value = loss(scores, labels)
    assert value.shape == ()
    assert value.item() > 0
    each = torch.stack([loss(scores[b : b + 1], labels[b : b + 1]) for b in range(B)])
    torch.testing.assert_close(value, each.mean())


@every_loss
def test_a_loss_falls_as_the_class_stands_out(name):
    loss, labels = LOSSES.build(name).eval(), torch.arange(3)
    right = 0.15 + 0.7 * torch.eye(3)
    values = [float(loss(share * right + (1 - share) * right.roll(1, 0), labels)) for share in (0.0, 0.5, 1.0)]
    assert values[0] > values[1] > values[2]


@every_loss
@pytest.mark.parametrize("scores", [0.0, 1e-30, 0.5, 1.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_value_and_gradient_are_finite(name, scores, dtype):
    alike = torch.full((B, K), scores, dtype=dtype)
    alone = torch.zeros(B, K, dtype=dtype).index_fill(1, torch.tensor(0), scores)  # others are zero
    for given in (alike, alone):
        loss = LOSSES.build(name).to(dtype)
        leaf = given.clone().requires_grad_()
        value = loss(leaf, torch.arange(B) % K)
        assert value.isfinite()
        assert torch.autograd.grad(value, leaf)[0].isfinite().all()


@every_loss
def test_gradients_agree_with_finite_differences(name):
    loss, (scores, labels) = LOSSES.build(name).double().eval(), scores_and_labels(torch.float64)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (scores,))


@every_loss
def test_several_classes_in_an_image_are_taken_or_refused_in_one_line(name):
    loss, (scores, labels) = LOSSES.build(name).eval(), scores_and_labels()
    several = torch.stack([labels, (labels + 1) % K], dim=1).sort(dim=1).values
    try:
        value = loss(scores, several)
    except ValueError as error:
        assert "one class per image" in str(error)
        assert "\n" not in str(error)
        return
    assert value.shape == ()
    gradient = torch.autograd.grad(value, scores)[0]
    present = present_classes(several, K).bool()
    assert (gradient[present] <= 0).all() and (gradient[present] < 0).any()  # both classes are wanted
    assert (gradient[~present] >= 0).all()


@every_option
def test_every_option_acts(name, option):
    value, results = other_value(LOSSES.options(name), option), []
    for options in ({}, {option: value}):
        loss, (scores, labels) = LOSSES.build(name, **options), scores_and_labels(torch.float64)
        output = Output(2 * scores, activations=scores)
        # a schedule may start to move with the second
        results.append(sum(class_loss(loss, output, labels) for _ in range(3)))
    assert not torch.isclose(*results, rtol=1e-12, atol=0), f"nothing changes with {option} {value}"


@every_loss
def test_a_saved_loss_goes_on_where_it_was(name):
    loss, (scores, labels) = LOSSES.build(name), scores_and_labels()
    for _ in range(3):
        loss(scores, labels)
    other = LOSSES.build(name)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other(scores, labels), loss(scores, labels))
    loss.eval()
    assert torch.equal(loss(scores, labels), loss(scores, labels))  # and stands still outside training


def test_margin_loss_by_hand():
    lengths = torch.tensor([[0.5, 0.3, 0.05], [0.95, 0.1, 0.2]])
    targets = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    first = (0.9 - 0.5) ** 2 + 0.5 * (0.3 - 0.1) ** 2  # squared, summed over classes
    second = 0.5 * (0.2 - 0.1) ** 2
    torch.testing.assert_close(margin_loss(lengths, targets), torch.tensor((first + second) / 2))


def test_margin_loss_takes_multi_hot_targets():
    lengths = torch.tensor([[0.4, 0.6, 0.0]])
    expected = 0.5**2 + 0.3**2
    torch.testing.assert_close(margin_loss(lengths, torch.tensor([[1.0, 1.0, 0.0]])), torch.tensor(expected))


def test_margin_loss_refuses_labels_that_are_not_one_hot():
    with pytest.raises(ValueError, match="differ in shape"):
        margin_loss(torch.rand(4, 10), torch.arange(4))


def test_spread_loss_by_hand_leaves_out_the_target_class():
    activations = torch.tensor([[0.7, 0.6, 0.1]])
    expected = (0.2 - 0.1) ** 2  # class 1 is within 0.2 of the target, class 2 is not; the target adds nothing
    torch.testing.assert_close(spread_loss(activations, torch.tensor([0]), 0.2), torch.tensor(expected))
    apart = torch.tensor([[1.0, 0.0, 0.0]])
    assert spread_loss(apart, torch.tensor([0]), 0.9) == 0


def test_spread_loss_refuses_several_classes_an_image():
    with pytest.raises(ValueError, match="one class per image"):
        spread_loss(torch.rand(2, 5), torch.tensor([[0, 1], [2, 4]]), 0.2)


def test_the_weight_of_the_margin_loss_is_a_factor():
    scores, labels = scores_and_labels()
    torch.testing.assert_close(MarginLoss(weight=0.05)(scores, labels), MarginLoss()(scores, labels) / 20)


def test_the_spread_margin_grows_evenly_over_the_training():
    loss = SpreadLoss()
    assert float(loss.margin()) == pytest.approx(0.9)  # of no training
    loss.begin(steps=101, stretch=7.0)
    for step, margin in ((0, 0.2), (50, 0.55), (100, 0.9), (1000, 0.9)):
        loss.step.fill_(step)
        assert float(loss.margin()) == pytest.approx(margin, abs=1e-6)
    loss.step.zero_()
    loss.begin(steps=1, stretch=1.0)
    assert float(loss.margin()) == pytest.approx(0.2)


@pytest.mark.parametrize("stretch", [1.0, 20.0])
def test_the_spread_margin_of_the_authors(stretch):
    loss = SpreadLoss(schedule="authors")
    loss.begin(steps=10, stretch=stretch)
    for step, exponent in ((0, -4), (50_000, -3), (200_000, 0), (700_000, 10), (10**7, 10)):
        loss.step.fill_(int(step / stretch))
        assert float(loss.margin()) == pytest.approx(0.2 + 0.79 / (1 + math.exp(-exponent)), abs=1e-6)
    loss.step.fill_(int(302_600 / stretch))
    assert float(loss.margin()) == pytest.approx(0.9, abs=1e-4)


def test_steps_of_the_spread_margin_are_counted_in_training_alone_and_saved():
    loss, (scores, labels) = SpreadLoss(), scores_and_labels()
    for _ in range(3):
        loss(scores, labels)
    loss.eval()(scores, labels)
    other = SpreadLoss()
    other.load_state_dict(loss.state_dict())
    assert int(other.step) == 3
    assert not list(other.parameters())  # the step is none


def test_the_spread_loss_takes_the_margin_of_its_step():
    loss, (scores, labels) = SpreadLoss(), scores_and_labels()
    loss.begin(steps=3, stretch=1.0)
    for margin in (0.2, 0.55, 0.9, 0.9):
        torch.testing.assert_close(loss(scores, labels), spread_loss(scores, labels, margin))


def test_the_cross_entropy_says_what_it_takes():
    assert CrossEntropyLoss().takes == "scores"
    assert CrossEntropyLoss(of="activations").takes == "activations"
    assert {SpreadLoss().takes, MarginLoss().takes} == {"activations"}


def test_share_likelihood_loss_by_hand():
    activations = torch.tensor([[0.2, 0.6, 0.2], [0.1, 0.1, 0.2]])
    one = share_likelihood_loss(activations, torch.tensor([1, 2]))
    torch.testing.assert_close(one, torch.tensor(-(math.log(0.6) + math.log(0.5)) / 2))
    several = share_likelihood_loss(activations, torch.tensor([[0, 1], [1, 2]]))
    expected = -(math.log(0.2) + math.log(0.6) + math.log(0.25) + math.log(0.5)) / 4
    torch.testing.assert_close(several, torch.tensor(expected))
    nothing = torch.zeros(1, 3, requires_grad=True)
    share_likelihood_loss(nothing, torch.tensor([0])).backward()
    assert nothing.grad is not None and nothing.grad.isfinite().all()


@pytest.mark.parametrize(("side", "weight_on_the_mean"), [(28, 0.392), (36, 0.648), (40, 0.8)])
def test_reconstruction_loss_is_the_sum_of_squares_an_image(side, weight_on_the_mean):
    images = torch.zeros(2, 1, side, side)
    reconstructions = torch.full_like(images, 0.5)
    loss = reconstruction_loss(reconstructions, images)
    assert loss == side**2 * 0.25
    # what S17's 0.0005 on the sum is on the mean
    mean = torch.nn.functional.mse_loss(reconstructions, images)
    torch.testing.assert_close(0.0005 * loss, weight_on_the_mean * mean)


def test_classification_loss_is_softmax_for_one_object_and_a_sigmoid_a_class_for_several():
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
    one = torch.tensor([0, 1])
    expected = -(logits.softmax(dim=1)[[0, 1], one]).log().mean()
    torch.testing.assert_close(classification_loss(logits, one), expected)
    chance = logits.sigmoid()
    chosen = torch.stack([chance[0, 0], 1 - chance[0, 1], chance[0, 2], 1 - chance[1, 0], chance[1, 1], chance[1, 2]])
    several = torch.tensor([[0, 2], [1, 2]])
    torch.testing.assert_close(classification_loss(logits, several), -chosen.log().sum() / 2)


def test_present_classes_are_marked_for_one_and_for_several_labels():
    assert present_classes(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert present_classes(torch.tensor([[0, 2]]), 3).tolist() == [[1, 0, 1]]


def test_reconstruction_losses_of_several_sources_add_up():
    images = torch.zeros(4, 2, 1, 6, 6)
    assert reconstruction_loss(torch.full_like(images, 0.5), images) == 2 * 36 * 0.25


def test_reconstruction_loss_refuses_shapes_that_would_broadcast():
    with pytest.raises(ValueError, match="differ in shape"):
        reconstruction_loss(torch.zeros(2, 784), torch.zeros(2, 1, 28, 28))
