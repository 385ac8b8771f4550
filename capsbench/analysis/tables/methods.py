"""Names for the method of a run in a table: network, routing, reconstruction."""

from capsbench.analysis.table_names import chosen_routing
from capsbench.analysis.tables.text import MISSING
from capsbench.registry import LOSSES, MODELS, ROUTINGS
from capsbench.study import Run


def method_name(run: Run) -> str:
    """Return the title of the network, with its loss where that is not its paper's or not that of its routing."""
    title = MODELS[run.model].title
    loss = run.options.get("loss")
    if loss is None:
        return title
    loss_title = LOSSES[loss["name"]].title
    if run.model == "matrix_capsnet":  # the rows of H18's Table 1 differ in these
        coordinates = "with" if run.options["coordinate_addition"] else "no"
        return f"{title} ({run.options['pose']} pose, {loss_title} loss, {coordinates} coordinates)"
    routing = chosen_routing(run)
    papers = ROUTINGS[routing].facts.get("loss") if routing else None
    if routing and papers not in (None, loss["name"]):
        return f"{title} ({loss_title} loss; {ROUTINGS[routing].title}'s paper: {LOSSES[papers].title})"
    return title if loss["name"] == _default(run, "loss") else f"{title} ({loss_title} loss)"


def routing_name(run: Run) -> str:
    """Return the number of iterations, as S17's column has it, with the title of a routing that was chosen."""
    group = run.options.get("routing")
    name, iterations = chosen_routing(run), (run.options if group is None else group).get("iterations")
    if name is None:
        return MISSING
    if iterations and group and name == _default(run, "routing"):
        return str(iterations)
    return f"{ROUTINGS[name].title} {iterations or ''}".strip()


def reconstructs(run: Run) -> str:
    """Return yes or no, or "-" for a network that cannot have a decoder."""
    if "decoder" not in run.options:
        return MISSING
    return "yes" if run.options["decoder"] else "no"


def routing_of(run: Run) -> tuple[str | None, int | None]:
    """Return the title of a network's routing and its iterations; None for a network or a routing without."""
    group, name = run.options.get("routing"), chosen_routing(run)
    if name is None:
        return None, None
    return ROUTINGS[name].title, (run.options if group is None else group).get("iterations")


def _default(run: Run, group: str) -> str:
    """Return which member a group of a network's options has by default."""
    return str(getattr(MODELS.options(run.model)(), group).name)
