import json
import re
from pathlib import Path

import jsonschema
import pytest

from capsbench.config import Plan, Study, Training, load_plan
from capsbench.errors import InputError
from capsbench.options import model_options
from capsbench.study_file import read_yaml

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
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
    grid: {iterations: [1, 3], reconstruction: [true, false]}
  cnn: {model: cnn_matched, options: {opponent_options: {conv_channels: 16}}}
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
        "caps-iterations1-reconstruction",
        "caps-iterations1-no_reconstruction",
        "caps-iterations3-reconstruction",
        "caps-iterations3-no_reconstruction",
        "cnn",
    ]
    assert [run.key for run in plan.runs] == [f"digits/{cell}/seed{seed}" for cell in cells for seed in (0, 1)]


def test_a_run_holds_its_options_with_the_models_defaults(plan_of):
    run = plan_of().run("digits/caps-iterations1-no_reconstruction/seed1")
    assert (run.study, run.model, run.seed, run.data.validation_images) == ("small", "capsnet", 1, 100)
    given = {"conv_channels": 8, "iterations": 1, "reconstruction": False}
    assert run.options.items() >= given.items()
    assert run.options["primary_types"] == 32
    assert run.options["decoder_hidden"] == [512, 1024]


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
    ("axis", "names"),
    [
        ("routing: [dynamic]", ["routingdynamic"]),
        ("detach: [false, true]", ["no_detach", "detach"]),
        ("decoder_hidden: [[8, 16], [8]]", ["decoder_hidden8_16", "decoder_hidden8"]),
        ("weight_std: [0.05]", ["weight_std0.05"]),
        ("training.batch_size: [32]", ["batch_size32"]),
        ("training.augmentation: [{shift: 0}]", ["augmentation_shift0"]),
    ],
)
def test_variants_of_a_grid_are_named_after_its_values(plan_of, axis, names):
    study = f"""\
name: small
seeds: [0]
experiments: {{digits: {{data: {{name: digits}}}}}}
variants: {{v: {{model: capsnet, grid: {{{axis}}}}}}}
"""
    assert [run.variant for run in plan_of(study=study).runs] == [f"v-{name}" for name in names]


def test_an_opponent_is_named_with_all_its_options(plan_of):
    opponent = plan_of().run("digits/cnn/seed0").options["opponent_options"]
    assert opponent == model_options("capsnet")(conv_channels=16).model_dump(mode="json")


def test_an_opponents_options_are_an_axis_of_a_grid(plan_of):
    axis = "grid: {opponent_options: [{conv_channels: 16}, {routing: em, damping: 0.5}]}"
    plan = plan_of("options: {opponent_options: {conv_channels: 16}}", axis)
    names = ["cnn-opponent_options_conv_channels16", "cnn-opponent_options_routingem_damping0.5"]
    assert [run.variant for run in plan.runs][-4::2] == names
    assert plan.runs[-1].options["opponent_options"]["damping"] == 0.5


def test_a_run_rests_on_what_its_opponent_is_made_of(plan_of):
    assert plan_of().runs[-1].modules[-2:] == ("capsbench.models.capsnet", "capsbench.routing.dynamic")


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
        ("{conv_channels: 16}", "{conv_channels: 16, primary_types: 32}"),  # another
        ("name: small", "name: small\ndescription: words"),
        ("name: small", "name: small\nplots: []\ntables: []\nevaluations: [accuracy]\ntracking: false"),
    ],
)
def test_digest_stays_where_no_result_changes(plan_of, old, new):
    assert digests(plan_of(old, new)) == digests(plan_of())


