import math

import pytest
import torch
from small_networks import SMALL

from capsbench.models import build_model
from capsbench.models.scae import presence_losses, share_entropies

WEIGHTS = {
    "deformation": 10, "prior_within": 2, "prior_between": 0.35, "posterior_within": 10, "posterior_between": 20,
}  # fmt: skip
OPTIONS = {**SMALL["scae"], "drawn_pixels": None, "pixel_deviation": 0.3}


def build(shape=(1, 28, 28), **options):
    torch.manual_seed(0)
    return build_model("scae", image_shape=shape, num_classes=5, **{**OPTIONS, **options})


def batch(size=20):
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.zeros(size, 1, 28, 28), torch.arange(size) % 5
    for image, label in zip(images, labels, strict=True):  # a bar at a place of its class, a little off
        row = 4 + 4 * int(label) + int(torch.randint(0, 2, (), generator=generator))
        image[0, row : row + 3, 6:22] = 1
    return images, labels


def gradients_of(part):
    model, (images, labels) = build(), batch()
    model.loss(model(images), images, labels)[part].backward()
    return {n.split(".")[0] for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}


def test_known_distances_of_presences():
    prior = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    within, between = presence_losses(prior, present_objects=1.5, num_classes=2)
    assert within.item() == pytest.approx(0.25)  # sums 1 and 2
    assert between.item() == pytest.approx(0.5)  # sums 2 and 1 of 2 / 2


def test_entropies_of_one_object_an_image_and_of_none_preferred():
    alone, alike = share_entropies(3.0 * torch.eye(4))
    assert alone.item() == pytest.approx(0, abs=1e-5) and alike.item() == pytest.approx(math.log(4))
    alone, alike = share_entropies(torch.ones(7, 4))
    assert alone.item() == pytest.approx(math.log(4)) and alike.item() == pytest.approx(math.log(4))
    alone, alike = share_entropies(torch.eye(4)[:1].expand(6, 4))
    assert alone.item() == pytest.approx(0, abs=1e-5) and alike.item() == pytest.approx(0, abs=1e-5)


def test_pixels_alone_teach_the_parts():
    assert gradients_of("reconstruction") == {"part_encoder", "part_decoder"}


@pytest.mark.parametrize("part", ["votes", "deformation", "presences_within_images", "shares_between_images"])
def test_what_explains_parts_does_not_change_them(part):
    assert gradients_of(part) <= {"object_encoder", "object_capsules"}


def test_objects_wait_for_the_parts_without_gradients():
    model, (images, labels) = build(parts_alone=2), batch()
    for waits in (True, True, False):
        model.zero_grad()
        parts = model.loss(model(images), images, labels)
        sum(parts.values()).backward()
        assert (parts["votes"].item() == 0) == waits
        assert all((p.grad is None) == waits for p in model.object_capsules.parameters())
        assert all(p.grad is not None for p in model.part_encoder.parameters())


def test_labels_teach_the_probe_alone():
    assert gradients_of("probe") == {"probe"}
    model, (images, labels) = build(), batch()
    output = model(images)
    first, second = (model.loss(output, images, given) for given in (labels, (labels + 1) % 5))
    assert {name for name in first if first[name] != second[name]} == {"probe"}


def test_weights_of_the_loss_multiply_its_parts():
    once, twice = build(), build(**{f"{name}_weight": 2 * value for name, value in WEIGHTS.items()})
    images, labels = batch()
    parts = [model.loss(model.eval()(images), images, labels) for model in (once, twice)]
    for name in parts[0]:
        factor = 1 if name in ("reconstruction", "votes", "probe") else 2
        torch.testing.assert_close(parts[1][name], factor * parts[0][name])


def test_the_loss_on_some_pixels_is_on_average_that_on_all():
    images, labels = batch()
    whole, some = build(noise=0.0), build(noise=0.0, drawn_pixels=49)
    assert some(images).reconstructions is None
    assert some.eval()(images).reconstructions.shape == images.shape
    expected = whole.loss(whole(images), images, labels)["reconstruction"].item()
    some.train()
    found = [some.loss(some(images), images, labels)["reconstruction"].item() for _ in range(80)]
    assert torch.tensor(found).mean().item() == pytest.approx(expected, rel=0.08)
    assert torch.tensor(found).std() > 0


def test_it_learns_to_draw_two_bars_without_their_labels():
    images = torch.zeros(2, 1, 28, 28)
    images[0, 0, 6:22, 11:17] = 1
    images[1, 0, 11:17, 6:22] = 1
    images, labels = images.repeat(8, 1, 1, 1), torch.zeros(16, dtype=torch.long)
    model = build(parts=8, template_size=7)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        loss = sum(model.loss(model(images), images, labels).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    drawn = model.eval()(images).reconstructions
    error = (drawn - images).square().sum(dim=(1, 2, 3)).mean()
    assert error < 0.5 * 16 * 6  # of a blank image, 96


def test_several_classes_in_an_image_are_refused():
    model, (images, _) = build(), batch(2)
    with pytest.raises(ValueError, match="one class per image"):
        model.loss(model(images), images, torch.tensor([[0, 1], [2, 3]]))


def test_small_images_are_refused_by_their_size():
    with pytest.raises(ValueError, match="at least 23x23, not 22x28"):
        build((1, 22, 28))
    build((1, 23, 28))
