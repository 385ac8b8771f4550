"""The law of who imports whom keeps every part readable and testable on its own. Its contracts: pyproject.toml."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "capsbench"
MODULES = {
    ".".join(("capsbench", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
HEAVY = ("torch", "torchvision", "mlflow", "pandas", "numpy", "pydantic", "sklearn", "matplotlib")
TRAINING = """
import json, sys
from pathlib import Path
from capsbench.run.train import train
from capsbench.study import load_plan
study = {
    "name": "small", "seeds": [0], "training": {"epochs": 1, "batch_size": 32, "device": "cpu"},
    "experiments": {"digits": {"data": {"name": "digits", "train_images": 32}}},
    "variants": {"cnn": {"model": "cnn_sabour_mnist", "options": {"conv_channels": [2, 2, 2], "hidden": [4, 4]}}},
}
Path("study.yaml").write_text(json.dumps(study))
train(load_plan(Path("study.yaml")).runs[0], Path("r"), Path("nowhere"), tracking=sys.argv[1] == "tracked")
"""


def loaded_by(code: str, folder: Path, *arguments: str) -> set[str]:
    """Run code in a Python of its own; return the names of all modules that it has loaded at its end."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_imports_keep_the_law_of_the_rooms():
    command = Path(sys.executable).with_name("lint-imports")
    found = str(command) if command.exists() else shutil.which("lint-imports")
    if found is None:
        pytest.skip("import-linter is not installed: the law of imports is not checked here")
    done = subprocess.run([found, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import capsbench",
        "from capsbench.cli import main\nassert main(['--help']) == 0",
        "from capsbench.cli import main\nassert main(['train', '--help']) == 0",
    ],
    ids=["import capsbench", "capsbench --help", "capsbench train --help"],
)
def test_it_starts_fast(tmp_path, code):
    assert loaded_by(code, tmp_path) & {"capsbench", *HEAVY} == {"capsbench"}


def test_mlflow_is_not_imported_with_the_tracking_of_runs(tmp_path):
    found = loaded_by("import capsbench.run.train", tmp_path)
    assert found & {"capsbench.run.tracking", "mlflow"} == {"capsbench.run.tracking"}


@pytest.mark.slow
@pytest.mark.parametrize(("tracking", "mlflow"), [("untracked", set()), ("tracked", {"mlflow"})])
def test_mlflow_is_imported_only_when_a_run_is_tracked(tmp_path, tracking, mlflow):
    found = loaded_by(TRAINING, tmp_path, tracking)
    assert found & {"capsbench.run.train", "mlflow"} == {"capsbench.run.train"} | mlflow


def test_the_workflow_starts_without_what_tables_and_plots_need(tmp_path):
    lines = (ROOT / "Snakefile").read_text(encoding="utf-8").splitlines()
    own = [line for line in lines if line.startswith("from capsbench.")]
    assert len(own) > 10
    found = loaded_by("\n".join(own), tmp_path)
    assert found & {"capsbench.study", "pandas", "scipy", "matplotlib", "mlflow"} == {"capsbench.study"}


def test_the_walk_finds_the_package():
    assert {"capsbench", "capsbench.run.train", "capsbench.routing", "capsbench.registry"} <= MODULES.keys()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_short_and_imports_by_full_names(module):
    text = MODULES[module].read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    assert [node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.level] == []


def test_nothing_imports_the_command_line():
    """The contract holds between rooms; the package itself must not import the command line either."""
    importers = {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and str(node.module).startswith("capsbench.cli"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("capsbench.cli") for alias in node.names))
    }
    assert "capsbench.__main__" in importers
    assert {module for module in importers if not module.startswith("capsbench.cli")} == {"capsbench.__main__"}


def test_no_module_is_a_drawer_for_odds_and_ends():
    drawers = ("utils", "util", "helpers", "helper", "misc", "common")
    assert [module for module in MODULES if module.split(".")[-1] in drawers] == []
