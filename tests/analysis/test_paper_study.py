"""configs/paper.yaml against the papers: no cell deviates, and each fact that was once wrong holds as resolved.

The numbers here are typed from the papers and their authors' code, not taken from published.yaml.
"""

import functools
from pathlib import Path

import pytest

from capsbench.analysis.published import claims, counterpart, deviations, read_published
from capsbench.analysis.published_format import read_file
from capsbench.analysis.published_values import Network
from capsbench.analysis.tables import TABLES as PAPER_TABLES
from capsbench.models import build_model, count_parameters
from capsbench.registry import LOSSES, flat_options
from capsbench.run.schedule import learning_rate
from capsbench.study import Plan, Run, load_plan

PAPER = Path(__file__).parents[2] / "configs/paper.yaml"
TABLES = tuple({f"{p.paper} {p.table}" for p in read_published()})
S17_MNIST = ("capsnet-iterations1-no_decoder", "capsnet-iterations3-fully_connected", "cnn_sabour_mnist")
S17_PAIRS = ("capsnet-iterations3-fully_connected", "cnn_sabour_multimnist")
H18 = ("smallnorb-h18", "smallnorb-h18-crops", "smallnorb-azimuth", "smallnorb-elevation", "mnist-h18", "cifar10-h18")


@functools.cache
def plan() -> Plan:
    return load_plan(PAPER)


@functools.cache
def cells() -> dict[tuple[str, str], Run]:
    return {(run.experiment, run.variant): run for run in reversed(plan().runs)}  # the first seed of each


def of(*experiments: str) -> list[Run]:
    found = [run for (experiment, _), run in cells().items() if experiment in experiments]
    assert found
    return found


def steps(run: Run) -> int:
    items = run.data.facts.training_items(run.data.options)
    return run.training.total_steps(getattr(run.data.options, "train_pairs", items))


def last_rate(run: Run) -> float:
    items = run.data.facts.training_items(run.data.options)
    return learning_rate(run.training, steps(run) - 1, run.training.steps_per_epoch(items))


def with_value() -> list[tuple[str, str]]:
    return [place for place, run in sorted(cells().items()) if counterpart(run, TABLES) is not None]


@pytest.mark.parametrize(("experiment", "variant"), with_value())
def test_no_cell_with_a_published_value_deviates_from_its_protocol(experiment, variant):
    run = cells()[experiment, variant]
    stand_in = ["affnist-generated is not affnist"] if experiment == "affnist-generated" else []
    assert deviations(run, counterpart(run, TABLES), plan()) == stand_in


def test_every_published_value_with_a_model_has_a_cell():
    there = {counterpart(cells()[place], TABLES).id for place in with_value()}
    assert there == {p.id for p in read_published() if p.attack is None}


def test_every_value_is_found_in_the_table_of_its_cell():
    for run in cells().values():
        assert counterpart(run, PAPER_TABLES[run.table].published) == counterpart(run, TABLES), run.key


def test_every_cell_has_five_seeds():
    assert plan().study.seeds == [0, 1, 2, 3, 4]
    assert len(plan().runs) == 5 * len(cells())


def test_nothing_is_cut_down_and_nothing_is_scaled():
    for run in cells().values():
        assert (run.data.train_images, run.data.validation_images) == (None, 0), run.key
        assert run.training.schedule == "absolute", run.key
        assert run.training.early_stopping is None, run.key
        assert not run.data.allow_unofficial, run.key


def test_capsnet_starts_as_the_authors_code_does():
    found = [run for run in cells().values() if run.model == "capsnet"]
    assert len(found) == 22
    for run in found:
        assert run.options["initialisation"] == "authors", run.key
        assert run.options["routing"].get("bias", run.options["routing"]["name"] == "uniform"), run.key


@pytest.mark.parametrize("variant", S17_MNIST)
def test_the_rate_on_mnist_falls_to_that_of_the_authors_command(variant):
    run = cells()["mnist", variant]
    assert (steps(run), run.training.batch_size, run.training.learning_rate) == (300_000, 128, 0.001)
    assert run.training.lr_decay_every == 2000
    assert last_rate(run) == pytest.approx(2.2e-6, rel=0.01)
    assert run.training.augmentation.model_dump(exclude_defaults=True) == {"shift": 2}


