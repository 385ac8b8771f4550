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


@click.group("bench", cls=GroupWithDefault, default="routing")
def bench() -> None:
    """Time routing, or the training of a study's networks.

    Without COMMAND: routing.

    Example: capsbench bench networks quick
    """


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
    slower = [] if before is None else regressions(frame, before)
    if slower:
        raise RunError(f"slower than in {against}: {'; '.join(slower)}")


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
