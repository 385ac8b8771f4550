from pathlib import Path

import pytest

from capsbench.errors import InputError
from capsbench.registry import DECODERS, MODELS, ROUTINGS
from capsbench.study import Plan, Training, catalogue, default_training, load_plan

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
STUDY = """\
name: small
seeds: [0, 1]
training: {epochs: 2, augmentation: {shift: 1, rotation: 5.0}}
experiments:
  digits: {data: {name: digits, validation_images: 100}}
variants:
  caps:
    model: capsnet
    options: {conv_channels: 8}
    grid: {routing.iterations: [1, 3], decoder: [fully_connected, null]}
  cnn: {model: cnn_matched, options: {matched_to: {conv_channels: 16}}}
"""
ONE = """\
name: one
seeds: [0]
experiments: {digits: {data: {name: digits}}}
variants: {v: VARIANT}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.yaml"


@pytest.fixture
def plan_of(path):
    def load(old: str = "", new: str = "", study: str = STUDY) -> Plan:
        assert old in study
        path.write_text(study.replace(old, new) if old else study + new)
        return load_plan(path)

    return load


@pytest.fixture
def runs_of(plan_of):
    """Return the runs of a study with one variant."""
    return lambda variant: plan_of("VARIANT", variant, ONE).runs


@pytest.fixture
def options_of(runs_of):
    """Return the options of a CapsNet of which a study sets some."""

    def load(options: str, model: str = "capsnet") -> dict:
        (run,) = runs_of(f"{{model: {model}, options: {options}}}")
        return run.options

    return load


def problem_of(path: Path, content: str | None = None) -> str:
    """The one line that a person reads, without the file's name in front."""
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as raised:
        load_plan(path)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


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


MATCHED = """\
name: matched
seeds: [0, 1]
training: {epochs: 2}
experiments:
  moved: {data: {name: affdigits}}
variants:
  caps: {model: capsnet, training: {match: cnn}, grid: {routing.iterations: [1, 3]}}
  cnn: {model: cnn_matched}
"""


def test_a_run_is_matched_to_the_one_of_the_same_seed(plan_of):
    plan = plan_of(study=MATCHED)
    for run in plan.runs:
        if run.variant == "cnn":
            assert (run.matched_key, run.matched_digest) == (None, None)
        else:
            assert run.matched_key == f"moved/cnn/seed{run.seed}"
            assert run.matched_digest == plan.run(run.matched_key).digest


def test_digest_follows_the_run_that_is_matched(plan_of):
    before = digests(plan_of(study=MATCHED))
    of_the_cnn = plan_of("{model: cnn_matched}", "{model: cnn_matched, options: {dropout: 0.1}}", MATCHED)
    assert not set(before) & set(digests(of_the_cnn))
    labelled = plan_of("{model: cnn_matched}", "{model: cnn_matched, label: CNN}", MATCHED)
    assert digests(labelled) == before
    assert len(set(before)) == 6
    never = digests(plan_of("{match: cnn}", "{}", MATCHED))
    assert (before[4:], set(before[:4]) & set(never)) == (never[4:], set())


