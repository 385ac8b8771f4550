"""The law of who imports whom: it keeps every part readable and testable on its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "capsbench"
MODULES = {
    ".".join(("capsbench", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TOP = ("training", "evaluation", "analysis", "benchmark", "inventory", "tracking", "cli")


def imports(module: str) -> set[str]:
    """Full names of all that a module imports, anywhere in it, type checking included."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & MODULES.keys()) or {str(node.module)}
    return found


def inside(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def below(*packages: str) -> list[str]:
    return [module for module in MODULES if inside(module, *(f"capsbench.{p}" for p in packages))]


def test_the_walk_finds_the_package_and_its_imports():
    assert {"capsbench", "capsbench.training", "capsbench.routing", "capsbench.analysis.tables"} <= MODULES.keys()
    assert {"torch", "capsbench.data", "capsbench.provenance", "capsbench.config"} <= imports("capsbench.training")
    assert "mlflow" in {name.split(".")[0] for name in imports("capsbench.tracking")}


@pytest.mark.parametrize("module", below("routing", "losses"))
def test_routing_and_losses_import_torch_and_themselves_alone(module):
    own = ".".join(module.split(".")[:2])
    others = {name for name in imports(module) if not inside(name, "torch", own)}
    assert {name for name in others if name.split(".")[0] not in sys.stdlib_module_names} == set()


@pytest.mark.parametrize(
    ("importers", "forbidden"),
    [
        (["layers", "decoders", "capsule_transforms"], ["models", "data", "losses", "config", *TOP]),
        (["models"], ["data", "config", *TOP]),
        (["data"], ["models", "layers", "routing", "losses", *TOP]),
        (["analysis"], ["models", "layers", "routing", "losses", "training", "evaluation", "benchmark", "tracking"]),
        (["training"], ["evaluation", "analysis", "benchmark", "cli"]),
        (["evaluation"], ["training", "analysis", "benchmark", "tracking", "cli"]),
        (["config", "study_file", "options"], ["models", "layers", "routing", "losses", "run_folder", *TOP]),
        (["run_folder", "errors", "sources", "device", "provenance"], ["config", "data", "models", *TOP]),
    ],
    ids=lambda names: " ".join(names[:4]),
)
def test_layers_of_the_package_are_kept(importers, forbidden):
    modules = below(*importers)
    assert modules
    wrong = {
        f"{module} -> {name}"
        for module in modules
        for name in imports(module)
        if inside(name, *(f"capsbench.{f}" for f in forbidden))
    }
    assert wrong == set()


def test_nothing_imports_the_command_line():
    assert [module for module in MODULES if any(inside(n, "capsbench.cli") for n in imports(module))] == []


@pytest.mark.parametrize(
    ("package", "importers"),
    [("mlflow", {"capsbench.tracking"}), ("snakemake", set()), ("matplotlib", {"capsbench.analysis.plots"})],
)
def test_a_heavy_package_has_one_door(package, importers):
    assert {module for module in MODULES if any(inside(name, package) for name in imports(module))} == importers


@pytest.mark.parametrize("module", below("analysis"))
def test_analysis_names_neither_torch_nor_mlflow(module):
    assert {name for name in imports(module) if inside(name, "torch", "torchvision", "mlflow")} == set()


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        # what a dry run of the workflow imports
        (["config", "device", "sources", "errors"], ["torch", "mlflow", "numpy", "pandas"]),
        (["analysis.tables", "analysis.plots", "analysis.report", "analysis.reference"], ["torch", "mlflow"]),
        (["cli"], ["torch", "mlflow", "numpy", "pandas", "pydantic"]),
        (["data", "run_folder"], ["torch", "mlflow"]),
    ],
    ids=lambda names: " ".join(names),
)
def test_importing_loads_nothing_heavy(modules, forbidden):
    code = f"import sys, {', '.join('capsbench.' + m for m in modules)}; print(*{forbidden!r} & sys.modules.keys())"
    code = code.replace(repr(forbidden), f"set({forbidden!r})")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []


def test_no_module_is_a_drawer_for_odds_and_ends():
    assert [str(p) for p in MODULES.values() if p.stem in ("utils", "util", "helpers", "misc", "common")] == []
