import math

import pytest
import torch
import torch.nn.functional as F

from capsbench.models.self_routing_capsnet import ClassSelfRoutingCaps, ConvSelfRoutingCaps, PrimarySelfRoutingCaps
from capsbench.routing.self_routing import self_routing

GRID, TYPES, DIM = (5, 4), 3, 4


def children(batch=2, dtype=torch.float64):
    torch.manual_seed(0)
    poses = torch.randn(batch, *GRID, TYPES, DIM, dtype=dtype, requires_grad=True)
    activations = torch.rand(batch, *GRID, TYPES, dtype=dtype).requires_grad_()
    return poses, activations


def conv_caps(stride=1, padding=1, bias=True, dtype=torch.float64):
    torch.manual_seed(1)
    layer = ConvSelfRoutingCaps(GRID, TYPES, DIM, 2, 5, 3, stride, padding, bias).to(dtype).eval()
    torch.nn.init.normal_(layer.route)
    if bias:
        torch.nn.init.normal_(layer.bias)
    return layer


def by_position(layer, poses, activations):
    """The layer's parents, one position at a time, with stored votes."""
    kernel_size, stride, padding = layer.window
    poses = F.pad(poses, (0, 0, 0, 0, padding, padding, padding, padding))
    activations = F.pad(activations, (0, 0, padding, padding, padding, padding))
    bias = layer.bias if layer.bias is not None else torch.zeros_like(layer.route[:, :, 0])
    found = []
    for row in range(layer.out_grid[0]):
        for column in range(layer.out_grid[1]):
            rows = slice(row * stride, row * stride + kernel_size)
            columns = slice(column * stride, column * stride + kernel_size)
            inputs = poses[:, rows, columns].flatten(1, 3)
            votes = torch.einsum("njcd,bnd->bnjc", layer.weight, inputs)
            found.append(self_routing(votes, inputs, activations[:, rows, columns].flatten(1), layer.route, bias))
    poses, activations, couplings = (torch.stack(x, dim=1) for x in zip(*found, strict=True))
    poses = poses / math.sqrt(1 + layer.norm.eps)  # the batch norm before it has seen anything
    return poses.unflatten(1, layer.out_grid), activations.unflatten(1, layer.out_grid), couplings


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("stride", "padding", "grid"), [(1, 1, (5, 4)), (2, 1, (3, 2)), (1, 0, (3, 2)), (2, 0, (2, 1))]
)
def test_a_position_is_self_routed_from_its_receptive_field(stride, padding, grid, bias):
    layer, given = conv_caps(stride, padding, bias), children()
    found, expected = layer(*given), by_position(layer, *given)
    assert layer.out_grid == grid
    assert found[0].shape == (2, *grid, 2, 5)
    assert found[1].shape == (2, *grid, 2)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    cotangents = [torch.randn_like(x) for x in found]
    inputs = (*given, *(p for name, p in layer.named_parameters() if "norm" not in name))
    gradients = [
        torch.autograd.grad(sum((c * x).sum() for c, x in zip(cotangents, outputs, strict=True)), inputs)
        for outputs in (found, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_each_child_shares_itself_out_over_the_types_of_a_position():
    couplings = conv_caps()(*children())[2]
    assert couplings.shape == (2, 20, 9 * TYPES, 2)
    torch.testing.assert_close(couplings.sum(dim=3), torch.ones_like(couplings[..., 0]))
    assert couplings.std() > 0.1


def test_routing_starts_uniform():
    torch.manual_seed(0)
    poses, activations, couplings = ConvSelfRoutingCaps(GRID, TYPES, DIM, 2, 5)(*children(dtype=torch.float32))
    torch.testing.assert_close(couplings, torch.full_like(couplings, 0.5))
    torch.testing.assert_close(activations, torch.full_like(activations, 0.5))
    assert poses.std() > 0.5  # normalised


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 1), (2, 0)])
def test_receptive_fields(stride, padding):
    layer, (poses, activations) = conv_caps(stride, padding), children(1)
    parents = layer(poses, activations)
    for row in range(layer.out_grid[0]):
        for column in range(layer.out_grid[1]):
            feeds = torch.zeros(GRID, dtype=torch.bool)
            top, left = row * stride - padding, column * stride - padding
            feeds[max(top, 0) : top + 3, max(left, 0) : left + 3] = True
            for parent in parents[:2]:
                gradients = torch.autograd.grad(
                    parent[0, row, column].square().sum(), (poses, activations), retain_graph=True
                )
                assert torch.equal(gradients[0][0].abs().sum(dim=(2, 3)) > 0, feeds)
                assert torch.equal(gradients[1][0].abs().sum(dim=2) > 0, feeds)