def test_matches_can_form_a_chain_and_stand_in_a_grid(plan_of):
    chain = MATCHED + "  last: {model: resnet20, grid: {training.match: [caps-iterations1, null]}}\n"
    plan = plan_of(study=chain)
    assert plan.run("moved/last-caps-iterations1/seed0").matched_key == "moved/caps-iterations1/seed0"
    assert plan.run("moved/last-no_match/seed0").matched_key is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("match: cnn}", "match: cn}", ["variants.caps.training.match: no variant", "'cn'", "did you mean cnn"]),
        ("match: cnn}", "match: caps}", ["caps.training.match: no variant", "caps-iterations1, caps-iterations3, cnn"]),
        (
            "{model: cnn_matched}",
            "{model: cnn_matched, training: {match: cnn}}",
            ["variants.cnn.training.match: ", "itself"],
        ),
        ("{epochs: 2}", "{match: cnn}", ["training.match: ", "'cnn' cannot be matched to itself"]),
        (
            "{data: {name: affdigits}}",
            "{data: {name: affdigits}, training: {match: cnn}}",
            ["experiments.moved.training.match: ", "'cnn' cannot be matched to itself"],
        ),
        (
            "{model: cnn_matched}",
            "{model: cnn_matched, training: {match: caps-iterations3}}",
            ["a circle: ", "cnn is matched to caps-iterations3"],
        ),
        ("affdigits", "digits", ["variants.caps.training.match: the test of digits is as familiar"]),
        ("affdigits}", "affdigits, options: {train: affine}}", ["the test of affdigits is as familiar"]),
        (
            "{name: affdigits}",
            "{name: affdigits, validation_images: 9}, training: {early_stopping: 2}",
            ["variants.caps.grid.training: early_stopping and match are two stopping rules"],
        ),
        (
            "{data: {name: affdigits}}",
            "{data: {name: affdigits}, variants: [caps]}\n  other: {data: {name: affdigits}, variants: [cnn]}",
            ["variants.caps.training.match: no variant of this experiment 'cnn'; there are caps-iterations1"],
        ),
        ("name: matched", "name: matched\nevaluations: [accuracy]", ["evaluations: 'familiar' must be among them"]),
        (
            "match: cnn}, grid: {",
            "epochs: 1}, grid: {training.match: [cn], ",
            ["variants.caps.grid.training.match: no variant", "'cn'"],
        ),
    ],
)
def test_what_cannot_be_matched_is_refused_with_its_place(path, old, new, words):
    assert old in MATCHED
    problem = problem_of(path, MATCHED.replace(old, new))
    assert [word for word in words if word not in problem] == []


def test_an_experiment_may_set_a_match_from_which_the_matched_variant_is_excepted(plan_of):
    study = MATCHED.replace("training: {match: cnn}, ", "").replace("{epochs: 2}", "{match: cnn}")
    plan = plan_of(study=study.replace("{model: cnn_matched}", "{model: cnn_matched, training: {match: null}}"))
    assert {run.variant for run in plan.runs if run.matched_key} == {"caps-iterations1", "caps-iterations3"}


@pytest.mark.parametrize(
    ("axis", "names"),
    [
        ("routing: [dynamic]", ["dynamic"]),
        ("routing: [uniform, random]", ["uniform", "random"]),
        ("routing: [dynamic, {name: em, iterations: 2}]", ["dynamic", "em"]),
        ("routing: [em, {name: em, iterations: 2}]", ["em", "em_iterations2"]),
        ("routing.detach: [false, true]", ["no_detach", "detach"]),
        ("decoder: [null, fully_connected]", ["no_decoder", "fully_connected"]),
        ("decoder: [null, {hidden: [8]}, {hidden: [9]}]", ["no_decoder", "decoder_hidden8", "decoder_hidden9"]),
        ("decoder: [null, {hidden: [8]}]", ["no_decoder", "decoder_hidden8"]),
        ("decoder.hidden: [[8, 16], [8]]", ["hidden8_16", "hidden8"]),
        ("weight_std: [0.05]", ["weight_std0.05"]),
        ("training.batch_size: [32]", ["batch_size32"]),
        ("training.augmentation: [{shift: 0}]", ["augmentation_shift0"]),
    ],
)
def test_variants_of_a_grid_are_named_after_its_values(runs_of, axis, names):
    runs = runs_of(f"{{model: capsnet, grid: {{{axis}}}}}")
    assert [run.variant for run in runs] == [f"v-{name}" for name in names]


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        (
            "ROUTINGS, routing.iterations: [1, 3]",
            ["dynamic-iterations1", "dynamic-iterations3", "em-iterations1", "em-iterations3"],
        ),
        (
            "routing.iterations: [1, 3], ROUTINGS",
            ["iterations1-dynamic", "iterations1-em", "iterations3-dynamic", "iterations3-em"],
        ),
    ],
)
def test_a_group_and_an_option_in_it_are_two_axes_in_any_order(runs_of, axes, names):
    grid = axes.replace("ROUTINGS", "routing: [dynamic, {name: em, damping: 0.5}]")
    runs = runs_of(f"{{model: capsnet, grid: {{{grid}}}}}")
    assert [run.variant for run in runs] == [f"v-{name}" for name in names]
    for run in runs:
        routing = run.options["routing"]
        assert routing["name"] in run.variant and f"iterations{routing['iterations']}" in run.variant
        assert routing.get("damping") == (0.5 if routing["name"] == "em" else None)


