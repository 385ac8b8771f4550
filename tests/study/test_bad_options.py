import pytest
from small_studies import ONE, problem_of


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


@pytest.mark.parametrize(
    ("options", "grid", "problem"),
    [
        ("{routing: 2}", "{routing.iterations: [1]}", "routing.iterations: routing is 2"),
        ("{routing: 0}", "{routing.iterations: [1]}", "routing.iterations: routing is 0"),
        ("{routing: [em]}", "{routing.iterations: [1]}", 'routing.iterations: routing is ["em"]'),
        (
            "{matched_to: {routing: 2}}",
            "{matched_to.routing.iterations: [1]}",
            "matched_to.routing.iterations: routing",
        ),
        ("{}", "{training.augmentation: [5], training.augmentation.shift: [1]}", "training.augmentation.shift: aug"),
    ],
)
def test_what_is_no_group_has_no_options(path, options, grid, problem):
    found = problem_of(path, OFF.replace("OPTIONS", options).replace("GRID", grid))
    assert found.startswith(f"variants.v.grid.{problem}") and found.endswith("here and has no options")
