import pytest

from capsbench.analysis.stuck import diagnostics_in_words

HEALTHY = {"entropy": 0.5, "mass": 0.3, "logit": 2.0, "range": 1.5}


def test_each_iteration_is_named_with_its_numbers():
    text = diagnostics_in_words([{"iteration": 1, **HEALTHY}, {"iteration": 2, **HEALTHY, "entropy": 0.25}])
    first, second = text.split("; ")
    assert first == (
        "iteration 1: coupling entropy 0.50, largest share of one parent 0.30, highest class score 2, "
        "1.5 above the lowest"
    )
    assert second.startswith("iteration 2: coupling entropy 0.25, ")


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ({}, []),
        ({"entropy": 0.999}, ["couplings are uniform"]),
        ({"mass": 0.95}, ["one parent takes all children"]),
        ({"logit": 17.0}, ["rounds to 1 and has no gradient"]),
        ({"logit": 16.0}, []),
        (
            {"logit": 0.9993, "range": 0.0034},
            ["every class capsule is nearly as long as can be, where the squash has hardly a gradient"],
        ),
        ({"logit": 0.9993, "range": 0.2}, []),
        ({"logit": 1.02, "range": 0.01}, []),  # no length
        ({"range": 0.0}, ["all classes score alike"]),
        ({"entropy": 1.0, "range": 1e-6}, ["couplings are uniform", "all classes score alike"]),
    ],
)
def test_what_the_last_iteration_amounts_to_is_said(last, words):
    healthy, text = {"iteration": 1, **HEALTHY}, diagnostics_in_words([{"iteration": 1, **HEALTHY | last}])
    found = text.partition(" (")[2].removesuffix(")").split("; ") if "(" in text else []
    assert [word for word in words if not any(word in line for line in found)] == []
    assert len(found) == len(words)
    assert "(" not in diagnostics_in_words([{"iteration": 1, **HEALTHY | last}, healthy])


def test_what_a_routing_does_not_have_is_not_named():
    assert "None" not in diagnostics_in_words([{"iteration": 1, "entropy": None, "mass": None, "logit": 1.0}])
    assert diagnostics_in_words([]) == diagnostics_in_words(None) == ""
