import pytest
import torch
from class_capsules import ClassCaps

from capsbench.layers import squash
from capsbench.registry import ROUTINGS, TRANSFORMS
from capsbench.routing import LayerSize

SIZE = LayerSize(children=6, child_dim=8, parents=4, parent_dim=16)


def test_weights_of_class_caps_start_small():
    weight = TRANSFORMS.build("full", LayerSize(50, 8, 10, 16), 1, 0.1)()
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
    layer = ClassCaps(SIZE, ROUTINGS.choose(name)).eval()  # in training a control draws, or takes note of a batch
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
