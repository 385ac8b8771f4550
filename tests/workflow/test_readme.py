"""The README's worked example, taken from the README."""

import re

from conftest import ROOT, STUDY

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.split("## Adding a variant")[1].split("\n## ")[0]


def test_a_variant_is_one_file_and_one_line_and_stands_in_the_table(project):
    name = re.search(r"`(capsbench/models/\w+\.py)`", SECTION)[1]
    (project.path / name).write_text(re.search(r"```python\n(.*?)```", SECTION, re.S)[1])
    project.write_study(STUDY + re.search(r"```yaml\n(.*?)```", SECTION, re.S)[1])
    assert project.planned() == {"train": 2, "evaluate": 2, "tables": 1, "plots": 1, "study_report": 1, "all": 1}
    done = project.snakemake()
    assert done.returncode == 0, done.output
    table = (project.path / "results/tiny/tables/sabour-table1.md").read_text()
    rows = [row for row in table.splitlines() if "softmax_regression" in row]
    assert len(rows) == 2
    assert all("1 of 1" in row for row in rows)


def test_every_file_that_is_named_is_there():
    for name in re.findall(r"\]\(([\w/.-]+)\)", README):
        assert (ROOT / name).exists(), name