def test_a_grid_over_an_option_keeps_the_others_of_its_group(runs_of):
    runs = runs_of("{model: capsnet, options: {routing: {name: em, damping: 0.5}}, grid: {routing.iterations: [1, 2]}}")
    found = [run.options["routing"] for run in runs]
    assert [(r["name"], r["damping"], r["iterations"]) for r in found] == [("em", 0.5, 1), ("em", 0.5, 2)]


@pytest.mark.parametrize(
    ("variant", "labels"),
    [
        ("{model: capsnet}", ["v"]),
        ("{model: capsnet, label: CapsNet}", ["CapsNet"]),
        ("{model: capsnet, grid: {routing.iterations: [1, 3]}}", ["v-iterations1", "v-iterations3"]),
        (
            "{model: capsnet, label: CapsNet, grid: {routing.iterations: [1], decoder: [null, fully_connected]}}",
            ["CapsNet, iterations 1, no decoder", "CapsNet, iterations 1, decoder fully connected"],
        ),
        (
            "{model: capsnet, label: CapsNet, grid: {routing: [variational_bayes, {name: em, iterations: 2}]}}",
            ["CapsNet, routing variational bayes", "CapsNet, routing em"],
        ),
        (
            "{model: capsnet, label: CapsNet, grid: {routing: [em, {name: em, iterations: 2}]}}",
            ["CapsNet, routing em", "CapsNet, routing em iterations 2"],
        ),
        (
            "{model: capsnet, label: CapsNet, grid: {decoder: [null, {hidden: [8, 16]}]}}",
            ["CapsNet, no decoder", "CapsNet, decoder hidden 8 16"],
        ),
        (
            "{model: capsnet, label: CapsNet, grid: {routing.detach: [true, false], training.lr_decay: [0.5]}}",
            ["CapsNet, detach, lr decay 0.5", "CapsNet, no detach, lr decay 0.5"],
        ),
    ],
)
def test_a_label_is_followed_by_the_place_in_the_grid(runs_of, variant, labels):
    runs = runs_of(variant)
    assert [run.label for run in runs] == labels
    assert len({run.key for run in runs}) == len(labels)


@pytest.mark.parametrize("label", ["''", "3", "x" * 61])
def test_a_label_is_a_short_text(path, label):
    assert problem_of(path, ONE.replace("VARIANT", f"{{model: capsnet, label: {label}}}")).startswith(
        "variants.v.label: "
    )


def test_a_network_to_match_has_all_its_options(plan_of):
    matched_to = plan_of().run("digits/cnn/seed0").options["matched_to"]
    assert matched_to == MODELS.options("capsnet")(conv_channels=16).plain()


def test_another_network_to_match_has_its_own_options(options_of):
    given = options_of("{matched_to: {name: resnet20, widths: [4, 16], blocks: 1}}", "cnn_matched")["matched_to"]
    assert given == MODELS.options("resnet20")(widths=(4, 16), blocks=1).plain()


def test_networks_to_match_are_an_axis_of_a_grid(plan_of):
    axis = "grid: {matched_to: [{conv_channels: 16}, {routing: {name: em, damping: 0.5}}]}"
    plan = plan_of("options: {matched_to: {conv_channels: 16}}", axis)
    names = ["cnn-matched_to_conv_channels16", "cnn-matched_to_em_damping0.5"]
    assert [run.variant for run in plan.runs][-4::2] == names
    assert plan.runs[-1].options["matched_to"]["routing"]["damping"] == 0.5


def digests(plan: Plan) -> list[str]:
    return [run.digest for run in plan.runs]


