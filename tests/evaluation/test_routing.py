"""Couplings of known layers, iterations at test time, and the names of a collapse."""

from types import SimpleNamespace

import pytest
import torch
from small_tasks import task_of

from capsbench.evaluation import collect_predictions
from capsbench.evaluation.accuracy import count_errors
from capsbench.evaluation.routed_layers import RoutedLayer, agreement_of, iterated, iterations_of, routed_layers
from capsbench.evaluation.routing import in_words, layer_numbers, owned_share, reassigned, routing, tree_depth
from capsbench.models import build_model

IMAGES, CHILDREN, PARENTS = 6, 8, 4
CAPSNET = {"conv_channels": 4, "primary_types": 1, "decoder": None}
DEEPCAPS = {"conv_channels": 4, "cell_types": (2, 2, 2, 2), "cell_dims": (2, 2, 2, 2), "class_dim": 4, "decoder": None}
SELF = {"types": 2, "pose_dim": 4, "widths": (4, 4), "blocks": 1}
MATRIX = {"conv_channels": 4, "primary_types": 2, "conv_types": (2, 2)}


def given(task, model):
    return SimpleNamespace(task=lambda: task, model=model)


def layer(couplings, parents=None, children=None):
    parents = torch.full((len(couplings), PARENTS), 0.5) if parents is None else parents
    return RoutedLayer(couplings, parents, torch.ones(couplings.shape[:2]) if children is None else children)


def one_hot(parents):
    """Return couplings of children that go to one parent each, [B, I] -> [B, I, J]."""
    return torch.nn.functional.one_hot(parents, PARENTS).float()


def shares(*parts):
    return torch.tensor(parts).expand(IMAGES, CHILDREN, PARENTS)


def test_uniform_couplings_have_entropy_one_and_no_tree():
    found = layer_numbers([layer(shares(0.25, 0.25, 0.25, 0.25))])
    assert found["entropy"] == pytest.approx(1)
    assert (found["assigned"], found["reassigned"], found["largest_share"]) == (0, None, 0.25)
    assert in_words(found) == ["the couplings are uniform"]


def test_one_parent_takes_all_by_name():
    found = layer_numbers([layer(one_hot(torch.full((IMAGES, CHILDREN), 2)))])
    assert (found["entropy"], found["largest_share"], found["assigned"], found["reassigned"]) == (0, 1, 100, 0)
    assert in_words(found) == ["one parent takes all"]


def test_all_children_of_an_image_in_one_parent_are_no_collapse_while_images_differ():
    found = layer_numbers([layer(one_hot((torch.arange(IMAGES) % 3)[:, None].repeat(1, CHILDREN)))])
    assert found["largest_share"] == pytest.approx(1 / 3)
    assert found["reassigned"] == pytest.approx(200 / 3)
    assert in_words(found) == []


def test_reassigned_counts_children_that_have_a_parent_of_their_own():
    couplings = torch.full((3, 2, PARENTS), 0.25)
    couplings[:, 0] = torch.tensor([[0.9, 0.1, 0, 0], [0.8, 0.2, 0, 0], [0.1, 0.9, 0, 0]])
    couplings[:, 1] = torch.tensor([[0.3, 0.2, 0.2, 0.3], [0.2, 0.4, 0.2, 0.2], [0.2, 0.2, 0.4, 0.2]])  # nobody's
    assert reassigned(couplings) == pytest.approx(100 / 3)
    assert reassigned(couplings[:, 1:]) is None


def test_no_parent_takes_anything_by_name():
    assert in_words(layer_numbers([layer(shares(0.01, 0.01, 0.01, 0.0))])) == ["no parent takes anything"]
    dead = layer_numbers([layer(shares(0.7, 0.1, 0.1, 0.1), parents=torch.full((IMAGES, PARENTS), 0.005))])
    assert dead["dead_parents"] == 100 and in_words(dead) == ["no parent takes anything"]


def test_dead_capsules_are_those_that_no_image_wakes():
    parents = torch.zeros(IMAGES, PARENTS)
    parents[3, 1] = 0.5
    children = torch.ones(IMAGES, CHILDREN)
    children[:, :2] = 0.001
    found = layer_numbers([layer(shares(0.7, 0.1, 0.1, 0.1), parents, children)])
    assert (found["dead_parents"], found["dead_children"]) == (75, 25)


