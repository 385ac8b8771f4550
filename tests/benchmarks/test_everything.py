import math
import re

import pandas as pd
import pytest
import torch

from capsbench.benchmarks import everything
from capsbench.benchmarks.everything import (
    COLUMNS,
    FULL,
    KEY,
    Sizes,
    check_comparable,
    measure_everything,
    read_everything,
    slower_than_before,
)
from capsbench.benchmarks.host import EPOCHS, batch_cases
from capsbench.benchmarks.layers import CONV_LAYERS, RoutingSize, conv_cases, growth_cases
from capsbench.benchmarks.steps import (
    BFLOAT16,
    GRAPH,
    INDUCTOR,
    NETWORKS,
    PARTS,
    STEP,
    TF32,
    Trained,
    network_cases,
)
from capsbench.benchmarks.summary import GROUPS, as_page
from capsbench.benchmarks.turns import Case, take_turns
from capsbench.cli import main
from capsbench.errors import InputError
from capsbench.registry import ROUTINGS
from capsbench.run.precision import has_bfloat16

TINY = Sizes(
    RoutingSize(12, 3, 2, 2), {"inputs": (12, 24), "parents": (2, 3), "iterations": (1, 2), "batch": (1, 2)},
    conv_batch=1, network_batch=2, side=16, copied=2**12, networks=("efficient_capsnet", "resnet20"),
    epochs=("digits",),
)  # fmt: skip


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(everything, "conv_cases", lambda *_: [])  # those of H18's size
        return measure_everything(TINY, "cpu", threads=1, rounds=2)


def test_a_row_for_everything(found):
    assert list(found.columns) == list(COLUMNS)
    assert list(dict.fromkeys(found["group"])) == list(GROUPS)
    assert not found.duplicated(list(KEY)).any()
    timed = found[found["form"] != "rest"]
    assert (timed["fastest_ms"] > 0).all()
    assert (timed["fastest_ms"] <= timed["median_ms"]).all()
    assert (timed["samples"] == 2).all()
    routing = found[found["group"] == "routing"]
    assert set(zip(routing["name"], routing["form"], strict=True)) == {
        (name, form) for name in ROUTINGS.names() for form in ("fast", "plain")
    }
    assert set(found[found["group"] == "start-up"]["name"]) == {
        "python -c pass", "import capsbench.cli", "capsbench --help",
    }  # fmt: skip


def test_growth_varies_one_size_at_a_time_and_measures_the_base_once(found):
    growth = found[found["group"] == "growth"]
    dynamic = growth[growth["name"] == "dynamic"][["inputs", "parents", "iterations", "batch"]]
    assert sorted(dynamic.itertuples(index=False, name=None)) == [
        (12, 2, 2, 2), (12, 3, 1, 2), (12, 3, 2, 1), (12, 3, 2, 2), (24, 3, 2, 2),
    ]  # fmt: skip
    assert growth[growth["name"] == "uniform"]["iterations"].isna().all()
    assert len(growth[growth["name"] == "uniform"]) == 4


def test_the_growth_of_the_full_sizes_is_that_of_the_plan():
    for device, sizes in FULL.items():
        cases = [case.facts for case in growth_cases(sizes.base, sizes.growth, device)]
        for axis, ends in {"inputs": (288, 9216), "parents": (5, 40), "iterations": (1, 7), "batch": (1, 1024)}.items():
            values = {case[axis] for case in cases if case["name"] == "em"}
            assert (min(values), max(values)) == ends


def test_shares_are_of_the_measured_limits(found):
    rate = found.set_index(["name", "form"])["rate"]
    base = found[(found["group"] == "growth") & (found["name"] == "em")].set_index(
        ["inputs", "parents", "iterations", "batch"]
    )
    row = base.loc[(12, 3, 2, 2)]
    seconds = row["fastest_ms"] / 1000
    operations = 6 * 2 * 12 * 3 * 16 * 8  # votes and their two gradients
    assert row["of_matrix_rate"] == pytest.approx(operations / seconds / (1e9 * rate["matrix product", "float32"]))
    moved = 3 * 4 * (2 * 12 * 9 + 12 * 3 * 16 * 8)  # poses, activations and weight: read twice, gradients written
    assert row["of_bandwidth"] == pytest.approx(moved / seconds / (1e9 * rate["memory copy", "kept memory"]))


