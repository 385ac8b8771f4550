"""Group equivariant capsules: what turns with the image and what stays, and the parts by themselves."""

import math

import pytest
import torch

from capsbench.layers.group_capsules import PosedConv, PosedPooling, image_gradients, turned, unit
from capsbench.models import build_model, count_parameters


def build(shape=(1, 28, 28), **options):
    torch.manual_seed(0)
    model = build_model("group_capsnet", shape, 10, **{"channels": (4, 8), **options})
    for parameter in model.parameters():  # off their starts, and large enough that classes differ
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def quarter(vectors, turns):
    """Turn vectors (x, y), y down, as torch.rot90 turns an image."""
    angle = -turns * math.pi / 2
    return turned(vectors, vectors.new_tensor([math.cos(angle), math.sin(angle)]))


def maps(turns, values):
    return torch.rot90(values, turns, (2, 3))


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 28, 28), {}), ((2, 32, 32), {"channels": (4, 6, 8)}), ((1, 36, 36), {"channels": (4, 6, 8)}),
        ((1, 20, 20), {"iterations": 3}),
    ],
    ids=str,
)  # fmt: skip
def test_a_quarter_turn_turns_poses_and_leaves_scores_and_activations(shape, options, turns):
    model, images = build(shape, **options).double(), torch.rand(2, *shape).double()
    with torch.no_grad():
        before, after = model(images), model(maps(turns, images))
    assert float(before.scores.std(dim=1).min()) > 0.01  # they say something
    assert not torch.allclose(before.scores[0], before.scores[1], atol=1e-3)
    torch.testing.assert_close(after.scores, before.scores, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after.activations, before.activations, rtol=0, atol=1e-9)
    torch.testing.assert_close(after.poses, quarter(before.poses, turns), rtol=0, atol=1e-9)
    assert not torch.allclose(after.poses, before.poses, rtol=0, atol=0.1)


@pytest.mark.parametrize("kind", ["noise", "a stroke"])
def test_the_default_network_is_equivariant_in_single_precision(kind):
    torch.manual_seed(0)
    model, image = build_model("group_capsnet", (1, 28, 28), 10), torch.rand(1, 1, 28, 28)
    if kind == "a stroke":
        image = torch.zeros(1, 1, 28, 28)
        image[:, :, 5:22, 8:11], image[:, :, 5:8, 8:20] = 1.0, 0.5  # flat inside and outside: no direction there
    before, after = model(image), model(maps(1, image))
    torch.testing.assert_close(after.scores, before.scores, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.activations, before.activations, rtol=0, atol=1e-4)
    torch.testing.assert_close(after.poses, quarter(before.poses, 1), rtol=0, atol=1e-4)


def test_the_number_of_parameters_is_exact():
    convs = sum(25 * fan_in * out + out for fan_in, out in ((1, 16), (16, 16), (32, 32), (32, 32), (64, 64)))
    angles = sum(2 * i * 32 + 32 * i * j for i, j in ((1, 16), (16, 32), (32, 32), (32, 64), (64, 10)))
    linear = sum(i * j + j + 2 for i, j in ((16, 16), (16, 32), (32, 32), (32, 64), (64, 10)))
    with torch.device("meta"):
        assert count_parameters(build_model("group_capsnet", (1, 28, 28), 10)) == convs + angles + linear == 310_164


@pytest.mark.parametrize(("turns", "expected"), [(0, (1.0, 0.0)), (1, (0.0, -1.0)), (2, (-1.0, 0.0))])
def test_a_pose_is_the_direction_in_which_the_image_grows_brighter(turns, expected):
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    poses, lengths = image_gradients(maps(turns, ramp))
    inside = poses[0, 0, 1:-1, 1:-1]
    torch.testing.assert_close(inside, torch.tensor(expected).expand_as(inside), rtol=0, atol=1e-6)
    torch.testing.assert_close(lengths[0, 0, 1:-1, 1:-1], torch.full((6, 6), 8.0))


