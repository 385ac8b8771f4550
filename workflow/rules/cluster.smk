# What jobs ask of a cluster (profiles/slurm). On one's own machine they ask for a GPU alone, and nothing changes.
from functools import cache


# seconds each, not worth a place in the queue; and data may have to be downloaded, which nodes often cannot
localrules:
    data,
    tables,
    plots,
    study_report,


def on_cluster():
    """Tell whether this process submits jobs to other machines, or is a dry run that shows what it would ask for."""
    if workflow.remote_exec:  # on a node
        return False
    # the executor of a dry run is a local one; jobs of a cluster are in threads
    return not workflow.local_exec or (
        workflow.dryrun and workflow.execution_settings.use_threads
    )


def run_of(w):
    return PLAN.cell(w.experiment, w.variant, w.seed)


@cache
def cluster_requests():
    """Return what each run asks of a cluster; imports torch, so not where jobs run here."""
    from capsbench.benchmarks.requests import requests

    return requests(PLAN, gpus=workflow.global_resources["gpu"] != 0)


def asked(what, here):
    """Return the function of a resource. here: its value where jobs run on this machine.

    A retry asks for more, as the first attempt may have failed for want of it.
    """

    def resource(w, attempt):
        if not on_cluster():
            return here
        return getattr(cluster_requests()[run_of(w).key], what) * attempt

    return resource


def alone(w):
    """Tell whether a protocol measures time, and has the machine for itself."""
    return PROTOCOLS[w.protocol].facts.get("alone")


def gpus(w):
    return requested_gpus(run_of(w).training.device, elsewhere=on_cluster())
