import json
import re
from pathlib import Path

from small_project import KEYS, STUDY

from capsbench.cli import main
from capsbench.errors import InputError


def test_models_counts_one_network_for_the_images_that_are_asked_for(capsys):
    assert main(["models", "resnet20", "--image-shape", "1x28x28", "--classes", "7"]) == 0
    assert re.search(r"\| 1x28x28 +\| +7 \| +269,239 \|", capsys.readouterr().out)


def test_config_show_lists_the_runs_and_what_they_cost(capsys):
    assert main(["config", "show", "small"]) == 0
    *listed, blank, heading, costs, hours, _, seeds, few = capsys.readouterr().out.splitlines()
    assert ("seeds can show" in seeds, "2 seeds give no interval" in few) == (True, True)
    assert listed == [*KEYS, "4 runs: 2 cells x 2 seeds"]
    assert (blank, heading.split()) == ("", ["table", "runs", "images"])
    assert costs.split()[:2] == ["sabour-table1", "4"]
    assert "capsbench bench networks configs/small.yaml" in hours


def test_config_show_lists_the_cells_of_a_large_study(capsys):
    Path("configs/small.yaml").write_text(STUDY.replace("[0, 1]", str(list(range(51)))))
    assert main(["config", "show", "small"]) == 0
    cells = capsys.readouterr().out.splitlines()
    assert cells[:2] == ["digits/capsnet-iterations1", "digits/capsnet-iterations3"]
    assert cells[2].startswith("102 runs: 2 cells x 51 seeds (0, 1, 2, ")
    assert "--runs" in cells[2]
    assert main(["config", "show", "small", "--runs"]) == 0
    runs = capsys.readouterr().out.splitlines()
    assert runs[50] == "digits/capsnet-iterations1/seed50"
    assert runs[102].startswith("102 runs: 2 cells x 51 seeds")
    assert main(["config", "show", "small", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 102


TINY = "{model: capsnet, options: {conv_channels: 4, primary_types: 1, decoder: null}, grid"


def test_the_speeds_that_bench_measures_are_the_hours_that_config_show_names(capsys):
    Path("configs/small.yaml").write_text(STUDY.replace("{model: capsnet, grid", TINY))
    for _ in range(2):  # the second call replaces what the first one wrote
        speeds = "results/reference/speeds.csv"
        assert main(["bench", "networks", "small", "--steps", "1", "--device", "cpu", "--output", speeds]) == 0
    assert capsys.readouterr().out.count("images/s") == 4
    assert Path(speeds).read_text().count("capsnet-iterations") == 2
    assert main(["config", "show", "small"]) == 0
    *_, heading, costs, hours, _, _, _ = capsys.readouterr().out.splitlines()
    assert heading.split()[-1] == "hours"
    assert float(costs.split()[-1].replace(",", "")) > 0
    assert ("cores" in hours, "speeds.csv" in hours) == (True, True)


def test_bench_routing_times_the_forms_of_dynamic_routing(capsys):
    given = ["--batch", "1", "--inputs", "4", "--repeats", "1", "--output", "there/bench.md"]
    assert main(["bench", "routing", *given]) == 0
    assert "linear_dynamic_routing" in capsys.readouterr().out
    assert "batch 1, 4 x 8 -> 10 x 16" in Path("there/bench.md").read_text()


def test_bench_routing_is_at_the_size_of_the_paper(monkeypatch):
    from capsbench.benchmarks import routing

    sizes = []

    def refuse(*given):
        sizes.append(given)
        raise InputError("enough is known")

    monkeypatch.setattr(routing, "routing_benchmark", refuse)
    assert main(["bench", "routing"]) == 2
    assert sizes[0][:5] == (64, 1152, 10, 3, 20)


def test_config_show_json_holds_what_decides_each_run(capsys):
    assert main(["config", "show", "configs/small.yaml", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)
    iterations = [(run["options"]["routing"]["iterations"], run["seed"]) for run in runs]
    assert iterations == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert runs[0]["training"]["steps"] == 300_000


def test_config_schema_is_a_json_schema(capsys):
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"name", "seeds", "experiments", "variants"} <= set(schema["required"])


def test_data_fetch_counts_and_says_where(capsys):
    assert main(["data", "fetch", "digits"]) == 0
    line = capsys.readouterr().out
    assert [
        word for word in ("digits: ", "training and ", "test images", "checked", "embedded") if word not in line
    ] == []


def test_data_prepare_writes_counts_and_fingerprints(capsys):
    assert main(["data", "prepare", "small", "digits", "--manifest", "there/digits.json"]) == 0
    counts = json.loads(Path("there/digits.json").read_text())
    assert f"{counts['train']['images']:,} training" in capsys.readouterr().out


def test_data_clean_lists_and_removes_entries_of_the_cache_and_nothing_else(capsys, project, monkeypatch):
    there = project / "cache"
    monkeypatch.setenv("CAPSBENCH_CACHE", str(there))
    entry = there / f"toynorb-train-6-{'0123456789abcdef'}"
    entry.mkdir(parents=True)
    (entry / "images.npy").write_bytes(bytes(2_500_000))
    (there / "mine").mkdir()
    for option, words in (("--dry-run", "1 entry, 2.5 MB, would be removed"), (None, "1 entry, 2.5 MB, removed")):
        assert main(["data", "clean", *filter(None, [option])]) == 0
        first, last = capsys.readouterr().out.splitlines()
        assert first == f"{entry.name}: 2.5 MB"
        assert last == f"{there}: {words}"
        assert entry.exists() == (option is not None)
    assert main(["data", "clean"]) == 0
    assert capsys.readouterr().out == f"{there}: 0 entries, 0.0 MB, removed\n"
    assert [path.name for path in there.iterdir() if path.is_dir()] == ["mine"]


def test_data_clean_says_what_may_not_be_read(capsys, project, monkeypatch):
    (project / "file").touch()
    monkeypatch.setenv("CAPSBENCH_CACHE", str(project / "file"))
    assert main(["data", "clean"]) == 2
    assert f"{project / 'file'}: Not a directory" in capsys.readouterr().err


def test_tables_of_a_study_that_has_not_run_have_dashes(capsys):
    Path("elsewhere").mkdir()  # a folder that was named and is not there is refused
    assert main(["tables", "small", "--results", "elsewhere"]) == 0
    written = Path("elsewhere/small/tables/sabour-table1.md").read_text()
    assert written.count(" not run ") == 2
    assert written.count(" 0 of 2 ") == 2
    said = capsys.readouterr().out
    assert "sabour-table1.md" in said
    assert "0 of 4 runs have a result" in said
    assert Path("elsewhere/small/runs.csv").read_text().count(",missing,") == 4
