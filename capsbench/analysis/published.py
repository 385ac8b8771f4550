"""Which number of the papers stands beside one of our cells, and whether the two can be compared."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from capsbench.analysis.published_format import Protocol, read_file
from capsbench.analysis.published_values import Network, Published, claims, read_published, rows_without_models
from capsbench.registry import LOSSES, MODELS, flat_options
from capsbench.study import Data, Plan, Run, catalogue, default_training

__all__ = [
    "PUBLISHED_IN",
    "Published",
    "claims",
    "counterpart",
    "deviations",
    "is_side",
    "read_published",
    "rows_without_models",
]

# table of ours -> "paper table"s of published.yaml whose values stand in it
PUBLISHED_IN = {
    "sabour-table1": ("S17 Table 1", "H18 section 5", "R19 Table 1", "M21 MNIST"),
    "affnist": ("S17 section 5.2",),
    "hinton-table1": ("H18 Table 1", "H18 section 5", "S17 section 7", "M21 smallNORB"),
    "hinton-table2": ("H18 Table 2",),
    "natural-images": ("S17 section 7", "H18 section 5", "R19 Table 1"),
}
# These have no bearing on the result, or are compared in another way.
_NOT_PROTOCOL = {
    "steps",
    "epochs",
    "match",
    "match_every",
    "schedule_steps",
    "device",
    "threads",
    "deterministic",
    "compile",
}
# Which test items are drawn, and how many, bears on the precision only; so do the number of items that an epoch draws
# anew, and how validation images are drawn: the training images that are left are counted.
_NOT_DATA_PROTOCOL = {
    "train_pairs", "test_pairs", "pair_seed", "transforms_per_image", "transform_seed", "validation_by",
}  # fmt: skip


def counterpart(run: Run, tables: tuple[str, ...]) -> Published | None:
    """Find the published value in the row that a run's method has in "paper table"s; None if there is no such row.

    Where two rows fit, it is the one that says more of the method. This does not say that the two can be compared: see
    `deviations`. A method on a stand-in for the paper's data set keeps its row too. The caveats include what must be
    said of the run, where it has another value of an option that can be compared as well.
    """
    ours = flat_options(run.options)
    found = [
        published
        for published in read_published()
        if f"{published.paper} {published.table}" in tables
        and published.model == run.model
        and published.attack is None
        and _is_task(run.data, _protocol(published))
        and _is_method(ours, flat_options(published.options))
    ]
    if not found:
        return None
    published = max(found, key=lambda value: len(flat_options(value.options)))  # the first of equals
    remarks = _remarks(run, published)
    return replace(published, caveats=(*published.caveats, *remarks)) if remarks else published


def is_side(run: Run, published: Published | None, network: Network) -> bool:
    """Tell whether a run is one of the network of a claim, under its protocol or another.

    Args:
        run: one of ours.
        published: its counterpart.
        network: a side of the claim.
    """
    if network.value is not None:
        return published is not None and _is_row(published, network.value)
    protocol = read_file().protocols[network.protocol]
    data, ours = run.data, flat_options(run.options)
    task = data.options.model_dump()
    return (
        run.model == network.model
        and data.facts.paper == protocol.data_set
        and all(task.get(name) == value for name, value in protocol.task.items())
        and all(ours.get(name, name) == value for name, value in flat_options(network.options).items())
    )


def _is_row(published: Published, value: Published) -> bool:
    """Tell whether the counterpart of a run is a value, or, under attack, what was attacked."""
    if value.attack is None:
        return published.id == value.id
    return all(getattr(published, fact) == getattr(value, fact) for fact in ("model", "protocol", "options"))


def deviations(run: Run, published: Published, plan: Plan | None = None) -> list[str]:
    """Name each difference that keeps a run from being compared with a published value; empty if there is none.

    Args:
        run: one of ours.
        published: a value with a model, from `counterpart`.
        plan: the study of the run; with it, the run that training was matched to is looked at as well.
    """
    protocol = _protocol(published)
    training = dict(default_training(run.data, protocol.training))
    options, usual_options = flat_options(run.options), _usual_options(run, published)
    own = [
        *_differences_of_data(run, protocol),
        *_differences_of_length(run, protocol),
        *_differences(options, usual_options, set(), protocol),
        *_differences(dict(run.training), training, _NOT_PROTOCOL, protocol),
    ]
    return [*own, *_differences_of_match(run, published, plan, own)]


def of_either(deviation: str) -> str:
    """Return a deviation in the words that a network and a CNN of its size share: conv_channels of what has them."""
    return deviation.removeprefix("matched_to.")


def _protocol(published: Published) -> Protocol:
    return read_file().protocols[str(published.protocol)]


def _is_task(data: Data, protocol: Protocol) -> bool:
    options = data.options.model_dump()
    return protocol.data_set == data.facts.paper and all(
        options.get(name) == value for name, value in protocol.task.items()
    )


def _is_method(ours: dict[str, Any], published: dict[str, Any]) -> bool:
    """Tell whether options are those of a published row. Which kind of decoder there is makes no other row."""
    decoders = [name for name in published if name.split(".")[-1] == "decoder"]
    return all(
        name in ours and (ours[name] == value or (name in decoders and None not in (ours[name], value)))
        for name, value in published.items()
        if not any(name.startswith(f"{decoder}.") for decoder in decoders)
    )


def _usual_options(run: Run, published: Published) -> dict[str, Any]:
    """Return the options that the published value stands for, flat; those that a paper is silent on have defaults.

    Where a run has another member of a group than the paper, such as another loss, the options that only this member
    has are compared with its own defaults.
    """
    options_class = MODELS.options(run.model)
    own = flat_options(options_class(**_names_of_groups(run.options)).plain())
    return own | flat_options(options_class(**published.all_options).plain())


def _names_of_groups(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return which members the groups among options have, and nothing else."""
    return {
        key: {"name": value["name"], **_names_of_groups(value)}
        for key, value in options.items()
        if isinstance(value, Mapping)
    }