def test_a_child_without_activation_has_no_influence():
    layer, (poses, activations) = conv_caps(), children()
    asleep, moved = activations.detach().clone(), poses.detach().clone()
    asleep[:, 2, 2], moved[:, 2, 2] = 0, 100
    for one, other in zip(layer(poses, asleep)[:2], layer(moved, asleep)[:2], strict=True):
        torch.testing.assert_close(one, other)
    assert not torch.allclose(layer(poses, activations)[0], layer(moved, activations)[0])


@pytest.mark.parametrize("asleep", [False, True])
def test_activations_are_shares_of_what_is_active_below(asleep):
    poses, activations = children(dtype=torch.float32)
    activations = torch.zeros_like(activations) if asleep else activations
    layer, last = conv_caps(dtype=torch.float32), ClassSelfRoutingCaps(20 * TYPES, DIM, 6)
    torch.nn.init.normal_(last.route)
    means, parents, _ = layer(poses, activations)
    classes, couplings = last(poses, activations)
    for found in (parents, classes):
        assert ((found >= 0) & (found <= 1)).all()
        torch.testing.assert_close(found.sum(dim=-1), torch.full(found.shape[:-1], 0.0 if asleep else 1.0))
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(2, 20 * TYPES))
    gradients = torch.autograd.grad(means.square().sum() + classes.square().sum(), poses)
    assert all(x.isfinite().all() for x in (means, *gradients))


@pytest.mark.parametrize("bias", [True, False])
def test_class_capsules_are_self_routed_from_all_children(bias):
    torch.manual_seed(0)
    layer, (poses, activations) = ClassSelfRoutingCaps(20 * TYPES, DIM, 6, bias).double(), children()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    offsets = layer.bias if bias else torch.zeros(20 * TYPES, 6, dtype=torch.float64)
    votes = torch.zeros(2, 20 * TYPES, 6, 1, dtype=torch.float64)
    _, classes, couplings = self_routing(votes, poses.flatten(1, 3), activations.flatten(1), layer.route, offsets)
    for one, other in zip(layer(poses, activations), (classes, couplings), strict=True):
        torch.testing.assert_close(one, other)
    assert len(list(layer.parameters())) == 1 + bias


def test_primary_capsules_are_neighbouring_channels_of_one_position():
    torch.manual_seed(0)
    layer, features = PrimarySelfRoutingCaps(6, TYPES, DIM), torch.randn(2, 6, *GRID)
    poses, activations = layer(features)
    maps, logits = layer.pose_norm(layer.pose_conv(features)), layer.activation_norm(layer.activation_conv(features))
    assert poses.shape == (2, *GRID, TYPES, DIM)
    torch.testing.assert_close(poses[1, 4, 2, 1], maps[1, DIM : 2 * DIM, 4, 2])
    torch.testing.assert_close(activations[1, 4, 2, 1], logits[1, 1, 4, 2].sigmoid())
    assert sum(p.numel() for p in layer.parameters()) == 9 * 6 * TYPES * (DIM + 1) + 2 * TYPES * (DIM + 1)


def test_a_sample_does_not_depend_on_its_batch_mates():
    layer, (poses, activations) = conv_caps(), children(4)
    for one, all_of_them in zip(layer(poses[2:3], activations[2:3]), layer(poses, activations), strict=True):
        torch.testing.assert_close(one, all_of_them[2:3])


def test_poses_are_normalised_over_the_batch_in_training():
    poses = conv_caps().train()(*children(4))[0].flatten(0, 2)  # [B * P, J, D]
    torch.testing.assert_close(poses.mean(dim=0), torch.zeros(2, 5, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(poses.var(dim=0, correction=0), torch.ones(2, 5, dtype=torch.float64), atol=0.01, rtol=0)
