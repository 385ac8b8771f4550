"""Decoders: first what holds for every one, so that one that is new is tested by being registered; then each."""

import math

import pytest
import torch
from option_values import option_names, other_value

from capsbench.layers import Decoder, DecoderSize
from capsbench.layers.decoders import ConvDecoder, DeconvDecoder, FullyConnectedDecoder, masked_poses
from capsbench.registry import DECODERS

POSES = torch.arange(1.0, 25.0).view(2, 4, 3)  # [B, K, D]
SCORES = torch.tensor([[0.1, 0.9, 0.0, 0.2], [0.3, 0.1, 0.2, 0.8]])
SIZE = DecoderSize(classes=4, class_dim=3, image_shape=(2, 21, 30))

every_decoder = pytest.mark.parametrize("name", DECODERS.names())
every_option = pytest.mark.parametrize(
    ("name", "option"), [(n, option) for n in DECODERS.names() for option in option_names(DECODERS.options(n))]
)
takes_input = pytest.mark.parametrize(
    "name", [n for n in DECODERS.names() if "input" in DECODERS.options(n).model_fields]
)


def build(name, size=SIZE, **options) -> Decoder:
    torch.manual_seed(0)
    return DECODERS.build(name, size, **options)


@every_decoder
@pytest.mark.parametrize(
    "shape", [(1, 28, 28), (1, 36, 36), (1, 40, 40), (2, 48, 48), (3, 32, 32), (2, 1, 17)], ids=str
)
def test_images_of_any_shape_in_the_unit_range(name, shape):
    decoder = build(name, SIZE._replace(image_shape=shape)).eval()
    assert isinstance(decoder, Decoder)
    poses, labels = 100 * POSES, torch.tensor([[0, 1], [2, 3]])
    with torch.no_grad():
        images = decoder(poses, SCORES, labels)
        assert images.shape == (2, 2, *shape)  # of several objects
        assert ((images >= 0) & (images <= 1)).all()
        alone = decoder(poses, SCORES, labels[:, 1])
        assert alone.shape == (2, *shape)  # and of one
        torch.testing.assert_close(alone, images[:, 1], rtol=1e-4, atol=1e-4)  # another size of a matrix product


@every_decoder
def test_without_labels_the_predicted_class_is_drawn(name):
    decoder = build(name).eval()
    drawn = decoder(POSES, SCORES, None)
    torch.testing.assert_close(drawn, decoder(POSES, SCORES, torch.tensor([1, 3])))
    assert not torch.allclose(drawn, decoder(POSES, SCORES, torch.tensor([0, 2])))


@every_decoder
def test_the_other_capsules_do_not_matter(name):
    decoder, other, labels = build(name).eval(), POSES.clone(), torch.tensor([1, 3])
    other[0, [0, 2, 3]], other[1, [0, 1, 2]] = -7.0, 7.0
    torch.testing.assert_close(decoder(other, SCORES, labels), decoder(POSES, SCORES, labels))


@every_decoder
def test_every_pixel_hangs_on_the_capsule_and_all_parameters_learn(name):
    decoder, poses = build(name), torch.randn(5, 4, 3, requires_grad=True)
    images = decoder(poses, torch.rand(5, 4), torch.zeros(5, dtype=torch.long))
    assert (images.std(dim=0) > 0).all()
    decoder.loss(images, torch.rand(5, 2, 21, 30)).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in decoder.parameters())
    assert poses.grad[:, 0].any() and not poses.grad[:, 1:].any()


@every_decoder
@pytest.mark.parametrize("shape", [(3, 2, 21, 30), (3, 2, 2, 21, 30)], ids=["one object", "two objects"])
def test_the_loss_is_the_weighted_sum_or_mean_of_squared_errors(name, shape):
    images, targets = torch.rand(shape), torch.rand(shape)
    squares = (images - targets).square().flatten(1)  # per image, both objects together
    expected = {"sum": squares.sum(dim=1).mean(), "mean": squares.mean()}
    decoder = build(name)
    torch.testing.assert_close(decoder.loss(images, targets), decoder.weight * expected[decoder.reduction])
    decoder.weight = 0.3
    for decoder.reduction, value in expected.items():
        torch.testing.assert_close(decoder.loss(images, targets), 0.3 * value)


@every_decoder
def test_on_the_meta_device_a_decoder_takes_no_memory(name):
    state = torch.get_rng_state()
    with torch.device("meta"):
        decoder = DECODERS.build(name, DecoderSize(1000, 64, (3, 512, 512)))
    assert all(p.is_meta for p in decoder.parameters())
    assert torch.equal(torch.get_rng_state(), state)


@every_option
def test_every_option_acts(name, option):
    value, losses = other_value(DECODERS.options(name), option), []
    for options in ({}, {option: value}):
        decoder = build(name, **options)
        losses.append(decoder.loss(decoder(POSES, SCORES, None), torch.zeros(2, 2, 21, 30)))
    assert not torch.isclose(*losses), f"nothing changes with {option} {value}"


