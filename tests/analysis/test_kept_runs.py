"""A study that is trained in parts, whose parts meet in its reference."""

import io
import shutil
import tarfile

import numpy as np
import pytest
import yaml
from hand_made import all_but, leave_items

from capsbench.analysis import kept_runs
from capsbench.analysis.collect import collect, read_runs
from capsbench.analysis.correct_bits import read_correct
from capsbench.analysis.kept_runs import NAME, pack_runs, unpack_runs
from capsbench.analysis.reference import seal, write_reference
from capsbench.analysis.verify import verify
from capsbench.cli.commands import main
from capsbench.errors import InputError
from capsbench.run.folder import RunFolder, sha256

SAME = ("runs.csv", "correct.npz", "study.yaml", NAME)


@pytest.fixture
def train(plan, write_run):
    """Leave run folders of some seeds; every run has an error of its own, and test items that give it."""

    def leave(*seeds: int, more: int = 0, items: str = "f" * 64) -> None:
        for number, run in enumerate(plan.runs):
            if run.seed in seeds:
                wrong = 7 + number + more
                folder = write_run(run, error=wrong / 7)
                leave_items(folder, all_but(wrong, 700, first=number), fingerprint=np.array(items))

    return leave


@pytest.fixture
def refer(plan, results, tmp_path):
    def write(name: str = "reference", unfinished: bool = False):
        write_reference(plan, results, collect(plan, results), tmp_path / name, unfinished)
        return tmp_path / name

    return write


def contents(folder) -> dict[str, bytes]:
    tables = {path.name: path.read_bytes() for path in (folder / "tables").iterdir()}
    return tables | {name: (folder / name).read_bytes() for name in SAME}


def test_parts_give_the_reference_of_the_whole(train, refer, results, plan):
    train(0, 1, 2)
    whole = refer("whole")
    shutil.rmtree(results)

    train(0)
    part = refer(unfinished=True)
    rows = read_runs(part / "runs.csv")
    assert rows["status"].tolist() == ["ok", "missing", "missing"] * 3
    assert len(yaml.safe_load((part / "provenance.yaml").read_text())["runs"]) == 3
    assert verify([part]).problems == []
    shutil.rmtree(results)

    train(1, 2)
    assert contents(refer()) == contents(whole)
    assert verify([part]).problems == []
    abouts = [yaml.safe_load((folder / "provenance.yaml").read_text()) for folder in (part, whole)]
    assert abouts[0] == abouts[1]
    assert (part / "report.html").read_bytes() == (whole / "report.html").read_bytes()
    for name in ("learning_curves", "coupling_entropy", "error_by_variant"):
        assert (part / f"plots/{name}.svg").read_bytes() == (whole / f"plots/{name}.svg").read_bytes()


def test_what_is_missing_must_be_allowed(train, refer, tmp_path, plan):
    with pytest.raises(InputError, match=r"not finished: 9 of 9, the first is digits/capsnet-iterations1/seed0$"):
        refer(unfinished=True)
    train(0, 1)
    with pytest.raises(InputError, match=r"not finished: 3 of 9.*seed2; --unfinished keeps the others"):
        refer()
    assert not (tmp_path / "reference").exists()


def test_from_the_command_line(train, plan, results, capsys):
    train(0, 2)
    assert main(["reference", str(plan.path), "--results", str(results)]) == 2
    assert main(["reference", str(plan.path), "--results", str(results), "--unfinished"]) == 0
    shutil.rmtree(results / "small_study")
    train(1)
    assert main(["reference", str(plan.path), "--results", str(results)]) == 0
    said = "".join(capsys.readouterr())
    assert f"6 runs stay from before; the others are those of {results / 'small_study'}" in said


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_was_trained_again_takes_the_place_of_the_kept_one(train, refer, results):
    train(0, 1, 2)
    before = read_runs(refer() / "runs.csv")
    shutil.rmtree(results)
    train(1, more=70)
    target = refer()
    after = read_runs(target / "runs.csv")
    raised = after["seed"] == 1
    assert np.allclose((after["test_error"] - before["test_error"])[raised], 10)
    assert after[~raised].equals(before[~raised])
    assert all((~items).sum() in range(7, 90) for items in read_correct(target / "correct.npz").right.values())
    assert verify([target]).problems == []


@pytest.mark.usefixtures("undrawn")
def test_runs_that_the_study_has_changed_do_not_stay(train, refer, results, make_plan, study_text, tmp_path):
    train(0, 1, 2)
    refer()
    shutil.rmtree(results)
    train(0)
    longer = make_plan(study_text.replace("epochs: 2", "epochs: 3"))
    with pytest.raises(InputError, match="not finished: 9 of 9"):
        write_reference(longer, results, collect(longer, results), tmp_path / "reference", unfinished=True)