def test_networks_have_their_parts_and_the_rest(found):
    networks = found[found["group"] == "networks"].set_index(["name", "form"])
    lower = [BFLOAT16] if has_bfloat16(torch.device("cpu")) else []
    assert list(networks.loc["efficient_capsnet"].index) == [STEP, *lower, "evaluation", *PARTS, "rest"]
    assert list(networks.loc["resnet20"].index) == [STEP, *lower, "evaluation", "convolutions", "rest"]
    for _, own in networks.groupby("name"):
        assert own["of_step"].sum() == pytest.approx(1)
    step = networks.loc[("resnet20", STEP)]
    assert step["rate"] == pytest.approx(2000 / step["fastest_ms"])
    assert step["unit"] == "images/s"


@pytest.mark.parametrize("name", NETWORKS)
def test_the_parts_of_a_step_are_its_convolutions_and_its_routing(name):
    trained = Trained(name, 1, "cpu")
    before = [value.clone() for value in trained.model.parameters()]
    calls = {part: trained.part(part).calls for part in PARTS}
    assert any((a != b).any() for a, b in zip(before, trained.model.parameters(), strict=True))  # a real step
    routed = {"capsnet": 1, "matrix_capsnet": 3, "efficient_capsnet": 1}.get(name, 0)
    convolutions = sum(isinstance(module, torch.nn.Conv2d) for module in trained.model.modules())
    assert {part: len(found) for part, found in calls.items()} == {"convolutions": convolutions, "routing": routed}
    assert not calls["convolutions"][0][1][0].requires_grad  # of the images nobody asks for a gradient
    assert all(wanted for part in calls.values() for _, _, wanted in part)
    trained.part("routing")()
    assert not any(module._forward_pre_hooks for module in trained.model.modules())
    forms = {case.facts["form"] for case in network_cases([name], 1, "cpu")}
    assert ("routing" in forms) == bool(routed)


@pytest.mark.parametrize(("name", "native"), [("capsnet", True), ("capsnet", False), ("resnet20", True)])
def test_the_forms_of_a_step_are_those_that_a_device_has(monkeypatch, name, native):
    monkeypatch.setattr("capsbench.benchmarks.steps.has_bfloat16", lambda device: native)
    forms = {
        device: {c.facts["form"] for c in network_cases([name], 1, device) if "step" in c.facts["form"]}
        for device in ("cpu", "cuda")
    }
    lower = {BFLOAT16} if native else set()
    compiled = {INDUCTOR} if name == "capsnet" else set()
    assert forms == {"cpu": {STEP} | lower, "cuda": {STEP, TF32, GRAPH} | lower | compiled}


@pytest.mark.skipif(not has_bfloat16(torch.device("cpu")), reason="no bfloat16 here")
def test_a_step_in_bfloat16_leaves_the_network_of_the_others_in_float32():
    cases = {case.facts["form"]: case for case in network_cases(["efficient_capsnet"], 1, "cpu")}
    for form in (BFLOAT16, STEP):
        cases[form].prepare()()
    lower, plain = Trained("capsnet", 1, "cpu", bfloat16=True), Trained("capsnet", 1, "cpu")
    assert [type(m) for m in lower.model.modules()] != [type(m) for m in plain.model.modules()]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU can capture")
def test_a_form_that_cannot_be_had_has_a_note_and_no_times():
    case = Case(lambda: Trained("resnet20", 1, "cpu").part(GRAPH), {"form": GRAPH})
    [timed] = take_turns([case], "cpu", 2)
    assert timed.ms == [] and timed.note == "a graph is for a GPU, and this is none"


def test_em_routing_on_a_grid_has_the_sizes_of_matrix_capsules():
    cases = list(conv_cases(1, "cpu"))
    assert [(case.facts["case"], case.facts["form"]) for case in cases] == [
        (f"{name}, batch 1", form) for name in ("14x14x32 -> 6x6x32", "6x6x32 -> 4x4x32") for form in ("fast", "plain")
    ]
    assert len(CONV_LAYERS) == 2
    gradients = cases[2].prepare()()
    assert [tuple(gradient.shape) for gradient in gradients] == [(1, 16, 288, 32, 16), (1, 36, 32)]