@takes_input
def test_masked_zeroes_the_other_capsules_and_selected_leaves_them_out(name, monkeypatch):
    for given, width in (("masked", 12), ("selected", 3)):
        decoder, seen = build(name, input=given), []
        monkeypatch.setattr(
            decoder, "decode", lambda values, seen=seen: seen.append(values) or torch.zeros(2, 2, 21, 30)
        )
        decoder(POSES, SCORES, torch.tensor([2, 0]))
        assert seen[0].shape == (2, width)
        kept = masked_poses(POSES, SCORES, torch.tensor([2, 0]))
        expected = kept.flatten(1) if given == "masked" else torch.stack([POSES[0, 2], POSES[1, 0]])
        torch.testing.assert_close(seen[0], expected)


def test_without_labels_the_capsule_of_the_highest_score_is_kept():
    kept = masked_poses(POSES, SCORES, None)
    expected = torch.zeros(2, 4, 3)
    expected[0, 1], expected[1, 3] = POSES[0, 1], POSES[1, 3]
    assert torch.equal(kept, expected)


def test_with_labels_the_capsule_of_the_true_class_is_kept():
    kept = masked_poses(POSES, SCORES, torch.tensor([2, 0]))
    expected = torch.zeros(2, 4, 3)
    expected[0, 2], expected[1, 0] = POSES[0, 2], POSES[1, 0]
    assert torch.equal(kept, expected)


def test_of_several_objects_each_is_kept_alone():
    kept = masked_poses(POSES, SCORES, torch.tensor([[0, 1], [2, 3]]))
    assert kept.shape == (2, 2, 4, 3)
    for source, labels in enumerate(([0, 2], [1, 3])):
        assert torch.equal(kept[:, source], masked_poses(POSES, SCORES, torch.tensor(labels)))


def test_layers_of_the_fully_connected_decoder():
    decoder = FullyConnectedDecoder(DecoderSize(10, 16, (1, 28, 28)))
    widths = [(layer.in_features, layer.out_features) for layer in decoder.layers if isinstance(layer, torch.nn.Linear)]
    assert widths == [(160, 512), (512, 1024), (1024, 784)]  # S17, figure 2


@pytest.mark.parametrize(("shape", "small"), [((2, 48, 48), 64), ((1, 28, 28), 36), ((3, 32, 20), 30)])
def test_parameters_of_the_convolutional_decoder(shape, small):
    found = sum(p.numel() for p in ConvDecoder(DecoderSize(10, 16, shape)).parameters())
    convolutions = (9 * 1 + 1) * 64 + (9 * 64 + 1) * 128 + (9 * 128 + 1) * 128 + (9 * 128 + 1) * shape[0]
    assert found == 161 * small + convolutions


def test_the_convolutional_decoder_cuts_the_image_from_the_middle():
    whole, cut = (ConvDecoder(DecoderSize(1, 4, shape)) for shape in ((1, 48, 40), (1, 45, 34)))
    cut.load_state_dict(whole.state_dict())
    values = torch.randn(2, 4)
    torch.testing.assert_close(cut.decode(values), whole.decode(values)[:, :, 1:46, 3:37])


@pytest.mark.parametrize(("side", "widths"), [(28, [2, 8, 4, 2, 3]), (63, [2, 8, 4, 2, 3]), (64, [2, 8, 4, 2, 1, 3])])
def test_the_deconvolutional_decoder_doubles_twice_and_thrice_from_64_pixels_on(side, widths):
    decoder = DeconvDecoder(DecoderSize(10, 6, (3, side, side)), width=8)
    layers = [layer for layer in decoder.layers if isinstance(layer, torch.nn.ConvTranspose2d)]
    assert [layers[0].in_channels, *(layer.out_channels for layer in layers)] == widths
    grid = math.ceil(side / 2 ** (len(widths) - 3))
    assert decoder.layers[0].out_features == 2 * grid * grid
    assert decoder.decode(torch.rand(2, 4, 6)).shape == (2, 4, 3, side, side)


def test_decoder_dropout_acts_in_training_alone():
    size = DecoderSize(4, 4, (2, 4, 4))
    decoder, values = FullyConnectedDecoder(size, hidden=(32,), dropout=0.5), torch.randn(4, 16)
    assert not torch.equal(decoder.decode(values), decoder.decode(values))
    decoder.eval()
    assert torch.equal(decoder.decode(values), decoder.decode(values))
    plain = FullyConnectedDecoder(size, hidden=(32,))
    assert torch.equal(plain.decode(values), plain.decode(values))


@pytest.mark.parametrize("options", [{"hidden": (16, 32)}, {"dropout": 0.5}], ids=str)
@pytest.mark.parametrize("name", ["convolutional", "deconvolutional"])
def test_other_decoders_refuse_the_options_of_the_fully_connected_one(name, options):
    with pytest.raises(ValueError, match=f"{name}: unknown option '{next(iter(options))}'"):
        build(name, **options)
