import subprocess

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


def test_runs_at_once_take_different_gpus(monkeypatch, tmp_path):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(device.tempfile, "gettempdir", lambda: str(tmp_path))
    with claimed_device("auto") as first, claimed_device("cuda") as second, claimed_device("auto") as third:
        assert [d.index for d in (first, second, third)] == [0, 1, 0]  # the third shares
    with claimed_device("auto") as again:
        assert again.index == 0


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
