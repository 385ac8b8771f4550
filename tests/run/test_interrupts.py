"""Ctrl-C while a file is written."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from capsbench.run.checkpoint import load_tensors, save_tensors
from capsbench.run.interrupts import held_interrupts


class Pressing:
    """Stands in for a file, and has Ctrl-C pressed at each of its writes."""

    def __init__(self, file):
        self.file, self.presses = file, 0

    def write(self, content) -> int:
        self.presses += 1
        os.kill(os.getpid(), signal.SIGINT)
        return self.file.write(content)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def test_a_checkpoint_is_whole_when_ctrl_c_comes_at_each_of_its_writes(tmp_path, monkeypatch):
    """Without `held_interrupts`, torch aborts the process or raises a RuntimeError."""
    files = []
    opened = Path.open

    def pressed(path, mode="r", *arguments, **options):
        file = opened(path, mode, *arguments, **options)
        if mode == "wb":
            files.append(file := Pressing(file))
        return file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", pressed)
        with pytest.raises(KeyboardInterrupt):
            save_tensors(tmp_path / "model.pt", {"weights": torch.arange(10_000.0)})
    assert files[0].presses > 3
    assert list(tmp_path.iterdir()) == [tmp_path / "model.pt"]
    assert load_tensors(tmp_path / "model.pt")["weights"].sum() == torch.arange(10_000.0).sum()


def test_an_interrupt_comes_at_the_end_and_once():
    reached = False
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is before
    with held_interrupts():
        pass


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_handlers_that_are_not_pythons_stay(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with held_interrupts():
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_held():
    found = []

    def work():
        with held_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
