"""What a data set sets of the training under its options, and what a study may still set."""

import pytest

from capsbench.errors import InputError
from capsbench.study import load_plan

STUDY = """
name: defaults
seeds: [0]
experiments:
  it: {{data: {{name: {name}, options: {options}}}, training: {training}}}
variants:
  capsnet: {{model: capsnet}}
"""


def training(path, name, options="{}", changes="{}"):
    (path / "study.yaml").write_text(STUDY.format(name=name, options=options, training=changes))
    return load_plan(path / "study.yaml").runs[0].training


def test_a_crop_of_cifar10_takes_the_place_of_the_shift(tmp_path):
    assert training(tmp_path, "cifar10").augmentation.shift == 4
    cropped = training(tmp_path, "cifar10", "{crop: 24, standardise: true}").augmentation
    assert (cropped.shift, cropped.flip, cropped.contrast) == (0, True, 0.8)
    assert cropped.brightness == pytest.approx(63 / 255)


def test_brightness_of_efficient_capsnet_counts_standard_deviations(tmp_path):
    options = "{resize: bilinear_64, crop: 48, augment: after_standardising, standardise_by: training_set}"
    found = training(tmp_path, "smallnorb", options).augmentation
    assert (found.brightness, found.contrast) == (2.0, 0.5)


def test_a_study_replaces_what_the_data_set_sets(tmp_path):
    found = training(tmp_path, "multimnist", "{}", "{lr_decay_every: 7}")
    assert found.lr_decay_every == 7
    assert training(tmp_path, "multimnist").lr_decay_every == 20_000
    assert training(tmp_path, "mnist").lr_decay_every == 2_000


@pytest.mark.parametrize(("name", "options"), [("cifar10", "{}"), ("mnist", "{}")])
def test_brightness_is_refused_where_images_are_not_standardised(tmp_path, name, options):
    with pytest.raises(InputError, match=f"brightness: acts on smallnorb.* not on {name} here"):
        training(tmp_path, name, options, "{augmentation: {brightness: 0.2}}")
    if name == "cifar10":
        assert training(tmp_path, name, "{standardise: true}", "{augmentation: {brightness: 0.2}}")
