import os

import pandas as pd
import pytest
from studies import NOVEL

from capsbench.analysis.collect import NUMBERS as ALL_NUMBERS
from capsbench.analysis.collect import collect, learning_curves, read_runs, runs_of_plan, write_runs
from capsbench.analysis.correct_bits import read_predictions
from capsbench.analysis.measures import read_measures
from capsbench.analysis.report import summarise_provenance
from capsbench.errors import InputError
from capsbench.run.folder import RunFolder

UNOFFICIAL = ("train-dat.mat: md5 12, the official file's is 34", "test-dat.mat: md5 5, the official file's is 6")
NUMBERS = ["test_error", "test_images", "squared_error", "parameters", "seconds", "epochs", "images_per_second"]


@pytest.fixture
def mixed(plan, write_run):
    """Nine runs, by number: 0 ok, 1 diverged, 2 failed, 3 running, 4 trained under another configuration,
    5 not evaluated yet, 6 never started, 7 and 8 ok."""
    runs = plan.runs
    write_run(runs[0], error=1.25)
    write_run(runs[1], "diverged")
    write_run(runs[2], "failed")
    write_run(runs[3], "running")
    write_run(runs[4], digest="0" * 16)
    write_run(runs[5], evaluated=False)
    write_run(runs[7], error=2.0)
    write_run(runs[8], error=3.0)
    return plan


def test_every_planned_run_has_a_row_in_the_order_of_the_study(mixed, results):
    frame = collect(mixed, results)
    assert list(frame["key"]) == [run.key for run in mixed.runs]
    assert list(frame["status"]) == [
        "ok", "diverged", "failed", "interrupted", "missing", "missing", "missing", "ok", "ok",
    ]  # fmt: skip


def test_only_runs_that_ended_well_have_numbers(mixed, results):
    frame = collect(mixed, results)
    assert frame.loc[0, NUMBERS].to_dict() == {
        "test_error": 1.25, "test_images": 539, "squared_error": 20.5, "parameters": 1234567, "seconds": 90.0,
        "epochs": 2, "images_per_second": pytest.approx(1158 * 2 / 90),
    }  # fmt: skip
    assert frame.loc[1:6, NUMBERS].isna().all(axis=None)


def test_a_network_without_decoder_has_no_squared_error(mixed, results):
    frame = collect(mixed, results)
    assert frame.loc[7, "test_error"] == 2.0
    assert pd.isna(frame.loc[7, "squared_error"])


def test_options_are_columns_for_runs_of_any_status(mixed, results):
    frame = collect(mixed, results)
    assert list(frame["option.routing"].dropna()) == ["dynamic"] * 6
    assert list(frame["option.routing.iterations"].dropna()) == [1, 1, 1, 3, 3, 3]
    assert list(frame["option.decoder"].dropna()) == ["fully_connected"] * 6
    assert list(frame["option.matched_to"].dropna()) == ["capsnet"] * 3
    assert list(frame["option.matched_to.conv_channels"].dropna()) == [256] * 3


def test_the_variant_is_followed_by_its_label(make_plan, study_text, results):
    plan = make_plan(study_text.replace("{model: capsnet,", "{model: capsnet, label: CapsNet,"))
    frame = collect(plan, results)
    assert list(frame.columns)[3:5] == ["variant", "label"]
    assert list(frame["label"]) == [run.label for run in plan.runs]
    assert [label.split(",")[0] for label in frame["label"]] == ["CapsNet"] * 6 + ["cnn_matched"] * 3


def test_a_label_that_two_variants_share_also_names_the_variant(make_plan, study_text, write_run, results):
    labelled = study_text.replace("{model: cnn_matched}", "{model: cnn_matched, label: CNN}")
    plan = make_plan(labelled + "  cnn_small: {model: cnn_matched, label: CNN, options: {dropout: 0.1}}\n")
    write_run(plan.runs[-1])
    assert list(dict.fromkeys(collect(plan, results)["label"]))[2:] == ["CNN (cnn_matched)", "CNN (cnn_small)"]
    assert set(learning_curves(plan, results)["label"]) == {"CNN (cnn_small)"}


def test_a_study_that_has_not_run_is_all_missing(plan, results):
    frame = collect(plan, results)
    assert list(frame["status"]) == ["missing"] * 9
    assert frame[list(ALL_NUMBERS)].isna().all(axis=None)
    write_runs(frame, results / "runs.csv")
    pd.testing.assert_frame_equal(read_runs(results / "runs.csv"), frame)


