"""The command line: one sub-command a stage, parsing only. Heavy packages load when their command runs."""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from capsbench import __version__
from capsbench.errors import InputError, RunError

Command = Callable[[argparse.Namespace, Callable[[str], None]], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command -> exit code: 0, 1 for a failed run, 2 for bad input, 130 for Ctrl-C."""
    args = _parser().parse_args(arguments)
    say = _speaker(None)
    try:
        say = _speaker(args.log)
        args.command(args, say)
    except BrokenPipeError:  # `capsbench ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (InputError, RunError, OSError) as error:
        if args.debug:
            traceback.print_exc()
        say(f"capsbench: {error}", sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except Exception as error:  # a fault of our own: one line for people, the traceback for who asks for it
        if args.debug:
            traceback.print_exc()
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        say(f"capsbench: {problem} (a fault in capsbench? --debug shows where)", sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("capsbench: interrupted; the same command goes on where this one was", sys.stderr)
        return 130
    return 0


def _config_show(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    plan = load_study(args.study)
    if args.json:
        say(json.dumps([run.model_dump(mode="json") for run in plan.runs], indent=2))
        return

    from capsbench.inventory import check_networks

    for experiment in plan.study.experiments:
        check_networks(plan, experiment)
    for run in plan.runs:
        say(run.key)
    say(f"{len(plan.runs)} runs: {len(plan.runs) // len(plan.study.seeds)} cells x {len(plan.study.seeds)} seeds")


def _config_schema(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    from capsbench.config import Study

    say(json.dumps(Study.model_json_schema(), indent=2))


def _models(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    from capsbench.options import model_names

    if args.name is not None and args.name not in model_names():
        raise InputError(_no_such("model", args.name, model_names()))

    from capsbench.inventory import overview, page

    if args.name is None:
        say(overview(args.image_shape, args.classes))
    else:
        say(page(args.name, args.image_shape, args.classes))


def _data_fetch(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    from capsbench import data
    from capsbench.data.catalogue import CATALOGUE
    from capsbench.data.prepare import prepare

    _check_data_set(args.name, "all")
    problems = []
    for name in CATALOGUE if args.name == "all" else [args.name]:
        try:
            facts = prepare(_whole(name, args.allow_unofficial), data.data_root())
        except InputError as error:
            problems.append(name)
            if args.name != "all":
                raise
            say(f"{name}: {error}", sys.stderr)  # type: ignore[call-arg]
            continue
        places = " and ".join(str(data.data_root() / folder) for folder in CATALOGUE[name].folders)
        place = f"in {places}" if CATALOGUE[name].needs_files else "embedded"
        counts = f"{facts['train']['images']:,} training and {facts['test']['images']:,} test images"
        say(f"{name}: {counts}, checked, {place}")
        for line in facts["unofficial"]:
            say(f"{name}: not official: {line}")
    if problems:
        raise InputError(f"not there: {', '.join(problems)}")


def _data_prepare(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    plan = load_study(args.study)
    if args.experiment not in plan.study.experiments:
        raise InputError(
            f"{plan.path} has no experiment '{args.experiment}'; it has {', '.join(plan.study.experiments)}"
        )

    from capsbench import data
    from capsbench.data.prepare import prepare
    from capsbench.inventory import check_networks
    from capsbench.run_folder import write_json

    check_networks(plan, args.experiment)
    facts = prepare(plan.study.experiments[args.experiment].data, data.data_root())
    say(f"{args.experiment}: {facts['train']['images']:,} training and {facts['test']['images']:,} test images")
    for line in facts["unofficial"]:
        say(f"{args.experiment}: not official: {line}")
    if args.manifest:
        write_json(args.manifest, facts)


def _data_card(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    _check_data_set(args.name)

    from capsbench import data
    from capsbench.data.card import write_card

    paths = write_card(_whole(args.name, args.allow_unofficial), data.data_root(), args.output)
    say(paths[0].read_text(encoding="utf-8"))
    for path in paths:
        say(str(path))


def _check_data_set(name: str, *more: str) -> None:
    from capsbench.data.catalogue import CATALOGUE

    if name not in (*CATALOGUE, *more):
        raise InputError(_no_such("data set", name, [*CATALOGUE, *more]))


def _no_such(kind: str, name: str, there: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, there, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no {kind} '{name}'; {hint}there are {', '.join(there)}"


def _whole(name: str, allow_unofficial: bool) -> Any:
    """Return a data set as a study has it that says nothing but its name."""
    from pydantic import TypeAdapter

    from capsbench.config import Data

    return TypeAdapter(Data).validate_python({"name": name, "allow_unofficial": allow_unofficial})


def _train(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    plan = load_study(args.study)
    run = _find(plan, args.run)

    from capsbench import data
    from capsbench.training import train

    train(
        run,
        args.results,
        data.data_root(),
        tracking=plan.study.tracking,
        say=say,
        runs_in_study=len(plan.runs),
        again=args.again,
    )


def _evaluate(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    plan = load_study(args.study)
    run = _find(plan, args.run)

    from capsbench import data
    from capsbench.evaluation import evaluate

    found = evaluate(run, args.results, data.data_root(), plan.study.evaluations)
    accuracy = found["accuracy"]
    text = f"test error {accuracy['error']:.2f} %" if accuracy["status"] == "ok" else accuracy["status"]
    say(f"{run.key}  {text}")


def _track(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    from capsbench.tracking import store_uri, track_study

    plan = load_study(args.study)
    try:
        counts = track_study(plan, args.results)
    except Exception as error:  # any store, any failure: one line
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        uri = store_uri(args.results)
        hint = "; if the file is damaged, move it away and run this again" if uri.startswith("sqlite") else ""
        raise RunError(f"the MLflow store {uri} fails: {first[:300]}{hint}") from error
    said = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    say(f"{store_uri(args.results)}: {said}")


def _tables(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    from capsbench.analysis.collect import collect, write_runs
    from capsbench.analysis.tables import caption, paper_table, write_table

    plan = load_study(args.study)
    folder = args.results / plan.study.name
    runs = collect(plan, args.results)
    write_runs(runs, folder / "runs.csv")
    for name in plan.tables:
        paths = write_table(paper_table(name, plan, runs), name, folder / "tables", caption(name, plan))
        say(f"{name}: {', '.join(map(str, paths))}\n")
        say(paths[1].read_text(encoding="utf-8"))


def _plots(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    from capsbench.analysis.plots import write_plots

    plan = load_study(args.study)
    for path in write_plots(plan, args.results, args.results / plan.study.name / "plots"):
        say(str(path))


def _report(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    from capsbench.analysis.collect import collect
    from capsbench.analysis.report import write_report

    plan = load_study(args.study)
    say(str(write_report(plan, args.results, collect(plan, args.results))))


def _reference(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    from capsbench.analysis.collect import collect
    from capsbench.analysis.reference import write_reference

    plan = load_study(args.study)
    target = args.results / "reference" / plan.study.name
    write_reference(plan, args.results, collect(plan, args.results), target)
    say(f"{target}: tables, plots, runs.csv, study.yaml, provenance.yaml")


def _bench(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    from capsbench.benchmark import benchmark_title, routing_benchmark
    from capsbench.run_folder import write_whole

    shape = (args.batch, args.inputs, args.outputs, args.iterations)
    frame = routing_benchmark(*shape, args.repeats, args.threads, args.device)
    text = f"{benchmark_title(*shape, args.threads, args.device)}\n\n{frame.to_markdown(floatfmt='.3g')}"
    say(text)
    if args.output:
        write_whole(args.output, lambda aside: aside.write_text(text + "\n", encoding="utf-8"))


def load_study(study: str) -> Any:
    """Load a study by path, or by name from configs/. Raises InputError."""
    from capsbench.config import load_plan

    path = Path(study)
    if path.suffix not in (".yaml", ".yml"):
        path = Path("configs") / f"{study}.yaml"
        if not path.exists():
            there = ", ".join(sorted(p.stem for p in Path("configs").glob("*.yaml"))) or "none"
            raise InputError(f"no study '{study}': give a path to a .yaml file or a name in configs/ ({there})")
    return load_plan(path)


def _find(plan: Any, key: str) -> Any:
    try:
        return plan.run(key)
    except KeyError:
        import difflib

        near = difflib.get_close_matches(key, [r.key for r in plan.runs], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(
            f"{plan.path} has no run '{key}'; {hint}'capsbench config show {plan.path}' lists them"
        ) from None


def _speaker(log: Path | None) -> Callable[..., None]:
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)

    def say(text: str, stream: Any = None) -> None:
        print(text, file=stream or sys.stdout, flush=True)
        if log is not None:
            with log.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    return say


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any):
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; '{self.prog} --help' says what there is\n")


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show tracebacks")
    common.add_argument("--log", type=Path, metavar="FILE", help="add all messages to this file too")
    results = argparse.ArgumentParser(add_help=False)
    results.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="folder of results (default: results)",
    )

    parser = _Parser(prog="capsbench", description="Reproducible benchmark and ablation studies of capsule networks.")
    parser.add_argument("--version", action="version", version=f"capsbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def add(
        group: Any,
        name: str,
        command: Command,
        text: str,
        *arguments: tuple[str, dict[str, Any]],
        writes: bool = True,
    ) -> None:
        parents = [common, results] if writes else [common]
        made = group.add_parser(name, help=text, description=text, parents=parents)
        made.set_defaults(command=command)
        for argument, options in arguments:
            made.add_argument(argument, **options)

    study = ("study", {"metavar": "STUDY", "help": "a study file, or the name of one in configs/"})
    run = (
        "run",
        {"metavar": "RUN", "help": "EXPERIMENT/VARIANT/seedN, as 'capsbench config show' lists them"},
    )

    config = commands.add_parser("config", help="check a study, list its runs, print the schema")
    config_commands = config.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    as_json = ("--json", {"action": "store_true", "help": "everything that decides each run"})
    add(
        config_commands,
        "show",
        _config_show,
        "Check a study and list its runs.",
        study,
        as_json,
        writes=False,
    )
    add(config_commands, "schema", _config_schema, "Print the JSON schema of study files.", writes=False)

    models_text = "List the networks: paper, parameters, multiply-adds, options; of one, everything."
    add(
        commands, "models", _models, models_text,
        ("name", {"metavar": "NAME", "nargs": "?", "help": "one network: its options with types, its routings"}),
        ("--image-shape", {"type": _shape, "metavar": "CxHxW", "help": "count for such images; default: the paper's"}),
        ("--classes", {"type": _positive, "metavar": "K", "help": "count for so many classes; default: the paper's"}),
        writes=False,
    )  # fmt: skip

    data = commands.add_parser("data", help="fetch and check raw data, show what is in it")
    data_commands = data.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    unofficial = ("--allow-unofficial", {"action": "store_true", "help": "take files whose checksum is another"})
    fetch_text = "Download what is missing into CAPSBENCH_DATA (default: data/) and check every byte."
    name_or_all = ("name", {"metavar": "NAME", "help": "a data set, or all"})
    add(data_commands, "fetch", _data_fetch, fetch_text, name_or_all, unofficial, writes=False)
    add(
        data_commands, "prepare", _data_prepare,
        "Fetch and check the data of an experiment; see that its networks can be built.", study,
        ("experiment", {"metavar": "EXPERIMENT"}),
        ("--manifest", {"type": Path, "metavar": "FILE", "help": "write counts and fingerprints to FILE"}),
        writes=False,
    )  # fmt: skip
    card_text = "Describe a data set: source, licence, counts, fingerprint, a contact sheet."
    output = (
        "--output",
        {"type": Path, "metavar": "DIR", "default": Path("results/data"), "help": "folder of the card"},
    )
    add(data_commands, "card", _data_card, card_text, ("name", {"metavar": "NAME"}), unofficial, output, writes=False)

    again = ("--again", {"action": "store_true", "help": "train a finished run afresh"})
    add(commands, "train", _train, "Train one run, going on from its checkpoint if there is one.", study, run, again)
    add(commands, "evaluate", _evaluate, "Evaluate a trained run on the test set.", study, run)
    add(commands, "track", _track, "Bring the MLflow store up to date with the run folders.", study)
    add(commands, "tables", _tables, "Rebuild the tables from the runs that exist; no training.", study)
    add(commands, "plots", _plots, "Rebuild the plots from the runs that exist; no training.", study)
    add(commands, "report", _report, "Rebuild report.html from tables, plots and provenance.", study)
    add(commands, "reference", _reference, "Write results/reference/NAME from a finished study.", study)
    add(
        commands, "bench", _bench, "Time routing, forms side by side.",
        ("--batch", {"type": _positive, "default": 64}), ("--inputs", {"type": _positive, "default": 1152}),
        ("--outputs", {"type": _positive, "default": 10}), ("--iterations", {"type": _positive, "default": 3}),
        ("--repeats", {"type": _positive, "default": 20}),
        ("--threads", {"type": _positive, "default": os.cpu_count()}),
        ("--device", {"choices": ["cpu", "cuda"], "default": "cpu"}),
        ("--output", {"type": Path, "metavar": "FILE", "help": "write the table to FILE too"}), writes=False,
    )  # fmt: skip
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive whole number")
    return int(text)


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split("x")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"'{text}' is not channels x height x width, as 1x28x28")
    return tuple(map(int, sizes))


if __name__ == "__main__":
    sys.exit(main())
