"""The kernels of EM routing, run by Triton's interpreter on the CPU, beside the form with stored votes."""

import importlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from capsbench.models import matrix_capsnet
from capsbench.models.matrix_capsnet import MatrixCapsNet
from capsbench.registry import ROUTINGS
from capsbench.routing.em import AUTHORS, conv_em_routing
from capsbench.routing.kernels.forms import plain_forms
from capsbench.routing.kernels.windows import Windows
from capsbench.routing.matrix_em import matrix_em_routing, takes_kernels

pytest.importorskip("triton")
# at these settings the shares and activations of a few random votes lie well within (0, 1), and float32 reaches 1e-5
SETTINGS = replace(AUTHORS, inverse_temperature=0.1, variance_floor=0.1)


@pytest.fixture(scope="module")
def fused():
    if not os.environ.get("TRITON_INTERPRET"):
        pytest.skip("with a GPU, test_on_a_gpu runs the kernels themselves")
    return importlib.import_module("capsbench.routing.kernels.fused_em")


@pytest.fixture(autouse=True)
def few_programs(request, monkeypatch):
    """The interpreter takes as long for a large program as for a small one."""
    if "fused" in request.fixturenames and "small programs" not in request.node.name:
        module = request.getfixturevalue("fused")
        monkeypatch.setattr(module, "TILE", 1024)
        monkeypatch.setattr(module, "PROGRAMS", 1)


@pytest.fixture
def kernels(fused, monkeypatch):
    """Let layers take the kernels as on a GPU."""
    monkeypatch.setattr(matrix_capsnet, "takes_kernels", lambda poses, transforms: True)
    return fused


def grid(side, kernel, stride):
    """Child positions at each place of each kernel, [P, KK]."""
    numbers = torch.arange(side * side).view(side, side)
    return numbers.unfold(0, kernel, stride).unfold(1, kernel, stride).flatten(2).flatten(0, 1)


def connected(places):
    return torch.arange(places)[None]


def line(cells, kernel, stride):
    """The same in one dimension: the interpreter takes a millisecond for each child of each kernel."""
    return torch.arange(cells).unfold(0, kernel, stride)


# children [P, KK], C, T, J, B, the transforms of places are shared and votes get offsets
SHAPES = {
    "one of everything": (connected(1), 1, 1, 1, 1, False),
    "fully connected": (connected(1), 1, 5, 5, 3, False),
    "class layer": (connected(3), 3, 2, 5, 9, True),
    "four classes": (connected(2), 2, 2, 4, 2, True),
    "ten classes": (connected(2), 2, 1, 10, 2, True),
    "stride 1": (line(4, 3, 1), 4, 2, 3, 3, False),
    "stride 2, the last cell unseen": (line(6, 3, 2), 6, 1, 4, 2, False),
    "small programs": (line(4, 2, 1), 4, 1, 8, 5, False),
    "16 types": (line(4, 3, 1), 4, 1, 16, 2, False),
    "32 types": (grid(3, 2, 1), 9, 1, 32, 2, False),
    "33 types": (connected(2), 2, 2, 33, 1, False),
}


def draws(shape, seed=0):
    """Poses, activations, transforms, beta_u, beta_a; offsets or none."""
    children, cells, types, parents, batch, shared = SHAPES[shape]
    generator = torch.Generator().manual_seed(seed)
    maps = types if shared else children.shape[1] * types
    leaves = [
        torch.randn(batch, cells, types, 16, generator=generator),
        torch.rand(batch, cells, types, generator=generator),
        0.5 * torch.randn(maps, parents, 4, 4, generator=generator),
        torch.randn(parents, generator=generator),
        torch.randn(parents, generator=generator),
    ]
    offsets = torch.randn(children.shape[1], 16, generator=generator) if shared else None
    return [leaf.requires_grad_() for leaf in leaves], offsets


def by_stored_votes(leaves, offsets, children, over_types, rivals=None, settings=SETTINGS):
    """Means, logits and assignments of the form with stored votes."""
    poses, activations, transforms, *betas = leaves
    matrices = poses[:, children].unflatten(-1, (4, 4))  # [B, P, KK, T, 4, 4]
    transforms = transforms.view(-1, poses.shape[2], *transforms.shape[1:])  # [KK or 1, T, J, 4, 4]
    transforms = transforms.expand(children.shape[1], -1, -1, -1, -1)
    votes = torch.einsum("bpktrq,ktjqs->bpktjrs", matrices, transforms).flatten(-2)
    if offsets is not None:
        votes = votes + offsets[:, None, None]
    competition = "parents" if over_types else "positions"
    votes = votes.flatten(2, 3)
    means, parents, shares = conv_em_routing(
        votes, activations, children, *betas, settings, competition, None if over_types else rivals
    )
    return means, parents.logit(), shares