@pytest.mark.parametrize(
    ("experiment", "shift", "base_shift"), [("multimnist", 4, "pair"), ("multimnist-shift6", 6, "digit")]
)
@pytest.mark.parametrize("variant", S17_PAIRS)
def test_the_rate_on_multimnist_falls_ten_times_more_slowly(experiment, shift, base_shift, variant):
    run = cells()[experiment, variant]
    assert (steps(run), run.training.batch_size, run.training.lr_decay_every) == (300_000, 128, 20_000)
    assert last_rate(run) == pytest.approx(0.001 * 0.96**15, rel=0.001)
    assert (run.data.options.shift, run.data.options.base_shift) == (shift, base_shift)


def test_matrix_capsules_are_trained_by_the_stored_authors_code():
    for run in of(*H18):
        training = run.training
        found = (training.learning_rate, training.l2, training.batch_size, training.lr_decay_every, training.lr_decay)
        assert found == (0.01, 1e-7, 64, 20_000, 0.96), run.key
        assert steps(run) >= 350_000, run.key


def test_the_spread_margin_ends_at_the_papers():
    with_spread = [run for run in of(*H18) if run.options.get("loss", {}).get("name") == "spread"]
    assert len(with_spread) == 13
    for run in with_spread:
        loss = LOSSES.build("spread", schedule=run.options["loss"]["schedule"])
        loss.begin(steps(run), 1.0)
        assert loss.margin() == pytest.approx(0.2), run.key
        loss.step.fill_(steps(run) - 1)
        assert float(loss.margin()) >= 0.9 - 1e-6, run.key


def test_smallnorb_is_made_as_the_published_numbers_were():
    for run in of("smallnorb", *(name for name in H18 if name.startswith("smallnorb"))):
        options = run.data.options
        assert (options.resize, options.augment, options.crop) == ("every_second", "before_standardising", 32), run.key
        assert (options.standardise_by, options.validation_by) == ("image", "object"), run.key
        found = run.training.augmentation.model_dump(exclude_defaults=True)
        assert found == {"brightness": pytest.approx(63 / 255), "contrast": 0.8}, run.key


def test_thirteen_crops_are_averaged_in_one_row_alone():
    crops = {run.experiment: run.data.options.test_crops for run in cells().values() if run.data.name == "smallnorb"}
    assert crops.pop("smallnorb-h18-crops") == 13
    assert set(crops.values()) == {1}


@pytest.mark.parametrize(
    ("experiment", "cnn", "capsules"),
    [
        ("affnist", "cnn_matched", ["capsnet_matched-iterations1", "capsnet_matched-iterations3", "capsnet_uniform"]),
        ("smallnorb-azimuth", "cnn_hinton_norb", ["matrix3_matched"]),
        ("smallnorb-elevation", "cnn_hinton_norb", ["matrix3_matched"]),
    ],
)
def test_capsules_stop_at_the_familiar_error_of_a_cnn_that_is_trained_to_the_end(experiment, cnn, capsules):
    runs = {run.variant: run for run in of(experiment)}
    assert set(runs) == {cnn, *capsules}
    assert runs[cnn].training.match is None
    assert runs[cnn].model == cnn
    for variant in capsules:
        assert runs[variant].training.match == cnn
        assert steps(runs[variant]) == steps(runs[cnn]) >= 300_000
        matched_to = plan().run(runs[variant].matched_key)
        assert (matched_to.variant, matched_to.seed) == (cnn, runs[variant].seed)


def test_only_novel_tests_are_matched():
    matched = {run.experiment for run in cells().values() if run.training.match is not None}
    assert matched == {"affnist", "affnist-generated", "smallnorb-azimuth", "smallnorb-elevation"}


