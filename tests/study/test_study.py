from pathlib import Path

import pytest
from small_studies import ONE, STUDY, problem_of

from capsbench.registry import DECODERS, MODELS, ROUTINGS
from capsbench.study import Training, catalogue, default_training, load_plan
from capsbench.study.plots import shows_images

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


def test_a_study_expands_to_experiments_times_grid_times_seeds(plan_of):
    plan = plan_of()
    cells = [
        "caps-iterations1-fully_connected",
        "caps-iterations1-no_decoder",
        "caps-iterations3-fully_connected",
        "caps-iterations3-no_decoder",
        "cnn",
    ]
    assert [run.key for run in plan.runs] == [f"digits/{cell}/seed{seed}" for cell in cells for seed in (0, 1)]


def test_a_run_holds_its_options_with_the_networks_defaults(plan_of):
    run = plan_of().run("digits/caps-iterations1-no_decoder/seed1")
    assert (run.study, run.model, run.seed, run.data.validation_images) == ("small", "capsnet", 1, 100)
    assert (run.options["conv_channels"], run.options["primary_types"], run.options["decoder"]) == (8, 32, None)
    assert run.options["routing"] == ROUTINGS.options("dynamic")(iterations=1).plain()
    run = plan_of().run("digits/caps-iterations3-fully_connected/seed0")
    assert run.options["routing"]["iterations"] == 3
    assert run.options["decoder"]["hidden"] == [512, 1024]


def test_networks_that_draw_have_plots_that_show_images(tmp_path):
    path = tmp_path / "study.yaml"
    variants = "{scae: {model: scae}, drawn: {model: capsnet}, bare: {model: capsnet, options: {decoder: null}}}"
    path.write_text(
        f"name: drawing\nseeds: [0]\nexperiments: {{mnist: {{data: {{name: mnist}}}}}}\nvariants: {variants}"
    )
    plan = load_plan(path)
    assert {run.variant: shows_images(run) for run in plan.runs} == {"scae": True, "drawn": True, "bare": False}
    assert {"templates", "reconstructions"} <= set(plan.study.plots)


@pytest.mark.parametrize("name", ROUTINGS.names())
def test_a_bare_name_chooses_a_group_with_its_defaults(options_of, name):
    defaults = ROUTINGS.options(name)().plain()
    assert options_of(f"{{routing: {name}}}")["routing"] == defaults
    assert options_of(f"{{routing: {{name: {name}}}}}")["routing"] == defaults


def test_a_group_without_a_name_is_the_networks_own(options_of):
    assert options_of("{routing: {iterations: 5}}")["routing"] == ROUTINGS.options("dynamic")(iterations=5).plain()
    assert options_of("{routing: {}}") == options_of("{}")
    assert {"name": "capsnet", **options_of("{}")} == MODELS.options("capsnet")().plain()


@pytest.mark.parametrize("name", ["", "name: fully_connected, "])
def test_what_a_network_sets_of_its_group_stays_under_the_same_name(options_of, name):
    """Efficient-CapsNet's decoder has a weight of its own, which stays when a study sets another option."""
    given = options_of(f"{{decoder: {{{name}hidden: [16, 32]}}}}", "efficient_capsnet")["decoder"]
    usual = options_of("{}", "efficient_capsnet")["decoder"]
    assert (given["weight"], given["reduction"]) == (usual["weight"], usual["reduction"]) == (0.392, "mean")
    assert given == usual | {"hidden": [16, 32]}
    assert DECODERS.options("fully_connected")().plain()["weight"] != 0.392


def test_null_switches_a_group_off(options_of, path):
    assert options_of("{decoder: null}")["decoder"] is None
    assert problem_of(path, ONE.replace("VARIANT", "{model: capsnet, options: {routing: null}}")).startswith(
        "variants.v.options.routing: null "
    )


def test_an_unknown_run_is_a_key_error(plan_of):
    with pytest.raises(KeyError, match="digits/cnn/seed7"):
        plan_of().run("digits/cnn/seed7")


def test_an_experiment_trains_the_variants_that_it_names_in_its_order(plan_of):
    study = STUDY.replace("digits: {data", "digits: {variants: [other, cnn], data")
    plan = plan_of(study=study, new="  other: {model: cnn_sabour_mnist}\n")
    assert [run.variant for run in plan.runs if run.seed == 0] == ["other", "cnn"]


def test_each_layer_of_training_replaces_the_one_before_key_by_key(plan_of):
    study = """\
name: layers
seeds: [0]
training: {epochs: 2, batch_size: 2, learning_rate: 0.2, lr_decay: 0.2, augmentation: {shift: 1, rotation: 5.0}}
experiments:
  digits:
    data: {name: digits}
    training: {batch_size: 3, learning_rate: 0.3, lr_decay: 0.3, augmentation: {scale: 0.3}}
variants:
  cnn:
    model: cnn_matched
    training: {learning_rate: 0.4, lr_decay: 0.4, augmentation: {cutout: 4}}
    grid: {training.lr_decay: [0.5], training.augmentation: [{rotation: 6.0}]}
"""
    (run,) = plan_of(study=study).runs
    augmentation = {"shift": 1, "rotation": 6.0, "scale": 0.3, "cutout": 4}
    given = {"epochs": 2, "batch_size": 3, "learning_rate": 0.4, "lr_decay": 0.5, "augmentation": augmentation}
    assert run.training == Training.model_validate(given)