def test_runs_csv_holds_the_frame(mixed, results, tmp_path):
    frame = collect(mixed, results)
    write_runs(frame, tmp_path / "new/runs.csv")
    read = pd.read_csv(tmp_path / "new/runs.csv")
    assert list(read.columns) == list(frame.columns)
    assert list(read["test_error"].dropna()) == [1.25, 2.0, 3.0]


ODD = """\
name: odd
seeds: [0, 1, 2]
training: {epochs: 2}
experiments: {digits: {data: {name: digits}}}
variants:
  capsnet: {model: capsnet, label: 'CapsNet, "r" = 1,5', options: {decoder: null}}
  em: {model: capsnet, label: "3", options: {routing: em, loss: spread}}
  cnn: {model: cnn_matched, label: nan}
  conv: {model: cnn_sabour_mnist, options: {conv_channels: [16, 16, 8]}}
"""


@pytest.fixture
def odd(make_plan, write_run):
    """Values that a csv file easily makes something else of: words like numbers, lists, truths beside nothing."""
    plan = make_plan(ODD)
    write_run(plan.runs[0], error=1 / 3, stuck_at_chance=True, diagnostics=[{"iteration": 1, "entropy": 1.0}])
    write_run(plan.runs[1], unofficial=UNOFFICIAL, steps=38, peak_memory_mb=812.5)
    write_run(plan.runs[2], "diverged")
    write_run(plan.runs[3], familiar=3.7, match={"run": "digits/cnn/seed0", "overshoot": 0.04})
    write_run(plan.runs[4], "failed")
    write_run(plan.runs[6], per_digit=0.1 + 0.2)
    return plan


@pytest.mark.parametrize(("reached", "stuck"), [(True, False), (False, True)])
def test_a_run_that_reached_its_familiar_error_is_not_at_chance(make_plan, write_run, results, reached, stuck):
    plan = make_plan(ODD)  # such a run may stop in its first epoch, whose training accuracy says little
    match = {
        "run": "digits/cnn/seed0",
        "familiar_error": 41.4,
        "reached": reached,
        "overshoot": -0.1 if reached else None,
    }
    write_run(plan.runs[0], error=54.5, familiar=41.5, match=match, stuck_at_chance=True)
    assert collect(plan, results).loc[0, "stuck_at_chance"] is stuck


def test_a_frame_that_was_written_is_read_back_with_its_values_and_types(odd, results, tmp_path):
    frame = collect(odd, results)
    write_runs(frame, tmp_path / "runs.csv")
    read = read_runs(tmp_path / "runs.csv")
    pd.testing.assert_frame_equal(read, frame)
    assert read.loc[0, "stuck_at_chance"] is True
    assert read.loc[1, "stuck_at_chance"] is False
    assert read.loc[0, "test_error"] == 1 / 3
    assert list(read["label"][::3]) == ['CapsNet, "r" = 1,5', "3", "nan", "conv"]
    assert read.loc[9, "option.conv_channels"] == [16, 16, 8]
    assert read.loc[0, "option.routing.detach"] is False
    assert read.loc[[0, 2], "unofficial"].to_list()[0] == ""
    assert pd.isna(read.loc[2, "unofficial"])
    write_runs(read, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "runs.csv").read_bytes()


def test_types_do_not_depend_on_which_runs_are_there(odd, results, tmp_path):
    before = collect(odd, results)
    columns = list(before.columns)
    for run in odd.runs:
        (results / "odd/runs" / run.key / "run.yaml").unlink(missing_ok=True)
    assert list(collect(odd, results).columns) == columns


def test_steps_and_memory_are_those_of_the_record_where_it_has_them(odd, results):
    frame = collect(odd, results)
    assert frame.loc[1, ["steps", "peak_memory_mb"]].to_list() == [38, 812.5]
    assert frame.loc[0, ["steps", "peak_memory_mb"]].isna().all()


def test_a_file_of_an_older_version_is_read_and_takes_labels_and_options_from_its_study(mixed, results, tmp_path):
    frame = collect(mixed, results)
    older = frame.drop(columns=["label", "steps", "peak_memory_mb", "stuck_at_chance", "matched_to", "diagnostics"])
    write_runs(older.rename(columns={"option.routing.iterations": "option.iterations"}), tmp_path / "runs.csv")
    read = read_runs(tmp_path / "runs.csv")
    assert list(read["label"]) == list(read["variant"])
    assert read["stuck_at_chance"].isna().all()
    assert list(read["option.iterations"].dropna()) == [1, 1, 1, 3, 3, 3]
    today = runs_of_plan(mixed, read.iloc[::-1])
    assert list(today.columns) == list(frame.columns)
    assert list(today["label"]) == list(frame["label"])
    pd.testing.assert_frame_equal(today.drop(columns="stuck_at_chance"), frame.drop(columns="stuck_at_chance"))


