"""Children of self-routing or of S17, or something of both."""

import torch

from capsbench.models import build_model
from capsbench.models.capsnet import capsules_of

SHAPE, SMALL = (1, 28, 28), {"conv_channels": 8, "primary_types": 2}
IMAGES = torch.rand(4, *SHAPE)


def built(name, **options):
    torch.manual_seed(0)
    return build_model(name, SHAPE, 10, **SMALL, **options)


def test_with_squashed_poses_alone_it_is_capsnet():
    ablated, capsnet = built("capsnet_ablated_children"), built("capsnet", routing="uniform", decoder=None)
    for one, other in zip(ablated(IMAGES), capsnet(IMAGES), strict=True):
        assert torch.equal(one, other) if one is not None else other is None


def test_with_batch_norm_alone_it_has_the_poses_of_the_children_of_self_routing():
    ablated = built("capsnet_ablated_children", squashed=False, batch_norm=True)
    capsnet = built("capsnet", routing="uniform", decoder=None, children="normalised")
    names = {"primary_caps.conv.weight": "primary_caps.pose_conv.weight"}
    state = ablated.state_dict()
    renamed = {names.get(name, name.replace("caps.norm", "caps.pose_norm")): value for name, value in state.items()}
    found = capsnet.load_state_dict(renamed, strict=False)
    assert not found.unexpected_keys and all("activation" in name for name in found.missing_keys)
    assert torch.equal(ablated(IMAGES).poses, capsnet(IMAGES).poses)


def test_each_property_changes_the_poses_and_nothing_else_of_the_first_weights():
    variants = [
        built("capsnet_ablated_children", squashed=squashed, batch_norm=norm, own_activation=own)
        for squashed in (True, False)
        for norm in (True, False)
        for own in (True, False)
    ]
    poses = [variant.primary_caps(variant.conv(IMAGES).relu()) for variant in variants]
    assert all(not torch.equal(a[0], b[0]) for i, a in enumerate(poses) for b in poses[:i])
    for variant in variants[1:]:
        assert torch.equal(variant.primary_caps.conv.weight, variants[0].primary_caps.conv.weight)
        assert torch.equal(variant.transform(), variants[0].transform())


def test_an_activation_of_its_own_shortens_each_pose_by_itself():
    with_own = built("capsnet_ablated_children", squashed=False, own_activation=True)
    without = built("capsnet_ablated_children", squashed=False)
    features = with_own.conv(IMAGES).relu()
    activations = capsules_of(with_own.primary_caps.activation(features), 2)
    assert activations.min() > 0 and activations.max() < 1
    assert torch.allclose(with_own.primary_caps(features)[0], without.primary_caps(features)[0] * activations)
