"""The version of the code: prose leaves it as it is, what a run computes with changes it."""

import importlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import capsbench
from capsbench.data.catalogue import CATALOGUE
from capsbench.registry import PROTOCOLS
from capsbench.run import code_version as module
from capsbench.run.code_version import data_version, evaluation_version, read_ahead, training_version
from capsbench.study import load_plan

PACKAGE = Path(capsbench.__file__).parent
STUDY = """
name: versions
seeds: [0]
experiments:
  digits: {data: {name: digits}}
  toynorb: {data: {name: toynorb}}
variants:
  dynamic: {model: capsnet}
  em: {model: capsnet, options: {routing: em, loss: spread, decoder: null}}
  matched: {model: cnn_matched}
  resnet: {model: resnet20}
"""
EVALUATIONS = [PROTOCOLS.options(name)() for name in ("accuracy", "familiar")]
EVERYTHING = {f"{e}/{v}" for e in ("digits", "toynorb") for v in ("dynamic", "em", "matched", "resnet")}
CAPSNETS = {"digits/dynamic", "digits/em", "toynorb/dynamic", "toynorb/em", "digits/matched", "toynorb/matched"}


class Copy:
    """A copy of the package whose files can be changed."""

    def __init__(self, path: Path):
        self.path = path
        shutil.copytree(PACKAGE, path / "capsbench", ignore=shutil.ignore_patterns("__pycache__"))
        (path / "study.yaml").write_text(STUDY)

    def replace(self, name: str, old: str, new: str) -> None:
        file = self.path / "capsbench" / name
        text = file.read_text()
        assert old in text, (name, old)
        file.write_text(text.replace(old, new))

    def versions(self) -> dict[tuple[str, str], str]:
        """Return the versions of all runs as the files of this copy give them; the code that runs stays as it is."""
        runs = load_plan(self.path / "study.yaml").runs
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "PACKAGE", self.path / "capsbench")
            forget()
            found = {("train", f"{run.experiment}/{run.variant}"): training_version(run) for run in runs}
            found |= {
                ("evaluate", f"{run.experiment}/{run.variant}"): evaluation_version(run, EVALUATIONS) for run in runs
            }
            found |= {("data", f"{run.experiment}/{run.variant}"): data_version(run.data) for run in runs}
        forget()
        return found


def forget() -> None:
    cached = (
        module._version, module._own_hash, module._tree_hash, module._written_tree, module._names, module._names_in,
        module._module, module._modules,
    )  # fmt: skip
    for each in cached:
        each.cache_clear()


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> dict[tuple[str, str], str]:
    return Copy(tmp_path_factory.mktemp("as_it_is")).versions()


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def changed(before, after, kind: str = "train") -> set[str]:
    return {run for (what, run), version in after.items() if what == kind and before[what, run] != version}


def test_versions_are_those_of_another_copy_of_the_same_code(copy, versions):
    assert copy.versions() == versions


def test_prose_in_every_file_changes_no_version(copy, versions):
    for path in (copy.path / "capsbench").rglob("*.py"):
        text = path.read_text()
        text = re.sub(r'"""(?=[A-Z])', '"""In other words: ', text)  # docstrings
        text = re.sub(r"^( +)return ", r"\1# why\n\n\1return ", text, flags=re.M)  # comments and blank lines
        path.write_text(text + "\n# the end\n")
    assert copy.versions() == versions


def test_notes_of_provenance_change_no_version_and_its_other_uses_do(copy, versions):
    copy.replace(
        "run/train.py", "    provenance.note_peak_memory(record, device)\n", "    provenance.note_more(record)\n"
    )
    copy.replace("run/train.py", "                provenance.note_start(record, device)\n", "")
    assert copy.versions() == versions
    copy.replace("run/train.py", "provenance.note_more(record)", "provenance.change(model)")
    assert changed(versions, copy.versions()) == EVERYTHING


def test_words_of_errors_and_messages_change_no_version(copy, versions):
    copy.replace("models/capsnet.py", "needs images of at least", "wants images of no less than")
    copy.replace("run/train.py", '"%s  diverged at %s"', '"%s  is no longer finite at %s"')
    copy.replace("models/capsnet.py", 'title="CapsNet"', 'title="the CapsNet"')
    assert copy.versions() == versions