def _differences_of_data(run: Run, protocol: Protocol) -> list[str]:
    """Name what differs in data set, number of training images, and options of the data."""
    reasons = []
    facts = run.data.facts
    if run.data.name != protocol.data_set:
        reasons.append(f"{run.data.name} is not {protocol.data_set}")
    available = facts.training_items(run.data.options)
    train_images = run.data.trained_images
    # a stand-in that is smaller by itself is named above: here only a cut of it counts
    as_large = facts.train_items == catalogue()[protocol.data_set].train_items
    as_large = as_large and getattr(run.data.options, "lightings", 6) == 6
    if train_images < (protocol.train_images_at_least if as_large else available - run.data.validation_images):
        reasons.append(f"{train_images:,} of {available:,} training images")
    stated = protocol.task | protocol.data_options
    if run.data.name != protocol.data_set:  # what is the default on the paper's data set is so on a stand-in
        defaults = catalogue()[protocol.data_set].options().model_dump()
        stated = {name: value for name, value in stated.items() if value != defaults.get(name)}
    usual = facts.options().model_dump() | stated
    return reasons + _differences(run.data.options.model_dump(), usual, _NOT_DATA_PROTOCOL, protocol)


def _differences_of_length(run: Run, protocol: Protocol) -> list[str]:
    """Name what a training that is too short leaves undone."""
    reasons = []
    per_epoch = getattr(run.data.options, "train_pairs", run.data.trained_images)
    steps, steps_per_epoch = run.training.total_steps(per_epoch), run.training.steps_per_epoch(per_epoch)
    if protocol.steps_at_least is not None and steps < protocol.steps_at_least:
        reasons.append(f"{steps:,} steps, not {protocol.steps_at_least:,} or more")
    if protocol.epochs_at_least is not None and steps < protocol.epochs_at_least * steps_per_epoch:
        reasons.append(f"{steps / steps_per_epoch:.4g} epochs, not {protocol.epochs_at_least} or more")
    margin, least = _spread_margin_at_end(run, steps), protocol.spread_margin_at_least
    if margin is not None and least is not None and margin < least - 1e-6:
        reasons.append(f"spread margin {margin:.3g} at the end, not {least:g} or more")
    return reasons


def _spread_margin_at_end(run: Run, steps: int) -> float | None:
    """Return the margin of the spread loss at the last step of a training; None for other losses."""
    group = run.options.get("loss")
    if not isinstance(group, Mapping) or group["name"] != "spread":
        return None
    loss = LOSSES.build("spread", **{name: value for name, value in group.items() if name != "name"})
    stretch = run.training.schedule_steps / steps if run.training.schedule == "scaled" else 1.0
    loss.begin(steps, stretch)
    loss.step.fill_(max(0, steps - 1))
    return float(loss.margin())


def _differences_of_match(run: Run, published: Published, plan: Plan | None, own: list[str]) -> list[str]:
    """Name what keeps two networks from being compared at equal familiar error, beside what a run has of its own."""
    wanted, matched_to = _protocol(published).match, run.training.match
    if wanted is None or run.model == wanted:
        return [f"stopped at the familiar error of {matched_to}, not trained to the end"] if matched_to else []
    if matched_to is None:
        return [f"not stopped at the familiar error of {wanted}"]
    if plan is None:
        return []
    other = plan.run(str(run.matched_key))
    if other.model != wanted:
        return [f"stopped at the familiar error of {other.model}, not of {wanted}"]
    theirs = [value for value in read_published() if (value.protocol, value.model) == (published.protocol, wanted)]
    inherited = [reason for value in theirs[:1] for reason in deviations(other, value, plan)]
    return [f"matched to {other.variant}: {reason}" for reason in inherited if of_either(reason) not in own]


def _remarks(run: Run, published: Published) -> list[str]:
    """Return what must be said of values of options that are compared though they are not the protocol's own."""
    protocol = _protocol(published)
    values = {**dict(run.training), **flat_options(run.options), **run.data.options.model_dump()}
    return [
        remarks[values[name]]
        for name, remarks in protocol.also.items()
        if name in values and _is_hashable(values[name]) and values[name] in remarks
    ]


def _is_hashable(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | None)


def _differences(ours: dict[str, Any], usual: dict[str, Any], leave_out: set[str], protocol: Protocol) -> list[str]:
    """Return "name ours, not usual" for each value that differs and is not among those that are compared as well."""
    return [
        f"{name} {_short(value)}, not {_short(usual[name])}"
        for name, value in ours.items()
        if name in usual
        and name not in leave_out
        and value != usual[name]
        and not (name in protocol.also and _is_hashable(value) and value in protocol.also[name])
    ]


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    if hasattr(value, "model_dump"):
        return ", ".join(f"{k} {v}" for k, v in value.model_dump().items() if v) or "none"
    return str(value)
