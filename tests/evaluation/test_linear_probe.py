"""A linear probe finds what is linear, and pixels are its yardstick."""

from types import SimpleNamespace

import pytest
import torch
from small_tasks import task_of

from capsbench.evaluation import Context, collect_predictions
from capsbench.evaluation.accuracy import count_errors
from capsbench.evaluation.linear_probe import clusters_accuracy, linear_probe, principal_components, probe
from capsbench.models import Network, Output, build_model
from capsbench.streams import stream_seed
from capsbench.study import load_plan


def given(training, test, model, untrained=None):
    """A context of which a probe needs this much; by default the untrained copy is as the model."""
    before = model if untrained is None else untrained
    run = SimpleNamespace(training=SimpleNamespace(threads=1))
    return SimpleNamespace(
        training_images=lambda: training, task=lambda: test, model=model, untrained=lambda _: before, run=run
    )


def test_a_linear_code_is_read_and_noise_is_not():
    labels = torch.arange(300) % 3
    code = torch.eye(3)[labels] @ torch.randn(3, 20) + 0.05 * torch.randn(300, 20)
    assert probe(code[:150], labels[:150], code[150:], labels[150:]) == (100.0, True)
    noise = torch.randn(300, 20)
    assert probe(noise[:150], labels[:150], noise[150:], labels[150:])[0] < 55


def test_values_are_standardised():
    labels = torch.arange(200) % 2
    value = torch.randn(200, 3)
    value[:, 0] = 1e-4 * (2 * labels - 1) + 1e-5 * torch.randn(200)
    assert probe(value[:100], labels[:100], value[100:], labels[100:])[0] == 100


def test_a_class_without_training_images_is_never_said():
    labels = torch.tensor([0, 2] * 20)
    code = torch.eye(5)[labels]
    accuracy, _ = probe(code, labels, torch.eye(5)[[0, 2, 4, 1]], torch.tensor([0, 2, 4, 1]))
    assert accuracy == 50


def test_both_classes_of_a_pair_are_told():
    pairs = torch.tensor([[a, b] for a in range(4) for b in range(a + 1, 4)]).repeat(20, 1)
    code = torch.eye(4)[pairs].sum(dim=1) + 0.05 * torch.randn(len(pairs), 4)
    accuracy, _ = probe(code[:60], pairs[:60], code[60:], pairs[60:])
    assert accuracy == 100
    wrong = pairs[60:].clone()
    wrong[:30] = torch.tensor([[0, 1], [2, 3]])[(wrong[:30, :1] == 0).long().squeeze(1)]
    expected = 100 * float((wrong == pairs[60:]).all(dim=1).double().mean())
    assert expected < 100
    assert probe(code[:60], pairs[:60], code[60:], wrong)[0] == pytest.approx(expected)


class Knows(Network):
    """Its poses hold the class, which its pixels hide in one grey modulo 5; it says class 0 itself."""

    def forward(self, images, labels=None):
        hidden = (images[:, 0, 0, 0] * 255).round().long() % 5
        poses = torch.eye(5)[hidden][:, None].repeat(1, 5, 1)
        scores = torch.eye(5)[torch.zeros_like(hidden)]
        return Output(scores, poses=poses, activations=scores)


class KnowsNothing(Network):
    """Its poses are noise."""

    def forward(self, images, labels=None):
        scores = torch.eye(5)[torch.zeros(len(images), dtype=torch.long)]
        return Output(scores, poses=torch.randn(len(images), 5, 5), activations=scores)


def test_the_probe_on_poses_is_compared_with_an_untrained_copy_components_and_the_network():
    training, test = task_of(images=200), task_of(images=60)
    for task in (training, test):
        task.images = torch.randint(0, 256, task.images.shape, dtype=torch.uint8)
        task.images[:, 0, 0, 0] = (task.labels + 5 * torch.randint(0, 50, task.labels.shape)).to(torch.uint8)
    found = linear_probe(given(training, test, Knows(), KnowsNothing()), train_images=100, images=50)
    assert (found["of"], found["images"]) == ("poses", 50)
    assert found["sizes"] == {"train_images": 100, "values": 25, "components": 25}
    assert found["accuracy"] == found["clusters_accuracy"] == 100
    assert found["untrained_accuracy"] < 60
    assert found["components_accuracy"] < 60
    assert found["network_accuracy"] == 20


