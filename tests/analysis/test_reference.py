import pytest
import yaml

from capsbench.analysis.collect import collect, write_runs
from capsbench.analysis.reference import write_reference
from capsbench.errors import InputError


@pytest.fixture
def analysed(plan, results):
    """The files that the stages before leave; what is in them is copied as it stands."""
    folder = results / "small_study"
    for name in ("tables/sabour-table1.csv", "plots/learning_curves.svg"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(f"this is {name}")
    write_runs(collect(plan, results), folder / "runs.csv")


@pytest.fixture
def refer(plan, results, tmp_path, analysed):
    def write():
        write_reference(plan, results, collect(plan, results), tmp_path / "reference")
        return tmp_path / "reference"

    return write


def write_all(plan, write_run, **last) -> None:
    for run in plan.runs[:-1]:
        write_run(run)
    write_run(plan.runs[-1], **last)


def test_a_finished_study_is_copied_with_its_provenance(plan, write_run, refer):
    write_all(plan, write_run, status="diverged")
    target = refer()
    # drawn anew from the run folders, whatever lies in the study's own tables
    assert "2 of 3, 1 diverged" in (target / "tables/sabour-table1.md").read_text()
    assert "<svg" in (target / "plots/learning_curves.svg").read_text()
    assert len((target / "runs.csv").read_text().splitlines()) == 10
    assert (target / "study.yaml").read_text() == plan.path.read_text()

    provenance = yaml.safe_load((target / "provenance.yaml").read_text())
    assert provenance["study"] == "small_study"
    assert provenance["summary"]["commit"] == "0123456789abcdef0123456789abcdef01234567"
    assert [(run["variant"], run["seed"], run["digest"]) for run in provenance["runs"]] == [
        (run.variant, run.seed, run.digest) for run in plan.runs
    ]
    assert [run["status"] for run in provenance["runs"]] == ["ok"] * 8 + ["diverged"]


def test_a_reference_holds_the_tables_of_its_data_sets_and_their_files(plan, write_run, refer):
    line = "train-dat.mat: md5 12, the official file's is 34"
    write_all(plan, write_run, unofficial=(line,))
    target = refer()
    assert sorted(path.name for path in (target / "tables").iterdir()) == [
        f"{name}.{ending}" for name in ("contrasts", "sabour-table1") for ending in ("csv", "md", "tex")
    ]
    provenance = yaml.safe_load((target / "provenance.yaml").read_text())
    assert provenance["runs"][-1]["data"]["unofficial"] == [line]
    assert provenance["summary"]["not the official files (digits)"] == line


def test_an_older_reference_is_replaced(plan, write_run, refer, tmp_path):
    write_all(plan, write_run)
    old = tmp_path / "reference/tables/of-before.csv"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    refer()
    assert not old.exists()


@pytest.mark.parametrize(
    "last",
    [{"status": "failed"}, {"status": "running"}, {"digest": "0" * 16}, {"evaluated": False}],
    ids=["failed", "running", "other configuration", "not evaluated"],
)
def test_a_study_that_is_not_finished_is_refused(plan, write_run, refer, tmp_path, last):
    write_all(plan, write_run, **last)
    with pytest.raises(InputError, match=f"small_study: .*not finished: 1, .*{plan.runs[-1].key}"):
        refer()
    assert not (tmp_path / "reference").exists()


@pytest.mark.parametrize("commit", ["unknown", "0123456789abcdef0123456789abcdef01234567+changes", "0123456"])
def test_runs_of_code_that_is_not_committed_are_refused(plan, write_run, refer, tmp_path, commit):
    write_all(plan, write_run, commit=commit)
    with pytest.raises(InputError, match="code that is not committed: 1,") as raised:
        refer()
    assert commit in str(raised.value)
    assert not (tmp_path / "reference").exists()