def test_runs_of_another_study_are_refused(mixed, make_plan, study_text, results):
    frame = collect(mixed, results)
    fewer = make_plan(study_text.replace("[0, 1, 2]", "[0, 1]"))
    with pytest.raises(InputError, match=r"capsnet-iterations1/seed2 is no run of .*study\.yaml"):
        runs_of_plan(fewer, frame)
    with pytest.raises(InputError, match="capsnet-iterations1/seed0 is not among the runs"):
        runs_of_plan(mixed, frame[1:])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (",test_error,", ",test_eror,", "no column 'test_error'"),
        (",1.25,", ",1.2x5,", ":2: test_error is '1.2x5', which is no number"),
        (",1.25,", ",", ":2: has .* values for"),
        (",False,", ",Maybe,", None),
        ("small_study,digits", "", "no runs.csv"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(mixed, results, tmp_path, old, new, words):
    path = tmp_path / "runs.csv"
    write_runs(collect(mixed, results), path)
    text = path.read_text()
    assert old in text
    if words is None:  # the last truth of the first row is whether it was stuck
        first = text.splitlines()[1]
        path.write_text(text.replace(first, "Maybe".join(first.rsplit("False", 1))))
        words = ":2: stuck_at_chance is 'Maybe'"
    else:
        path.write_text(text.replace(old, new, 1) if new else "")
    with pytest.raises(InputError, match=words) as raised:
        read_runs(path)
    assert str(raised.value).startswith(str(path))


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"nosuch\.csv: cannot be read"):
        read_runs(tmp_path / "nosuch.csv")


def test_learning_curves_are_of_runs_that_ended_well_under_this_configuration(mixed, results):
    curves = learning_curves(mixed, results)
    drawn = curves.drop_duplicates(["variant", "seed"])
    assert list(zip(drawn["variant"], drawn["seed"], strict=True)) == [
        ("capsnet-iterations1", 0), ("capsnet-iterations3", 2), ("cnn_matched", 1), ("cnn_matched", 2),
    ]  # fmt: skip
    assert list(curves["epoch"]) == [1, 2] * 4
    assert set(curves["experiment"]) == {"digits"}


def test_learning_curves_of_nothing_are_empty(plan, results):
    assert learning_curves(plan, results).empty


def test_an_evaluation_of_an_earlier_training_is_not_shown(plan, write_run, results):
    folder = write_run(plan.runs[0])
    assert collect(plan, results)["status"][0] == "ok"
    record = folder.read_record()
    folder.write_record({**record, "started": "2026-01-02T00:00:00Z"})  # trained again since
    assert collect(plan, results)["status"][0] == "missing"


@pytest.mark.parametrize("name", ["accuracy", "familiar"])
def test_a_damaged_evaluation_is_named_and_the_other_runs_stand(plan, write_run, results, caplog, name):
    folder, _ = (write_run(run) for run in plan.runs[:2])
    folder.evaluation_path(name).write_text("{")
    frame = collect(plan, results)
    assert frame["status"].tolist()[:2] == ["damaged", "ok"]
    assert pd.isna(frame["test_error"][0])
    assert caplog.messages == [f"{folder.evaluation_path(name)}: damaged; delete it and evaluate the run again"]
    assert summarise_provenance(plan, results)["commit"]


def test_pairs_have_a_per_digit_error_beside_the_pair_exact_one(plan, write_run, results):
    write_run(plan.runs[0], error=5.2, per_digit=2.7)
    write_run(plan.runs[1], error=4.0)
    frame = collect(plan, results)
    assert frame.loc[0, ["test_error", "per_digit_error"]].to_list() == [5.2, 2.7]
    assert pd.isna(frame.loc[1, "per_digit_error"])


def test_the_familiar_error_is_of_its_own_evaluation(plan, write_run, results):
    write_run(plan.runs[0], error=13.5, familiar=3.7)
    folder = write_run(plan.runs[1], error=13.5, familiar=3.7)
    path = folder.evaluation_path("familiar")
    path.write_text(path.read_text().replace("2026-01-01", "2025-01-01"))  # of the training before
    write_run(plan.runs[2], error=1.0)
    frame = collect(plan, results)
    assert frame.loc[0, ["test_error", "familiar_error"]].to_list() == [13.5, 3.7]
    assert frame.loc[1:2, "familiar_error"].isna().all()


