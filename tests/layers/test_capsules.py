import pytest
import torch

from capsbench.layers import ClassCaps, PrimaryCaps, squash
from capsbench.registry import ROUTINGS
from capsbench.routing import LayerSize

SIZE = LayerSize(children=6, child_dim=8, parents=4, parent_dim=16)


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


def test_a_primary_capsule_is_squashed_once_and_counts_by_position():
    layer = PrimaryCaps(in_channels=2, types=3, dim=4)
    poses = layer(torch.rand(2, 2, 21, 18))
    assert poses.shape == (2, 7 * 5 * 3, 4)
    assert poses.norm(dim=2).max() < 1


def test_weights_of_class_caps_start_small():
    weight = ClassCaps(LayerSize(50, 8, 10, 16), weight_std=0.1).transform()
    assert weight.shape == (50, 10, 16, 8)
    assert weight.abs().max() <= 0.2
    assert 0.08 < weight.std() < 0.1


def test_the_bias_of_dynamic_routing_enters_before_the_squash():
    layer = ClassCaps(SIZE, ROUTINGS.choose("dynamic", iterations=1, bias=True))
    poses = layer(torch.zeros(2, 6, 8)).poses
    torch.testing.assert_close(poses, squash(layer.routing.bias).expand(2, 4, 16))


def test_a_bias_goes_with_dynamic_routing_alone():
    with pytest.raises(ValueError, match=r"uniform: unknown option 'bias'"):
        ROUTINGS.build("uniform", SIZE, bias=True)


@pytest.mark.parametrize("name", ROUTINGS.names())
def test_class_caps_run_every_routing_on_their_votes(name):
    layer = ClassCaps(SIZE, ROUTINGS.choose(name))
    inputs = torch.randn(3, 6, 8) / 3
    routed = layer(inputs)
    poses, activations, couplings = routed
    assert (poses.shape, activations.shape, couplings.shape) == ((3, 4, 16), (3, 4), (3, 6, 4))
    expected = layer.routing(inputs, inputs.norm(dim=2), layer.transform())  # lengths are activations
    torch.testing.assert_close(tuple(routed), tuple(expected))
    torch.testing.assert_close(layer(inputs[1:2]).activations, activations[1:2])
    (activations.sum() + poses.square().sum()).backward()  # where a routing leaves poses out of the activations
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_uniform_and_one_iteration_of_dynamic_routing_are_one():
    layers = []
    for routing in (ROUTINGS.choose("dynamic", iterations=1), ROUTINGS.choose("uniform")):
        torch.manual_seed(0)
        layers.append(ClassCaps(SIZE, routing))
    inputs = torch.randn(3, 6, 8)
    torch.testing.assert_close(tuple(layers[0](inputs)), tuple(layers[1](inputs)))