def test_efficient_capsnet_sees_patches_of_48_of_64():
    run = cells()["smallnorb-efficient", "efficient_capsnet_norb"]
    assert run.data.options.side == 64
    assert run.data.image_shape == (2, 48, 48)
    assert run.data.options.augment == "after_standardising"
    model = build_model(run.model, image_shape=(2, 48, 48), num_classes=5, **run.options | {"decoder": None})
    assert count_parameters(model) == 151_664


@pytest.mark.parametrize(
    "place", [("smallnorb-efficient", "efficient_capsnet_norb"), ("mnist-efficient", "efficient_capsnet")]
)
def test_efficient_capsnet_is_trained_by_its_authors_code(place):
    run = cells()[place]
    assert (run.training.epochs, run.training.batch_size) == (150, 16)
    per_epoch = run.training.steps_per_epoch(run.data.facts.training_items(run.data.options))
    rates = [learning_rate(run.training, epoch * per_epoch, per_epoch) for epoch in (0, 1, 2, 149)]
    assert rates == pytest.approx([5e-4, 5e-4 * 0.97, 5e-4 * 0.97**2, 5e-5])


@pytest.mark.parametrize(
    "experiment", ["mnist-deepcaps", "fashion-mnist-deepcaps", "cifar10-deepcaps", "svhn-deepcaps"]
)
def test_deepcaps_is_trained_by_its_authors_code(experiment):
    (run,) = of(experiment)
    assert (run.training.epochs, run.training.batch_size) == (100, 256)
    per_epoch = run.training.steps_per_epoch(run.data.facts.training_items(run.data.options))
    rates = [learning_rate(run.training, epoch * per_epoch, per_epoch) for epoch in (0, 9, 10, 99)]
    assert rates == pytest.approx([1e-3, 1e-3, 5e-4, 1e-3 / 2**9])
    assert run.options["input_side"] == (64 if run.data.image_shape[0] == 3 else "image")


def test_matrix_capsules_have_the_authors_class_layer_and_normalisation():
    run = cells()["smallnorb-h18", "matrix-iterations3"]
    assert run.options["competition"] == "positions"
    routing = run.options["routing"]
    # 0.02 is their 0.01, as the code here sums log sigma^2
    assert (routing["inverse_temperature"], routing["class_temperature_factor"]) == (0.02, 0.25)
    assert (routing["variance_floor"], routing["damping"], routing["annealing"]) == (5e-4, 0.1, 0.95)
    assert (routing["beta_u"], routing["beta_a"]) == (2, 1)


def test_the_row_of_cross_entropy_is_that_over_activations():
    run = cells()["smallnorb-h18", "matrix_loss-cross_entropy"]
    assert run.options["loss"] == {"name": "cross_entropy", "of": "activations"}


def test_the_small_matrix_capsules_have_68k_parameters():
    run = cells()["smallnorb-h18", "matrix_small"]
    assert count_parameters(build_model(run.model, (2, 32, 32), 5, **run.options)) == 68_618


def cells_of(network: Network) -> list[Run]:
    """The cells that a side of a claim stands for: those of its value, or else of its options on its data set."""
    if network.value is not None:
        return [cells()[place] for place in with_value() if counterpart(cells()[place], TABLES).id == network.value.id]
    wanted = flat_options(network.options).items()
    data_set = read_file().protocols[network.protocol].data_set
    runs = [run for run in cells().values() if (run.model, run.data.name) == (network.model, data_set)]
    return [run for run in runs if flat_options(run.options).items() >= wanted]


@pytest.mark.parametrize("claim", [claim for claim in claims() if claim.attack is None], ids=lambda claim: claim.id)
def test_every_claim_is_a_contrast(claim):
    """But those on attacks, which are evaluations of cells that are there."""
    compared = {(c.experiment, frozenset((c.a, c.b))) for c in plan().contrasts}
    pairs = {
        (a.experiment, frozenset((a.variant, b.variant)))
        for a in cells_of(claim.first)
        for b in cells_of(claim.second)
        if a.experiment == b.experiment
    }
    assert pairs & compared
