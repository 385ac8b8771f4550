"""How class capsules change in the first steps at S17's width. Used by docs/generate.py.

Each epoch of these runs is one step, so that metrics.csv has the lengths and the gradient of each step.
"""

from pathlib import Path

import pandas as pd
from findings import epochs, table

AFTER = (0, 1, 2, 4, 9, 24, 49, 99)  # steps
ROWS = {  # EXPERIMENT/VARIANT -> what the table calls it
    "multimnist-first-steps/first_steps-iterations1": "one iteration",
    "multimnist-first-steps/first_steps-iterations3": "three iterations",
    "multimnist-first-steps/first_steps_longer": "three iterations, 100 steps",
    "multimnist-first-steps/first_steps_few": "three iterations, 8 types of primary capsules, not 32",
    "multimnist-first-steps/first_steps_slow": "three iterations, learning rate 0.0001, not 0.001",
    "multimnist-first-steps/first_steps_warmup": "three iterations, rate grows over 469 steps",
    "multimnist-first-steps/first_steps_authors": "three iterations, authors' start and bias",
    "multimnist-first-steps/first_steps_start": "three iterations, authors' start alone",
    "multimnist-first-steps/first_steps_bias": "three iterations, authors' bias alone",
    "mnist-first-steps/first_steps-iterations1": "one iteration, MNIST",
    "mnist-first-steps/first_steps-iterations3": "three iterations, MNIST",
}


def first_steps(reference: Path, study: str) -> str:
    """Return the mean length of the right class capsules after some steps, and the gradient of the second step."""
    metrics = epochs(reference, study, tuple(f"{cell}/" for cell in ROWS))
    lines = [["mean length after so many steps", *(f"{step}" for step in AFTER), "norm of the second gradient"]]
    apart = 0.0
    for cell, name in ROWS.items():
        runs = [found for key, found in metrics.items() if key.startswith(f"{cell}/")]
        if not runs:
            raise KeyError(f"no run of {cell}")
        lengths = pd.DataFrame([run["right_capsule_length"].reset_index(drop=True) for run in runs])
        steps = [step for step in AFTER if step in lengths]
        apart = max(apart, float((lengths[steps].max() - lengths[steps].min()).max()))
        second = [float(run["gradient_norm"].iloc[1]) for run in runs]
        means = (f"{lengths[step].mean():.3f}" if step in lengths else "" for step in AFTER)
        lines.append([name, *means, f"{min(second):.2g} to {max(second):.2g}"])
    return f"{table(lines)}\n\nSeeds differ by at most {apart:.2f}."
