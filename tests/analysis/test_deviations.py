import pytest

from capsbench.analysis.published import counterpart, deviations

TABLES = ("S17 Table 1",)


def reasons(run) -> list[str]:
    value = counterpart(run, TABLES)
    assert value is not None
    return deviations(run, value)


@pytest.mark.parametrize(
    "change",
    [
        ("training: {}", "training: {}"),
        ("training: {}", "training: {steps: 300_000, schedule_steps: 1000, match_every: 7}"),
        ("training: {}", "training: {epochs: 640, device: cpu, threads: 4, deterministic: true, compile: inductor}"),
        ("decoder: [null, fully_connected]", "decoder: [null, fully_connected], initialisation: [authors]"),
        ("{name: mnist}", "{name: mnist, validation_images: 5000}"),
        ("{name: mnist}", "{name: mnist, train_images: 55000}"),
    ],
)
def test_a_full_study_has_no_deviation(runs_of, change):
    assert [reasons(run) for run in runs_of(change)] == [[]] * 5


def test_a_start_that_the_paper_is_silent_on_is_named_beside_the_value(runs_of):
    run = runs_of(("decoder: [null, fully_connected]", "decoder: [fully_connected], initialisation: [authors]"))[0]
    assert "initial weights of the authors' code" in counterpart(run, TABLES).caveat


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{name: mnist}", "{name: digits}", ["digits is not mnist"]),
        ("{name: mnist}", "{name: mnist, train_images: 5000}", ["5,000 of 60,000 training images"]),
        ("{name: mnist}", "{name: mnist, validation_images: 5001}", ["54,999 of 60,000 training images"]),
        ("training: {}", "training: {steps: 299_999}", ["299,999 steps, not 300,000 or more"]),
        ("training: {}", "training: {epochs: 639}", ["299,691 steps, not 300,000 or more"]),
        ("training: {}", "training: {schedule: scaled}", ["schedule scaled, not absolute"]),
        (
            "training: {}",
            "training: {schedule: scaled, steps: 30_000}",
            ["30,000 steps, not 300,000 or more", "schedule scaled, not absolute"],
        ),
        ("training: {}", "training: {l2: 1.0e-7}", ["l2 1e-07, not 0.0"]),
        ("training: {}", "training: {batch_size: 64}", ["batch_size 64, not 128"]),
        ("training: {}", "training: {augmentation: {shift: 0}}", ["augmentation none, not shift 2"]),
        ("decoder: [null, fully_connected]", "routing.detach: [true]", ["routing.detach True, not False"]),
        ("decoder: [null, fully_connected]", "conv_channels: [64]", ["conv_channels 64, not 256"]),
        ("decoder: [null, fully_connected]", "decoder.hidden: [[8, 9]]", ["decoder.hidden 8-9, not 512-1024"]),
        ("decoder: [null, fully_connected]", "loss: [spread]", ["loss spread, not margin"]),
        (
            "decoder: [null, fully_connected]",
            "loss: [{name: spread, schedule: authors}]",
            ["loss spread, not margin", "loss.schedule authors, not linear"],
        ),
    ],
)
def test_a_deviation_is_named_with_the_paper_value(runs_of, old, new, said):
    assert reasons(runs_of((old, new))[0]) == said


def test_a_study_that_is_cut_down_names_everything(runs_of):
    run = runs_of(
        ("{name: mnist}", "{name: mnist, train_images: 5000}"),
        ("training: {}", "training: {epochs: 30}"),
        ("capsnet: {model", "capsnet: {options: {primary_types: 8}, model"),
    )[3]
    assert reasons(run) == [
        "5,000 of 60,000 training images",
        "1,200 steps, not 300,000 or more",
        "primary_types 8, not 32",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{}", []),
        ("{matched_to: {conv_channels: 32}}", ["matched_to.conv_channels 32, not 256"]),
        ("{matched_to: {decoder: null}}", None),
        ("{matched_to: {routing: em}}", None),
        ("{matched_to: resnet20}", None),
    ],
)
def test_the_cnn_on_affnist_has_the_size_of_the_papers_capsnet(run_on, options, said):
    run = run_on("{name: affnist}", f"{{model: cnn_matched, options: {options}}}")
    value = counterpart(run, ("S17 section 5.2",))
    assert (value and deviations(run, value)) == said


