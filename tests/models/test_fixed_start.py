"""The first weights of all seeds are those of one."""

import pytest
import torch
from small_runs import CAPSNET, go, metrics, plan_of, same_weights, weights

from capsbench.models import build_model

CAPSULES = {"name": "capsnet", **CAPSNET}
CNN = {"name": "cnn_hinton_norb", "conv_channels": [4, 8], "hidden": 32, "dropout": 0.5}


@pytest.mark.parametrize("network", [CAPSULES, CNN], ids=["capsules", "dropout"])
def test_a_run_of_the_seed_that_it_starts_as_is_that_run(tmp_path, network):
    """Also what is drawn after the weights is the same, such as dropout."""
    name, options = network["name"], {key: value for key, value in network.items() if key != "name"}
    plain = plan_of(tmp_path, name, options, data={"split": "per_seed"})
    started = plan_of(tmp_path, "fixed_start", {"network": network, "start": 1}, data={"split": "per_seed"})
    ends = [[go(run, tmp_path / place)[1] for run in plan.runs] for place, plan in (("a", plain), ("b", started))]
    named = [{f"network.{key}": value for key, value in weights(folder).items()} for folder in ends[0]]
    assert metrics(ends[1][1]) == metrics(ends[0][1])
    assert same_weights(named[1], weights(ends[1][1]))
    assert not same_weights(named[0], weights(ends[1][0]))


def test_all_seeds_start_alike_and_differ_in_what_follows(tmp_path):
    plan = plan_of(tmp_path, "fixed_start", {"network": CAPSULES, "start": 7}, epochs=1, learning_rate=1e-6)
    first, second = [weights(go(run, tmp_path / "r")[1]) for run in plan.runs]
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[name], second[name], rtol=0, atol=1e-5) for name in first)
    plan = plan_of(tmp_path, "fixed_start", {"network": CAPSULES, "start": 7}, epochs=1)
    first, second = [metrics(go(run, tmp_path / "s")[1]) for run in plan.runs]
    assert first != second


def test_another_start_gives_other_weights_and_no_draw_is_taken_from_outside():
    state = torch.get_rng_state()
    first, other = (build_model("fixed_start", (1, 28, 28), 10, network=CAPSULES, start=start) for start in (0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", ["fixed_start", "cnn_matched", "scae"])
def test_networks_that_it_does_not_take_are_refused_in_one_line(name):
    with pytest.raises(ValueError, match=f"no model '{name}'") as caught:
        build_model("fixed_start", (1, 28, 28), 10, network=name)
    assert "\n" not in str(caught.value)
