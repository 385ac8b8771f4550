"""All that a machine without a network needs, in one folder."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from small_runs import plan_of

from capsbench.errors import InputError
from capsbench.run import bundle as module
from capsbench.run.bundle import ROOT, bundle, environment, kept_pins

PINS = (ROOT / "requirements.txt").read_text()


def names(pins: list[str]) -> set[str]:
    return {pin.split("==")[0] for pin in pins}


@pytest.fixture
def asked(monkeypatch):
    """What pip is asked for; it gives one wheel of a made-up package, and one of capsbench."""
    calls = []

    def pip(*words: str) -> None:
        calls.append(words)
        folder = Path(words[words.index("--dest" if words[0] == "download" else "--wheel-dir") + 1])
        folder.mkdir(exist_ok=True)
        if words[0] == "download":
            (folder / "sdist_only-1.0.tar.gz").write_text("a source")
            return
        name, version = ("capsbench", "0") if words[-1] == str(ROOT) else ("sdist_only", "1.0")
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            about = f"{name}-{version}.dist-info"
            wheel.writestr(f"{name}.py", "")
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")

    monkeypatch.setattr(module, "_pip", pip)
    return calls


def test_pins_are_those_of_the_machine():
    there = kept_pins(PINS, environment("3.12", "x86_64"), ())
    assert {"torch", "triton", "mlflow", "snakemake"} <= names(there)
    assert not names(there) & {"pywin32", "colorama"}  # for Windows
    assert len(names(there)) == len(there)  # of two pins of numpy, the one for this Python
    assert all(" --hash=sha256:" in pin and ";" not in pin for pin in there)
    older = kept_pins(PINS, environment("3.11", "x86_64"), ())
    assert [pin for pin in there if "numpy==" in pin] != [pin for pin in older if "numpy==" in pin]


def test_what_only_a_package_that_is_there_needs_stays_out():
    there = names(kept_pins(PINS, environment("3.12", "x86_64"), ["torch", "torchvision"]))
    assert not there & {"torch", "torchvision", "triton", "sympy", "nvidia-cudnn-cu13"}
    assert {"numpy", "snakemake", "pydantic-core", "filelock"} <= there  # others need them too
    with pytest.raises(InputError, match="--without nothing: is none of the packages"):
        kept_pins(PINS, environment("3.12", "x86_64"), ["nothing"])


def test_a_bundle_has_code_data_and_study_and_installs_alone(tmp_path, asked, monkeypatch):
    (tmp_path / "outside").mkdir()
    plan, target = plan_of(tmp_path / "outside"), tmp_path / "b"
    monkeypatch.setattr(module, "kept_pins", lambda *_: ["sdist-only==1.0 --hash=sha256:" + "0" * 64])
    (tmp_path / "data/digits").mkdir(parents=True)
    (tmp_path / "data/digits/raw").write_text("12345")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    sizes = bundle(plan, target, tmp_path / "data", version, "x86_64", ())
    assert sizes["data"] == 5 and sizes["project"] > 1e6 and sizes["wheels"] > 0
    assert "manylinux_2_28_x86_64" in asked[0] and version in asked[0]
    for name in ("Snakefile", "capsbench/run/bundle.py", "configs/quick.yaml", "configs/study.yaml"):
        assert (target / "project" / name).exists(), name
    assert not list((target / "project").rglob("*.pyc"))
    assert "--configfile configs/study.yaml" in (target / "install.sh").read_text()
    # the wheel that was built here passes for the pin of its source; nothing is asked of an index
    done = subprocess.run(
        ["sh", str(target / "install.sh"), str(tmp_path / "venv")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = subprocess.run([str(tmp_path / "venv/bin/python"), "-c", "import capsbench, sdist_only"], check=False)
    assert listed.returncode == 0


def test_a_folder_in_use_is_left_alone(tmp_path, asked):
    (tmp_path / "b").mkdir()
    (tmp_path / "b/mine").touch()
    with pytest.raises(InputError, match="b: is not empty; take a new folder"):
        bundle(plan_of(tmp_path), tmp_path / "b", tmp_path, "3.12", "x86_64", ())
    assert asked == []


def test_what_pip_cannot_get_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "kept_pins", lambda *_: ["no-such-package-of-capsbench==1.0"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        module.RunError, match="pip download: Could not find a version that satisfies the requirement no-"
    ):
        bundle(plan_of(tmp_path), tmp_path / "b", tmp_path, "3.12", "x86_64", ())
