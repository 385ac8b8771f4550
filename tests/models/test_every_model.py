"""What holds for every network: one that is new is tested by being registered."""

import re
import time

import pytest
import torch
from small_networks import CLASSES, NOTHING_DRAWN, SHAPE, SMALL, build_small

from capsbench.models import Output, build_model, count_parameters, predict, predicted_classes
from capsbench.registry import DECODERS, LOSSES, MODELS, ROUTINGS, TRANSFORMS

COUNT = re.compile(r"\d{1,3}(?:,\d{3})+")
DEFAULT_IMAGES = ((1, 28, 28), 10)  # where `published_on` says nothing

every_model = pytest.mark.parametrize("name", MODELS.names())


def images_and_labels(batch=3):
    return torch.rand(batch, *SHAPE), torch.arange(batch) % CLASSES


def with_option(option):
    return pytest.mark.parametrize("name", [n for n in MODELS.names() if option in MODELS.options(n).model_fields])


@every_model
@pytest.mark.parametrize("batch", [1, 3])
def test_every_network_keeps_the_contract(name, batch):
    model, (images, labels) = build_small(name).eval(), images_and_labels(batch)
    for given in (labels, None):
        output = model(images, given)
        assert isinstance(output, Output)
        assert output.scores.shape == (batch, CLASSES)
        parts = model.loss(output, images, labels)
        assert parts
        assert all(part.shape == () and part.isfinite() for part in parts.values())
        if output.poses is not None:
            assert output.poses.shape[:2] == (batch, CLASSES)
        if output.couplings is not None:
            assert (output.couplings.shape[0], output.couplings.shape[2]) == (batch, CLASSES)
            torch.testing.assert_close(output.couplings.sum(dim=2), torch.ones(output.couplings.shape[:2]))
        if output.reconstructions is not None:
            assert output.reconstructions.shape == images.shape
            assert output.reconstructions.min() >= 0 and output.reconstructions.max() <= 1


@every_model
def test_several_classes_in_an_image_are_taken_or_refused_in_one_line(name):
    model, (images, _) = build_small(name).eval(), images_and_labels(2)
    labels, sources = torch.tensor([[1, 4], [0, 9]]), torch.rand(2, 2, *SHAPE)
    output = model(images, labels)
    try:
        parts = model.loss(output, sources, labels)
    except ValueError as error:
        assert "one class per image" in str(error)
        assert "\n" not in str(error)
        return
    assert all(part.shape == () and part.isfinite() for part in parts.values())
    if output.reconstructions is not None:
        assert output.reconstructions.shape == sources.shape
        for source in (0, 1):  # one decoder, each object by itself
            alone = model(images, labels[:, source]).reconstructions
            torch.testing.assert_close(output.reconstructions[:, source], alone)
        calls = []
        model.register_forward_hook(lambda *_: calls.append(None))
        found = predict(model, images, objects=2)
        assert len(calls) == 1  # it decodes again and does not run again
        expected = model(images, predicted_classes(found.scores, 2))
        assert torch.equal(found.reconstructions, expected.reconstructions)


