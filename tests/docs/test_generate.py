"""docs/generate.py and docs/findings.py: each block on a made-up input, and known answers on the committed runs."""

import io
import json
import sys
import tarfile
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import findings  # noqa: E402
import generate  # noqa: E402

from capsbench.run.code_version import training_version  # noqa: E402
from capsbench.study import load_plan  # noqa: E402


def runs(errors, **columns):
    """Runs of one experiment on scikit-learn's digits, whose error of guessing is 90 %: variant -> errors by seed."""
    rows = [
        {"experiment": "digits", "data_set": "digits", "variant": variant, "seed": seed, "status": "ok",
         "model": "capsnet", "option.routing": "em", "unofficial": None, "parameters": 212_640,
         "test_error": error, **columns}
        for variant, values in errors.items()
        for seed, error in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture
def reference(tmp_path):
    """A made-up results/reference with the study tiny: variants a and b, three seeds each."""
    folder = tmp_path / "results/reference/tiny"
    (folder / "tables").mkdir(parents=True)
    runs({"a": [1.0, 2.0, 3.0], "b": [1.5, 2.5, 3.5]}).to_csv(folder / "runs.csv", index=False)
    (folder / "tables/first.md").write_text("| data |\n|---|\n| digits |\n")
    (folder / "bench.md").write_text("form and time\n")
    (folder / "study.yaml").write_text(
        "name: tiny\nseeds: [0]\nvariants: {caps: {model: capsnet}}\nexperiments:\n"
        "  one: {data: {name: mnist, train_images: 500, split: per_seed}}\n  two: {data: {name: smallnorb}}\n"
    )
    return tmp_path / "results/reference"


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(findings.SUMMARY, "tiny", {"method A": {"digits": "a"}, "method B": {"digits": "b"}})


# results


def test_summary_has_one_row_per_method_and_a_note(reference, tiny, monkeypatch):
    monkeypatch.setitem(findings.NOTES, "tiny", "A note.")
    assert generate.summary(reference, "tiny").splitlines() == [
        "| method | parameters | digits, error % |",
        "|---|---|---|",
        "| method A | 213K | 2.00 ± 1.00 |",
        "| method B | 213K | 2.50 ± 1.00 |",
        "",
        "A note.",
    ]


def test_the_main_summary_has_rows_and_a_note_of_its_own(reference, tiny, monkeypatch):
    monkeypatch.setitem(findings.MAIN, "tiny", {"A": {"digits": "a"}})
    monkeypatch.setitem(findings.NOTES, "tiny main", "Another note.")
    assert generate.summary(reference, "tiny", "main").splitlines()[2:] == [
        "| A | 213K | 2.00 ± 1.00 |",
        "",
        "Another note.",
    ]


def test_results_of_one_routing_and_of_a_network_without_runs(reference):
    assert (
        generate.results(reference, "tiny", "routing", "em").splitlines()[2] == "| digits | `a` | 2.00 ± 1.00 (n = 3) |"
    )
    assert "no results yet" in generate.results(reference, "tiny", "routing", "sparse")
    assert "no results yet" in generate.results(reference, "tiny", "model", "deepcaps")


def test_a_run_that_diverged_is_no_result_and_is_counted():
    frame = runs({"a": [1.0, 3.0]})
    frame.loc[1, ["status", "test_error"]] = ["diverged", None]
    assert findings.mean_and_std(frame) == "1.00 (n = 1 of 2)"


@pytest.mark.parametrize(
    ("unofficial", "title"),
    [
        (None, "digits"),
        ("digits (JPEG-75 copy): train.mat: md5 12, the official file has 34", "digits (JPEG-75 copy)"),
        ("train.mat: md5 12, the official file has 34", "digits, not the official files"),
    ],
)
def test_files_that_are_not_official_are_called_what_they_are(unofficial, title):
    assert findings.data_title(runs({"a": [1.0]}, unofficial=unofficial), "digits") == title


# the other blocks


def test_committed_files_are_copied(reference):
    assert generate.committed_table(reference, "tiny", "first") == "| data |\n|---|\n| digits |"
    assert generate.bench(reference, "tiny") == "form and time"


def test_a_card_is_shortened_to_its_facts_and_its_first_table(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/toys.md").write_text(
        "# toys\n\n![sheet](toys.png)\n\n- source: a shop\n"
        "- **not the official files**: copy (JPEG): one.mat: md5 12\n"
        "- **not the official files**: copy (JPEG): two.mat: md5 34\n\n"
        "Images:\n\n| split | images |\n|---|---|\n| train | 5 |\n\nMore:\n\n| other |\n|---|\n| 7 |\n"
    )
    assert generate.card(tmp_path, "toys").splitlines() == [
        "- source: a shop",
        "- **not the official files**: copy (JPEG)",
        "",
        "| split | images |",
        "|---|---|",
        "| train | 5 |",
    ]


def test_networks_and_data_sets_are_those_that_are_registered():
    from capsbench.registry import MODELS
    from capsbench.study import catalogue

    networks, data = generate.networks(Path()), generate.data(Path())
    assert [name for name in MODELS.names() if f"| `{name}` |" not in networks] == []
    assert [name for name in catalogue() if f"| `{name}` |" not in data] == []
    assert "| 8,215,568 |" in networks


# filling and checking


@pytest.fixture
def project(reference, tiny, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Tiny\n\n<!-- begin summary tiny -->\n<!-- end summary -->\n\nWords.\n")
    (tmp_path / "docs/page.md").write_text("<!-- begin table tiny first -->\n<!-- end table -->\n")
    assert generate.main(["--root", str(tmp_path)]) == 0
    return tmp_path


def test_a_fresh_page_is_left_alone_and_words_around_blocks_stay(project, capsys):
    text = (project / "README.md").read_text()
    assert "method A | 213K | 2.00 ± 1.00" in text
    assert text.startswith("# Tiny\n")
    assert text.endswith("\n\nWords.\n")
    capsys.readouterr()
    assert generate.main(["--root", str(project), "--check"]) == 0
    assert capsys.readouterr().out == ""


def test_check_finds_a_flipped_digit_and_changes_nothing(project, capsys):
    flipped = (project / "README.md").read_text().replace("2.50", "2.40")
    (project / "README.md").write_text(flipped)
    capsys.readouterr()
    assert generate.main(["--root", str(project), "--check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("README.md:3: summary tiny: is stale")
    assert (project / "README.md").read_text() == flipped
    assert generate.main(["--root", str(project)]) == 0
    assert "2.50" in (project / "README.md").read_text()


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("<!-- begin summary tiny -->\n", "1 blocks begin, 0 of them end"),
        ("<!-- begin summary tiny -->\n<!-- end table -->\n", "0 of them end"),
        ("<!-- begin nosuch tiny -->\n<!-- end nosuch -->\n", "docs/page.md:1: nosuch tiny: cannot be filled"),
        ("<!-- begin table tiny other -->\n<!-- end table -->\n", "table tiny other: cannot be filled: FileNotFound"),
        ("<!-- begin options routing nosuch -->\n<!-- end options -->\n", "no routing 'nosuch'"),
    ],
)
def test_a_block_that_cannot_be_filled_is_named_in_one_line(project, capsys, block, words):
    (project / "docs/page.md").write_text(block)
    capsys.readouterr()
    assert generate.main(["--root", str(project), "--check"]) == 2
    problem = capsys.readouterr().err.strip()
    assert words in problem
    assert len(problem.splitlines()) == 1


def test_all_blocks_of_the_repository_are_fresh(capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr()


# contrasts and what papers say


def test_contrasts_are_bold_where_their_interval_and_holm_leave_out_zero(reference):
    columns = "family,experiment,data_set,contrast,n,mean,low,high,p_holm,p_same,shows,unofficial,at_chance\n"
    (reference / "tiny/tables/contrasts.csv").write_text(
        columns
        + "a,one,mnist,x against y,5,-1.0,-1.5,-0.5,0.01,0.9,lower,,0\n"
        + "a,one,mnist,x against z,5,-1.0,-1.9,-0.1,0.06,0.9,not shown,,0\n"
        + "a,two,smallnorb,x against y,5,0.2,-0.5,0.9,0.9,0.9,no difference,smallNORB (JPEG-75 copy): a.mat: md5 1,0\n"
        + "b,one,mnist,s against t,5,0.1,-0.1,0.3,0.3,0.01,the same,,0\n"
        + "b,one,mnist,u against v,2,0.2,,,,0.9,too few seeds,,0\n"
    )
    text = generate.contrasts(reference, "tiny", "a")
    assert "| error of the first minus that of the second | MNIST | smallNORB (JPEG-75 copy) |" in text
    assert "| x against y | **−1.00 [−1.50, −0.50]** | +0.20 [−0.50, +0.90] |" in text
    assert "| x against z | −1.00 [−1.90, −0.10] |  |" in text
    assert "u against v" not in text
    assert (
        "about seeds: the choice of the test images is not in them, and the draw of the training images only for MNIST"
        in text
    )
    assert "≈" not in text
    assert "| s against t | ≈ +0.10 [−0.10, +0.30] |" in generate.contrasts(reference, "tiny", "b")
    assert "≈: the same error, within a tenth of the second's" in generate.contrasts(reference, "tiny", "b")
    assert "| u against v | too few seeds |  |" in generate.contrasts(reference, "tiny")
    with pytest.raises(ValueError, match="no family of contrasts c"):
        generate.contrasts(reference, "tiny", "c")


def test_commits_and_runs_of_this_code_are_counted(reference):
    study = reference / "tiny/study.yaml"
    one, two = load_plan(study).runs
    assert (one.key, two.key) == ("one/caps/seed0", "two/caps/seed0")
    versions = [training_version(one), "0123456789ab"]
    rows = pd.DataFrame({"key": [one.key, two.key], "status": "ok", "commit": ["12", "34"], "code": versions})
    rows.to_csv(reference / "tiny/runs.csv", index=False)
    (reference / "bench").mkdir()
    assert generate.commits(reference).splitlines()[2:] == ["| `tiny` | 2 | 1 | 2 |"]
    rows.assign(commit=["12", None], status=["ok", "missing"]).to_csv(reference / "tiny/runs.csv", index=False)
    assert generate.commits(reference).splitlines()[2:] == ["| `tiny` | 1 of 2 | 1 | 1 |"]
    rows.drop(columns="code").to_csv(reference / "tiny/runs.csv", index=False)
    assert generate.commits(reference).splitlines()[2:] == ["| `tiny` | 2 | 0 | 2 |"]


def test_errors_stand_seed_by_seed_with_their_range(reference, monkeypatch):
    keys = ("digits/a", "digits/b", "")
    monkeypatch.setitem(findings.BY_SEED, "tiny", (("first", "second", "third"), {"one": keys}))
    assert (
        generate.by_seed(reference, "tiny").splitlines()[2] == "| one | 1.0, 2.0, 3.0 (2.0) | 1.5, 2.5, 3.5 (2.0) |  |"
    )
    path = reference / "tiny/runs.csv"
    shuffled = pd.read_csv(path).iloc[::-1]
    shuffled.loc[(shuffled["variant"] == "b") & (shuffled["seed"] == 1), "status"] = "diverged"
    shuffled.to_csv(path, index=False)
    assert generate.by_seed(reference, "tiny").splitlines()[2] == "| one | 1.0, 2.0, 3.0 (2.0) | 1.5, -, 3.5 (2.0) |  |"
    monkeypatch.setitem(findings.BY_SEED, "tiny", (("first",), {"one": ("digits/c",)}))
    with pytest.raises(KeyError, match="no run of digits/c"):
        generate.by_seed(reference, "tiny")


def test_errors_on_held_out_images_are_those_of_the_last_epoch(reference):
    path = reference / "tiny/runs.csv"
    table = pd.read_csv(path)
    table.assign(key="digits/" + table["variant"] + "/seed" + table["seed"].astype(str)).to_csv(path, index=False)
    with tarfile.open(reference / "tiny/runs.tar.xz", "w:xz") as archive:
        for variant, start in (("b", 0.5), ("a", 0.75)):  # in another order than runs.csv
            for seed in (2, 0, 1):
                validated = start + seed / 100
                rows = [[1, 0.1, 0.2], [2, 0.9, validated]]
                text = pd.DataFrame(rows, columns=["epoch", "train_accuracy", "validation_accuracy"]).to_csv(
                    index=False
                )
                member = tarfile.TarInfo(f"digits/{variant}/seed{seed}/metrics.csv")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
                archive.addfile(tarfile.TarInfo(f"digits/{variant}/seed{seed}/run.yaml"), io.BytesIO())
    assert generate.held_out(reference, "tiny").splitlines()[2:] == [
        "| `a` | 10.0, 10.0, 10.0 | 25.0, 24.0, 23.0 | 24.0 |",
        "| `b` | 10.0, 10.0, 10.0 | 50.0, 49.0, 48.0 | 49.0 |",
    ]


def test_lost_classes_are_those_of_which_a_fourth_or_more_is_wrong(reference):
    path = reference / "tiny/runs.csv"
    table = pd.read_csv(path)
    table.assign(key="digits/" + table["variant"] + "/seed" + table["seed"].astype(str)).to_csv(path, index=False)
    whole = [[4, 0], [0, 4]]
    found = {
        "a": {0: [[4, 0], [2, 2]], 1: [[3, 1], [0, 4]], 2: [[76, 24], [0, 4]]},
        "b": dict.fromkeys(range(3), whole),
    }
    measures = {
        f"digits/{variant}/seed{seed}": {"confusion": {"classes": ["zero", "one"], "matrix": matrix}}
        for variant, seeds in found.items()
        for seed, matrix in seeds.items()
    }
    (reference / "tiny/measures.json").write_text(json.dumps(measures))
    rows = [row.split(" | ") for row in generate.lost_classes(reference, "tiny").splitlines()[2:]]
    assert [row[:3] for row in rows] == [
        ["| `a`", "2 of 3", "seed 0: one (50); seed 1: zero (25)"],
        ["| `b`", "0 of 3", ""],
    ]


def test_effects_are_said_where_they_hold_and_the_others_are_listed(reference):
    columns = "family,experiment,data_set,contrast,n,mean,low,high,p_holm,p_same,shows,unofficial,stuck,at_chance\n"
    (reference / "tiny/tables/contrasts.csv").write_text(
        columns
        + "a,one,digits,worse on both,5,1.0,0.5,1.5,0.01,0.9,higher,,,0\n"
        + "a,two,mnist,worse on both,5,0.3,0.2,0.4,0.01,0.9,higher,,,0\n"
        + "a,one,digits,better on one,5,-1.0,-1.5,-0.5,0.01,0.9,lower,,,0\n"
        + "a,two,mnist,better on one,5,0.3,-0.2,0.8,0.4,0.9,no difference,,,0\n"
        + "a,one,digits,turned,5,-1.0,-1.5,-0.5,0.01,0.9,lower,,,0\n"
        + "a,two,mnist,turned,5,0.3,0.2,0.4,0.01,0.9,higher,,,0\n"
        + "a,one,digits,after Holm,5,-1.0,-1.9,-0.1,0.06,0.9,not shown,,,0\n"
        + "a,one,digits,at chance,5,50.0,49.0,51.0,0.01,0.9,higher,,x stayed at chance,5\n"
        + "a,one,digits,equal,5,0.0,,,,0.9,equal in every seed,,,0\n"
        + "a,one,digits,small,5,0.1,-0.1,0.3,0.3,0.01,the same,,,0\n"
        + "a,two,mnist,small,5,0.1,0.05,0.15,0.07,0.9,not shown,,,0\n"
        + "a,one,digits,two seeds,2,0.2,,,,0.9,too few seeds,,,0\n"
    )
    text = generate.effects(reference, "tiny")
    assert text.startswith("**7 options, 5 seeds on handwritten digits of scikit-learn and MNIST.**"), text
    higher, lower, turned, same, none = (part.splitlines() for part in text.split(":\n\n")[1:])
    digits = "on handwritten digits of scikit-learn"
    assert higher[:-2] == [f"- worse on both: +1.00 [+0.50, +1.50] {digits}, +0.30 [+0.20, +0.40] on MNIST"]
    assert lower[:-2] == [f"- better on one: −1.00 [−1.50, −0.50] {digits}; undecided on MNIST"]
    assert turned[:-2] == [f"- turned: −1.00 [−1.50, −0.50] {digits}, +0.30 [+0.20, +0.40] on MNIST"]
    assert same[:-2] == [f"- small: the same {digits}; undecided on MNIST"]
    assert none == ["- after Holm", "- at chance", "- equal"]


def test_what_papers_say_stands_beside_the_default(reference):
    text = generate.disputed(reference, "loss")
    assert "| `spread` | `schedule` | `linear` | linear, 0.2 to 0.9 during training | sigmoid" in text
    training = generate.disputed(reference, "training")
    assert "| training | `steps` | `300000` |" in training
    stereo = generate.disputed(reference, "data")
    assert stereo.count("`crop_offsets`") == 1  # of both data sets that have it
    with pytest.raises(ValueError, match="no option of 'decoder'"):
        generate.disputed(reference, "decoder")


def test_every_option_that_papers_disagree_on_is_on_the_page():
    page = (ROOT / "docs/protocols.md").read_text()
    for option in (
        "competition",
        "initialisation",
        "resize",
        "augment",
        "base_shift",
        "beta_a",
        "match",
        "l2",
        "leaky",
    ):
        assert f"| `{option}` |" in page
