import pytest
from small_studies import STUDY, problem_of

from capsbench.study import load_plan


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
            [
                "variants.cnn.options.matched_to: no ",
                "'cnn_matched'; ",
                "there are capsnet, capsnet_ablated_children, capsule_transformer, cnn_",
            ],
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
        (
            "model: capsnet",
            "model: capsnt",
            ["variants.caps.model: no model 'capsnt'", "capsnet, capsnet_abl"],
        ),
        ("model: capsnet", "model: capsnt", ["did you mean capsnet"]),
        ("    model: capsnet\n", "", ["variants.caps.model: is missing"]),
        ("name: small", "name: small\nplots: [curves]", ["plots.0: no plot 'curves'", "learning_curves"]),
        ("name: small", "name: small\ntables: [one]", ['tables.0: "one" ', "'sabour-table1'"]),
        ("name: small", "name: small\nevaluations: [reconstruction]", ["evaluations: 'accuracy' must be"]),
        ("digits: {data", "digits: {evaluations: [cost, cost], data", ["digits.evaluations: cost is there twice"]),
        ("digits: {data", "digits: {evaluations: [accuracy], data", ["'accuracy' is among those of the study"]),
        ("digits: {data", "digits: {evaluations: [confusion], data", ["'confusion' needs no pass of its own"]),
        ("digits: {data", "digits: {evaluations: [costs], data", ["no protocol 'costs'"]),
        (
            "digits: {data",
            "digits: {evaluations: [{name: adversarial, transfer_from: cmn}], data",
            ["experiments.digits.evaluations[0].adversarial: no variant 'cmn'; did you mean cnn?"],
        ),
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


@pytest.mark.parametrize("form", ["graph", "inductor"])
def test_steps_that_are_not_alike_are_no_graph(path, form):
    study = STUDY.replace("cnn: {model: cnn_matched", "cnn: {model: scae").replace(
        "epochs: 2", f"epochs: 2, compile: {form}"
    )
    study = study.replace("options: {matched_to: {conv_channels: 16}}", "options: {}")
    problem = problem_of(path, study)
    assert (
        problem.startswith("variants.cnn.training.compile: ") and "the loss of scae asks at which step it is" in problem
    )


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


@pytest.mark.parametrize("sign", ["\\r", "\\L", "\\e[31m", "\\x85", "\\0"])
def test_what_cannot_be_printed_is_shown_as_it_would_be_typed(path, sign):
    problem = problem_of(path, STUDY.replace("epochs: 2", f'"ep{sign}ochs": 2'))
    assert problem.isprintable()
    assert problem.startswith("training.ep\\") and "unknown key (did you mean 'epochs'?)" in problem


@pytest.mark.parametrize(
    "old", ["model: cnn_matched", "name: digits", "name: small", "conv_channels: 16", "matched_to"]
)
def test_a_word_without_end_is_cut_down(path, old):
    problem = problem_of(path, STUDY.replace(old, old + "7" * 900))
    assert "7777" in problem
    assert len(problem) < 600
