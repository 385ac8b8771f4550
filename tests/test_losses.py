import math

import pytest
import torch

from capsbench.losses import (
    SpreadMargin,
    classification_loss,
    margin_loss,
    present_classes,
    reconstruction_loss,
    share_likelihood_loss,
    spread_loss,
)


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


def test_margin_loss_is_a_mean_over_the_batch():
    lengths, targets = torch.rand(4, 10), torch.eye(10)[:4]
    doubled = margin_loss(lengths.repeat(2, 1), targets.repeat(2, 1))
    torch.testing.assert_close(doubled, margin_loss(lengths, targets))


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
    with pytest.raises(ValueError, match="one class an image"):
        spread_loss(torch.rand(2, 5), torch.tensor([[0, 1], [2, 4]]), 0.2)


def test_the_schedule_of_the_spread_margin():
    margin = SpreadMargin()
    for step, exponent in ((0, -4), (50_000, -3), (200_000, 0), (700_000, 10), (10**7, 10)):
        margin.step.fill_(step)
        assert float(margin()) == pytest.approx(0.2 + 0.79 / (1 + math.exp(-exponent)), abs=1e-6)


def test_steps_of_the_spread_margin_are_counted_in_training_alone_and_saved():
    margin = SpreadMargin()
    for _ in range(3):
        margin()
    margin.eval()()
    other = SpreadMargin()
    other.load_state_dict(margin.state_dict())
    assert int(other.step) == 3


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
    said = torch.stack([chance[0, 0], 1 - chance[0, 1], chance[0, 2], 1 - chance[1, 0], chance[1, 1], chance[1, 2]])
    several = torch.tensor([[0, 2], [1, 2]])
    torch.testing.assert_close(classification_loss(logits, several), -said.log().sum() / 2)


def test_present_classes_are_marked_for_one_and_for_several_labels():
    assert present_classes(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert present_classes(torch.tensor([[0, 2]]), 3).tolist() == [[1, 0, 1]]


def test_reconstruction_losses_of_several_sources_add_up():
    images = torch.zeros(4, 2, 1, 6, 6)
    assert reconstruction_loss(torch.full_like(images, 0.5), images) == 2 * 36 * 0.25


def test_reconstruction_loss_refuses_shapes_that_would_broadcast():
    with pytest.raises(ValueError, match="differ in shape"):
        reconstruction_loss(torch.zeros(2, 784), torch.zeros(2, 1, 28, 28))