def close(found, expected):
    """Each to 1e-5 of its largest value, or of 0.01 where all are smaller."""
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert torch.isfinite(b).all()
        difference, largest = (float(x.detach().abs().max()) for x in (a - b, b))
        assert difference <= 1e-5 * max(0.01, largest)


def check(shape, over_types, settings=SETTINGS, rivals=None, empty=()):
    children, cells, *_ = SHAPES[shape]
    leaves, offsets = draws(shape)
    with torch.no_grad():
        for index in empty:
            leaves[1][index] = 0
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    windows = Windows.of(children, cells, over_types, rivals)
    found = matrix_em_routing(*leaves[:3], windows, tuple(leaves[3:]), settings, offsets, keep=True)
    exact_offsets = None if offsets is None else offsets.double()
    expected = by_stored_votes(exact, exact_offsets, children, over_types, rivals, settings)
    close(found, expected)

    generator = torch.Generator().manual_seed(1)
    ways = [torch.randn(result.shape, generator=generator) for result in expected]

    def gradients(results, leaves):
        total = sum((a * b.to(a.dtype)).sum() for a, b in zip(results, ways, strict=True))
        return torch.autograd.grad(total, leaves)

    close(gradients(found, leaves), gradients(expected, exact))


@pytest.mark.parametrize("over_types", [False, True], ids=["positions", "parents"])
@pytest.mark.parametrize("shape", SHAPES)
def test_two_iterations_and_their_gradients(fused, shape, over_types):
    check(shape, over_types, replace(SETTINGS, iterations=2))


@pytest.mark.parametrize("over_types", [False, True], ids=["positions", "parents"])
@pytest.mark.parametrize("options", [{"iterations": 1}, {"damp_first_mean": False}, {"damping": 0.0}], ids=str)
def test_options(fused, options, over_types):
    check("stride 2, the last cell unseen", over_types, replace(SETTINGS, variance_floor=1.0, **options))


@pytest.mark.parametrize("over_types", [False, True], ids=["positions", "parents"])
def test_five_iterations(fused, over_types):
    # wide Gaussians: in narrow ones five iterations of random votes amplify rounding
    check("fully connected", over_types, replace(SETTINGS, iterations=5, variance_floor=1.0))


@pytest.mark.parametrize("over_types", [False, True], ids=["positions", "parents"])
def test_children_that_are_off_and_parents_without_data(fused, over_types):
    settings = replace(SETTINGS, variance_floor=1.0)
    all_that_the_first_parents_see = (slice(None), slice(0, 3))
    check("stride 2, the last cell unseen", over_types, settings, empty=[all_that_the_first_parents_see])


def test_rivals(fused):
    check("stride 2, the last cell unseen", over_types=False, rivals=line(4, 3, 1))


def test_votes_that_agree_have_a_variance_without_rounding(fused):
    """E[V^2] - E[V]^2 would be noise: votes of 100 that differ by 1e-3."""
    generator = torch.Generator().manual_seed(0)
    identity = torch.eye(4).expand(1, 1, 4, 4)
    poses = 100 + 1e-3 * torch.randn(1, 50, 1, 16, generator=generator)
    ones, zero = torch.ones(1, 50, 1), torch.zeros(1)
    windows, children = Windows.of(connected(50), 50, True), fused.Children(poses, ones, identity.flatten(2))
    gaussians, _, _ = fused.iterate(children, None, (zero, zero), windows, fused.Step(0.0, 1e-12, 1.0))
    expected = poses.double().var(dim=1, correction=0).flatten()
    torch.testing.assert_close(0.5 / gaussians.precisions.flatten().double(), expected, rtol=0.05, atol=0)


COMPETITIONS = ["positions", "parents", "positions_as_coded"]


@pytest.mark.parametrize("competition", COMPETITIONS)
def test_a_network_by_the_kernels_is_the_one_with_stored_votes(kernels, monkeypatch, competition):
    torch.manual_seed(0)
    routing = ROUTINGS.choose("em", iterations=2, inverse_temperature=0.1, variance_floor=0.1, damp_first_mean=True)
    network = MatrixCapsNet(
        (2, 13, 9), 3, competition=competition, routing=routing, conv_channels=4, primary_types=2, conv_types=(2,)
    )
    with torch.no_grad():  # away from activations of 1e-11, at which a network starts
        for layer in (network.conv_caps[0], network.class_caps):
            layer.betas.a.zero_()
    images, labels = torch.rand(2, 2, 13, 9), torch.tensor([0, 2])  # 5x3 primary capsules, 2x1 convolutional ones

    def results(network, images):
        output = network(images)
        (loss,) = network.loss(output, images[:, :1], labels).values()
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        return [output.scores, output.poses, output.couplings, loss, *gradients]

    found = results(network, images)
    monkeypatch.setattr(matrix_capsnet, "takes_kernels", lambda poses, transforms: False)
    close(found, results(network.double(), images.double()))