def test_every_run_has_its_own_digest(plan_of):
    assert len(set(digests(plan_of()))) == 10


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: small", "name: other"),
        ("epochs: 2", "epochs: 2, device: cpu"),
        ("epochs: 2", "epochs: 2, lr_decay: 0.96"),  # a default, spelt out
        ("epochs: 2", "epochs: 2, steps: null, match: null"),
        ("{conv_channels: 16}", "{conv_channels: 16, primary_types: 32}"),  # another
        ("{conv_channels: 16}", "{name: capsnet, conv_channels: 16}"),
        ("{conv_channels: 8}", "{conv_channels: 8, loss: {name: margin, weight: 1.0}, transform: full}"),
        ("model: capsnet", "model: capsnet\n    label: CapsNet"),
        ("name: small", "name: small\ndescription: words"),
        ("name: small", "name: small\nplots: []\ntables: []\nevaluations: [accuracy]\ntracking: false"),
    ],
)
def test_digest_stays_where_no_result_changes(plan_of, old, new):
    assert digests(plan_of(old, new)) == digests(plan_of())


def test_digest_changes_with_the_network_to_match(plan_of):
    assert digests(plan_of("conv_channels: 16", "conv_channels: 17"))[-1] != digests(plan_of())[-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epochs: 2", "epochs: 3"),
        ("shift: 1", "shift: 0"),
        ("epochs: 2", "epochs: 2, threads: 2"),
        ("epochs: 2", "epochs: 2, deterministic: true"),
        ("epochs: 2", "steps: 74"),
        ("epochs: 2", "epochs: 2, schedule: scaled"),
        ("epochs: 2", "epochs: 2, l2: 1e-7"),
        ("validation_images: 100", "validation_images: 99"),
        ("validation_images: 100", "validation_images: 100, split_seed: 1"),
        ("validation_images: 100", "validation_images: 100, train_images: 900"),
        ("conv_channels: 8", "conv_channels: 9"),
        ("conv_channels: 8", "conv_channels: 8, routing: {detach: true}"),
        ("conv_channels: 8", "conv_channels: 8, routing: em"),
        ("conv_channels: 8", "conv_channels: 8, loss: {weight: 2.0}"),
    ],
)
def test_digest_changes_with_whatever_decides_a_result(plan_of, old, new):
    assert digests(plan_of(old, new))[0] != digests(plan_of())[0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        # unknown keys
        ("name: small", "name: small\ntrainning: {}", ["trainning", "did you mean 'training'", "experiments"]),
        ("epochs: 2", "epoch: 2", ["training.epoch: ", "did you mean 'epochs'", "batch_size"]),
        ("shift: 1", "shfit: 1", ["training.augmentation.shfit: ", "did you mean 'shift'", "cutout"]),
        ("digits: {data", "digits: {tranining: {}, data", ["experiments.digits.tranining", "did you mean 'training'"]),
        ("validation_images", "validation_image", ["experiments.digits.data.validation_image: ", "train_images"]),
        ("conv_channels", "conv_chanels", ["variants.caps.options.conv_chanels: ", "did you mean 'conv_channels'"]),
        ("routing.iterations:", "routing.iteration:", ["caps.grid.routing.iteration: ", "did you mean 'iterations'"]),
        ("routing.iterations:", "ruoting.iterations:", ["variants.caps.grid", "'ruoting.iterations'", "training.KEY"]),
        ("routing.iterations:", "conv_chanels:", ["variants.caps.grid.conv_chanels: ", "did you mean 'conv_channels'"]),
        ("routing.iterations:", "training.epoch:", ["variants.caps.grid.", "epoch: ", "did you mean 'epochs'"]),
        ("routing.iterations:", "data.train_images:", ["variants.caps.grid", "'data.train_images'", "training.KEY"]),
        ("cnn: {model", "cnn: {modle: 1, model", ["variants.cnn.modle: ", "did you mean 'model'", "grid"]),
        ("matched_to:", "parameters:", ["variants.cnn.options.parameters: ", "no key any more", "matched_to"]),
        ("channels: 16", "chanels: 16", ["variants.cnn.options.matched_to.conv_chanels: ", "'conv_channels'"]),
        ("channels: 16", "channels: 0", ["variants.cnn.options.matched_to.conv_channels: 0 ", "equal to 1"]),
        ("{conv_channels: 16}", "16", ["variants.cnn.options.matched_to: 16 ", "mapping"]),
        ("{conv_channels: 16}", "{routing: emm}", ["options.matched_to.routing: no routing 'emm'", "dynamic, em"]),
        (
            "{conv_channels: 16}",
            "{routing: {name: uniform, iterations: 3}}",
            ["variants.cnn.options.matched_to.routing.iterations: unknown key", "allowed: name"],
        ),
        ("{conv_channels: 16}", "{decoder: {hiddn: [1]}}", ["options.matched_to.decoder.hiddn: ", "'hidden'"]),
        ("{conv_channels: 16}", "{decoder: {hidden: []}}", ["options.matched_to.decoder.hidden: [] ", "at least 1"]),
        (
            "matched_to: {conv",
            "matched_to: {name: capsnt, conv",
            ["cnn.options.matched_to: no ", "'capsnt'", "did you mean capsnet"],
        ),
        (
            "{conv_channels: 16}",
            "cnn_matched",
            ["variants.cnn.options.matched_to: no ", "'cnn_matched'; ", "there are capsnet, cnn_hinton_norb, cnn_sab"],
        ),
        (
            "options: {matched_to: {conv_channels: 16}}",
            "grid: {matched_to: [{conv_channels: 16}, {widths: [4]}]}",
            ["variants.cnn.grid.matched_to.widths: unknown key", "conv_channels"],
        ),
        (
            "options: {matched_to: {conv_channels: 16}}",
            "grid: {matched_to: [capsnet, capsnt]}",
            ["variants.cnn.grid.matched_to: no ", "'capsnt'; ", "there are capsnet"],
        ),
        (
            "{conv_channels: 16}}",
            "{conv_channels: 16}}, grid: {matched_to: [{}]}",
            ["variants.cnn.options.matched_to: is in the grid too"],
        ),
        # values
        ("epochs: 2", "epochs: 0", ["training.epochs: 0 ", "greater than or equal to 1"]),
        ("epochs: 2", "epochs: 1.5", ["training.epochs: 1.5 ", "integer"]),
        ("epochs: 2", "epochs: two", ['training.epochs: "two" ', "integer"]),
        ("epochs: 2", "steps: 0", ["training.steps: 0 ", "greater than or equal to 1"]),
        ("epochs: 2", "epochs: 2, steps: 9", ["training: ", "steps 9 and epochs 2", "two lengths"]),
        ("epochs: 2", "schedule: stretched", ['training.schedule: "stretched" ', "'absolute' or 'scaled'"]),
        ("epochs: 2", "schedule_steps: 0", ["training.schedule_steps: 0 ", "greater than or equal to 1"]),
        ("epochs: 2", "l2: -1.0e-7", ["training.l2: -1e-07 ", "greater than or equal to 0"]),
        ("epochs: 2", "match_every: 0", ["training.match_every: 0 ", "greater than or equal to 1"]),
        ("epochs: 2", "match: a b", ["training.match: 'a b' is not a name"]),
        (
            "[fully_connected, null]",
            "[null], training.steps: [9], training.epochs: [1]",
            ["variants.caps.grid.training: ", "two lengths"],
        ),
        ("epochs: 2", "learning_rate: '1e-3'", ['training.learning_rate: "1e-3" ', "number"]),
        ("epochs: 2", "learning_rate: 0", ["training.learning_rate: 0 ", "greater than 0"]),
        ("epochs: 2", "learning_rate: .nan", ["training.learning_rate: NaN ", "finite number"]),
        ("epochs: 2", "device: gpu", ['training.device: "gpu" ', "'auto', 'cpu' or 'cuda'"]),
        ("shift: 1", "scale: 1", ["training.augmentation.scale: 1 ", "less than 1"]),
        (
            "conv_channels: 8",
            "conv_channels: 0",
            ["variants.caps.options.conv_channels: 0 ", "greater than or equal to 1"],
        ),
        ("[1, 3]", "[1, 0]", ["variants.caps.grid.routing.iterations: 0 ", "greater than or equal to 1"]),
        ("[1, 3]", "[true]", ["variants.caps.grid.routing.iterations: true ", "integer"]),
        ("[1, 3]", "3", ["variants.caps.grid.routing.iterations: 3 ", "list"]),
        ("[1, 3]", "[]", ["variants.caps.grid.routing.iterations: [] ", "at least 1"]),
        ("decoder: [fully_connected, null]", "routing.detach: [yes]", ['caps.grid.routing.detach: "yes" ', "boolean"]),
        ("[fully_connected, null]", "[yes]", ["caps.grid.decoder: no decoder 'yes'", "fully_connected"]),
        ("[fully_connected, null]", "[{hidden: []}]", ["variants.caps.grid.decoder.hidden: [] ", "at least 1"]),
        ("name: small", "name: small\ntracking: yes", ['tracking: "yes" ', "boolean"]),
        # in options, where another option of the same group is in the grid
        ("conv_channels: 8", "routing: {name: em, dampng: 0}", ["caps.options.routing.dampng: ", "'damping'"]),
        ("conv_channels: 8", "routing: {name: em, damping: 1}", ["caps.options.routing.damping: 1 ", "less than 1"]),
        ("digits: {data", "digits: {training: {epochs: 0}, data", ["experiments.digits.training.epochs: 0 "]),
        ("cnn: {model", "cnn: {training: {epochs: 0}, model", ["variants.cnn.training.epochs: 0 "]),
        # what is chosen from a list
        ("name: digits", "name: mnits", ["experiments.digits.data.name: no data set 'mnits'", "digits, mnist"]),
        ("name: digits", "name: mnits", ["did you mean mnist"]),
        ("model: capsnet", "model: capsnt", ["variants.caps.model: no model 'capsnt'", "capsnet, cnn_"]),
        ("model: capsnet", "model: capsnt", ["did you mean capsnet"]),
        ("    model: capsnet\n", "", ["variants.caps.model: is missing"]),
        ("name: small", "name: small\nplots: [curves]", ['plots.0: "curves" ', "'learning_curves'"]),
        ("name: small", "name: small\ntables: [one]", ['tables.0: "one" ', "'sabour-table1'"]),
        ("name: small", "name: small\nevaluations: [reconstruction]", ["evaluations: 'accuracy' must be"]),
        # lists
        ("seeds: [0, 1]", "seeds: [3, 3]", ["seeds: 3 is there twice"]),
        ("seeds: [0, 1]", "seeds: []", ["seeds: [] ", "at least 1"]),
        ("seeds: [0, 1]", "seeds: [-1]", ["seeds.0: -1 ", "greater than or equal to 0"]),
        ("seeds: [0, 1]", "seeds: 3", ["seeds: 3 ", "list"]),
        ("digits: {data", "digits: {variants: [cnn, cnn], data", ["digits.variants: cnn is there twice"]),
        ("digits: {data", "digits: {variants: [cn], data", ["digits.variants: no variant 'cn'", "caps, cnn"]),
        ("digits: {data", "digits: {variants: [], data", ["experiments.digits.variants: [] ", "at least 1"]),
        # what does not fit together
        ("validation_images: 100", "validation_images: 1258", ["digits.data: ", "digits has 1258 training images"]),
        ("validation_images: 100", "validation_images: 100, train_images: 1159", ["is 1259, digits has 1258"]),
        (", validation_images: 100", ", train_images: 1259", ["is 1259, digits has 1258"]),
        # missing parts
        ("name: small\n", "", ["name: is missing"]),
        ("seeds: [0, 1]\n", "", ["seeds: is missing"]),
        ("{data: {name: digits, validation_images: 100}}", "{}", ["experiments.digits.data: is missing"]),
        ("{data: {name: digits, validation_images: 100}}", "", ["experiments.digits: null ", "mapping"]),
        (
            "rotation: 5.0",
            "brightness: 0.2",
            ["training.augmentation.brightness: acts on smallnorb, toynorb and", "not on digits"],
        ),
        # names
        ("name: small", "name: my study", ["name: 'my study' is not a name", "letters, digits"]),
        ("name: small", "name: ../small", ["name: '../small' is not a name"]),
        ("name: small", "name: 3", ["name: 3 ", "string"]),
        ("  digits: {", "  my digits: {", ["experiments.my digits: 'my digits' is not a name"]),
        ("  cnn:", "  c/nn:", ["variants.c/nn: 'c/nn' is not a name"]),
        # YAML
        ("name: small", "name: small\nname: other", ["line 2: ", "key 'name' is there twice"]),
        ("epochs: 2", "epochs: 2, epochs: 3", ["line 3: ", "key 'epochs' is there twice"]),
        ("name: small", "name: a: b", ["line 1: not valid YAML"]),
        ("name: small", "name: [a", ["not valid YAML"]),
    ],
)
def test_bad_input_is_one_line_with_file_key_and_what_is_allowed(path, old, new, words):
    assert old in STUDY
    problem = problem_of(path, STUDY.replace(old, new))
    assert [word for word in words if word not in problem] == []


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("{model: capsnet, options: {decoder: {hiddn: [1]}}}", ["v.options.decoder.hiddn: ", "did you mean 'hidden'"]),
        ("{model: capsnet, options: {routing: {name: em, iterations: 0}}}", ["v.options.routing.iterations: 0 "]),
        ("{model: capsnet, options: {routing: {iterations: 0}}}", ["v.options.routing.iterations: 0 ", "equal to 1"]),
        ("{model: capsnet, options: {routing: {damping: 0.1}}}", ["v.options.routing.damping: ", "detach"]),
        ("{model: capsnet, options: {routing: emm}}", ["v.options.routing: no routing 'emm'; did you mean em?"]),
        (
            "{model: capsnet, options: {routing: {name: emm}}}",
            ["v.options.routing: no routing 'emm'; did you mean em?"],
        ),
        ("{model: capsnet, options: {routing: [em]}}", ["v.options.routing: "]),
        ("{model: capsnet, options: {loss: hinge}}", ["v.options.loss: no loss 'hinge'", "margin"]),
        ("{model: capsnet, options: {name: capsnet}}", ["v.options.name: unknown key", "model"]),
        ("{model: capsnet, grid: {name: [capsnet]}}", ["v.", "name: unknown key", "model"]),
        (
            "{model: matrix_capsnet, options: {routing: dynamic}}",
            ["v.options.routing: no routing 'dynamic'", "there are em"],
        ),
        # said twice
        (
            "{model: capsnet, options: {conv_channels: 8}, grid: {conv_channels: [8]}}",
            ["v.options.conv_channels: is in the grid too"],
        ),
        (
            "{model: capsnet, options: {routing: {iterations: 2}}, grid: {routing.iterations: [1]}}",
            ["v.options.routing.iterations: is in the grid too"],
        ),
        (
            "{model: capsnet, options: {routing: {iterations: 2}}, grid: {routing: [em]}}",
            ["v.options.routing: is in the grid too"],
        ),
        (
            "{model: cnn_matched, options: {matched_to: {decoder: {dropout: 0.1}}}, "
            "grid: {matched_to.decoder.dropout: [0.2]}}",
            ["v.options.matched_to.decoder.dropout: is in the grid too"],
        ),
        (
            "{model: capsnet, grid: {routing: [{name: em, iterations: 2}], routing.iterations: [1]}}",
            ["v.grid.routing.iterations: ", "twice"],
        ),
    ],
)
def test_bad_options_are_one_line_with_their_full_key(path, variant, words):
    problem = problem_of(path, ONE.replace("VARIANT", variant))
    assert problem.startswith("variants.")
    assert [word for word in words if word not in problem] == []


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("{model: capsnt}", ["variants.unused.model: no model 'capsnt'"]),
        ("{model: capsnet, options: {conv_chanels: 8}}", ["variants.unused.options.conv_chanels: unknown key"]),
        ("{model: capsnet, training: {epochs: 0}}", ["variants.unused.training.epochs: 0 "]),
        ("{model: capsnet, grid: {training.epochs: [0]}}", ["variants.unused.grid.training.epochs: 0 "]),
    ],
)
def test_a_variant_that_no_experiment_names_is_checked_too(path, variant, words):
    study = STUDY.replace("digits: {data", "digits: {variants: [cnn], data") + f"  unused: {variant}\n"
    problem = problem_of(path, study)
    assert [word for word in words if word not in problem] == []


