"""Claims, routings, cost, summary, coverage, and the summary for the terminal."""

import pytest
from studies import FULL, text_of

from capsbench.analysis.collect import collect
from capsbench.analysis.conclusion import conclusion
from capsbench.analysis.tables import build_table, costs, terminal_summary

ITERATIONS = FULL.replace("{model: capsnet}", "{model: capsnet, label: CapsNet, grid: {routing.iterations: [1, 3]}}")
SMALL = """\
name: small
seeds: [0, 1, 2]
training: {epochs: 2, batch_size: 50}
experiments:
  digits: {data: {name: digits}}
  real: {data: {name: mnist}, variants: [caps]}
variants:
  caps:
    model: capsnet
    label: CapsNet
    options: {conv_channels: 8, primary_types: 2}
    grid: {routing.iterations: [3, 1]}
  cnn: {model: cnn_matched, label: CNN, options: {matched_to: {name: capsnet, conv_channels: 8, primary_types: 2}}}
"""


@pytest.fixture
def small(make_plan, write_run):
    plan = make_plan(SMALL)
    for run in plan.runs:
        if run.key != "digits/cnn/seed2":
            write_run(run, error=2.0 + run.seed / 10, seconds=100.0, steps=1000)
    return plan


def test_a_claim_stands_with_the_papers_difference_and_ours(make_plan, write_run, made):
    plan = make_plan(ITERATIONS)
    for run in plan.runs:
        write_run(run, error=0.25 + 0.1 * (run.variant == "capsnet-iterations1") + run.seed / 1000 * (1 + run.seed))
    table = made("claims", plan)
    (row,) = text_of(table).to_dict("records")
    assert row["claim"].startswith("With a decoder, three routing iterations have a lower error on MNIST")
    assert (row["paper"], row["ours"], row["verdict"]) == (
        "−0.04 points (S17, Table 1)",
        "−0.10",
        "undecided (a)",
    )  # no spread
    assert list(text_of(table).columns).index("verdict") == 3
    assert "against CapsNet, iterations 1" in row["compared"]
    assert any("claims are about errors under attack" in note for note in table.notes)
    assert len(table.numbers) == 27


def test_a_claim_that_is_tested_has_its_corrected_p_and_two_of_them_share_the_correction(
    make_plan, write_run, made, results
):
    plan = make_plan(
        ITERATIONS.replace("seeds: [0, 1, 2]", "seeds: [0, 1, 2, 3, 4]") + "  cnn: {model: cnn_sabour_mnist}\n"
    )
    below = {"capsnet-iterations3": [-0.04, -0.09, -0.01, -0.03, -0.08], "cnn": [0.1, -0.2, 0.1, -0.15, 0.05]}
    for run in plan.runs:
        size = 35_445_522 if run.variant == "cnn" else 8_215_568
        error = 0.5 + (below[run.variant][run.seed] if run.variant in below else 0.0)
        write_run(run, error=error, parameters=size)
    table = made("claims", plan)
    rows = text_of(table).set_index("claim")
    row = rows.loc["With a decoder, three routing iterations have a lower error on MNIST than one."]
    numbers = table.numbers.set_index("claim").loc["S17-iterations-mnist"]
    assert row["verdict"] == "undecided (a)"
    assert (numbers["high"] < 0, numbers["p"] < 0.05, numbers["p_holm"] > 0.05) == (True, True, True)
    assert row["p (Holm)"] == f"{numbers['p_holm']:.2g}"
    assert any(note.startswith("(a)") and "Holm's correction for 2 tests" in note for note in table.notes)
    assert list(text_of(table).columns).index("verdict") < 6
    (said,) = (line for line in conclusion(plan, collect(plan, results)) if line.startswith("The papers"))
    assert "Holm's correction for 2 tests" in said


def test_routings_stand_by_iterations_with_time_and_error(small, made):
    table = made("routings", small)
    assert [each.heading for each in table.grids] == ["handwritten digits of scikit-learn", "MNIST"]
    rows = text_of(table)
    assert rows[["routing", "iterations", "error (%)"]].to_numpy().tolist() == [
        ["dynamic", "1", "2.10 ± 0.10"],
        ["dynamic", "3", "2.10 ± 0.10"],
    ]
    assert list(rows["ms per step"]) == ["100", "100"]