def test_annotations_of_arguments_change_no_version(copy, versions):
    copy.replace("routing/dynamic.py", '"batch children child_dim"', '"b i d"')
    assert copy.versions() == versions


@pytest.mark.parametrize(
    ("name", "old", "new", "runs"),
    [
        ("losses.py", "torch.ones_like(costs).scatter(1,", "1.5 * torch.ones_like(costs).scatter(1,",
         {"digits/em", "toynorb/em"}),
        ("losses.py", "(1 - targets) * (lengths", "(2 - targets) * (lengths", CAPSNETS - {"digits/em", "toynorb/em"}),
        ("routing/em.py", "assignments = share(log_", "assignments = 2 * share(log_", {"digits/em", "toynorb/em"}),
        ("routing/kernels/linear_votes.py", "W_ij^T v_j\n", "W_ij^T v_j\n            flat.add_(1)\n",
         CAPSNETS - {"digits/em", "toynorb/em"}),
        ("routing/contract.py", "squared_length / (1 +", "squared_length / (2 +", CAPSNETS),
        ("models/capsnet.py", ".relu()  #", ".tanh()  #", CAPSNETS),
        ("models/resnet20.py", "features.mean(dim=(2, 3))", "features.amax(dim=(2, 3))",
         {"digits/resnet", "toynorb/resnet"}),
        ("run/train.py", "STEPS_BETWEEN_CHECKS = 50", "STEPS_BETWEEN_CHECKS = 51", EVERYTHING),
        ("data/tasks/stereo.py", "(1, 2, 3)", "(1, 2, 4)", {run for run in EVERYTHING if run.startswith("toynorb")}),
        ("data/readers/digits.py", "TEST_SHARE = 0.3", "TEST_SHARE = 0.2",
         {run for run in EVERYTHING if run.startswith("digits")}),
    ],
)  # fmt: skip
def test_a_changed_constant_changes_exactly_the_runs_that_use_it(copy, versions, name, old, new, runs):
    copy.replace(name, old, new)
    assert changed(versions, copy.versions()) == runs


def test_evaluations_rest_on_their_protocols_and_trainings_do_not(copy, versions):
    copy.replace("evaluation/accuracy.py", "100 * errors / images", "101 * errors / images")
    after = copy.versions()
    assert changed(versions, after) == set()
    assert changed(versions, after, "evaluate") == EVERYTHING


@pytest.mark.parametrize(
    "name", ["run/tracking.py", "run/provenance.py", "run/folder.py", "cli/commands.py", "errors.py"]
)
def test_what_carries_messages_and_files_bears_on_no_version(copy, versions, name):
    path = copy.path / "capsbench" / name
    path.write_text(path.read_text() + "\n\nMORE = 1\n")
    assert copy.versions() == versions


def test_definitions_that_move_keep_their_version(copy, versions):
    """margin_loss moves to a file of its own, losses.py imports it: nothing is trained again."""
    losses = copy.path / "capsbench/losses.py"
    text = losses.read_text()
    start, end = text.index("def margin_loss("), text.index("def spread_loss(")
    (losses.parent / "margins.py").write_text(
        "from torch import Tensor\n\nfrom jaxtyping import Float\n\n"
        'Scores = Float[Tensor, "batch classes"]\nScalar = Float[Tensor, ""]\n\n\n' + text[start:end]
    )
    moved = text[:start] + text[end:]
    losses.write_text(moved.replace("import torch\n", "import torch\nfrom capsbench.margins import margin_loss\n", 1))
    assert copy.versions() == versions