@pytest.mark.usefixtures("undrawn")
def test_parts_are_tested_on_the_same_items(train, refer, results, tmp_path):
    train(0)
    before = contents(refer(unfinished=True))
    shutil.rmtree(results)
    train(1, items="e" * 64)
    with pytest.raises(InputError, match="digits: the runs here were tested on other items"):
        refer(unfinished=True)
    assert contents(tmp_path / "reference") == before
    train(1, 2)
    train(2, items="e" * 64)  # not even alike among themselves
    with pytest.raises(InputError, match=r"results/small_study/runs/.*predictions.npz: tested on other items"):
        refer()
    assert contents(tmp_path / "reference") == before
    train(1, 2, items="e" * 64)
    with pytest.raises(InputError, match="digits: the runs here were tested on other items"):
        refer()
    assert contents(tmp_path / "reference") == before


@pytest.mark.usefixtures("undrawn")
def test_an_experiment_may_be_replaced_whole_by_runs_on_other_items(train, refer, results):
    train(0)
    refer(unfinished=True)
    shutil.rmtree(results)
    train(0, 1, items="e" * 64)
    assert set(read_correct(refer(unfinished=True) / "correct.npz").fingerprints.values()) == {"e" * 64}


@pytest.mark.usefixtures("undrawn")
def test_no_finished_run_is_lost_without_a_word(train, refer, results, tmp_path):
    train(0, 1, 2)
    target = refer()
    (target / NAME).unlink()  # a reference of before runs were kept
    before = contents_but_runs(target)
    shutil.rmtree(results)
    train(0)
    with pytest.raises(InputError, match=r"6 of its runs would be lost, the first is .*seed1: its runs\.tar\.xz"):
        refer(unfinished=True)
    assert contents_but_runs(target) == before
    shutil.rmtree(target)
    assert len(read_runs(refer(unfinished=True) / "runs.csv").query("status == 'ok'")) == 3