def test_where_the_image_is_flat_there_is_no_pose():
    image = torch.full((1, 1, 6, 6), 0.7) + 1e-7 * torch.rand(1, 1, 6, 6)
    poses, lengths = image_gradients(image)
    assert not poses[0, 0, 1:-1, 1:-1].any() and not lengths[0, 0, 1:-1, 1:-1].any()
    assert unit(torch.zeros(3, 2)).tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("shared", [True, False])
def test_a_posed_convolution_reads_its_kernel_in_the_frame_of_the_pose(shared):
    """Two ways of the same sum, against a loop over positions, capsules and control points."""
    torch.manual_seed(0)
    conv, features = PosedConv(2, 3), torch.rand(1, 2, 2, 3)
    poses = unit(torch.randn(1, 1 if shared else 3, 2, 3, 2))
    torch.nn.init.normal_(conv.bias)
    padded, expected = torch.nn.functional.pad(features, (1, 1, 1, 1)), torch.zeros(3, 2, 3)
    for capsule in range(3):
        for row in range(2):
            for column in range(3):
                cos, sin = poses[0, 0 if shared else capsule, row, column].tolist()
                total = conv.bias[capsule].clone()
                for down in (-1, 0, 1):
                    for right in (-1, 0, 1):
                        x = 2 + math.sqrt(2) * (cos * right + sin * down)
                        y = 2 + math.sqrt(2) * (-sin * right + cos * down)
                        for point in range(25):
                            share = max(0, 1 - abs(y - point // 5)) * max(0, 1 - abs(x - point % 5))
                            seen = padded[0, :, row + 1 + down, column + 1 + right]
                            total = total + share * (conv.weight[capsule, point] * seen).sum()
                expected[capsule, row, column] = total
    torch.testing.assert_close(conv(features, poses)[0], expected, rtol=1e-4, atol=1e-5)


def test_parents_are_most_active_where_votes_agree():
    pool = PosedPooling((2, 2), children=1, parents=1, channels=1)
    torch.nn.init.zeros_(pool.angles[0].weight)  # a vote is the pose of the child
    same = torch.tensor([0.6, 0.8]).expand(1, 1, 2, 2, 2)
    opposed = same * torch.tensor([[1.0, 1.0], [1.0, -1.0]]).view(1, 1, 2, 2, 1)
    active = torch.ones(1, 1, 2, 2)
    pose, agreed = pool(same, active)
    torch.testing.assert_close(pose.flatten(), torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(agreed.flatten(), torch.ones(1).sigmoid())
    pose, less = pool(opposed, active)
    torch.testing.assert_close(pose.flatten(), torch.tensor([0.6, 0.8]))  # the one against three counts for nothing
    torch.testing.assert_close(less.flatten(), torch.tensor([0.75]).sigmoid())
    _, none = pool(same, torch.zeros(1, 1, 2, 2))
    assert none.tolist() == [[[[0.0]]]]


@pytest.mark.parametrize(("window", "right"), [((2, 2), [-1, 1]), ((3, 3), [-1, 0, 1]), ((4, 4), [-3, -1, 1, 3])])
def test_cells_of_a_window_lie_around_its_middle(window, right):
    cells = PosedPooling(window, 1, 1, 1)._cells(torch.zeros(1))
    assert cells[: window[1]].tolist() == [[x, right[0]] for x in right]
    assert not cells.sum(dim=0).any()


@pytest.mark.parametrize("options", [{"iterations": 2}, {"channels": (4, 9)}], ids=str)
def test_options_change_the_output(options):
    images = torch.rand(2, 1, 28, 28)
    assert not torch.equal(build()(images).activations, build(**options)(images).activations)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": ()}, "option 'channels'"),
        ({"iterations": 0}, "option 'iterations'"),
        ({"routing": "em"}, "unknown option 'routing'"),
        ({"loss": "cross_entropy"}, "option 'loss'|no loss 'cross_entropy'"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_named(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build_model("group_capsnet", (1, 28, 28), 10, **options)
    assert "\n" not in str(caught.value)
