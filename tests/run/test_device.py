import subprocess
import sys
from contextlib import ExitStack

import pytest

from capsbench.errors import InputError
from capsbench.run import device
from capsbench.run.device import claimed_device, count_gpus


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,2", 2)])
def test_gpus_are_counted_from_what_is_visible(monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus() == count


def test_gpus_are_counted_from_the_driver(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    listed = subprocess.CompletedProcess([], 0, "GPU 0: H200 (UUID: x)\nGPU 1: H200 (UUID: y)\n", "")
    monkeypatch.setattr(device.subprocess, "run", lambda *a, **k: listed)
    assert count_gpus() == 2


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with claimed_device("auto") as found:
        assert found.type == "cpu"
    with pytest.raises(InputError, match="use auto or cpu"), claimed_device("cuda"):
        pass


@pytest.fixture
def three_gpus(monkeypatch, tmp_path):
    """Imitated: a machine with three GPUs, of which torch says the same."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(device.tempfile, "gettempdir", lambda: str(tmp_path))


def test_a_run_takes_the_gpu_with_the_fewest_holders(three_gpus):
    with ExitStack() as all_runs, ExitStack() as on_the_second:

        def claim(stack=all_runs):
            return stack.enter_context(claimed_device("cuda")).index

        assert claim() == 0
        assert claim(on_the_second) == 1
        assert [claim() for _ in range(4)] == [2, 0, 1, 2]
        on_the_second.close()  # 2, 1 and 2 holders are left
        assert [claim() for _ in range(3)] == [1, 0, 1]
    with claimed_device("auto") as again:
        assert again.index == 0


def test_a_gpu_is_counted_by_its_number_on_the_machine(three_gpus, monkeypatch):
    with claimed_device("cuda") as first:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0,1")  # to another process GPU 0 is the second
        with claimed_device("cuda") as second, claimed_device("cuda") as third:
            assert (first.index, second.index, third.index) == (0, 0, 2)


def test_a_killed_run_holds_no_gpu(three_gpus, tmp_path):
    code = f"""
import os, signal, tempfile, torch
from capsbench.run.device import claimed_device
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 3
tempfile.tempdir = {str(tmp_path)!r}
with claimed_device("cuda") as found:
    print(found.index, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (killed.stdout, killed.returncode) == ("0\n", -9)
    assert list(tmp_path.glob("*gpu0-0.lock"))
    with claimed_device("cuda") as found:
        assert found.index == 0


def test_the_gpu_path_agrees_with_the_cpu():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here: routing on the GPU is not compared with the CPU's")
    from capsbench.models import build_model

    torch.backends.cudnn.allow_tf32 = False
    images, labels = torch.rand(8, 1, 28, 28), torch.arange(8)
    found = {}
    for place in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = build_model("capsnet", (1, 28, 28), 10).to(place)
        output = model(images.to(place), labels.to(place))
        sum(model.loss(output, images.to(place), labels.to(place)).values()).backward()
        found[place] = (output.scores.detach().cpu(), model.transform.weight.grad.cpu())
    for a, b in zip(found["cpu"], found["cuda"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
