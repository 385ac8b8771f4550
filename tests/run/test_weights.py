"""A model.pt that is damaged or of something else: one line, whoever reads it."""

import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from small_runs import run_of

from capsbench import load_run
from capsbench.errors import InputError
from capsbench.evaluation import evaluate
from capsbench.models import build_model
from capsbench.run.folder import RunFolder
from capsbench.run.load import load_weights
from capsbench.run.record import first_record


def network(run):
    return build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)


@pytest.fixture
def run(tmp_path):
    """A run that passes for a finished one, with the weights of an untrained network."""
    run = run_of(tmp_path)
    folder = RunFolder.of(tmp_path / "results", run.study, run.key)
    folder.write_record({**first_record(run), "status": "ok"})
    torch.save(network(run).state_dict(), folder.model_path)
    return run


@pytest.fixture
def path(run, tmp_path) -> Path:
    return RunFolder.of(tmp_path / "results", run.study, run.key).model_path


def change(**changes):
    def save(path):
        torch.save({**torch.load(path, weights_only=True), **changes}, path)

    return save


def without_the_last(path):
    torch.save(dict(list(torch.load(path, weights_only=True).items())[:-1]), path)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("a-pickle-ran",)


def write_tar(path):
    with tarfile.open(path, "w") as tar:
        for name in ("sys_info", "storages", "tensors", "pickle"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO(b""))


def write_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({1: 2}))


def instead(action):
    def replace(path):
        path.unlink()
        action(path)

    return replace


DAMAGE = {
    "empty": lambda p: p.write_bytes(b""),
    "text": lambda p: p.write_text("weights\n" * 50),
    "noise": lambda p: p.write_bytes(bytes(range(256)) * 20),
    "cut zip": lambda p: os.truncate(p, p.stat().st_size // 2),
    "zip without its end": lambda p: os.truncate(p, p.stat().st_size - 30),
    "another zip": write_zip,
    "a tar": write_tar,
    "a plain pickle": lambda p: p.write_bytes(pickle.dumps({"a": [1, 2]})),
    "code": lambda p: p.write_bytes(pickle.dumps(Evil())),
    "a tensor": lambda p: torch.save(torch.zeros(3), p),
    "a list": lambda p: torch.save([torch.zeros(3)], p),
    "numbers for names": lambda p: torch.save({1: torch.zeros(3)}, p),
    "another name": change(weight=torch.zeros(3)),
    "a missing name": without_the_last,
    "another shape": change(**{"conv.weight": torch.zeros(1)}),
    "a number for weights": change(**{"conv.weight": 3}),
    "a whole network": lambda p: torch.save(torch.nn.Linear(2, 2), p),
    "nothing": Path.unlink,
    "a folder": instead(Path.mkdir),
    "a FIFO": instead(os.mkfifo),
}


def test_the_names_that_the_cases_change_are_those_of_the_network(path):
    assert "conv.weight" in torch.load(path, weights_only=True)


@pytest.mark.parametrize("damage", DAMAGE)
def test_it_is_one_line_that_names_the_file_and_what_to_do(run, path, tmp_path, monkeypatch, recwarn, damage):
    monkeypatch.chdir(tmp_path)
    DAMAGE[damage](path)
    for use in (lambda: load_run(path.parent), lambda: evaluate(run, tmp_path / "results", Path("x"), ["accuracy"])):
        with pytest.raises(InputError) as caught:
            use()
        line = str(caught.value)
        assert "\n" not in line
        assert len(line) < 500
        assert [word for word in (f"{path}: ", "train the run again", "--again") if word not in line] == []
    assert not Path("a-pickle-ran").exists()
    assert not recwarn.list


def test_the_line_says_which_weights_differ(run, path):
    change(weight=torch.zeros(3))(path)
    with pytest.raises(InputError, match=r"of another network .*Unexpected key.*weight"):
        load_weights(network(run), path)


def test_whole_weights_are_loaded(run, path):
    torch.manual_seed(1)
    other = network(run)
    load_weights(other, path)
    saved = torch.load(path, weights_only=True)
    assert all(torch.equal(value, saved[name]) for name, value in other.state_dict().items())