def test_features_of_a_cnn_and_its_own_accuracy():
    task = task_of(images=60)
    model = build_model("resnet20", (1, 28, 28), 10, widths=(4, 8), blocks=1).eval()
    found = linear_probe(given(task, task, model), train_images=60, images=1000)
    assert found["of"] == "features" and found["sizes"]["values"] == 8
    assert found["network_accuracy"] == count_errors(collect_predictions(model, task))["accuracy"]
    assert found["accuracy"] == found["untrained_accuracy"]
    assert found["sizes"]["components"] == 8


def test_clusters_get_one_class_each_by_the_hungarian_method():
    """Four clusters, of which three are mostly of class 0: by majority all three were 0, one to one two are others."""
    centres = 10 * torch.eye(4)
    of_cluster = torch.arange(4).repeat_interleave(25)
    values = centres[of_cluster] + 0.1 * torch.randn(100, 4)
    labels = torch.zeros(100, dtype=torch.long)
    labels[25 + 15 :][:10] = 1  # the second cluster: 15 of class 0, 10 of 1
    labels[50 + 20 : 75] = 2  # the third: 20 of 0, 5 of 2
    labels[75:] = 3
    # 0 -> class 0 (25), 1 -> 1 (10), 2 -> 2 (5), 3 -> 3 (25)
    assert clusters_accuracy(values, labels, values, labels) == 65


def test_clusters_do_not_depend_on_how_classes_are_called_and_a_class_may_be_new():
    values = torch.randn(60, 3) + 20 * torch.eye(3)[torch.arange(60) % 3]
    labels = torch.tensor([7, 2, 4])[torch.arange(60) % 3]
    assert clusters_accuracy(values, labels, values, labels) == 100
    new = labels.clone()
    new[:30] = 9
    assert clusters_accuracy(values, labels, values, new) == 50


def test_principal_components_are_those_of_the_training_images():
    basis = torch.linalg.qr(torch.randn(12, 12))[0]
    scale = torch.tensor([5.0, 3.0, 1.0, *[0.01] * 9])
    seen, tested = (torch.randn(n, 12) * scale @ basis.T + 1 for n in (4000, 7))
    found, found_tested = principal_components(seen, tested, 2)
    assert found.shape == (4000, 2) and found_tested.shape == (7, 2)
    assert found.std(dim=0).tolist() == pytest.approx([5, 3], rel=0.15)
    expected = (tested - seen.mean(dim=0)) @ basis[:, :2]
    assert torch.allclose(found_tested.abs(), expected.abs(), atol=0.8)
    assert principal_components(seen[:5], tested, 100)[0].shape == (5, 5)


@pytest.fixture
def fresh(tmp_path) -> Context:
    """The context of a run that nobody trained."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\nseeds: [3]\ntraining: {epochs: 1, batch_size: 10}\n"
        "experiments: {e: {data: {name: digits, train_images: 40}}}\n"
        "variants: {v: {model: resnet20, options: {widths: [4, 8], blocks: 1}}}\n"
    )
    (run,) = load_plan(path).runs
    return Context(run, None, torch.device("cpu"), tmp_path, tmp_path)


def test_the_untrained_copy_is_the_network_that_the_training_began_with(fresh):
    run, before = fresh.run, torch.random.get_rng_state()
    made, again = fresh.untrained(torch.arange(40)), fresh.untrained(torch.arange(40))
    assert torch.equal(torch.random.get_rng_state(), before) and not made.training
    torch.manual_seed(stream_seed(3, "initialisation"))  # as capsbench.run.train does
    expected = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)
    for name, value in expected.named_parameters():
        assert torch.equal(made.state_dict()[name], value) and torch.equal(again.state_dict()[name], value)


def test_the_untrained_copy_is_normalised_by_the_training_images(fresh):
    images = fresh.training_images().eval_batch(torch.arange(40), 0).images
    made = fresh.untrained(torch.arange(40))
    first = next(module for module in made.modules() if isinstance(module, torch.nn.BatchNorm2d))
    seen = []
    first.register_forward_hook(lambda module, inputs, output: seen.append(output))
    made(images)
    spread = seen[0].transpose(0, 1).flatten(1)
    assert spread.mean(dim=1).abs().max() < 1e-4
    assert (spread.std(dim=1) - 1).abs().max() < 0.05  # the mean over batches of ten