def test_what_is_active_counts():
    couplings = torch.full((1, 2, PARENTS), 0.25)
    couplings[0, 0] = torch.tensor([0.9, 0.1, 0, 0])
    assert float(owned_share(layer(couplings, children=torch.tensor([[0.3, 0.1]])))) == pytest.approx(0.75)


def test_the_tree_is_followed_downwards_without_a_gap():
    whole, loose = layer(shares(0.7, 0.1, 0.1, 0.1)), layer(shares(0.4, 0.2, 0.2, 0.2))
    assert tree_depth([[whole], [whole]]) == 2
    assert tree_depth([[loose], [whole]]) == 1
    assert tree_depth([[whole], [loose]]) == 0
    half = torch.cat([whole.couplings[:3], loose.couplings[:3]])
    assert tree_depth([[whole], [layer(half)]]) == 1


def test_agreement_is_the_weighted_cosine_of_votes_and_poses():
    poses = torch.tensor([[[1.0, 0], [0, 2]]])  # [1, 2, 2]
    votes = torch.tensor([[[[3.0, 0], [0, 1]], [[-1.0, 0], [1, 0]]]])  # cosines 1, 1 and -1, 0
    assert agreement_of(votes, poses, torch.ones(1, 2, 2)) == pytest.approx(0.25)
    assert agreement_of(votes, poses, torch.tensor([[[1.0, 1], [0, 0]]])) == 1
    assert agreement_of(votes, poses, torch.tensor([[[1.0, 0], [3, 0]]])) == pytest.approx(-0.5)


def test_batches_make_the_same_numbers_as_one():
    couplings, parents = torch.rand(IMAGES, CHILDREN, PARENTS).softmax(dim=2), torch.rand(IMAGES, PARENTS)
    children = torch.rand(IMAGES, CHILDREN)
    whole = RoutedLayer(couplings, parents, children, 0.5)
    parts = [RoutedLayer(couplings[:2], parents[:2], children[:2], 0.9),
             RoutedLayer(couplings[2:], parents[2:], children[2:], 0.3)]  # fmt: skip
    assert layer_numbers(parts) == pytest.approx(layer_numbers([whole]))


@pytest.mark.parametrize(
    ("name", "options", "names", "tells_agreement"),
    [
        ("capsnet", CAPSNET, ["routing"], True),
        ("capsnet", {**CAPSNET, "routing": "em", "loss": "spread"}, ["routing"], True),
        ("deepcaps", DEEPCAPS, ["cells.3.skip", "routing"], True),
        ("matrix_capsnet", MATRIX, ["class_caps"], False),
        ("self_routing_capsnet", {**SELF, "capsule_layers": 2}, ["conv_caps.0", "class_caps"], False),
        ("efficient_capsnet", {"conv_channels": (4, 4, 4, 8), "decoder": None}, ["class layer"], False),
        ("resnet20", {"widths": (4, 8), "blocks": 1}, [], False),
    ],
)
def test_routed_layers_are_found_in_every_network(name, options, names, tells_agreement):
    model = build_model(name, (1, 28, 28), 10, **options).eval()
    images = torch.rand(3, 1, 28, 28)
    found = routed_layers(model, images)
    assert list(found) == names
    assert not any(module._forward_hooks for module in model.modules())
    output = model(images)
    for batches in found.values():
        couplings = torch.cat([batch.couplings for batch in batches])
        torch.testing.assert_close(couplings.sum(dim=2), torch.ones(couplings.shape[:2]))
    if names:
        last = found[names[-1]][0]
        torch.testing.assert_close(last.couplings, output.couplings)
        torch.testing.assert_close(last.parents, output.activations)
        assert (last.agreement is not None) == tells_agreement


def test_lengths_of_the_convolutional_capsules_of_deepcaps():
    model = build_model("deepcaps", (1, 28, 28), 10, **DEEPCAPS).eval()
    kept = []
    model.cells[3].skip.register_forward_hook(lambda module, inputs, output: kept.append(output[0]))
    found = routed_layers(model, torch.rand(2, 1, 28, 28))["cells.3.skip"][0]
    maps = kept[0]  # [2, 2 types x 2, 2, 2]
    assert found.couplings.shape == (2, 2, 8)
    expected = torch.stack([maps[:, :2].norm(dim=1), maps[:, 2:].norm(dim=1)], 1).flatten(1)
    torch.testing.assert_close(found.parents, expected)


