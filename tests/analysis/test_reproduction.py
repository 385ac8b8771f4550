"""A run that is made again, and what is said of it."""

import shutil
from pathlib import Path

import pytest

from capsbench.analysis.reference import write_reference
from capsbench.analysis.reproduction import found_runs, reproduce_run
from capsbench.cli import main
from capsbench.errors import InputError
from capsbench.evaluation import evaluate
from capsbench.run.folder import RunFolder
from capsbench.run.train import train
from capsbench.study import load_plan

STUDY = """\
name: small
seeds: [0, 1]
training: {epochs: 1, batch_size: 32, device: cpu}
experiments:
  moved: {data: {name: affdigits, options: {transforms_per_image: 1}}}
variants:
  caps: {model: capsnet, options: {conv_channels: 8, primary_types: 2, decoder: null},
         training: {match: cnn, match_every: 2}}
  cnn: {model: cnn_matched, options: {matched_to: {name: resnet20, widths: [4, 16], blocks: 1}},
        training: {epochs: 3, learning_rate: 0.003}}
evaluations: [accuracy, familiar, confusion, cost]
tracking: false
keep_weights: [moved/cnn/seed0]
"""
DATA = Path("data")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A study whose first seed is trained and evaluated, in `results`."""
    path = tmp_path_factory.mktemp("made")
    (path / "study.yaml").write_text(STUDY)
    plan = load_plan(path / "study.yaml")
    for key in ("moved/cnn/seed0", "moved/caps/seed0"):
        run = plan.run(key)
        train(run, path / "results", DATA, tracking=False)
        evaluate(run, path / "results", DATA, plan.study.evaluations)
    return path


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def folder_of(here: Path, variant: str = "cnn") -> RunFolder:
    return RunFolder(here / f"results/small/runs/moved/{variant}/seed0")


def again(here: Path, variant: str = "cnn"):
    return reproduce_run(folder_of(here, variant), here / "aside", DATA)


@pytest.mark.parametrize("variant", ["cnn", "caps"])
def test_a_run_comes_out_the_same_without_the_folder_that_it_was_matched_to(here, variant):
    if variant == "caps":
        shutil.rmtree(folder_of(here, "cnn").path)
    found = again(here, variant)
    assert (found.differences, found.causes) == ((), ())
    assert found.numbers > 50
    assert found.left_out == ("cost, which measures time",)
    said = found.lines("moved/v/seed0")
    assert said[0].startswith(f"moved/v/seed0: the same, {found.numbers} values, trained again 20")
    assert "not repeated: cost" in said[1]
    made_again = RunFolder.of(here / f"aside/small/moved-{variant}-seed0", "small", f"moved/{variant}/seed0")
    assert made_again.model_path.read_bytes() == folder_of(here, variant).model_path.read_bytes()


def test_each_number_that_differs_is_named_with_what_else_differs(here):
    folder = folder_of(here)
    record = folder.read_record()
    text = folder.metrics_path.read_text()
    loss = text.splitlines()[1].split(",")[text.splitlines()[0].split(",").index("train_loss")]
    folder.metrics_path.write_text(text.replace(loss, "0.125"))
    accuracy = folder.read_evaluation("accuracy", record)
    folder.write_evaluation("accuracy", {**accuracy, "error": 1.5})
    versions = {**record["versions"], "torch": "1.0"}
    sources = {**record["sources"], "losses.py": "0" * 8}
    folder.write_record({**record, "versions": versions, "code": "0" * 16, "sources": sources})

    found = again(here)
    assert any(line.startswith("metrics.csv: ") and f"0.125, now {loss}" in line for line in found.differences)
    expected = f"error 1.5, now {accuracy['error']}"
    assert any(line.startswith("accuracy.json: 1 of ") and expected in line for line in found.differences)
    assert any(line.startswith("torch (1.0, now ") for line in found.causes)
    assert any(line.startswith("code (losses.py: ") for line in found.causes)
    said = "\n".join(found.lines("key"))
    assert said.startswith("key: differs\n") and "what else differs: torch (1.0, now" in said


def test_what_a_protocol_did_not_measure_then_is_no_difference_and_what_it_no_longer_measures_is(here):
    folder = folder_of(here)
    accuracy = folder.read_evaluation("accuracy", folder.read_record())
    folder.write_evaluation("accuracy", {name: value for name, value in accuracy.items() if name != "errors"})
    assert again(here).differences == ()
    folder.write_evaluation("accuracy", accuracy | {"luck": 0.5})
    (difference,) = again(here).differences
    assert difference.startswith("accuracy.json: 1 of ") and "luck 0.5, now nothing" in difference


def test_other_weights_are_a_difference(here):
    record = folder_of(here).read_record()
    folder_of(here).write_record({**record, "files": {**record["files"], "model.pt": "0" * 64}})
    assert again(here).differences == ("model.pt: other weights",)


def test_a_difference_without_a_cause_says_so(here):
    accuracy = folder_of(here).read_evaluation("accuracy", folder_of(here).read_record())
    folder_of(here).write_evaluation("accuracy", {**accuracy, "error": 1.5})
    assert "nothing: versions, processor, code and data are those of before" in again(here).lines("key")[-2]


def test_a_reference_needs_no_run_folders(here):
    plan = load_plan(here / "study.yaml")
    for variant in ("cnn", "caps"):
        folder_of(here, variant).write_record({**folder_of(here, variant).read_record(), "commit": "c" * 40})
    write_reference(plan, here / "results", _collected(plan, here), here / "reference", unfinished=True)
    shutil.rmtree(here / "results")
    assert (here / "reference/runs/moved/cnn/seed0/model.pt").exists()  # the weights of one of the two
    folders = found_runs(str(here / "reference"), [], here / "results", here / "aside")
    assert list(folders) == ["moved/caps/seed0", "moved/cnn/seed0"]
    found = reproduce_run(folders["moved/cnn/seed0"], here / "aside", DATA)
    assert (found.differences, found.causes) == ((), ())


def _collected(plan, here):
    from capsbench.analysis.collect import collect

    return collect(plan, here / "results")


def test_runs_are_found_by_folder_by_study_and_by_key(here):
    results, aside = here / "results", here / "aside"
    assert list(found_runs(str(folder_of(here).path), [], results, aside)) == ["moved/cnn/seed0"]
    assert list(found_runs("study.yaml", [], results, aside)) == ["moved/caps/seed0", "moved/cnn/seed0"]
    assert list(found_runs("study.yaml", ["moved/cnn/seed0"], results, aside)) == ["moved/cnn/seed0"]
    for keys, problem in ((["moved/cnn/seed9"], "no run"), (["moved/cnn/seed1"], "is not finished")):
        with pytest.raises(InputError, match=problem):
            found_runs("study.yaml", keys, results, aside)


def test_the_command_fails_where_a_number_differs(here, capsys):
    assert main(["reproduce", "study.yaml", "moved/cnn/seed0"]) == 0
    assert "moved/cnn/seed0: the same" in capsys.readouterr().out
    accuracy = folder_of(here).read_evaluation("accuracy", folder_of(here).read_record())
    folder_of(here).write_evaluation("accuracy", {**accuracy, "error": 1.5})
    assert main(["reproduce", str(folder_of(here).path)]) == 1
    printed = capsys.readouterr()
    assert "accuracy.json: 1 of" in printed.out
    assert "1 of 1 runs are not as before" in printed.err


def test_the_run_itself_is_never_made_again_in_its_place(here, capsys):
    before = folder_of(here).model_path.read_bytes()
    assert main(["reproduce", "study.yaml", "moved/cnn/seed0"]) == 0
    made = here / "results/reproduced/small/moved-cnn-seed0/small/runs/moved/cnn/seed0"
    assert main(["reproduce", str(made)]) == 1
    assert "is a run that was made again itself" in capsys.readouterr().err
    assert main(["reproduce", "study.yaml", "moved/cnn/seed0", "--into", "results"]) == 0
    assert folder_of(here).model_path.read_bytes() == before


def test_what_was_made_with_other_versions_is_made_once_more(here):
    assert again(here).differences == ()
    made = RunFolder.of(here / "aside/small/moved-cnn-seed0", "small", "moved/cnn/seed0")
    record = made.read_record()
    made.write_record({**record, "versions": {**record["versions"], "torch": "1.0"}, "started": "2020-01-01T00:00:00Z"})
    found = again(here)
    assert found.trained > "2026" and (found.differences, found.causes) == ((), ())


def test_one_run_that_cannot_be_made_again_stops_no_other(here, capsys):
    record = folder_of(here).read_record()
    folder_of(here).write_record({**record, "config": {**record["config"], "model": "gone"}})
    assert main(["reproduce", "study.yaml"]) == 1
    printed = capsys.readouterr()
    assert "moved/cnn/seed0: cannot be made again" in printed.err
    assert "moved/caps/seed0: the same" in printed.out


def test_a_protocol_that_needs_another_network_or_is_gone_is_left_out(here):
    folder = folder_of(here)
    record = folder.read_record()
    about = {"status": "ok", "training_started": record["started"]}
    for name in ("adversarial", "astrology"):
        folder.write_evaluation(name, about)
    assert "astrology, which this version does not have" in again(here).left_out
    assert "adversarial, which takes the network of another run" in again(here).left_out
