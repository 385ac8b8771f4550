# One study, one call: snakemake --cores all [--configfile configs/cpu.yaml]
# Everything that can be wrong with a study is found here, before the first job.
import gc
import os
import shlex
import sys
from pathlib import Path

gc.disable()  # collections find no garbage in imports, and took a fifth of the time of a dry run

# The code beside this file runs, in its jobs too, whatever else the environment has installed.
if Path(workflow.basedir, "capsbench").is_dir():
    sys.path.insert(0, str(workflow.basedir))
    _path = filter(None, [str(workflow.basedir), os.getenv("PYTHONPATH")])
    os.environ.update(PYTHONPATH=os.pathsep.join(_path))

from snakemake.logging import logger
from snakemake.utils import min_version

from capsbench.analysis.table_names import table_names
from capsbench.cli.worker import start_worker
from capsbench.data import data_root
from capsbench.data.prepare import is_outdated
from capsbench.errors import InputError
from capsbench.registry import PROTOCOLS
from capsbench.run.cleaning import unusable
from capsbench.run.code_version import code_version, content_version, data_version
from capsbench.run.code_version import evaluation_version, shown_names, training_version
from capsbench.run.device import count_gpus, has_gpu, requested_gpus
from capsbench.run.owner import check_owner
from capsbench.run.progress import count_named
from capsbench.run.status import run_states
from capsbench.run.workflow_lines import executes, quieten
from capsbench.study import load_plan

gc.freeze()
gc.enable()

min_version("9.0")

# The study is read by path, not from Snakemake's `config`, which merges files into one another.
if len(workflow.configfiles) > 1 or workflow.config_settings.config:
    raise WorkflowError(
        "one study at a time: --configfile FILE; values are changed in a copy of the file"
    )
STUDY_FILE = os.path.relpath(
    *(workflow.configfiles or [Path(workflow.basedir, "configs/quick.yaml")])
)
try:
    PLAN = load_plan(Path(STUDY_FILE))
    check_owner(PLAN, Path("results"))
except InputError as error:
    raise WorkflowError(f"capsbench: {error}") from None

# Where the rules are quiet (profiles/default), the runs alone say how far the study is. `--quiet host` brings back what
# Snakemake says of its jobs.
if "rules" in {str(what) for what in workflow.output_settings.quiet or ()}:
    quieten(logger, runs_speak=lambda: workflow.local_exec)

# What has to be made again although its file is there: results that are not as they were written or have lost their
# run.yaml, and data whose raw files were replaced (they are no inputs of a rule, as they may have to be downloaded).
AGAIN = []
if workflow.is_main_process:
    AGAIN = unusable(PLAN, Path("results"))
    for experiment, data in PLAN.data.items():
        manifest = Path(f"results/{PLAN.study.name}/data/{experiment}.json")
        if is_outdated(manifest, data, data_root()):
            AGAIN.append(manifest)
if AGAIN:
    logger.warning(
        f"made again, as it was cut, changed or replaced, or lost its run.yaml: {', '.join(map(str, AGAIN))}"
    )
    if executes(sys.argv) and not list(Path(".snakemake/locks").glob("*")):
        for path in AGAIN:
            path.unlink(missing_ok=True)

STUDY = f"results/{PLAN.study.name}"
THREADS = max(run.training.threads for run in PLAN.runs)
RUN = "{experiment}/{variant}/seed{seed}"
RUN_FILES = ["model.pt", "metrics.csv", "predictions.npz"]
# One training at a time uses a GPU, or as many as --resources gpu_share=4 says; --resources gpu=4 (or a cluster
# profile) sets the number of trainings itself.
GIVEN = workflow.global_resources
SHARE = GIVEN["gpu_share"].value if "gpu_share" in GIVEN else 1
GIVEN.setdefault("gpu", max(1, count_gpus()) * SHARE)


wildcard_constraints:
    experiment="|".join(PLAN.study.experiments),
    variant=r"[A-Za-z0-9._-]+",
    seed=r"\d+",


include: "workflow/rules/cluster.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        # Snakemake does not look behind tables that are there: a run that was lost is asked for by name
        [f"{STUDY}/runs/{run.key}/{name}" for run in PLAN.runs for name in RUN_FILES],
        EVALUATIONS,
        rules.tables.output,
        rules.plots.output,
        rules.study_report.output,


# The tables are made again for the terminal, with the cells that failed marked as such. The MLflow store is a view of
# the run folders: a study does not fail with it.
FINALE = f"capsbench tables {shlex.quote(STUDY_FILE)} --log {STUDY}/logs/tables.log"
if PLAN.study.tracking:
    FINALE += f"; made=$?; capsbench track {shlex.quote(STUDY_FILE)}; (exit $made)"
FINALE = FINALE.replace("{", "{{").replace(
    "}", "}}"
)  # shell() fills in what is in braces


# Commands of jobs on this machine need not import everything anew. What they share is imported while Snakemake plans.
if workflow.is_main_process and workflow.local_exec and executes(sys.argv):
    if AGAIN or not all(Path(path).exists() for path in EVALUATIONS):
        start_worker(THREADS)


onstart:
    matched = {run.key: run.matched_key for run in PLAN.runs}
    count_named(workflow.dag_settings.targets, matched, STUDY)
    if workflow.local_exec:
        on_gpu = {run.key for run in PLAN.runs if run.training.device == "cuda"}
        if (
            on_gpu
            and not has_gpu()
            and any(
                state.is_open and state.key in on_gpu
                for state in run_states(PLAN, Path("results"))
            )
        ):
            raise WorkflowError(
                f"capsbench: {STUDY_FILE}: training.device is cuda, and there is no GPU here"
            )
        start_worker(THREADS)


onsuccess:
    shell(f"set +e; {FINALE}")


onerror:
    shell(f"set +e; {FINALE}; true")
