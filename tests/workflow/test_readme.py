"""The README's worked example, taken from the README."""

import re

import pytest
from conftest import ROOT, STUDY

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("title", "folder", "variant"),
    [("## Adding a variant", "models", "softmax_regression"), ("## Adding a routing", "routing", "cosine")],
)
def test_what_is_added_is_one_file_and_one_line_and_stands_in_the_table(project, title, folder, variant):
    section = README.split(title)[1].split("\n## ")[0]
    name = re.search(rf"`(capsbench/{folder}/\w+\.py)`", section)[1]
    source = re.search(r"```python\n(.*?)```", section, re.S)[1]
    assert len([line for line in source.splitlines() if line]) <= 20
    (project.path / name).write_text(source)
    project.write_study(STUDY + re.search(r"```yaml\n(.*?)```", section, re.S)[1])
    assert project.planned() == {"train": 2, "evaluate": 2, "tables": 1, "plots": 1, "study_report": 1, "all": 1}
    done = project.snakemake()
    assert done.returncode == 0, done.output
    table = (project.path / "results/tiny/tables/sabour-table1.md").read_text()
    rows = [row for row in table.splitlines() if variant in row]
    assert len(rows) == 2
    assert all("1 of 1" in row for row in rows)


def test_every_file_that_is_named_is_there():
    for name in re.findall(r"\]\(([\w/.-]+)\)", README):
        assert (ROOT / name).exists(), name