def test_unofficial_files_of_training_and_of_test_are_named_once(plan, write_run, results):
    both, training, _ = plan.runs[:3]
    folder = write_run(both, unofficial=UNOFFICIAL)
    record = folder.read_record()
    folder.write_record({**record, "data": {**record["data"], "unofficial": [UNOFFICIAL[0]]}})
    write_run(training, unofficial=UNOFFICIAL[:1])
    write_run(plan.runs[2])
    assert list(collect(plan, results)["unofficial"][:3]) == ["; ".join(UNOFFICIAL), UNOFFICIAL[0], ""]


def test_speed_counts_the_images_of_an_epoch(plan, write_run, results):
    data = {"fingerprint": "f", "train_images": 1158, "epoch_images": 60_000, "unofficial": []}
    write_run(plan.runs[0], data=data)
    row = collect(plan, results).loc[0]
    assert row["train_images"] == 1158
    assert row["images_per_second"] == pytest.approx(60_000 * 2 / 90)
    write_run(plan.runs[1], data=data, images=90_000)  # it ended within its second epoch
    assert collect(plan, results)["images_per_second"][1] == pytest.approx(1000)


def test_a_run_is_running_while_a_process_holds_its_folder(plan, write_run, results):
    folder = write_run(plan.runs[0], "running")
    with folder.locked():
        assert collect(plan, results)["status"][0] == "running"
    assert collect(plan, results)["status"][0] == "interrupted"


def test_where_training_stopped_is_at_the_end_of_the_row(make_plan, write_run, results):
    plan = make_plan(NOVEL)
    match = {"run": "azimuth/cnn/seed0", "familiar_error": 3.7, "reached": True, "familiar_error_here": 3.66}
    write_run(plan.runs[0], match={**match, "overshoot": 0.04}, stuck_at_chance=False)
    write_run(plan.runs[1], stuck_at_chance=True, diagnostics=[{"iteration": 1, "entropy": 1.0, "mass": 0.2}])
    write_run(plan.runs[2], "failed")
    frame = collect(plan, results)
    last = ["matched_to", "overshoot", "match_tolerance", "stuck_at_chance", "diagnostics", "code", "training_data"]
    last += ["machines", "measured_by"]
    assert list(frame.columns)[-9:] == last
    assert frame.loc[0, ["matched_to", "overshoot", "stuck_at_chance"]].to_list() == ["azimuth/cnn/seed0", 0.04, False]
    assert frame.loc[1, "stuck_at_chance"] is True
    assert "iteration 1: coupling entropy 1.00, largest share of one parent 0.20" in frame.loc[1, "diagnostics"]
    assert frame.loc[2, ["matched_to", "overshoot", "stuck_at_chance", "diagnostics"]].isna().all()


def test_a_record_without_a_word_about_chance_is_not_stuck(plan, write_run, results):
    write_run(plan.runs[0])
    assert collect(plan, results)["stuck_at_chance"][0] is False


@pytest.mark.parametrize("damage", ["not UTF-8", "cut", "without a key"])
def test_one_damaged_run_is_said_and_the_others_stand(mixed, results, caplog, damage):
    path = RunFolder.of(results, mixed.study.name, mixed.runs[0].key).record_path
    content = path.read_bytes()
    changes = {
        "not UTF-8": content + b"\xff", "cut": content[: len(content) // 2],
        "without a key": content.replace(b"parameters: 1234567\n", b""),
    }  # fmt: skip
    path.write_bytes(changes[damage])
    caplog.set_level("INFO", "capsbench")
    frame = collect(mixed, results)
    assert list(frame["status"]) == [
        "damaged", "diverged", "failed", "interrupted", "missing", "missing", "missing", "ok", "ok",
    ]  # fmt: skip
    assert caplog.messages == [f"{path}: damaged; delete the folder and train the run again"]
    assert pd.isna(frame.loc[0, "test_error"]) and frame.loc[7, "test_error"] == 2.0
    assert len(set(learning_curves(mixed, results)["seed"])) == 2
    assert read_measures(mixed, results).keys().isdisjoint({mixed.runs[0].key})
    assert mixed.runs[0].key not in read_predictions(mixed, results).right
    assert summarise_provenance(mixed, results)["commit"]


def test_a_fifo_is_no_table_of_runs(tmp_path):
    os.mkfifo(tmp_path / "runs.csv")
    with pytest.raises(InputError, match=r"runs\.csv: is no runs\.csv: it is a FIFO"):
        read_runs(tmp_path / "runs.csv")