def test_epochs_have_as_many_images_as_they_say():
    for case in batch_cases(["digits", "multidigits", "affdigits"], 128, "cpu"):
        task = case.prepare().args[0]
        assert case.rated == (task.epoch_images, "images/s")
    assert set(EPOCHS) == {"digits", "multidigits", "affdigits", "toynorb"}


def test_what_is_slower_than_before_is_named(found, tmp_path):
    found.to_csv(tmp_path / "bench.csv", index=False)
    assert slower_than_before(found, read_everything(tmp_path / "bench.csv")) == []
    quiet = found.assign(quartiles_apart_ms=0.0)
    em = (quiet["group"] == "routing") & (quiet["name"] == "em") & (quiet["form"] == "fast")
    quiet.assign(fastest_ms=quiet["fastest_ms"].where(~em, quiet["fastest_ms"] / 2)).to_csv(
        tmp_path / "before.csv", index=False
    )
    before = read_everything(tmp_path / "before.csv")
    (line,) = slower_than_before(quiet, before)
    assert re.fullmatch(r"routing, em, fast, 12 x 3, batch 2: \S+ ms, \S+ before", line)
    gone = quiet.assign(fastest_ms=quiet["fastest_ms"].where(~em), note="does not fit into memory")
    (line,) = slower_than_before(gone, before)
    assert line.startswith("routing, em, fast, 12 x 3, batch 2: does not fit into memory, ")


def test_other_conditions_are_not_compared(found, tmp_path):
    check_comparable(found, "cpu", 1)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU here"):
            check_comparable(found, "cuda", 1)
    with pytest.raises(InputError, match="measured with another threads: 1, not 2"):
        check_comparable(found, "cpu", 2)
    found.assign(machine="another").to_csv(tmp_path / "bench.csv", index=False)
    with pytest.raises(InputError, match="measured with another machine: another, not "):
        check_comparable(read_everything(tmp_path / "bench.csv"), "cpu", 1)
    with pytest.raises(InputError, match="has none of these measurements"):
        slower_than_before(found, found.assign(case="of another size"))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="not a file of 'capsbench bench all'"):
        read_everything(tmp_path / "other.csv")


def test_the_page_has_a_table_for_each_group_without_empty_columns(found):
    page = as_page(found)
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        f"## {title}" for title, _ in GROUPS.values()
    ]
    assert "1 thread;" in page
    assert "nan" not in page
    start = page.split("## Start-up")[1]
    assert "| rate" not in start
    assert "peak MB" not in page  # of a CPU
    assert math.isnan(found["of_step"].iloc[0])
    noted = found.assign(note=["does not fit into memory", *[""] * (len(found) - 1)])
    assert "does not fit into memory" in as_page(noted)


@pytest.mark.slow
def test_one_command_writes_csv_tables_and_plot_and_compares(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--quick", "--threads", "1", "--rounds", "1", "--output", "there"]) == 0
    assert {path.name for path in (tmp_path / "there").iterdir()} == {
        "bench.csv", "bench.md", "bench.png", "bench.svg",
    }  # fmt: skip
    assert capsys.readouterr().out.count("| resnet20") == (5 if has_bfloat16(torch.device("cpu")) else 4)
    found = read_everything(tmp_path / "there/bench.csv")
    assert found["note"].isna().all()
    found.assign(fastest_ms=found["fastest_ms"] / 1000, quartiles_apart_ms=0.0).to_csv("before.csv", index=False)
    monkeypatch.setattr(everything, "measure_everything", lambda *_: found)
    assert main(["bench", "--quick", "--threads", "1", "--against", "before.csv"]) == 1
    assert "capsbench: slower than in before.csv: " in capsys.readouterr().err
    assert main(["bench", "--quick", "--threads", "2", "--against", "before.csv"]) == 2
    assert capsys.readouterr().err.startswith("capsbench: the earlier file was measured with another threads: 1")