@every_model
def test_every_network_learns(name):
    started = time.process_time()
    model, (images, labels) = build_small(name), images_and_labels(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = sum(model.loss(model(images, labels), images, labels).values())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    seconds = time.process_time() - started
    slow = f"{seconds:.0f} s for 30 steps: give {name} small options in SMALL of tests/models/small_networks.py"
    assert name in SMALL or seconds < 20, slow


@every_model
def test_a_prediction_does_not_depend_on_its_batch_mates(name):
    model, (images, _) = build_small(name), images_and_labels(5)
    for parameter in model.parameters():
        if not parameter.any():  # what starts at zero would hide all that it multiplies
            torch.nn.init.normal_(parameter)
    model(images)  # moves running statistics, where there are any
    model.eval()
    scores = model(images).scores
    assert (scores[2:3] - scores[:1]).abs().max() > 0
    torch.testing.assert_close(model(images[2:3]).scores, scores[2:3])


@every_model
def test_blank_images_have_finite_gradients(name):
    model, (images, labels) = build_small(name), images_and_labels()
    blank = torch.zeros_like(images)
    sum(model.loss(model(blank, labels), blank, labels).values()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@every_model
def test_the_seed_decides_the_weights_and_a_saved_network_is_the_same(name):
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(build_small(name).eval())
    (first, again, other), (images, _) = models, images_and_labels()
    expected = first(images).scores
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    assert torch.equal(again(images).scores, expected)
    alike = all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert alike == (name == "fixed_start")  # whose weights are those of a seed of its own
    other.load_state_dict(first.state_dict())
    assert torch.equal(other(images).scores, expected)


@every_model
def test_a_step_in_which_nothing_is_drawn_depends_on_no_seed(name):
    model, (images, labels) = build_small(name, **NOTHING_DRAWN.get(name, {})).train(), images_and_labels()
    losses = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        losses.append(model.loss(model(images, labels), images, labels))
    assert losses[0] == losses[1]


@every_model
def test_on_the_meta_device_a_network_takes_no_memory_and_draws_no_random_number(name):
    state = torch.get_rng_state()
    with torch.device("meta"):
        model = build_model(name, (3, 32, 32), CLASSES)
    assert all(p.is_meta for p in model.parameters())
    assert count_parameters(model) > 0
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", [n for n in MODELS.names() if COUNT.search(MODELS[n].factory.__doc__ or "")])
def test_the_number_of_parameters_that_a_network_states_is_its_number(name):
    entry = MODELS[name]
    with torch.device("meta"):
        model = build_model(name, *entry.facts.get("published_on", DEFAULT_IMAGES))
    assert f"{count_parameters(model):,}" in COUNT.findall(entry.factory.__doc__)


@every_model
def test_facts_of_a_network_can_be_used(name):
    entry = MODELS[name]
    shape, classes = entry.facts.get("published_on", DEFAULT_IMAGES)
    assert len(shape) == 3 and all(isinstance(number, int) for number in (*shape, classes))
    assert ("routing" in entry.facts) <= (entry.facts.get("routing") in ROUTINGS.names())
    assert not ("routing" in entry.facts and "routing" in MODELS.options(name).model_fields)


@with_option("decoder")
def test_a_network_without_its_decoder_reconstructs_nothing(name):
    model, (images, labels) = build_small(name, decoder=None), images_and_labels()
    output = model(images, labels)
    assert output.reconstructions is None
    assert not any("reconstruction" in part for part in model.loss(output, images, labels))
    assert count_parameters(model) < count_parameters(build_small(name))


def members():
    """(network, option, name) for all that a network can be given: each loss, routing, decoder and transform."""
    found = []
    for name in MODELS.names():
        for option, registry in {
            "routing": ROUTINGS,
            "loss": LOSSES,
            "decoder": DECODERS,
            "transform": TRANSFORMS,
        }.items():
            if option not in MODELS.options(name).model_fields:
                continue
            for member in registry.names():
                try:
                    MODELS.options(name)(**{option: member})
                except ValueError:
                    continue
                found.append((name, option, member))
    return found


@pytest.mark.parametrize(("name", "option", "member"), members())
def test_every_member_of_every_group_takes_a_step(name, option, member):
    given = SMALL.get(name, {}).get(option, {})
    same = getattr(MODELS.options(name)(), option).name == member
    model, (images, labels) = build_small(name, **{option: given if same and given else member}), images_and_labels()
    loss = sum(model.loss(model(images, labels), images, labels).values())
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())


@every_model
@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 8, 16])
def test_images_of_any_size_are_taken_or_refused_in_one_line(name, side):
    try:
        with torch.device("meta"):
            build_small(name, (2, side, side))
    except ValueError as error:
        assert re.search(r"images of at least \d+x\d+|within 2 %", str(error)), error
        assert "\n" not in str(error)
        return
    model = build_small(name, (2, side, side))
    scores = model(torch.rand(1, 2, side, side)).scores
    assert scores.shape == (1, CLASSES)
    assert scores.isfinite().all()
