"""Every network in small, for tests that train it or run it often."""

from typing import Any

from torch import nn

from capsbench.models import build_model

SHAPE, CLASSES = (1, 28, 28), 10

# Options that make a network small. One that is not here is built with its defaults.
SMALL: dict[str, dict[str, Any]] = {
    "capsnet": {"conv_channels": 8, "primary_types": 2, "decoder": {"hidden": (16, 32)}},
    "capsnet_ablated_children": {"conv_channels": 8, "primary_types": 2},
    "resnet20_ablated": {"widths": (4, 8, 16), "blocks": 1},
    "cnn_sabour_mnist": {"conv_channels": (4, 4, 2), "hidden": (16, 8), "dropout": 0.0},
    "cnn_matched": {"matched_to": {"name": "resnet20", "widths": (8, 16), "blocks": 1}, "dropout": 0.0},
    "cnn_sabour_multimnist": {"conv_channels": (4, 4), "hidden": 32},
    "cnn_hinton_norb": {"conv_channels": (4, 8), "hidden": 32, "dropout": 0.0},
    # few children have little mass, on which the paper's inverse temperature hardly acts
    "matrix_capsnet": {
        "conv_channels": 16, "primary_types": 4, "conv_types": (4, 4),
        "routing": {"iterations": 2, "inverse_temperature": 1.0},
    },
    "efficient_capsnet": {"conv_channels": (8, 8, 8, 16), "decoder": {"hidden": (16, 32)}},
    "self_routing_capsnet": {"types": 4, "pose_dim": 8, "widths": (4, 8, 16), "blocks": 1, "capsule_layers": 2},
    "vit_small": {"width": 32, "heads": 2, "depth": 2, "attention_dropout": 0.0, "stochastic_depth": 0.0},
    "capsule_transformer": {
        "conv_channels": 8, "part_types": 2, "part_dim": 8, "width": 16, "heads": 2, "part_layers": 1,
        "decoder": {"hidden": (16, 32)},
    },
    "group_capsnet": {"channels": (3, 32), "loss": "margin"},
    "scae": {
        "parts": 4, "objects": 6, "template_size": 5, "conv_channels": 8, "object_dim": 16, "object_params": 8,
        "hidden": 16, "parts_alone": None, "pixel_deviation": 1.0,
    },
    "resnet20": {"widths": (4, 8, 16), "blocks": 1},
    "fixed_start": {
        "network": {"name": "capsnet", "conv_channels": 8, "primary_types": 2, "decoder": {"hidden": (16, 32)}},
    },
    "deepcaps": {"conv_channels": 8, "cell_types": (4, 4, 4, 4), "cell_dims": (4, 4, 4, 4), "decoder": {"width": 8}},
}  # fmt: skip

# What draws no random number in training either, for comparisons between devices, which draw others
NOTHING_DRAWN: dict[str, dict[str, Any]] = {
    "scae": {"noise": 0.0, "drawn_pixels": None},
    "cnn_matched": {"dropout": 0.0},
}


def build_small(name: str, shape: tuple[int, int, int] = SHAPE, **options: Any) -> nn.Module:
    """Build a network in small; options replace those that make it small."""
    return build_model(name, image_shape=shape, num_classes=CLASSES, **{**SMALL.get(name, {}), **options})
