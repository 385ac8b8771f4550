"""Small study files, and what is said of those that are wrong."""

from pathlib import Path

import pytest

from capsbench.errors import InputError
from capsbench.study import Plan, load_plan

STUDY = """\
name: small
seeds: [0, 1]
training: {epochs: 2, augmentation: {shift: 1, rotation: 5.0}}
experiments:
  digits: {data: {name: digits, validation_images: 100}}
variants:
  caps:
    model: capsnet
    options: {conv_channels: 8}
    grid: {routing.iterations: [1, 3], decoder: [fully_connected, null]}
  cnn: {model: cnn_matched, options: {matched_to: {conv_channels: 16}}}
"""
ONE = """\
name: one
seeds: [0]
experiments: {digits: {data: {name: digits}}}
variants: {v: VARIANT}
"""


def problem_of(path: Path, content: str | None = None) -> str:
    """The one line that a person reads, without the file's name in front."""
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as raised:
        load_plan(path)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def digests(plan: Plan) -> list[str]:
    return [run.digest for run in plan.runs]