@pytest.mark.parametrize("content", ["", "# nothing\n", "- a\n- list\n", "word\n"])
def test_a_file_without_keys_gets_to_know_what_a_study_is(path, content):
    assert problem_of(path, content).startswith("a study is a mapping of keys (name, seeds, experiments, variants")


def test_a_missing_file_says_so(path):
    assert problem_of(path) == "no such study file"


def test_what_is_no_text_cannot_be_read(path):
    path.write_bytes(b"\xff\xfe\x00")
    assert "is no UTF-8 text" in problem_of(path)


@pytest.mark.parametrize("where", ["study", "experiment", "variant", "grid"])
def test_early_stopping_needs_validation_images_wherever_it_is_set(path, where):
    stopping = {
        "study": ("epochs: 2", "epochs: 2, early_stopping: 3"),
        "experiment": ("digits: {", "digits: {training: {early_stopping: 3}, "),
        "variant": ("cnn: {", "cnn: {training: {early_stopping: 3}, "),
        "grid": ("routing.iterations: [1, 3]", "training.early_stopping: [3]"),
    }
    study = STUDY.replace(*stopping[where])
    path.write_text(study)
    assert load_plan(path).runs
    problem = problem_of(path, study.replace(", validation_images: 100", ""))
    assert problem.startswith("experiments.digits.data.validation_images: must be positive where early_stopping is on")