@pytest.mark.parametrize(("model", "tables"), [("capsnet", ("S17 Table 1",)), ("efficient_capsnet", ("M21 MNIST",))])
def test_another_kind_of_decoder_keeps_the_row_and_is_named(run_on, model, tables):
    run = run_on("{name: mnist}", f"{{model: {model}, options: {{decoder: convolutional}}}}")
    assert "decoder convolutional, not fully_connected" in deviations(run, counterpart(run, tables))


@pytest.mark.parametrize(
    ("data", "training", "said"),
    [
        ("{name: multimnist}", "{}", []),
        ("{name: multimnist, options: {train_pairs: 600000}}", "{epochs: 64}", []),
        ("{name: multimnist, validation_images: 5000}", "{}", []),
        ("{name: multimnist, options: {test_pairs: 500, pair_seed: 3}}", "{}", []),
        ("{name: multimnist, options: {shift: 6, base_shift: digit}}", "{}", []),
        ("{name: multimnist, options: {train_pairs: 600000}}", "{epochs: 63}",
         ["295,344 steps, not 300,000 or more"]),
        ("{name: multimnist, options: {train_pairs: 6000}}", "{epochs: 1000}",
         ["47,000 steps, not 300,000 or more"]),
        ("{name: multimnist, train_images: 5000}", "{}", ["5,000 of 60,000 training images"]),
        ("{name: multimnist, options: {shift: 2}}", "{}", ["shift 2, not 4"]),
        ("{name: multimnist, options: {shift: 8}}", "{}", ["shift 8, not 4"]),
        ("{name: multimnist, options: {combine: maximum}}", "{}", ["combine maximum, not sum"]),
        ("{name: multimnist}", "{augmentation: {shift: 2}}", ["augmentation shift 2, not none"]),
        ("{name: multimnist}", "{lr_decay_every: 2000}", ["lr_decay_every 2000, not 20000"]),
        ("{name: multidigits}", "{}", ["multidigits is not multimnist"]),
    ],
)  # fmt: skip
def test_what_keeps_a_run_from_the_papers_multimnist(run_on, data, training, said):
    run = run_on(data, "{model: capsnet}", training)
    value = counterpart(run, ("S17 Table 1",))
    assert value.error == 5.2
    assert deviations(run, value) == said


HINTON = "steps: 350_000, batch_size: 64, learning_rate: 0.01, lr_decay_every: 20000, l2: 1.0e-7"


@pytest.mark.parametrize(
    ("data", "training", "said"),
    [
        ("{name: smallnorb}", f"{{{HINTON}}}", []),
        ("{name: smallnorb}", "{}", ["300,000 steps, not 350,000 or more", "batch_size 128, not 64",
                                    "learning_rate 0.001, not 0.01", "lr_decay_every 2000, not 20000",
                                    "l2 0.0, not 1e-07"]),
        ("{name: smallnorb}", f"{{{HINTON}, lr_decay: 0.9}}", ["lr_decay 0.9, not 0.96"]),
        ("{name: smallnorb, options: {crop: 28}}", f"{{{HINTON}}}", ["crop 28, not 32"]),
        ("{name: smallnorb, options: {resize: mean}}", f"{{{HINTON}}}", ["resize mean, not every_second"]),
        ("{name: smallnorb, options: {augment: after_standardising}}", f"{{{HINTON}}}",
         ["augment after_standardising, not before_standardising"]),
        (
            "{name: smallnorb, validation_images: 972}", f"{{{HINTON}}}",
            ["19,440 of 24,300 training images"],  # five whole objects leave training
        ),
        ("{name: smallnorb, validation_images: 972, options: {validation_by: pair}}", f"{{{HINTON}}}", []),
        ("{name: smallnorb, train_images: 21999}", f"{{{HINTON}}}", ["21,999 of 24,300 training images"]),
        ("{name: smallnorb}", f"{{{HINTON.replace('350_000', '76_000')}}}", ["76,000 steps, not 350,000 or more"]),
        ("{name: smallnorb}", f"{{{HINTON.replace('350_000', '76_000')}, schedule: scaled}}",
         ["76,000 steps, not 350,000 or more", "schedule scaled, not absolute"]),
        ("{name: smallnorb}", f"{{{HINTON}, augmentation: {{contrast: 0.5}}}}",
         ["augmentation brightness 0.24705882352941178, contrast 0.5, "
          "not brightness 0.24705882352941178, contrast 0.8"]),
        ("{name: toynorb}", f"{{{HINTON}}}", ["toynorb is not smallnorb"]),
        ("{name: toynorb, options: {lightings: 1}}", f"{{{HINTON}}}",
         ["toynorb is not smallnorb", "lightings 1, not 6"]),
    ],
)  # fmt: skip
def test_what_is_compared_is_the_protocol_of_the_paper(run_on, data, training, said):
    run = run_on(data, "{model: matrix_capsnet}", training)
    value = counterpart(run, ("H18 Table 1", "S17 section 7"))
    assert value.error == 1.8
    assert deviations(run, value) == said


