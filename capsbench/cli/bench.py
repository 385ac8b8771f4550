"""The commands that measure speed and memory on this machine."""

import logging
import os
from pathlib import Path
from typing import Any, Literal

import click

from capsbench import load_study
from capsbench.cli.messages import GroupWithDefault
from capsbench.cli.options import PATH, common_options, count_option, study_argument
from capsbench.errors import RunError

log = logging.getLogger("capsbench.cli")

MOST_THREADS = 1024  # as in a study


@click.group("bench", cls=GroupWithDefault, default="all")
def bench() -> None:
    """Time routing, networks, batches and start-up.

    Without COMMAND: all.

    Example: capsbench bench networks quick
    """


@bench.command("all")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Device (default: cpu).")
@count_option("--threads", min(os.cpu_count() or 1, MOST_THREADS), "CPU threads", most=MOST_THREADS)
@count_option("--rounds", 10, "Timed rounds at the most")
@count_option("--minutes", 7, "Begin no round that would end later")
@click.option("--quick", is_flag=True, help="Small sizes and two rounds, to see that it works.")
@click.option(
    "--output",
    type=PATH,
    default=Path("results/bench"),
    metavar="DIR",
    help="Write bench.csv, .md, .png and .svg there (default: results/bench).",
)
@click.option("--against", type=PATH, metavar="FILE", help="Fail where something is slower than in this bench.csv.")
@common_options
def bench_all(device: str, output: Path, against: Path | None, quick: bool, **limits: Any) -> None:
    """Time everything in turns, and draw how routing grows.

    Example: capsbench bench all --device cuda
    """
    from capsbench.analysis.plots.files import save_figure
    from capsbench.analysis.plots.growth import plot_growth
    from capsbench.benchmarks.everything import (
        FULL,
        QUICK,
        check_comparable,
        measure_everything,
        read_everything,
        slower_than_before,
    )
    from capsbench.benchmarks.summary import as_page
    from capsbench.run.folder import write_whole

    before = read_everything(against) if against else None  # refuses another file before anything is measured
    if before is not None:
        check_comparable(before, device, limits["threads"])
    rounds = min(2, limits["rounds"]) if quick else limits["rounds"]
    frame = measure_everything(
        QUICK if quick else FULL[device], device, limits["threads"], rounds, 60 * limits["minutes"]
    )
    page = as_page(frame)
    log.info(page)
    write_whole(output / "bench.csv", lambda aside: frame.to_csv(aside, index=False, float_format="%.4g"))
    write_whole(output / "bench.md", lambda aside: aside.write_text(page, encoding="utf-8"))
    save_figure(plot_growth(frame), output, "bench")
    log.info(f"{output}: bench.csv, bench.md, bench.png, bench.svg")
    _refuse_slower([] if before is None else slower_than_before(frame, before), against)


@bench.command("routing")
@count_option("--batch", 64, "Images per batch")
@count_option("--inputs", 1152, "Input capsules")
@count_option("--outputs", 10, "Output capsules")
@count_option("--iterations", 3, "Routing iterations")
@count_option("--repeats", 20, "Timed repetitions")
@count_option("--threads", min(os.cpu_count() or 1, MOST_THREADS), "CPU threads", most=MOST_THREADS)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Device (default: cpu).")
@click.option("--output", type=PATH, metavar="FILE", help="Write the table to FILE too.")
@common_options
def bench_routing(device: str, output: Path | None, **sizes: Any) -> None:
    """Time routing, its forms side by side.

    Example: capsbench bench routing --batch 8 --repeats 3
    """
    from capsbench.benchmarks.routing import benchmark_title, routing_benchmark
    from capsbench.run.folder import write_whole

    shape = sizes["batch"], sizes["inputs"], sizes["outputs"], sizes["iterations"]
    frame = routing_benchmark(*shape, sizes["repeats"], sizes["threads"], device)
    text = f"{benchmark_title(*shape, sizes['threads'], device)}\n\n{frame.to_markdown(floatfmt='.3g')}"
    log.info(text)
    if output:
        write_whole(output, lambda aside: aside.write_text(text + "\n", encoding="utf-8"))