@pytest.mark.parametrize(
    ("study", "experiment", "variant", "grid", "length"),
    [
        ("{}", "{}", "{}", "{}", (300_000, None)),  # the authors' command
        ("{epochs: 2}", "{}", "{}", "{}", (None, 2)),
        ("{epochs: 2}", "{steps: 7}", "{}", "{}", (7, None)),
        ("{steps: 7}", "{}", "{epochs: 3}", "{}", (None, 3)),
        ("{steps: 7}", "{epochs: 2}", "{steps: 8}", "{}", (8, None)),
        ("{epochs: 2}", "{}", "{}", "{training.steps: [9]}", (9, None)),
        ("{steps: 7}", "{}", "{epochs: 3}", "{training.epochs: [4]}", (None, 4)),
        ("{epochs: 2}", "{batch_size: 3}", "{steps: null}", "{}", (None, 2)),  # null says nothing
        ("{epochs: 2}", "{epochs: null}", "{}", "{}", (300_000, None)),
    ],
)
def test_the_innermost_length_counts_whether_in_steps_or_in_epochs(plan_of, study, experiment, variant, grid, length):
    text = f"""\
name: lengths
seeds: [0]
training: {study}
experiments: {{digits: {{data: {{name: digits}}, training: {experiment}}}}}
variants: {{cnn: {{model: cnn_matched, training: {variant}, grid: {grid}}}}}
"""
    (run,) = plan_of(study=text).runs
    assert (run.training.steps, run.training.epochs) == length


@pytest.mark.parametrize("where", ["study", "experiment", "variant"])
def test_two_lengths_in_one_layer_are_refused_with_their_place(path, where):
    both = "training: {steps: 9, epochs: 2}"
    study = {
        "study": ONE.replace("VARIANT", "{model: capsnet}") + both,
        "experiment": ONE.replace("digits}}", f"digits}}, {both}}}").replace("VARIANT", "{model: capsnet}"),
        "variant": ONE.replace("VARIANT", f"{{model: capsnet, {both}}}"),
    }[where]
    place = {"study": "training: ", "experiment": "experiments.digits.training: ", "variant": "variants.v.training: "}
    problem = problem_of(path, study)
    assert problem.startswith(place[where])
    assert "two lengths" in problem


def test_a_length_in_steps_or_in_epochs_is_one_in_steps():
    assert Training(steps=7).total_steps(1000) == 7
    assert Training(epochs=3, batch_size=32).total_steps(96) == 9
    assert Training(epochs=3, batch_size=32).total_steps(97) == 12
    assert Training(**Training(epochs=3).model_dump()) == Training(epochs=3)  # as a record holds it
    assert Training(**Training().model_dump()) == Training()


def test_a_data_set_has_a_protocol_of_its_own_that_a_study_replaces(plan_of):
    pairs = ONE.replace("{name: digits}", "{name: multidigits}").replace("VARIANT", "{model: capsnet}")
    assert plan_of(study=pairs).runs[0].training.lr_decay_every == 20_000  # S17, 6.2
    assert plan_of(study=pairs + "training: {lr_decay_every: 5}").runs[0].training.lr_decay_every == 5
    (run,) = plan_of("VARIANT", "{model: capsnet}", ONE).runs
    assert run.training.lr_decay_every == 2000


@pytest.mark.parametrize("name", catalogue())
def test_the_default_training_of_a_data_set_is_what_a_silent_study_has(plan_of, name):
    study = ONE.replace("{name: digits}", f"{{name: {name}}}").replace("VARIANT", "{model: resnet20}")
    (run,) = plan_of(study=study).runs
    assert default_training(run.data) == run.training
    changed = default_training(run.data, {"epochs": 3, "augmentation": {"rotation": 7.0}})
    assert (changed.steps, changed.epochs, changed.augmentation.rotation) == (None, 3, 7.0)
    assert changed.augmentation.shift == run.training.augmentation.shift
    assert changed.lr_decay_every == run.training.lr_decay_every


@pytest.mark.parametrize("rate", ["1e-3", "1E-3", "1.e-3", ".1e-2", "0.001", "+1e-3"])
def test_numbers_with_an_exponent_are_numbers(plan_of, rate):
    assert plan_of("epochs: 2", f"learning_rate: {rate}").runs[0].training.learning_rate == pytest.approx(1e-3)


@pytest.mark.parametrize("name", ["yes", "no", "off", "2024-01-01", "1e", "e3"])
def test_words_that_yaml_takes_for_something_else_stay_words(plan_of, name):
    assert plan_of("name: small", f"name: {name}").study.name == name


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_shipped_studies_load_and_are_named_like_their_file(config):
    plan = load_plan(config)
    assert plan.study.name == config.stem
    assert len({run.key for run in plan.runs}) == len(plan.runs) > 0