def test_costs_are_those_of_the_network_and_of_its_training(small, results):
    runs = collect(small, results).assign(peak_memory_mb=512.0)
    table = build_table("cost", small, runs)
    row = text_of(table).iloc[0]
    assert (row["parameters"], row["ms per step"], row["time per run"]) == ("1,234,567", "100", "1 min 40 s")
    assert row["peak memory (MiB)"] == "512"
    three, one = (table.numbers["multiply_adds"].iloc[n] for n in (0, 1))
    assert three > one > 1e5


def test_a_run_that_was_paused_does_not_make_its_network_slow(small, write_run, made):
    write_run(small.runs[0], error=2.0, seconds=7200.0, steps=1000)
    row = text_of(made("cost", small)).iloc[0]
    assert (row["ms per step"], row["time per run"]) == ("100", "1 min 40 s")
    assert text_of(made("routings", small))["ms per step"].tolist() == ["100", "100"]


def test_multiply_adds_are_those_that_the_runs_noted_and_nothing_is_built(small, write_run, made, monkeypatch):
    for run in small.runs:
        write_run(run, multiply_adds=7_654_321)
    monkeypatch.setattr(costs, "_counted", lambda run: pytest.fail(f"{run.key} was counted"))
    table = made("cost", small)
    assert set(text_of(table)["multiply-adds"]) == {"7,654,321"}
    assert set(table.numbers["parameters"]) == {1234567}


def test_costs_of_a_network_that_did_not_run_are_counted(make_plan, made):
    numbers = made("cost", make_plan(SMALL)).numbers
    assert (numbers["parameters"] > 1000).all()
    assert numbers["ms_per_step"].isna().all()


def test_the_summary_has_a_column_per_experiment(small, made):
    text = text_of(made("summary", small))
    assert list(text.columns) == ["network", "handwritten digits of scikit-learn", "MNIST"]
    assert text.to_numpy().tolist() == [
        ["CapsNet, iterations 3", "2.10 ± 0.10 [1.85, 2.35]", "2.10 ± 0.10 [1.85, 2.35]"],
        ["CapsNet, iterations 1", "2.10 ± 0.10 [1.85, 2.35]", "2.10 ± 0.10 [1.85, 2.35]"],
        ["CNN", "2.05 ± 0.07 (2 of 3)", "-"],
    ]


def test_variants_that_are_one_network_share_a_row_of_the_summary(make_plan, write_run, made):
    variants = {
        "some": "label: caps, grid: {routing.iterations: [1, 3]}",
        "same": "label: 'caps, iterations 3', options: {routing: {name: dynamic, iterations: 3}}",
        "other_label": "label: capsules, options: {routing: {iterations: 3}}",
        "other_options": "label: 'caps, iterations 1', options: {routing: {iterations: 1}, decoder: null}",
    }
    plan = make_plan(
        "name: small\nseeds: [0]\ntraining: {epochs: 2}\nexperiments:\n"
        "  digits: {data: {name: digits}, variants: [some]}\n"
        "  real: {data: {name: mnist}, variants: [same, other_label, other_options]}\nvariants:\n"
        + "".join(f"  {name}: {{model: capsnet, {settings}}}\n" for name, settings in variants.items())
    )
    for n, run in enumerate(plan.runs):
        write_run(run, error=1.0 + n)
    table = made("summary", plan)
    assert text_of(table).to_numpy().tolist() == [
        ["caps, iterations 1", "1.00", "-"],
        ["caps, iterations 3", "2.00", "3.00"],
        ["capsules", "-", "4.00"],
        ["caps, iterations 1", "-", "5.00"],
    ]
    assert table.grids[0].rows[1].keys == ("digits/some-iterations3/seed0", "real/same/seed0")


