import copy

import pytest
import torch
import yaml
from torch import nn

from capsbench.errors import InputError
from capsbench.models import build_model
from capsbench.run.precision import BFloat16Conv2d, RoundedConv2d, float32, has_bfloat16, set_precision
from capsbench.run.train import train
from tests.small_runs import run_of

CPU = torch.device("cpu")
BOTH = [
    pytest.param(
        BFloat16Conv2d, marks=pytest.mark.skipif(not has_bfloat16(CPU), reason="this processor has no bfloat16")
    ),
    RoundedConv2d,
]


def conv_of(kind) -> nn.Conv2d:
    """A convolution, started by seed, that computes in a lower precision while it is trained."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, 3)
    conv.__class__ = kind
    return conv


def gradients(conv, images):
    images = images.clone().requires_grad_()
    conv.zero_grad()
    output = conv(images)
    (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    return output.detach(), images.grad, conv.weight.grad, conv.bias.grad


@pytest.mark.parametrize("kind", BOTH)
def test_operands_and_results_are_rounded_to_bfloat16_and_sums_are_not(kind):
    conv = conv_of(kind)
    with torch.no_grad():
        conv.weight.fill_(1.0)
        conv.bias.fill_(0.0)
    images = torch.ones(1, 3, 3, 3)
    images[0, 0, 0, 0] = 1 + 2**-9  # between two numbers of bfloat16: rounded to 1
    assert conv(images).unique().tolist() == [27.0]
    images[0, 0, 0, 0] = 257.0  # also between two, 256 and 258: to the even one
    assert conv(images).unique().tolist() == [282.0]  # 256 + 26 in float32, which bfloat16 has
    images[0, 0, 0, 0] = 1.0
    images[:] = 1 + 2**-7  # 27.2109375, between 27.125 and 27.25
    assert conv(images).unique().tolist() == [27.25]


@pytest.mark.parametrize("kind", BOTH)
def test_values_and_gradients_are_those_of_float32_within_the_rounding(kind):
    images = torch.randn(4, 3, 9, 9)
    exact, found = gradients(conv_of(nn.Conv2d), images), gradients(conv_of(kind), images)
    for one, other in zip(exact, found, strict=True):
        assert other.dtype == torch.float32
        assert not torch.equal(one, other)
        assert (one - other).norm() < 2**-7 * one.norm()


@pytest.mark.skipif(not has_bfloat16(CPU), reason="this processor has no bfloat16")
def test_a_device_without_bfloat16_does_the_same_arithmetic():
    images = torch.randn(4, 3, 9, 9)
    native, rounded = gradients(conv_of(BFloat16Conv2d), images), gradients(conv_of(RoundedConv2d), images)
    for one, other in zip(native, rounded, strict=True):
        assert (one - other).norm() < 2**-9 * one.norm()  # sums in another order, rounded once


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("options", [{}, {"initialisation": "authors"}, {"backbone": "resnet20"}])
def test_a_network_routes_in_float32_and_is_evaluated_in_float32(monkeypatch, native, options):
    monkeypatch.setattr("capsbench.run.precision.has_bfloat16", lambda device: native and has_bfloat16(CPU))
    torch.manual_seed(0)
    model = build_model("capsnet", (1, 28, 28), 10, conv_channels=8, primary_types=2, **options)
    plain, names = copy.deepcopy(model), list(model.state_dict())
    said = set_precision(model, "bfloat16", CPU)
    assert said["convolutions"] == "bfloat16"
    assert said["matrix_products"] == "float32"
    assert list(model.state_dict()) == names
    assert all(values.dtype in (torch.float32, torch.int64) for values in model.state_dict().values())
    seen = []
    model.routing.register_forward_pre_hook(lambda module, inputs: seen.extend(value.dtype for value in inputs))
    images = torch.rand(2, 1, 28, 28)
    output = model.train()(images, torch.tensor([1, 2]))
    assert set(seen) == {torch.float32}
    assert output.scores.dtype == output.reconstructions.dtype == torch.float32
    assert not torch.equal(output.scores, plain.train()(images, torch.tensor([1, 2])).scores)
    again = copy.deepcopy(plain)
    set_precision(again, "bfloat16", CPU)
    assert torch.equal(again.eval()(images).scores, plain.eval()(images).scores)


def test_a_network_without_convolutions_is_refused():
    model = build_model("group_capsnet", (1, 28, 28), 10)
    with pytest.raises(InputError, match="bfloat16 is of convolutions, and GroupCapsNet has none; use float32"):
        set_precision(model, "bfloat16", CPU)


def test_evaluations_are_float32_whatever_the_training_is():
    """On a GPU; the switches are there without one."""
    set_precision(nn.Conv2d(1, 1, 1), "tf32", torch.device("cuda"))
    with float32():
        assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32
    set_precision(nn.Conv2d(1, 1, 1), "float32", CPU)


def test_float32_and_tf32_change_no_network_on_a_cpu():
    model = build_model("capsnet", (1, 28, 28), 10, conv_channels=8, primary_types=2)
    for precision in ("float32", "tf32"):
        said = set_precision(model, precision, CPU)
        assert said == {"convolutions": "float32", "matrix_products": "float32"}
    assert {type(module) for module in model.modules() if isinstance(module, nn.Conv2d)} == {nn.Conv2d}


def test_float32_is_float32_on_a_gpu_too():
    """torch computes convolutions in TF32 unless it is told not to."""
    model, gpu = nn.Conv2d(1, 1, 1), torch.device("cuda")
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    assert set_precision(model, "tf32", gpu) == {"convolutions": "tf32", "matrix_products": "tf32"}
    assert convolutions.allow_tf32 and products.allow_tf32
    assert set_precision(model, "float32", gpu) == {"convolutions": "float32", "matrix_products": "float32"}
    assert not convolutions.allow_tf32 and not products.allow_tf32


def test_a_run_in_bfloat16_learns_and_says_so(tmp_path):
    plain, low = run_of(tmp_path), run_of(tmp_path, precision="bfloat16")
    weights = {}
    for run, results in ((plain, tmp_path / "float32"), (low, tmp_path / "bfloat16")):
        assert train(run, results, tmp_path, tracking=False) == "ok"
        folder = results / run.study / "runs" / run.key
        record = yaml.safe_load((folder / "run.yaml").read_text())
        assert record["precision"]["convolutions"] == run.training.precision
        weights[run.training.precision] = torch.load(folder / "model.pt", weights_only=True)
    one, other = (torch.cat([v.flatten() for v in w.values()]) for w in weights.values())
    assert other.dtype == torch.float32
    assert 0 < (one - other).norm() < 0.05 * one.norm()


def test_the_option_that_came_later_leaves_the_digests_of_earlier_runs(tmp_path):
    plain, low = run_of(tmp_path), run_of(tmp_path, precision="bfloat16")
    assert plain.digest == run_of(tmp_path, precision="float32").digest != low.digest
    config = plain.model_dump(mode="json")["training"]
    assert config["precision"] == "float32"


def test_tf32_on_a_cpu_is_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(InputError, match="precision tf32 is of GPUs, and device is cpu; use bfloat16 or float32"):
        run_of(tmp_path, precision="tf32")