WAYS = {  # of a reader's own to bring a helper into a loss
    "relative": ("from ..helper import factor", "factor()"),
    "relative module": ("from .. import helper", "helper.factor()"),
    "dotted": ("import capsbench.helper", "capsbench.helper.factor()"),
    "module": ("from capsbench import helper", "helper.factor()"),
    "star": ("from capsbench.helper import *", "factor()"),
    "renamed": ("from capsbench.helper import factor as f", "f()"),
    "either": ("try:\n    from capsbench.helper import factor\nexcept ImportError:\n    factor = None", "factor()"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("inside", ["", "if True:\n    "], ids=["plain", "conditional"])
def test_a_helper_is_followed_however_it_is_imported(copy, way, inside):
    statement, call = WAYS[way]
    helper = copy.path / "capsbench/helper.py"
    helper.write_text(f"{inside}def factor():\n    {'    ' if inside else ''}return 1\n")
    copy.replace("models/resnet20.py", "from torch import", f"{statement}\nfrom torch import")
    copy.replace("models/resnet20.py", "features.mean(dim=(2, 3))", f"features.mean(dim=(2, 3)) * {call}")
    before = copy.versions()
    helper.write_text(helper.read_text().replace("return 1", "return 2"))
    assert changed(before, copy.versions()) == {"digits/resnet", "toynorb/resnet"}


def test_what_a_protocol_looks_at_is_a_part_of_its_version(copy, versions):
    copy.replace(
        "evaluation/accuracy.py",
        '@PROTOCOLS.register("familiar", split="familiar", scores_alone=True)',
        '@PROTOCOLS.register("familiar", split="test", scores_alone=True)',
    )
    assert changed(versions, copy.versions(), "evaluate") == EVERYTHING


def test_options_of_a_protocol_are_a_part_of_its_version():
    run = load_plan(next(Path(capsbench.__file__).parents[1].glob("configs/quick.yaml"))).runs[0]
    few, many = (PROTOCOLS.options("transforms")(images=images) for images in (10, 20))
    assert evaluation_version(run, [few]) != evaluation_version(run, [many])
    assert evaluation_version(run, [few]) == evaluation_version(run, [few])


def test_what_was_read_ahead_is_read_no_more(monkeypatch):
    """A worker reads the code once for all commands of a workflow, whatever they train and measure."""
    configs = next(Path(capsbench.__file__).parents[1].glob("configs"))
    read_ahead()

    def refuse(*arguments, **options):
        raise AssertionError("a file was read after all")

    monkeypatch.setattr(module, "_Module", refuse)
    plan = load_plan(configs / "quick.yaml")
    for run in plan.runs:
        if run.seed == plan.study.seeds[0]:
            assert training_version(run) and evaluation_version(run, plan.study.evaluations_of(run.experiment))


def test_a_protocol_that_a_study_does_not_use_bears_on_no_version(copy, versions):
    copy.replace("evaluation/reconstruction.py", "squared_error / predictions.pixels", "squared_error")
    assert copy.versions() == versions


def test_what_writes_the_record_of_a_run_bears_on_no_version(copy, versions):
    copy.replace("run/provenance.py", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d")
    copy.replace("run/record.py", '"status": "running"', '"status": "started"')
    assert copy.versions() == versions


def test_facts_of_the_catalogue_are_a_part_of_the_version(versions, monkeypatch):
    plan = load_plan(next(Path(capsbench.__file__).parents[1].glob("configs/quick.yaml")))
    run = plan.runs[0]
    before = training_version(run)
    monkeypatch.setitem(CATALOGUE, run.data.name, replace(run.data.facts, image_shape=(1, 20, 20)))
    assert training_version(run) != before


def test_a_name_that_stands_for_something_else_is_seen(copy, versions):
    copy.replace("run/train.py", "import math\n", "import cmath as math\n")
    assert changed(versions, copy.versions()) == EVERYTHING


def test_a_definition_is_followed_through_a_package_and_a_module_attribute():
    reached = module._reachable({("capsbench.models.capsnet", "CapsNet")})
    assert ("capsbench.routing.contract", "squash") in reached
    assert ("capsbench.layers.decoders", "DecoderSize") in reached
    assert not {name for name, _ in reached if name.startswith(("capsbench.run", "capsbench.study"))}


@pytest.mark.parametrize(
    "root",
    [
        "capsbench.analysis.tables:write_tables",
        "capsbench.analysis.plots:write_plots",
        "capsbench.analysis.report:write_report",
        "capsbench.data.prepare:prepare",
        "capsbench.run.train:train",
        "capsbench.evaluation:evaluate",
    ],
)
def test_what_the_workflow_asks_for_is_there(root):
    name, _, function = root.partition(":")
    assert callable(getattr(importlib.import_module(name), function))
    assert re.fullmatch("[0-9a-f]{16}", module.code_version(root))


def test_comments_in_a_yaml_file_are_not_its_content(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    versions = []
    for text in ("a: 1\n", "# why\na:   1\n", "a: 2\n"):
        (tmp_path / "x.yaml").write_text(text)
        versions.append(module.content_version("x.yaml"))
    assert versions[0] == versions[1] != versions[2]
