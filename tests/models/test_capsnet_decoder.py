"""What CapsNet reconstructs, from which capsules, and what its loss says of it."""

import pytest
import torch
from test_capsnet import SMALL_DECODER, build, caps

from capsbench.losses import margin_loss


def test_losses_of_several_objects_add_up():
    model = caps()
    images, labels, sources = torch.rand(2, 1, 28, 28), torch.tensor([[1, 4], [0, 9]]), torch.rand(2, 2, 1, 28, 28)
    output = model(images, labels)
    parts = model.loss(output, sources, labels)
    squares = (output.reconstructions - sources).square().sum() / 2
    torch.testing.assert_close(parts["reconstruction"], 0.0005 * squares)
    margin = margin_loss(output.scores, torch.zeros(2, 10).scatter(1, labels, 1.0))
    torch.testing.assert_close(parts["margin"], margin)


def test_the_decoder_is_masked_by_the_label_in_training_and_by_the_prediction_at_test():
    model, images = caps().eval(), torch.rand(4, 1, 28, 28)
    output = model(images)
    predicted = output.scores.argmax(dim=1)
    others = (predicted + 1) % 10
    torch.testing.assert_close(model(images, predicted).reconstructions, output.reconstructions)
    assert not torch.allclose(model(images, others).reconstructions, output.reconstructions)


@pytest.mark.parametrize("given", ["masked", "selected"])
def test_the_decoder_sees_the_chosen_capsule_alone(given):
    model, images, labels = (
        caps(decoder=SMALL_DECODER | {"input": given}).eval(),
        torch.rand(2, 1, 28, 28),
        torch.tensor([3, 7]),
    )
    seen = []
    model.decoder.layers.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    poses = model(images, labels).poses
    chosen = torch.stack([poses[0, 3], poses[1, 7]])
    if given == "selected":
        torch.testing.assert_close(seen[0], chosen)
    else:
        grid = seen[0].unflatten(1, (10, 16))
        torch.testing.assert_close(torch.stack([grid[0, 3], grid[1, 7]]), chosen)
        assert grid.count_nonzero() <= 32


@pytest.mark.parametrize("given", ["masked", "selected"])
def test_the_convolutional_decoder_gives_back_one_object_and_several(given):
    torch.manual_seed(0)
    options = {"conv_channels": 8, "primary_types": 2, "weight_std": 100.0}  # poses differ
    model = build((2, 21, 18), decoder={"name": "convolutional", "input": given}, **options)
    images, labels = torch.rand(2, 2, 21, 18), torch.tensor([3, 7])
    output = model(images, labels)
    assert output.reconstructions.shape == images.shape
    model.loss(output, images, labels)["reconstruction"].backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    several = model(images, torch.stack([labels, labels + 1], dim=1)).reconstructions  # [B, S, C, H, W]
    torch.testing.assert_close(several[:, 0], output.reconstructions)
    assert not torch.allclose(several[:, 1], several[:, 0], rtol=0, atol=1e-5)


def test_reconstruction_loss_is_weighted_on_the_sum():
    model, images, labels = caps(), torch.rand(2, 1, 28, 28), torch.tensor([0, 1])
    output = model(images, labels)
    squares = (output.reconstructions - images).square().sum() / 2
    torch.testing.assert_close(model.loss(output, images, labels)["reconstruction"], 0.0005 * squares)


def test_decoder_dropout_reaches_the_decoder():
    model, images, labels = (
        caps(decoder=SMALL_DECODER | {"dropout": 0.5}),
        torch.rand(2, 1, 28, 28),
        torch.tensor([0, 1]),
    )
    assert not torch.equal(model(images, labels).reconstructions, model(images, labels).reconstructions)