def test_digest_changes_with_the_opponent(plan_of):
    assert digests(plan_of("conv_channels: 16", "conv_channels: 17"))[-1] != digests(plan_of())[-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epochs: 2", "epochs: 3"),
        ("shift: 1", "shift: 0"),
        ("epochs: 2", "epochs: 2, threads: 2"),
        ("epochs: 2", "epochs: 2, deterministic: true"),
        ("validation_images: 100", "validation_images: 99"),
        ("validation_images: 100", "validation_images: 100, split_seed: 1"),
        ("validation_images: 100", "validation_images: 100, train_images: 900"),
        ("conv_channels: 8", "conv_channels: 9"),
        ("conv_channels: 8", "conv_channels: 8, detach: true"),
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
        ("iterations:", "iteration:", ["variants.caps.grid.iteration: ", "did you mean 'iterations'"]),
        ("iterations:", "training.epoch:", ["variants.caps.grid.", "epoch: ", "did you mean 'epochs'"]),
        ("iterations:", "data.train_images:", ["variants.caps.grid", "'data.train_images'", "training.KEY"]),
        ("cnn: {model", "cnn: {modle: 1, model", ["variants.cnn.modle: ", "did you mean 'model'", "grid"]),
        ("opponent_options:", "parameters:", ["variants.cnn.options.parameters: ", "opponent_options, dropout"]),
        ("channels: 16", "chanels: 16", ["variants.cnn.options.opponent_options.conv_chanels: ", "'conv_channels'"]),
        ("channels: 16", "channels: 0", ["variants.cnn.options.opponent_options.conv_channels: 0 ", "equal to 1"]),
        ("{conv_channels: 16}", "16", ["variants.cnn.options.opponent_options: 16 ", "object"]),
        (
            "{conv_channels: 16}",
            "{routing: emm}",
            ["options.opponent_options.routing: no routing 'emm'", "dynamic, em"],
        ),
        (
            "{conv_channels: 16}",
            "{routing: uniform, iterations: 3}",
            ["variants.cnn.options.opponent_options.iterations: unknown key", "class_dim"],
        ),
        ("opponent_options: {conv", "opponent: capsnt, opponent_options: {conv", ["cnn.options.opponent: no opponent"]),
        (
            "options: {opponent_options: {conv_channels: 16}}",
            "options: {opponent: cnn_matched}",
            ["variants.cnn.options.opponent: no opponent 'cnn_matched'; there are capsnet, cnn_hinton_norb, cnn_sab"],
        ),
        (
            "options: {opponent_options: {conv_channels: 16}}",
            "grid: {opponent_options: [{conv_channels: 16}, {widths: [4]}]}",
            ["variants.cnn.grid.opponent_options.widths: unknown key", "conv_channels"],
        ),
        (
            "options: {opponent_options: {conv_channels: 16}}",
            "grid: {opponent: [capsnet, capsnt]}",
            ["variants.cnn.grid.opponent: no opponent 'capsnt'; there are capsnet"],
        ),
        (
            "{conv_channels: 16}}",
            "{conv_channels: 16}}, grid: {opponent_options: [{}]}",
            ["variants.cnn.options.opponent_options: is in the grid too"],
        ),
        # values
        ("epochs: 2", "epochs: 0", ["training.epochs: 0 ", "greater than or equal to 1"]),
        ("epochs: 2", "epochs: 1.5", ["training.epochs: 1.5 ", "integer"]),
        ("epochs: 2", "epochs: two", ['training.epochs: "two" ', "integer"]),
        ("epochs: 2", "epochs: null", ["training.epochs: null ", "integer"]),
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
        ("[1, 3]", "[1, 0]", ["variants.caps.grid.iterations: 0 ", "greater than or equal to 1"]),
        ("[1, 3]", "[true]", ["variants.caps.grid.iterations: true ", "integer"]),
        ("[1, 3]", "3", ["variants.caps.grid.iterations: 3 ", "array"]),
        ("[1, 3]", "[]", ["variants.caps.grid.iterations: [] ", "at least 1"]),
        ("[true, false]", "[yes]", ['variants.caps.grid.reconstruction: "yes" ', "boolean"]),
        ("name: small", "name: small\ntracking: yes", ['tracking: "yes" ', "boolean"]),
        ("conv_channels: 8", "decoder_hidden: []", ["variants.caps.options.decoder_hidden: [] ", "at least 1"]),
        ("digits: {data", "digits: {training: {epochs: 0}, data", ["experiments.digits.training.epochs: 0 "]),
        ("cnn: {model", "cnn: {training: {epochs: 0}, model", ["variants.cnn.training.epochs: 0 "]),
        # what is chosen from a list
        ("name: digits", "name: mnits", ["experiments.digits.data.name: no data set 'mnits'", "'digits', 'mnist'"]),
        ("model: capsnet", "model: capsnt", ["variants.caps.model: no model 'capsnt'", "'capsnet', 'cnn_"]),
        ("    model: capsnet\n", "", ["variants.caps: needs a key 'model'"]),
        ("name: small", "name: small\nplots: [curves]", ['plots.0: "curves" ', "'learning_curves'"]),
        ("name: small", "name: small\ntables: [one]", ['tables.0: "one" ', "'sabour-table1'"]),
        ("name: small", "name: small\nevaluations: [reconstruction]", ["evaluations: 'accuracy' must be"]),
        # lists
        ("seeds: [0, 1]", "seeds: [3, 3]", ["seeds: 3 is there twice"]),
        ("seeds: [0, 1]", "seeds: []", ["seeds: [] ", "at least 1"]),
        ("seeds: [0, 1]", "seeds: [-1]", ["seeds.0: -1 ", "greater than or equal to 0"]),
        ("seeds: [0, 1]", "seeds: 3", ["seeds: 3 ", "array"]),
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
        ("{data: {name: digits, validation_images: 100}}", "", ["experiments.digits: null ", "object"]),
        (
            "rotation: 5.0",
            "brightness: 0.2",
            ["training.augmentation.brightness: acts on smallnorb and toynorb, not on digits"],
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


@pytest.mark.parametrize("content", ["", "# nothing\n", "- a\n- list\n", "word\n"])
def test_a_file_without_keys_is_told_what_a_study_is(path, content):
    assert problem_of(path, content).startswith("a study is a mapping of keys (name, seeds, experiments, variants")


def test_a_missing_file_says_so(path):
    assert problem_of(path) == "no such study file"


def test_what_is_no_text_cannot_be_read(path):
    path.write_bytes(b"\xff\xfe\x00")
    assert problem_of(path).startswith("cannot be read: ")


@pytest.mark.parametrize("where", ["study", "experiment", "variant", "grid"])
def test_early_stopping_needs_validation_images_wherever_it_is_set(path, where):
    stopping = {
        "study": ("epochs: 2", "epochs: 2, early_stopping: 3"),
        "experiment": ("digits: {", "digits: {training: {early_stopping: 3}, "),
        "variant": ("cnn: {", "cnn: {training: {early_stopping: 3}, "),
        "grid": ("iterations: [1, 3]", "training.early_stopping: [3]"),
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
        ("iterations: [1, 3]", "training.learning_rate: [1e-3, 0.001]"),
        ("  cnn: {model", "  caps-iterations1-reconstruction: {model"),
    ],
    ids=["value twice", "value twice, spelt differently", "variant named like a cell of a grid"],
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


def schema_and(config: Path) -> tuple[dict, dict]:
    return json.loads(json.dumps(Study.model_json_schema())), read_yaml(config)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_the_json_schema_accepts_the_shipped_studies(config):
    schema, study = schema_and(config)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(study, schema)


@pytest.mark.parametrize("key", ["conv_channels", "opponent_options", "primary_types"])
def test_the_json_schema_refuses_a_misspelt_option(key):
    schema, study = schema_and(CONFIGS[-1].with_name("quick.yaml"))
    text, found = re.subn(key, key + "x", json.dumps(study))
    assert found
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(text), schema)