@pytest.mark.parametrize("rate", ["1e-3", "1E-3", "1.e-3", ".1e-2", "0.001", "+1e-3"])
def test_numbers_with_an_exponent_are_numbers(plan_of, rate):
    assert plan_of("epochs: 2", f"learning_rate: {rate}").runs[0].training.learning_rate == pytest.approx(1e-3)


@pytest.mark.parametrize("name", ["yes", "no", "off", "2024-01-01", "1e", "e3"])
def test_words_that_yaml_takes_for_something_else_stay_words(plan_of, name):
    assert plan_of("name: small", f"name: {name}").study.name == name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[1, 3]", "[1, 1]"),
        ("routing.iterations: [1, 3]", "training.learning_rate: [1e-3, 0.001]"),
        ("[fully_connected, null]", "[fully_connected, {name: fully_connected}]"),
        ("  cnn: {model", "  caps-iterations1-fully_connected: {model"),
    ],
    ids=[
        "value twice",
        "value twice, spelt differently",
        "group twice, spelt differently",
        "variant named like a cell of a grid",
    ],
)
def test_two_runs_of_one_name_are_refused(path, old, new):
    assert "twice" in problem_of(path, STUDY.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("  cnn:", "  3:", id="name that is a number"),
        pytest.param("name: small", "name: small\n? [a]\n: b", id="key that is a list"),
        pytest.param("name: small", "name: a\x00b", id="zero byte"),
        pytest.param("name: small", 'name: "small\\n"', id="name with a line break"),
        pytest.param("epochs: 2", "learning_rate: .inf", id="infinite rate"),
    ],
)
def test_rare_bad_input_is_one_line_too(path, old, new):
    problem_of(path, STUDY.replace(old, new))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_shipped_studies_load_and_are_named_like_their_file(config):
    plan = load_plan(config)
    assert plan.study.name == config.stem
    assert len({run.key for run in plan.runs}) == len(plan.runs) > 0


OFF = """\
name: off
seeds: [0]
experiments: {digits: {data: {name: digits}}}
variants: {v: {model: capsnet, options: OPTIONS, grid: GRID}}
"""


@pytest.mark.parametrize(
    ("options", "grid"),
    [
        ("{}", "{decoder: [null, fully_connected], decoder.weight: [0.1, 0.2]}"),
        ("{decoder: null}", "{decoder.weight: [0.1]}"),
    ],
)
def test_a_group_that_is_switched_off_has_no_options(path, options, grid):
    problem = problem_of(path, OFF.replace("OPTIONS", options).replace("GRID", grid))
    assert problem.startswith("variants.v.grid.decoder.weight: decoder is null here")
