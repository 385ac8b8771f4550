"""Two studies of one name do not train over each other's runs."""

import shutil

import pytest

from capsbench.cli import main
from capsbench.errors import InputError
from capsbench.run.owner import NAME, check_owner, claim
from capsbench.study import load_plan

STUDY = """\
name: mine
seeds: [0]
training: {epochs: 1, device: cpu}
experiments: {digits: {data: {name: digits, train_images: 40}}}
variants: {v: {model: resnet20, options: {widths: [4, 8], blocks: 1}}}
tracking: false
"""


@pytest.fixture
def write(tmp_path):
    """Write a study file and return its plan."""

    def make(name: str, text: str = STUDY):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return load_plan(path)

    return make


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def test_another_file_of_the_same_name_is_refused_and_told_what_to_do(write, results):
    claim(write("a.yaml"), results)
    other = write("b.yaml", STUDY.replace("epochs: 1", "epochs: 2"))
    with pytest.raises(InputError) as raised:
        claim(other, results)
    said = str(raised.value)
    assert "a.yaml" in said and "another name" in said and "\n" not in said
    (results / "mine" / NAME).unlink()  # the advice
    claim(other, results)
    with pytest.raises(InputError, match=r"b\.yaml"):
        check_owner(write("a.yaml"), results)


def test_an_edited_study_is_the_same_study(write, results):
    claim(write("a.yaml"), results)
    claim(write("a.yaml", STUDY.replace("epochs: 1", "epochs: 2")), results)


def test_a_study_that_was_moved_renamed_or_copied_is_the_same_study(write, results, tmp_path):
    claim(write("a.yaml"), results)
    claim(write("copy.yaml"), results)
    (tmp_path / "copy.yaml").rename(tmp_path / "moved.yaml")
    claim(write("moved.yaml"), results)
    write("moved.yaml", STUDY.replace("name: mine", "name: yours"))
    claim(write("new.yaml", STUDY.replace("epochs: 1", "epochs: 3")), results)


def test_the_runs_of_a_study_whose_file_is_gone_are_not_trained_over(write, results, tmp_path):
    claim(write("a.yaml"), results)
    (tmp_path / "a.yaml").unlink()
    with pytest.raises(InputError, match=r"has the runs of another study of this name, .*a\.yaml; give one"):
        claim(write("b.yaml", STUDY.replace("epochs: 1", "epochs: 2")), results)


def test_a_copy_with_a_part_taken_out_is_the_same_study(write, results):
    """As docs/gpus.md says to run a part of a study."""
    more = "experiments: {digits: {data: {name: digits, train_images: 40}}, more: {data: {name: digits}}}"
    whole = write("a.yaml", STUDY.replace("experiments: {digits: {data: {name: digits, train_images: 40}}}", more))
    claim(whole, results)
    claim(write("part.yaml"), results)
    claim(whole, results)


def test_results_that_were_moved_belong_to_nobody(write, results, tmp_path):
    claim(write("a.yaml"), results)
    shutil.copytree(results, tmp_path / "elsewhere")
    claim(write("b.yaml", STUDY.replace("epochs: 1", "epochs: 2")), tmp_path / "elsewhere")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"study": 1}'])
def test_a_damaged_note_stops_nobody(write, results, content):
    plan = write("a.yaml")
    claim(plan, results)
    (results / "mine" / NAME).write_text(content)
    claim(plan, results)


def test_training_claims_the_folder_and_does_not_train_over_another_study(write, results, capsys):
    first, other = write("a.yaml"), write("b.yaml", STUDY.replace("epochs: 1", "epochs: 2"))
    train = ["train", "--results", str(results)]
    assert main([*train, str(first.path), "digits/v/seed0"]) == 0
    weights = (results / "mine/runs/digits/v/seed0/model.pt").read_bytes()
    assert main([*train, str(other.path), "digits/v/seed0"]) == 2
    assert "another study of this name" in "".join(capsys.readouterr())
    assert (results / "mine/runs/digits/v/seed0/model.pt").read_bytes() == weights