def test_without_gradients_nothing_is_kept(kernels):
    leaves, _ = draws("fully connected")
    with torch.no_grad():
        windows = Windows.of(connected(1), 1, True)
        means, _, assignments = matrix_em_routing(*leaves[:3], windows, tuple(leaves[3:]))
    assert not means.requires_grad
    assert assignments is None


def test_the_same_inputs_give_the_same_bits(fused, monkeypatch):
    monkeypatch.setattr(fused, "PROGRAMS", 64)  # several parts, of several blocks
    leaves, _ = draws("small programs")
    windows = Windows.of(line(4, 2, 1), 4, False)

    def once():
        means, logits, _ = matrix_em_routing(*leaves[:3], windows, tuple(leaves[3:]))
        return [means, logits, *torch.autograd.grad(means.sum() + logits.sum(), leaves)]

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))


def test_every_type_and_row_is_in_one_part(fused):
    for number in (1, 7, 32, 576):
        for parts in (0, 1, 3, 1024):
            each = fused._each(number, parts)
            assert each * (-(-number // each) - 1) < number <= each * max(1, parts)


def test_tables_of_a_grid():
    windows = Windows.of(grid(4, 2, 2), 16, True)
    assert windows.seen.tolist()[:4] == [0, 1, 4, 5]
    assert windows.cell_counts.tolist() == [1] * 16
    assert windows.cell_entries.flatten().tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    overlapping = Windows.of(grid(3, 2, 1), 9, True)
    assert overlapping.cell_entries[4].tolist() == [3, 6, 9, 12]
    assert overlapping.start.tolist()[:4] == [1, 1 / 2, 1 / 2, 1 / 4]
    assert Windows.of(grid(3, 2, 1), 9, False).start.tolist() == [1] * 16


def test_layers_that_do_not_fit_take_the_other_form(fused):
    poses = torch.zeros(1, 2, 2, 16)
    assert not fused.runs_here(poses, torch.zeros(4, 65, 4, 4))
    assert not fused.runs_here(poses, torch.zeros(4, 3, 16, 16))  # poses that are vectors
    assert not fused.runs_here(poses.double(), torch.zeros(4, 3, 4, 4))
    assert not takes_kernels(poses, torch.zeros(4, 3, 4, 4))  # on a CPU


def test_the_small_layer_that_is_tried_on_a_gpu_runs(fused):
    with torch.no_grad():
        fused._route_a_small_layer("cpu")


def test_kernels_that_do_not_compile_are_not_used(fused, caplog):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, on which they compile")
    fused._compiles.cache_clear()
    assert not fused.runs_here(torch.zeros(1, 2, 2, 16), torch.zeros(4, 3, 4, 4))  # no GPU: as a driver that fails
    assert "do not run here and are not used" in caplog.text


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from capsbench.routing.kernels import em_gradients, em_sums

INTEGERS = ("batch", "each", "X", "E", "P", "KK", "T", "C", "Q", "width", "KP")
NUMBERS, TABLES = ("damping", "floor", "temperature"), ("children", "groups", "entries", "counts")
KINDS = {"i32": INTEGERS, "fp32": NUMBERS, "*i32": TABLES}
SIZES = {"J": 5, "JP": 8, "BX": 8, "EPSILON": 1e-7, "BLOCK": 32}
FLAGS = ("FIRST", "EACH", "SHARED", "OFFSETS", "STORE", "GIVEN")
sums = [em_sums.log_norms, em_sums.moments, em_sums.fit]
gradients = ["fit_gradients", "group_gradients", "parent_gradients", "map_gradients", "fold"]
for kernel in [*sums, *(getattr(em_gradients, name) for name in gradients)]:
    for on in (False, True):
        constants = {name: on for name in FLAGS} | SIZES
        constants = {name: constants[name] for name in kernel.arg_names if name in constants}
        kinds = {name: kind for kind, names in KINDS.items() for name in names}
        signature = {name: "constexpr" if name in constants else kinds.get(name, "*fp32") for name in kernel.arg_names}
        found = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
        assert found.asm["ptx"]
"""


@pytest.mark.slow
def test_they_compile_for_a_gpu_that_is_not_there(tmp_path):
    """The interpreter takes what the compiler refuses: here they go through it, as far as the code of an H100."""
    without = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        env={**without, "TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("competition", COMPETITIONS)
def test_on_a_gpu(competition):
    torch.manual_seed(0)
    network = MatrixCapsNet((2, 32, 32), 5, competition=competition).cuda()
    images, labels = torch.rand(8, 2, 32, 32, device="cuda"), torch.arange(8, device="cuda") % 5
    assert takes_kernels(torch.zeros(1, device="cuda"), network.conv_caps[0].transforms)

    def results():
        output = network(images)
        (loss,) = network.loss(output, images, labels).values()
        return [output.scores, output.poses, *torch.autograd.grad(loss, list(network.parameters()))]

    found = results()
    with plain_forms():
        close(found, results())
