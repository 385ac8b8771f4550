import pytest
import torch

from capsbench.decoders import ConvDecoder, Decoder, build_decoder, masked_poses

KINDS = ["fully_connected", "convolutional"]
POSES = torch.arange(1.0, 25.0).view(2, 4, 3)  # [B, K, D]
SCORES = torch.tensor([[0.1, 0.9, 0.0, 0.2], [0.3, 0.1, 0.2, 0.8]])


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape", [(1, 28, 28), (1, 36, 36), (1, 40, 40), (2, 48, 48), (3, 32, 32), (2, 1, 17)], ids=str
)
def test_images_of_any_shape_in_the_unit_range(shape, kind):
    decoder = build_decoder(kind, 20, shape, (512, 1024)).eval()
    values = torch.randn(1, 2, 20) * 100
    with torch.no_grad():
        images = decoder(values)
        assert images.shape == (1, 2, *shape)  # of several objects
        assert ((images >= 0) & (images <= 1)).all()
        torch.testing.assert_close(decoder(values[:, 1]), images[:, 1])  # and of one


@pytest.mark.parametrize("kind", KINDS)
def test_every_pixel_hangs_on_the_values(kind):
    torch.manual_seed(0)
    decoder = build_decoder(kind, 4, (2, 21, 30), (512, 1024))
    images = decoder(torch.randn(5, 4))
    assert (images.std(dim=0) > 0).all()
    images.sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in decoder.parameters())


@pytest.mark.parametrize(("shape", "small"), [((2, 48, 48), 64), ((1, 28, 28), 36), ((3, 32, 20), 30)])
def test_parameters_of_the_convolutional_decoder(shape, small):
    found = sum(p.numel() for p in ConvDecoder(160, shape).parameters())
    convolutions = (9 * 1 + 1) * 64 + (9 * 64 + 1) * 128 + (9 * 128 + 1) * 128 + (9 * 128 + 1) * shape[0]
    assert found == 161 * small + convolutions


def test_the_convolutional_decoder_cuts_the_image_from_the_middle():
    torch.manual_seed(0)
    whole, cut = ConvDecoder(4, (1, 48, 40)), ConvDecoder(4, (1, 45, 34))
    cut.load_state_dict(whole.state_dict())
    values = torch.randn(2, 4)
    torch.testing.assert_close(cut(values), whole(values)[:, :, 1:46, 3:37])


def test_decoder_dropout_acts_in_training_alone():
    torch.manual_seed(0)
    decoder, values = Decoder(16, (2, 4, 4), hidden=(32,), dropout=0.5), torch.randn(4, 16)
    assert not torch.equal(decoder(values), decoder(values))
    decoder.eval()
    assert torch.equal(decoder(values), decoder(values))
    plain = Decoder(16, (2, 4, 4), hidden=(32,))
    assert torch.equal(plain(values), plain(values))


@pytest.mark.parametrize(("hidden", "dropout"), [((16, 32), 0.0), ((512, 1024), 0.5)])
def test_the_convolutional_decoder_refuses_options_of_the_other(hidden, dropout):
    with pytest.raises(ValueError, match="are of the fully connected decoder"):
        build_decoder("convolutional", 16, (1, 28, 28), hidden, dropout)
