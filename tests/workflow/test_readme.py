"""The worked examples of README.md and docs/extending.md: one file and one line each, and they are in the tables."""

import re

import pytest
from projects import ROOT, STUDY

LINES = {
    "softmax_regression": "  softmax_regression: {model: softmax_regression, grid: {dropout: [0.0, 0.2]}}\n",
    "cosine": "  cosine: {model: capsnet, options: {conv_channels: 4, primary_types: 1, routing: cosine},"
    " grid: {routing.sharpness: [1.0, 5.0]}}\n",
}
LIMITS = {
    "softmax_regression": ("[0.0, 0.2]", "[0.0, 1.0]", "dropout"),
    "cosine": ("[1.0, 5.0]", "[1.0, 0.0]", "sharpness"),
}


def example(page: str, folder: str) -> tuple[str, str]:
    """Return the path and the source of the file that a page adds to a folder of the package."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(rf"`(capsbench/{folder}/\w+\.py)`.*?```python\n(.*?)```", text, re.S)
    assert found, f"{page} adds no file to capsbench/{folder}"
    return found[1], found[2]


@pytest.mark.parametrize("folder", ["models", "routing"])
def test_both_pages_add_the_same_file(folder):
    assert example("README.md", folder) == example("docs/extending.md", folder)


@pytest.mark.slow
def test_what_is_added_is_one_file_and_one_line_and_is_in_the_table(project):
    project.with_package()
    for folder in ("models", "routing"):
        path, source = example("docs/extending.md", folder)
        assert len([line for line in source.splitlines() if line]) <= 30
        (project.path / path).write_text(source)
    project.write_study(STUDY + "".join(LINES.values()))
    assert project.planned() == {"train": 4, "evaluate": 4, "tables": 1, "plots": 1, "study_report": 1, "all": 1}
    done = project.snakemake()
    assert done.returncode == 0, done.output
    table = (project.path / "results/tiny/tables/sabour-table1.md").read_text().splitlines()
    for name in LINES:
        rows = [row for row in table if row.startswith("|") and (name in row or name.replace("_", " ") in row)]
        assert len(rows) == 2
        assert all("1 of 1" in row for row in rows)

    for name, (old, new, option) in LIMITS.items():  # a value beyond its limit stops the study in one line
        project.write_study(STUDY + LINES[name].replace(old, new))
        done = project.snakemake("--dry-run")
        assert done.returncode == 1
        assert f"{option}: " in done.output
        assert "Traceback" not in done.output
