import pytest
import torch

from capsbench.benchmarks.routing import BASELINE, FORMS, routing_benchmark
from capsbench.errors import InputError


def test_all_forms_route_alike():
    poses, weight = torch.randn(2, 20, 8), torch.randn(20, 5, 16, 8) * 0.1
    expected = FORMS[BASELINE](poses, weight, 3)
    for form in FORMS.values():
        torch.testing.assert_close(form(poses, weight, 3), expected)


@pytest.mark.slow
def test_routing_without_votes_is_faster_and_smaller():
    """The paper's size; a machine with nothing else to do gives about 20 times the speed and a tenth of the memory."""
    frame = routing_benchmark(64, 1152, 10, 3, repeats=3, threads=1, device="cpu")
    fast = frame.loc["linear_dynamic_routing"]
    assert fast["times_faster"] > 5
    assert fast["times_less_memory"] > 5
    assert (frame["largest_difference"] < 1e-5).all()


def test_a_gpu_that_is_not_there_is_a_problem_of_input():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="no GPU here"):
        routing_benchmark(1, 2, 2, 1, 1, 1, "cuda")