def test_variants_of_one_experiment_keep_rows_of_their_own(make_plan, write_run, made):
    twins = "".join(f"  {name}: {{model: capsnet, label: caps}}\n" for name in ("first", "second"))
    plan = make_plan(
        "name: small\nseeds: [0]\ntraining: {epochs: 2}\nexperiments:\n  digits: {data: {name: digits}}\n"
        f"  real: {{data: {{name: mnist}}, variants: [second]}}\nvariants:\n{twins}"
    )
    for n, run in enumerate(plan.runs):
        write_run(run, error=1.0 + n)
    assert text_of(made("summary", plan)).to_numpy().tolist() == [
        ["caps (first)", "1.00", "-"],
        ["caps (second)", "2.00", "3.00"],
    ]


def test_coverage_counts_values_by_table_of_the_papers(make_plan, write_run, made):
    plan = make_plan(ITERATIONS)
    for run in plan.runs[3:]:
        write_run(run, error=0.25 + run.seed / 1000)
    rows = {row["papers"]: row for row in made("coverage", plan).numbers.to_dict("records")}
    s17 = rows["S17 Table 1"]
    assert (s17["values"], s17["with_row"], s17["compared"], s17["same"], s17["not_run"]) == (8, 2, 1, 1, 1)
    assert rows["all"]["with_row"] == 2
    assert rows["all"]["values"] == sum(row["values"] for name, row in rows.items() if name != "all")


def test_the_terminal_has_a_table_of_at_most_100_columns(make_plan, write_run, results):
    long = "a label of sixty letters, which is the longest that there may"
    plan = make_plan(ITERATIONS.replace("label: CapsNet", f"label: '{long[:60]}'"))
    for run in plan.runs[3:]:
        write_run(run, error=0.25 + run.seed / 100)
    text = terminal_summary(plan, collect(plan, results))
    lines = text.splitlines()
    assert max(map(len, lines[:-1])) <= 100
    heads, first, second = lines[1], lines[2], lines[3]
    assert heads.split() == ["network", "error", "(%)", "verdict", "n"]
    assert "not run" in first
    assert "0 of 3" in first
    assert all(part in second for part in ("0.26 ± 0.01 [0.24, 0.28]", "3 of 3", "a label of"))
    assert "3 of 6 runs" in text
    assert lines[-1] == f"no page yet; 'capsbench report {plan.path}' writes results/full/report.html"
    said = terminal_summary(plan, collect(plan, results), command="capsbench report --runs kept/runs.csv")
    assert said.splitlines()[-1].startswith("no page yet; 'capsbench report --runs kept/runs.csv' writes ")
    (page := results / "page.html").touch()
    assert terminal_summary(plan, collect(plan, results), page).splitlines()[-1] == str(page)


def test_the_terminal_says_what_contrasts_show(make_plan, write_run, results, monkeypatch):
    named = "contrasts:\n  few:\n"
    named += "    - {a: caps-iterations3, b: caps-iterations1, experiment: digits, name: three against one}\n"
    named += "    - {a: cnn, b: caps-iterations1, experiment: digits, name: CNN against one}\n"
    plan = make_plan(named + SMALL)
    errors = {"digits/caps-iterations3": [6.0, 6.05, 6.2], "digits/cnn": [7.9, 10.2, 9.1]}
    for run in plan.runs:
        write_run(run, error=errors.get(run.key.rsplit("/", 1)[0], [9.0, 9.1, 9.2])[run.seed])
    said = terminal_summary(plan, runs := collect(plan, results))
    shown = said.index("A difference in test error was shown in 1 of 2 contrasts")
    rest = said.index("No difference was shown in 1 of 2 contrasts")
    assert said.index("digits: ") < shown < said.index("- three against one: error of the first lower by") < rest
    assert rest < said.index("- CNN against one: between ") < said.index("runs have a result")
    assert max(map(len, said.splitlines()[:-1])) <= 100
    monkeypatch.setattr("capsbench.analysis.tables.terminal.MOST_CONTRASTS", 0)
    assert "- 1 more on the page\n" in terminal_summary(plan, runs)