def contents_but_runs(folder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_reference_that_cannot_be_written_leaves_the_one_that_is_there(train, refer, results, tmp_path, monkeypatch):
    train(0)
    before = contents_but_runs(refer(unfinished=True))
    train(0, 1, 2)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("capsbench.analysis.reference.pack_runs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        refer()
    assert contents_but_runs(tmp_path / "reference") == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_failed_or_still_runs_is_missing_in_an_unfinished_reference(train, refer, plan, write_run):
    train(0)
    write_run(plan.runs[1], "failed")
    write_run(plan.runs[2], "running")
    target = refer(unfinished=True)
    assert read_runs(target / "runs.csv")["status"].tolist() == ["ok", "missing", "missing"] * 3
    assert verify([target]).problems == []


def test_pictures_of_runs_that_are_gone_stay(train, refer, plan, results, write_run):
    with_decoder = [run for run in plan.runs if run.options.get("decoder")]
    for run in with_decoder:
        write_run(run)
    target = refer(unfinished=True)
    picture = (target / "plots/reconstructions.svg").read_bytes()
    assert b"nothing to show" not in picture
    shutil.rmtree(results)
    for run in plan.runs:
        if run not in with_decoder:
            write_run(run)
    assert (refer() / "plots/reconstructions.svg").read_bytes() == picture


def test_pictures_lose_no_earlier_run_to_a_later_one(refer, plan, results, write_run):
    first, second, *others = [run for run in plan.runs if run.options.get("decoder")]
    write_run(first)
    picture = (refer(unfinished=True) / "plots/reconstructions.svg").read_bytes()
    shutil.rmtree(results)
    for run in (second, *others):
        write_run(run)
    assert (refer(unfinished=True) / "plots/reconstructions.svg").read_bytes() == picture


def test_pictures_are_drawn_once_there_is_a_run_that_has_some(refer, plan, results, write_run):
    for run in plan.runs:
        if not run.options.get("decoder"):
            write_run(run)
    assert b"nothing to show" in (refer(unfinished=True) / "plots/reconstructions.svg").read_bytes()
    shutil.rmtree(results)
    for run in plan.runs:
        if run.options.get("decoder"):
            write_run(run)
    assert b"nothing to show" not in (refer() / "plots/reconstructions.svg").read_bytes()


@pytest.mark.usefixtures("undrawn")
def test_other_files_in_the_folder_stay(train, refer):
    train(0, 1, 2)
    (refer() / "REMARKS.md").write_text("mine")
    assert (refer() / "REMARKS.md").read_text() == "mine"


def test_long_names_are_kept(make_plan, write_run, results, tmp_path):
    text = "name: n\nseeds: [0]\ntraining: {epochs: 2}\nexperiments: {EEE: {data: {name: digits}}}\n"
    plan = make_plan(
        text.replace("EEE", "e" * 100) + "variants: {VVV: {model: cnn_matched}}\n".replace("VVV", "v" * 100)
    )
    write_run(plan.runs[0])
    pack_runs(plan, results, [plan.runs[0].key], tmp_path)
    assert unpack_runs(plan, tmp_path / NAME, tmp_path / "out") == {plan.runs[0].key}


@pytest.mark.usefixtures("undrawn")
def test_a_row_that_is_not_what_was_kept_is_named(train, refer):
    train(0, 1, 2)
    target = refer()
    text = (target / "runs.csv").read_text()
    changed = text.replace(",1158,", ",1159,", 1)
    (target / "runs.csv").write_text(changed)
    seal(target)
    (line, *_) = verify([target]).problems
    assert line == (
        f"{target / 'runs.csv'}: digits/capsnet-iterations1/seed0: train_images is 1159, not 1158, which {NAME} has"
    )


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_damaged_file_is_named(train, refer, content):
    train(0, 1, 2)
    target = refer()
    whole = (target / NAME).read_bytes()
    (target / NAME).write_bytes(whole[: len(whole) // 2] if content is None else content)
    assert any(f"{NAME}: damaged" in line for line in verify([target]).problems)


def test_nothing_is_written_outside_the_folders_of_runs(plan, train, results, tmp_path):
    """Of an archive that others made, only what belongs to a run of the study is taken."""
    train(0)
    run = plan.runs[0]
    folder = RunFolder.of(results, run.study, run.key)
    (folder.path / "evaluations/more").mkdir()
    (folder.path / "evaluations/more/x.json").write_text("{}")
    keys = [run.key]
    pack_runs(plan, results, keys, tmp_path)
    content = io.BytesIO()
    with tarfile.open(tmp_path / NAME) as plain, tarfile.open(fileobj=content, mode="w:xz") as archive:
        for member in plain:
            archive.addfile(member, plain.extractfile(member))
        odd = ("../../escaped.json", "/tmp/escaped", f"{run.key}/../run.yaml", f"{run.key}/model.pt", "a/b/c/run.yaml")
        for name in odd:
            archive.addfile(tarfile.TarInfo(name))
        link = tarfile.TarInfo(f"{run.key}/metrics.csv")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (tmp_path / NAME).write_bytes(content.getvalue())
    out = tmp_path / "out"
    assert unpack_runs(plan, tmp_path / NAME, out) == {run.key}
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    below = f"small_study/runs/{run.key}"
    names = ("run.yaml", "metrics.csv", *(f"evaluations/{n}.json" for n in ("accuracy", "familiar", "reconstruction")))
    assert found == {f"{below}/{name}" for name in names}
    assert not (out / below / "metrics.csv").is_symlink()


@pytest.fixture
def with_weights(make_plan, study_text, write_run, monkeypatch):
    """A study that keeps the weights of seed 0; each run has weights of a hundred bytes."""
    plan = make_plan(f"{study_text}keep_weights: ['*/seed0']\n")

    def leave(*seeds: int) -> None:
        for number, run in enumerate(run for run in plan.runs if run.seed in seeds):
            folder = RunFolder.of(write_run(run, error=100 * (number + 7) / 700).path.parents[4], run.study, run.key)
            leave_items(folder, all_but(number + 7, 700, first=number), fingerprint=np.array("f" * 64))
            folder.model_path.write_bytes(bytes([number]) * 100)
            files = {path.name: sha256(path) for path in (folder.model_path, folder.metrics_path)}
            folder.write_record(folder.read_record() | {"files": files})

    return plan, leave


@pytest.mark.usefixtures("undrawn")
def test_weights_of_the_runs_that_the_study_names_are_kept_with_their_folders(with_weights, results, tmp_path):
    plan, leave = with_weights
    leave(0, 1, 2)
    target = tmp_path / "reference"
    write_reference(plan, results, collect(plan, results), target)
    kept = sorted((target / "runs").glob("*/*/*/model.pt"))
    assert [path.parent.name for path in kept] == ["seed0"] * 3
    for path in kept:
        source = RunFolder.of(results, plan.study.name, "/".join(path.parts[-4:-1]))
        assert path.read_bytes() == source.model_path.read_bytes()
        assert RunFolder(path.parent).read_record() == source.read_record()
        assert not (path.parent / "predictions.npz").exists()
    assert verify([target]).problems == []
    shutil.rmtree(results)  # the weights of runs that are gone stay
    leave(1)
    write_reference(plan, results, collect(plan, results), target)
    assert sorted((target / "runs").glob("*/*/*/model.pt")) == kept
    kept[0].write_bytes(b"others")
    kept[1].parent.joinpath("run.yaml").write_text(kept[2].parent.joinpath("run.yaml").read_text())
    assert verify([target]).problems == [
        f"{kept[0]}: is not what this run wrote",
        f"{kept[1].parent / 'run.yaml'}: is not what {NAME} has",
    ]


def test_weights_that_are_not_there_or_too_many_are_one_line(with_weights, results, tmp_path, monkeypatch):
    plan, leave = with_weights
    leave(0, 1, 2)
    monkeypatch.setattr(kept_runs, "MOST_BYTES", 250)
    with pytest.raises(InputError, match=r"the weights up to .*/seed0 are 0\.0 MB, more than 0; name fewer runs"):
        write_reference(plan, results, collect(plan, results), tmp_path / "reference")
    folder = RunFolder.of(results, plan.study.name, plan.runs[0].key)
    folder.model_path.unlink()
    with pytest.raises(InputError, match=r"model\.pt: keep_weights names this run, and its weights are not there"):
        write_reference(plan, results, collect(plan, results), tmp_path / "reference")
