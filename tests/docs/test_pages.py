"""Links and examples of README.md and docs/: they must not outlive what they speak of."""

import re
from pathlib import Path

import pytest
import yaml

from capsbench.study import load_plan

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
DIGITS = "experiments: {digits: {data: {name: digits}}}\n"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fences(page: Path, language: str) -> list[str]:
    return [code for found, code in FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def as_study(fence: str) -> str | None:
    """Complete a part of a study to a whole one; None for YAML that is no part of a study."""
    keys = list(yaml.safe_load(fence))
    if keys == ["variants"]:
        return f"name: part\nseeds: [0]\n{DIGITS}{fence}"
    if keys == ["options"]:
        return f"name: part\nseeds: [0]\n{DIGITS}variants:\n  v:\n    model: capsnet\n" + indented(fence, 4)
    if keys == ["data"]:
        return "name: part\nseeds: [0]\nvariants: {v: {model: resnet20}}\nexperiments:\n  e:\n" + indented(fence, 4)
    return fence if "experiments" in keys else None


def indented(text: str, spaces: int) -> str:
    return "".join(" " * spaces + line for line in text.splitlines(keepends=True))


# the lines that docs/extending.md adds to a study name what the reader has added: tests/workflow runs them
STUDIES = [
    pytest.param(study, id=f"{name_of(page)}-{number}")
    for page in PAGES
    if page.name != "extending.md"
    for number, fence in enumerate(fences(page, "yaml"))
    if (study := as_study(fence)) is not None
]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    relative = [link for link in links if link and not re.match(r"[a-z]+:", link)]
    assert [link for link in relative if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_in_the_docs_loads(tmp_path, study):
    path = tmp_path / "study.yaml"
    path.write_text(study)
    assert load_plan(path).runs


def test_the_page_on_studies_shows_whole_ones():
    whole = [fence for fence in fences(ROOT / "docs/studies.md", "yaml") if "experiments" in yaml.safe_load(fence)]
    assert len(whole) >= 2


def test_names_of_variants_are_as_the_page_on_studies_says(tmp_path):
    page = ROOT / "docs/studies.md"
    path = tmp_path / "study.yaml"
    path.write_text(next(fence for fence in fences(page, "yaml") if "name: grid" in fence))
    runs = load_plan(path).runs
    text = page.read_text(encoding="utf-8")
    named = {run.variant: run.label for run in runs}
    for variant in ("capsnet-iterations1-no_decoder-gradient_clip1.0", "control-random"):
        assert variant in named
        assert f"`{variant}`" in text
    assert f"`{named['control-random']}`" in text


@pytest.mark.parametrize(
    ("heading", "file"),
    [
        ("## Adding a network", "capsbench/models/softmax_regression.py"),
        ("## Adding a routing", "capsbench/routing/cosine.py"),
    ],
)
def test_an_example_is_one_short_file_and_the_same_wherever_it_is_shown(heading, file):
    shown = []
    for page in (ROOT / "docs/extending.md", ROOT / "README.md"):
        section = (page.read_text(encoding="utf-8") + "\n").split(f"{heading}\n")[1].split("\n## ")[0]
        before, code = section.split("```python\n")[0], section.split("```python\n")[1].split("```")[0]
        assert f"`{file}`" in before
        assert len(code.splitlines()) <= 35
        assert len([line for line in code.splitlines() if line]) <= 30
        shown.append(code)
    assert shown[0] == shown[1]
