import pytest
import torch

from capsbench.layers import ClassCaps, PrimaryCaps, capsule_lengths, squash
from capsbench.losses import margin_loss
from capsbench.options import routing_names


def test_squash_is_the_papers_formula():
    s = torch.tensor([[3.0, 4.0]])  # length 5
    torch.testing.assert_close(squash(s), s / 5 * 25 / 26)


def test_squash_keeps_direction_and_stays_below_one():
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(100, 8, generator=generator) * torch.logspace(-4, 4, 100).unsqueeze(1)
    v = squash(s)
    assert (v.norm(dim=1) <= 1 + 1e-6).all()  # to rounding: s / |s| may be 1 + 1e-7 long
    torch.testing.assert_close(torch.cosine_similarity(s, v), torch.ones(100))


def test_squash_along_another_dimension():
    s = torch.randn(2, 8, 5)
    torch.testing.assert_close(squash(s, dim=1), squash(s.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-12, 1e-6, 1e6])
def test_squash_and_its_length_in_the_loss_have_finite_gradients(size):
    s = torch.full((2, 3, 4), size, requires_grad=True)
    lengths = capsule_lengths(squash(s))
    margin_loss(lengths, torch.eye(3)[:2]).backward()
    assert lengths.isfinite().all()
    assert s.grad.isfinite().all()


def test_squash_gradient_agrees_with_finite_differences():
    s = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(squash, (s,))


def test_a_primary_capsule_is_neighbouring_channels_of_one_position():
    types, dim = 3, 4
    layer = PrimaryCaps(in_channels=1, types=types, dim=dim, kernel_size=1, stride=1)
    channel = torch.arange(types * dim).float()
    with torch.no_grad():  # each map holds its channel's number, plus 100 for each position
        layer.conv.weight.fill_(1.0)
        layer.conv.bias.copy_(channel)
    positions = torch.arange(6).reshape(1, 1, 2, 3).float() * 100
    poses = layer(positions)  # [1, 2 * 3 * types, dim]
    capsule = 0
    for position in range(6):
        for type_ in range(types):
            values = position * 100 + channel[type_ * dim : (type_ + 1) * dim]
            torch.testing.assert_close(poses[0, capsule], squash(values))
            capsule += 1
    assert capsule == poses.shape[1]


def test_class_caps_weights_start_small_and_bias_is_optional():
    layer = ClassCaps(in_capsules=50, in_dim=8, out_capsules=10, out_dim=16, weight_std=0.1)
    assert layer.bias is None
    assert layer.weight.abs().max() <= 0.2
    assert 0.08 < layer.weight.std() < 0.1
    biased = ClassCaps(50, 8, 10, 16, bias=True)
    assert biased.bias.shape == (10, 16)
    torch.testing.assert_close(biased.bias, torch.full((10, 16), 0.1))


def test_class_caps_bias_enters_before_the_squash():
    layer = ClassCaps(5, 8, 10, 16, iterations=1, bias=True)
    poses, _, _ = layer(torch.zeros(2, 5, 8))
    torch.testing.assert_close(poses, squash(layer.bias).expand(2, 10, 16))


def test_a_bias_goes_with_dynamic_routing_alone():
    with pytest.raises(ValueError, match="not with 'uniform'"):
        ClassCaps(5, 8, 10, 16, routing="uniform", bias=True)


@pytest.mark.parametrize("name", routing_names())
def test_class_caps_run_every_routing_on_their_votes(name):
    torch.manual_seed(0)
    layer = ClassCaps(6, 8, 4, 16, routing=name)
    inputs = torch.randn(3, 6, 8) / 3
    poses, activations, couplings = layer(inputs)
    assert (poses.shape, activations.shape, couplings.shape) == ((3, 4, 16), (3, 4), (3, 6, 4))
    assert ((activations >= 0) & (activations <= 1)).all()
    torch.testing.assert_close(layer(inputs[1:2])[1], activations[1:2])
    (activations.sum() + poses.square().sum()).backward()  # where a routing leaves poses out of the activations
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_uniform_and_one_iteration_of_dynamic_routing_are_one():
    layers = []
    for routing, options in (("dynamic", {"iterations": 1}), ("uniform", {})):
        torch.manual_seed(0)
        layers.append(ClassCaps(6, 8, 4, 16, routing=routing, **options))
    inputs = torch.randn(3, 6, 8)
    for found, expected in zip(layers[0](inputs), layers[1](inputs), strict=True):
        torch.testing.assert_close(found, expected)