@pytest.mark.parametrize(
    ("steps", "schedule", "margin"),
    [(76_000, "authors", "0.261"), (300_000, "authors", "0.896"), (310_000, "authors", None), (76_000, "linear", None)],
)
def test_the_spread_margin_at_the_end_is_demanded(run_on, steps, schedule, margin):
    training = f"{{{HINTON.replace('350_000', str(steps))}}}"
    variant = f"{{model: matrix_capsnet, options: {{loss: {{name: spread, schedule: {schedule}}}}}}}"
    run = run_on("{name: smallnorb}", variant, training)
    found = [reason for reason in deviations(run, counterpart(run, ("H18 Table 1",))) if "margin" in reason]
    assert found == ([] if margin is None else [f"spread margin {margin} at the end, not 0.9 or more"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("{competition: parents}", []),  # compared, with a remark
        ("{competition: positions_as_coded}", []),
        ("{primary_types: 8}", ["primary_types 8, not 32"]),
        ("{conv_channels: 64}", ["conv_channels 64, not 32"]),
        ("{loss: cross_entropy}", ["loss.of scores, not activations"]),
        ("{loss: {name: cross_entropy, of: activations}}", []),
        ("{loss: {name: spread, schedule: authors}}", []),
    ],
)
def test_an_option_of_matrix_capsules_that_the_numbers_do_not_rest_on_is_named(run_on, options, said):
    run = run_on("{name: smallnorb}", f"{{model: matrix_capsnet, options: {options}}}", f"{{{HINTON}}}")
    assert deviations(run, counterpart(run, ("H18 Table 1",))) == said


def test_a_protocol_belongs_to_the_paper_of_the_value(run_on):
    tables = ("H18 Table 1", "S17 section 7")
    capsnet, cnn = (run_on("{name: smallnorb}", f"{{model: {model}}}") for model in ("capsnet", "cnn_hinton_norb"))
    assert (counterpart(capsnet, tables).error, counterpart(cnn, tables).error) == (2.7, 5.2)
    assert deviations(capsnet, counterpart(capsnet, tables)) == []
    assert "batch_size 128, not 64" in deviations(cnn, counterpart(cnn, tables))


def test_crops_that_are_not_the_papers_are_named(run_on):
    crops = run_on("{name: smallnorb, options: {test_crops: 13}}", "{model: capsnet}")
    assert deviations(crops, counterpart(crops, ("S17 section 7",))) == ["test_crops 13, not 1"]


def matched(make_plan, cnn="cnn_hinton_norb", cnn_training="{}", capsules_training="{match: cnn}"):
    study = f"""\
name: matched
seeds: [4]
training: {{{HINTON}}}
experiments: {{azimuth: {{data: {{name: smallnorb, options: {{view: azimuth}}}}}}}}
variants:
  cnn: {{model: {cnn}, training: {cnn_training}}}
  capsules: {{model: matrix_capsnet, training: {capsules_training}}}
"""
    plan = make_plan(study)
    return plan, plan.cell("azimuth", "cnn", 4), plan.cell("azimuth", "capsules", 4)