@pytest.mark.parametrize("name", ["dynamic", "em", "sparse", "heinsen", "inverted_dot_product", "variational_bayes"])
def test_iterations_at_test_time_are_those_of_a_network_built_with_them(name):
    options = {**CAPSNET, "loss": "margin"}
    model = build_model("capsnet", (1, 28, 28), 10, **options, routing={"name": name, "iterations": 2}).eval()
    other = build_model("capsnet", (1, 28, 28), 10, **options, routing={"name": name, "iterations": 5}).eval()
    other.load_state_dict(model.state_dict())
    images = torch.rand(2, 1, 28, 28)
    before = model(images)
    assert iterations_of(model) == {2}
    with iterated(model, 5):
        found = model(images)
        assert iterations_of(model) == {5}
    torch.testing.assert_close(found.couplings, other(images).couplings)
    assert torch.equal(model(images).scores, before.scores)


def test_all_layers_of_a_network_iterate():
    matrix = build_model("matrix_capsnet", (1, 28, 28), 10, **MATRIX)
    deep = build_model("deepcaps", (1, 28, 28), 10, **DEEPCAPS, iterations=2, conv_iterations=4)
    assert (iterations_of(matrix), iterations_of(deep)) == ({3}, {2, 4})
    with pytest.raises(RuntimeError), iterated(matrix, 1), iterated(deep, 6):
        assert (iterations_of(matrix), iterations_of(deep)) == ({1}, {6})
        raise RuntimeError
    assert (iterations_of(matrix), iterations_of(deep)) == ({3}, {2, 4})


def test_the_sweep_as_trained_is_accuracy_and_its_first_step_uniform():
    task = task_of(images=50)
    model = build_model("capsnet", (1, 28, 28), 10, **CAPSNET, weight_std=50.0).eval()
    found = routing(given(task, model), images=1000, coupling_images=20, most_iterations=4)
    error = count_errors(collect_predictions(model, task))["error"]
    assert found["error"] == error and (found["images"], found["sizes"]) == (50, {"coupling_images": 20})
    trained, *rows = found["rows"]
    assert [row["iterations"] for row in rows] == [1, 2, 3, 4] and found["iterations_as_trained"] == [3]
    assert {**rows[2], "iterations": None} == trained
    first, last = rows[0]["layers"]["routing"], rows[3]["layers"]["routing"]
    assert first["entropy"] == pytest.approx(1, abs=1e-5) and found["error_at_one"] == rows[0]["error"]
    assert last["entropy"] < 0.99 and last["agreement"] > first["agreement"]  # what routing by agreement is for
    drawn = {curve["name"]: curve["y"] for curve in found["curves"]}
    layers = [row["layers"]["routing"] for row in rows]
    assert list(drawn) == ["error", "entropy", "agreement", "dead_children", "dead_parents", "tree_depth"]
    assert drawn["error"] == [row["error"] for row in rows]
    assert drawn["tree_depth"] == [row["tree_depth"] for row in rows]
    assert drawn["dead_parents"] == [layer["dead_parents"] for layer in layers]
    assert found["entropy"] == rows[2]["layers"]["routing"]["entropy"]


def test_a_routing_without_iterations_has_one_row():
    model = build_model("capsnet", (1, 28, 28), 10, **CAPSNET, routing="uniform").eval()
    found = routing(given(task_of(images=10), model), images=10, coupling_images=5)
    assert len(found["rows"]) == 1 and "curves" not in found and "error_at_one" not in found
    assert "the couplings are uniform" in found["in_words"]


def test_a_cnn_has_no_routing():
    model = build_model("resnet20", (1, 28, 28), 10, widths=(4, 8), blocks=1).eval()
    found = routing(given(task_of(images=5), model))
    assert (found["status"], found["reason"]) == ("not applicable", "the network has no routing")


def test_routing_without_couplings_is_not_called_no_routing():
    model = build_model("group_capsnet", (1, 28, 28), 10).eval()
    assert routing(given(task_of(images=5), model))["reason"] == "its routing has no couplings"