@bench.command("routings")
@count_option("--batch", 64, "Images per batch")
@count_option("--inputs", 1152, "Input capsules")
@count_option("--outputs", 10, "Output capsules")
@count_option("--repeats", 10, "Timed rounds")
@count_option("--threads", min(os.cpu_count() or 1, MOST_THREADS), "CPU threads", most=MOST_THREADS)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Device (default: cpu).")
@click.option("--output", type=PATH, metavar="FILE", help="Write the table to FILE too, as csv.")
@click.option("--against", type=PATH, metavar="FILE", help="Fail where a routing is slower than in this csv.")
@common_options
def bench_routings(device: str, output: Path | None, against: Path | None, **sizes: Any) -> None:
    """Time every routing, in its fast and its plain form.

    Example: capsbench bench routings --output routings.csv
    """
    from capsbench.benchmarks.routings import CONDITIONS, read_routings, regressions, routings_benchmark
    from capsbench.run.folder import write_whole

    shape = sizes["batch"], sizes["inputs"], sizes["outputs"]
    before = read_routings(against) if against else None  # refuses another file before anything is measured
    frame = routings_benchmark(*shape, sizes["repeats"], sizes["threads"], device)
    about = frame.iloc[0]
    log.info(
        f"forward and backward, ms: batch {sizes['batch']}, {sizes['inputs']} x 8 -> {sizes['outputs']} x 16, float32, "
        f"default options; {about['machine']}, {sizes['threads']} threads; torch {about['torch']}; commit "
        f"{about['commit'][:12]}\n"
    )
    log.info(frame.drop(columns=list(CONDITIONS)).to_markdown(index=False, floatfmt=".3g"))
    if output:
        write_whole(output, lambda aside: frame.to_csv(aside, index=False, float_format="%.4g"))
    _refuse_slower([] if before is None else regressions(frame, before), against)


@bench.command("networks")
@study_argument
@count_option("--steps", 5, "Timed training steps, whose median counts")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Device (default: a GPU if any)."
)
@click.option("--output", type=PATH, metavar="FILE", help="Add the speeds to FILE, as csv.")
@common_options
def bench_networks(study: str, steps: int, device: Literal["auto", "cpu", "cuda"], output: Path | None) -> None:
    """Time the training of a study's networks, on random data.

    The file is what 'capsbench config show' computes hours from.

    Example: capsbench bench networks quick --output speeds.csv
    """
    from capsbench.benchmarks.networks import add_speeds, distinct_networks, networks_benchmark, read_speeds
    from capsbench.run.networks import check_networks

    plan = load_study(study)
    for experiment in plan.study.experiments:
        check_networks(plan, experiment)
    if output and output.exists():
        read_speeds(output)  # refuses another file before anything is measured
    rows: list[dict[str, Any]] = []
    for row in networks_benchmark(plan, device, steps):
        if not rows:
            log.info(f"{row['machine']}; torch {row['torch']}; commit {row['commit'][:12]}")
        rows.append(row)
        threads = "" if row["threads"] is None else f"  threads {row['threads']}"
        log.info(
            f"{row['images_per_second']:10,.1f} images/s  {row['peak_mb']:9,.0f} MB{threads}  "
            f"{row['image_shape']}  batch {row['batch_size']}  {row['label']}"
        )
        if output:
            add_speeds(output, [row])  # at once: a long benchmark may be interrupted
    if not rows:
        raise RunError(f"none of the {len(distinct_networks(plan))} networks of {plan.path} could be measured")


def _refuse_slower(slower: list[str], against: Path | None) -> None:
    """Fail where something is slower than in an earlier file."""
    if slower:
        raise RunError(f"slower than in {against}: {'; '.join(slower)}")
