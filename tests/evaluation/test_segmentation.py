"""Masks of overlaid digits: decoders whose IoU is known, and the matching of masks to sources by class."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from small_runs import run_of

from capsbench.evaluation import Context
from capsbench.evaluation.chosen import chosen_images
from capsbench.evaluation.segmentation import intersection_over_union, segmentation, segmented
from capsbench.models import Network, Output, build_model, predicted_classes

CPU = torch.device("cpu")
PAIRS = {"name": "multidigits", "options": {"test_pairs": 60, "train_pairs": 60}}


class Told(Network):
    """A network that is right, and a decoder that draws what it is given for the image: [N, 2, 1, 36, 36]."""

    def __init__(self, task, drawn, said=None):
        super().__init__()
        self.task, self.drawn = task, drawn
        self.said = task.labels if said is None else said
        self.images = task.eval_batch(torch.arange(len(task.labels)), 0).images

    def forward(self, images, labels=None):
        self.index = [int((self.images == image).flatten(1).all(dim=1).nonzero()[0]) for image in images]
        scores = torch.nn.functional.one_hot(self.said[self.index], 10).sum(dim=1).float()
        return Output(scores, reconstructions=self.reconstruct(None, labels))

    def reconstruct(self, output, labels):
        return self.drawn[self.index] if labels is not None else self.drawn[self.index, 0]


def context_of(tmp_path, data=PAIRS, **options):
    run = run_of(tmp_path, data=data)
    options = {
        "conv_channels": 4,
        "primary_types": 1,
        "decoder": {"name": "fully_connected", "hidden": (16,)},
    } | options
    network = build_model("capsnet", run.data.image_shape, 10, **options).eval()
    return Context(run, network, CPU, tmp_path, Path("nowhere"))


def with_network(context, drawn, said=None):
    object.__setattr__(context, "model", Told(context.task(), drawn, said))
    return context


def sources_and_overlay(context):
    batch = context.task().eval_batch(torch.arange(60), 0)
    return batch.targets, batch.images


def test_iou_by_hand():
    a = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]).bool().view(3, 1, 2, 2)
    b = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]).bool().view(3, 1, 2, 2)
    assert intersection_over_union(a, b).tolist() == pytest.approx([1 / 3, 1.0, 0.0])


def test_a_decoder_that_draws_the_sources_is_perfect(tmp_path):
    context = context_of(tmp_path)
    sources, _ = sources_and_overlay(context)
    found = segmentation(with_network(context, sources))
    assert (found["iou"], found["iou_correct"], found["correct_pairs"], found["images"]) == (100.0, 100.0, 60, 60)
    assert found["curves"][0]["y"] == [100.0] * 5
    assert found["curves"][0]["x"] == sorted(found["curves"][0]["x"])


def test_a_decoder_that_draws_the_overlay_takes_nothing_apart(tmp_path):
    context = context_of(tmp_path)
    sources, overlay = sources_and_overlay(context)
    ink, whole = sources[:, :, 0].numpy() > 0.5, overlay.numpy() > 0.5  # [60, 2, 36, 36], [60, 1, 36, 36]
    expected = 100 * ((ink & whole).sum(axis=(2, 3)) / (ink | whole).sum(axis=(2, 3))).mean()
    found = segmentation(with_network(context, overlay.unsqueeze(1).expand(-1, 2, -1, -1, -1)))
    assert found["iou"] == found["iou_overlay"] == pytest.approx(expected)
    assert 40 < expected < 70
    # more overlap: more of the overlay belongs to either digit
    assert found["curves"][0]["y"][-1] > found["curves"][0]["y"][0]


def test_a_decoder_that_swaps_the_digits_gets_their_overlap(tmp_path):
    context = context_of(tmp_path)
    sources, _ = sources_and_overlay(context)
    found = segmentation(with_network(context, sources.flip(1)))
    ink = sources[:, :, 0].numpy() > 0.5
    overlaps = (ink[:, 0] & ink[:, 1]).sum(axis=(1, 2)) / (ink[:, 0] | ink[:, 1]).sum(axis=(1, 2))
    assert found["iou"] == pytest.approx(100 * overlaps.mean())
    assert np.mean(found["curves"][0]["x"]) == pytest.approx(found["iou"], abs=1e-4)  # fifths of 12 pairs each


def test_masks_are_matched_by_class_and_missed_digits_count_zero(tmp_path):
    context = context_of(tmp_path)
    sources, _ = sources_and_overlay(context)
    labels = context.task().labels.clone()
    drawn = sources.clone()
    # pair 0: its second digit is taken for a class below the first one, which then comes second
    first = next(i for i in range(60) if labels[i, 0] > 0)
    said = labels.clone()
    said[first] = torch.tensor([0, int(labels[first, 0])])
    drawn[first] = torch.stack([sources[first, 1], sources[first, 0]])
    found = segmentation(with_network(context, drawn, said))
    assert found["iou"] == pytest.approx(100 * 119 / 120)
    assert (found["iou_correct"], found["correct_pairs"]) == (100.0, 59)


def test_without_a_pair_that_is_right_there_is_no_number_for_them(tmp_path):
    context = context_of(tmp_path)
    sources, _ = sources_and_overlay(context)
    said = torch.stack([(context.task().labels[:, 0] + 1) % 10, (context.task().labels[:, 0] + 2) % 10], 1)
    said = torch.where(said == context.task().labels[:, 1:], (said + 5) % 10, said).sort(dim=1).values
    found = segmentation(with_network(context, sources, said))
    assert found["correct_pairs"] == 0 and found["iou"] == 0.0 and "iou_correct" not in found


def test_the_threshold_is_of_the_reconstruction():
    sources = torch.zeros(1, 2, 1, 2, 2)
    sources[:, :, :, 0] = 1.0
    labels = torch.tensor([[3, 5]])
    faint = 0.4 * sources
    assert segmented(faint, labels, sources, labels, sources[:, 0]).iou.tolist() == [[0.0, 0.0]]
    assert segmented(faint, labels, sources, labels, sources[:, 0], threshold=0.3).iou.tolist() == [[1.0, 1.0]]


def test_it_measures_the_chosen_pairs_and_keeps_examples(tmp_path):
    context = context_of(tmp_path)
    found = segmentation(context, images=25)
    assert found["images"] == 25
    sources, overlay = (each[chosen_images(context.task(), 25)[:10]] for each in sources_and_overlay(context))
    assert_allclose(found["example_sources"], (255 * sources).round().numpy())
    assert_allclose(found["example_images"], (255 * overlay).round().numpy())
    with torch.no_grad():
        said = predicted_classes(context.model(overlay).scores, 2)
        drawn = context.model(overlay, said).reconstructions
    assert found["example_predictions"] == said.tolist()
    assert_allclose(found["example_reconstructions"], (255 * drawn).round().numpy())
    assert found["example_reconstructions"].dtype == np.uint8


def test_nothing_to_take_apart(tmp_path):
    assert "decoder" in segmentation(context_of(tmp_path, decoder=None))["reason"]
    found = segmentation(context_of(tmp_path, data={"name": "digits"}))
    assert found["status"] == "not applicable" and "one object" in found["reason"]
