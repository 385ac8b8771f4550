"""What `capsbench bench all` found, as a page of tables."""

from typing import Any

import pandas as pd

from capsbench.run.provenance import short

# of each group: its title, and what is to be known of its numbers
GROUPS = {
    "limits": (
        "What the machine can do",
        "A product of square matrices, and a copy, whose bytes count twice: they are read and written. Fresh memory is "
        "given by the system page by page and given back, as for each large tensor of a process that keeps none.",
    ),
    "routing": (
        "Routing layers",
        "Forward and backward pass, default options. Fast: the form that studies take; plain: votes that a matrix "
        "product makes and stores. `conv_em_routing` starts from votes and routes the convolutional capsules of H18. "
        "Share of the matrix rate: the products that every routing has, for votes and their gradients. Share of the "
        "bandwidth: reading what is given on both ways and writing its gradients. Both are the least work; what is "
        "done over again, and votes that are stored, come on top, so that a form can be good at a low share.",
    ),
    "growth": (
        "Growth of routing layers",
        "The same, with one size at a time varied. `uniform` is the baseline: votes without agreement. A case "
        "is input capsules x output capsules, iterations of routing, images per batch.",
    ),
    "networks": (
        "Networks",
        "Training step: forward pass, loss, backward pass, norm of the gradient, AdamW. Evaluation: prediction of a "
        "batch without gradients. Convolutions and routing: what these layers were given in a step is kept, and they "
        "are called with it again, forth and back, without the others; the rest is the step less these. Where the "
        "processor holds up a GPU the parts may add up to more than the step, as they may by noise. Routing makes the "
        "votes, but in Efficient-CapsNet, where they are in the rest. Share of the matrix rate: multiply-adds of "
        "convolutions and matrix products, three times those of the forward pass for a step.",
    ),
    "batches": ("Batches", "All training batches of an epoch, drawn and augmented as their papers do it; no network."),
    "start-up": ("Start-up", "New processes, from the call to the end."),
}
_HEADINGS = {
    "name": "name", "form": "form", "case": "case", "fastest_ms": "fastest, ms", "median_ms": "median, ms",
    "quartiles_apart_ms": "quartiles apart, ms", "rate": "rate", "unit": "unit", "of_matrix_rate": "of matrix rate",
    "of_bandwidth": "of bandwidth", "of_step": "of the step", "peak_mb": "peak MB", "note": "note",
}  # fmt: skip
_OF_A_GPU = (
    " Times are those of CUDA events. Peak memory is what a call allocates beyond what is held before it: weights, "
    "what is given, and of a training step the last gradients and the sums of Adam."
)
_SHARES = ("of_matrix_rate", "of_bandwidth", "of_step")


def as_page(frame: pd.DataFrame) -> str:
    """Return a measurement as Markdown, a table per group.

    Args:
        frame: from `measure_everything` or `read_everything`.
    """
    about = frame.iloc[0]
    threads = "1 thread" if about["threads"] == 1 else f"{about['threads']} threads"
    rounds = frame["samples"].max()
    lines = [
        "# Speed on this machine", "",
        f"{about['machine']}; {threads}; torch {about['torch']}; commit {short(about['commit'])}; float32 without "
        f"TF32. {rounds} round{'' if rounds == 1 else 's'}, in which everything takes its turn once, in one process; a "
        "sample is the mean of as many calls as take 10 ms. Rates and shares are those of the fastest sample."
        + (_OF_A_GPU if about["device"] == "cuda" else ""), "",
    ]  # fmt: skip
    for group, (title, text) in GROUPS.items():
        own = frame[frame["group"] == group]
        if len(own):
            lines += [f"## {title}", "", text, "", _table(own), ""]
    return "\n".join(lines)


def _table(own: pd.DataFrame) -> str:
    """Return the rows of a group, without columns that are empty."""
    cells = {heading: [_cell(column, value) for value in own[column]] for column, heading in _HEADINGS.items()}
    shown = pd.DataFrame({heading: values for heading, values in cells.items() if any(values)})
    texts = ("name", "form", "case", "unit", "note")
    sides = ["left" if heading in texts else "right" for heading in shown.columns]
    return str(shown.to_markdown(index=False, disable_numparse=True, colalign=sides))


def _cell(column: str, value: Any) -> str:
    if pd.isna(value) or value == "":
        return ""
    if isinstance(value, str):
        return value
    if column in _SHARES:
        return f"{100 * value:.2g} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