def test_capsules_are_matched_to_the_cnn_that_is_trained_to_the_end(make_plan):
    plan, *runs = matched(make_plan)
    for run in runs:
        value = counterpart(run, ("H18 Table 2",))
        assert deviations(run, value) == deviations(run, value, plan) == []


@pytest.mark.parametrize(
    ("changes", "which", "said"),
    [
        ({"capsules_training": "{}"}, "capsules", ["not stopped at the familiar error of cnn_hinton_norb"]),
        ({"cnn": "resnet20"}, "capsules", ["stopped at the familiar error of resnet20, not of cnn_hinton_norb"]),
        ({"cnn_training": "{steps: 1000}"}, "capsules", ["matched to cnn: 1,000 steps, not 350,000 or more"]),
        ({"cnn_training": "{l2: 0}"}, "capsules", ["matched to cnn: l2 0.0, not 1e-07"]),
        ({"capsules_training": "{}", "cnn_training": "{match: capsules}"}, "cnn",
         ["stopped at the familiar error of capsules, not trained to the end"]),
    ],
)  # fmt: skip
def test_another_match_than_the_papers_is_named(make_plan, changes, which, said):
    plan, cnn, capsules = matched(make_plan, **changes)
    run = {"cnn": cnn, "capsules": capsules}[which]
    assert deviations(run, counterpart(run, ("H18 Table 2",)), plan) == said


def test_what_a_run_shares_with_the_cnn_that_it_is_matched_to_is_said_once(make_plan):
    plan = make_plan("""\
name: matched
seeds: [0]
training: {steps: 300_000, schedule: absolute}
experiments: {affine: {data: {name: affnist}}}
variants:
  cnn: {model: cnn_matched, options: {matched_to: {name: capsnet, conv_channels: 32}}, training: {steps: 400}}
  capsules: {model: capsnet, options: {conv_channels: 32}, training: {match: cnn}}
""")
    cnn, capsules = (plan.cell("affine", name, 0) for name in ("cnn", "capsules"))
    too_short = "400 steps, not 300,000 or more"
    of_cnn = deviations(cnn, counterpart(cnn, ("S17 section 5.2",)), plan)
    of_capsules = deviations(capsules, counterpart(capsules, ("S17 section 5.2",)), plan)
    assert of_cnn == [too_short, "matched_to.conv_channels 32, not 256"]
    assert of_capsules == ["conv_channels 32, not 256", f"matched to cnn: {too_short}"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("{name: affnist, options: {transform_seed: 7}}", []),
        ("{name: affnist-generated, options: {transforms_per_image: 1}}", ["affnist-generated is not affnist"]),
    ],
)
def test_what_keeps_a_run_from_the_papers_affnist(run_on, data, said):
    capsules, cnn = (run_on(data, f"{{model: {model}}}") for model in ("capsnet", "cnn_matched"))
    stop = ["not stopped at the familiar error of cnn_matched"]
    assert deviations(capsules, counterpart(capsules, ("S17 section 5.2",))) == said + stop
    assert deviations(cnn, counterpart(cnn, ("S17 section 5.2",))) == said


def test_a_cut_of_the_training_set_is_named_on_every_data_set(make_plan):
    for data, words in [
        ("{name: affnist-generated, train_images: 5000}", "5,000 of 60,000 training images"),
        ("{name: affnist-generated}", ""),
        ("{name: affdigits, train_images: 500}", "500 of 1,258 training images"),
        ("{name: affdigits, validation_images: 200}", ""),
    ]:
        study = f"name: cut\nseeds: [0]\nexperiments: {{a: {{data: {data}}}}}\nvariants: {{v: {{model: capsnet}}}}\n"
        (run,) = make_plan(study).runs
        found = [reason for reason in deviations(run, counterpart(run, ("S17 section 5.2",))) if "images" in reason]
        assert found == ([words] if words else [])
