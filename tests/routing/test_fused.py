"""The kernel of dynamic routing, run by Triton's interpreter on the CPU, beside the procedure of the paper."""

import importlib
import os

import pytest
import torch

from capsbench.routing import dynamic, dynamic_routing, linear_dynamic_routing
from capsbench.routing.dynamic import linear_dynamic_routing_with_couplings

pytest.importorskip("triton")
# B, I, J, D, d: one of everything; odd sizes; more samples than a program takes; the layers of S17 cut short, of
# smallNORB, of small capsules, of a deep layer with many parents
SHAPES = [(1, 1, 1, 1, 1), (3, 7, 5, 6, 4), (18, 4, 10, 16, 8), (2, 3, 5, 16, 8), (2, 3, 10, 8, 6), (2, 2, 32, 8, 32)]


@pytest.fixture(scope="module")
def fused():
    if not os.environ.get("TRITON_INTERPRET"):
        pytest.skip("with a GPU, test_on_a_gpu runs the kernel itself")
    return importlib.import_module("capsbench.routing.kernels.fused")


@pytest.fixture
def kernel(fused, monkeypatch):
    """Let dynamic routing take the kernel as on a GPU."""
    monkeypatch.setattr(dynamic, "_has_kernel", lambda inputs, weight: True)
    return fused


def draws(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def close(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert float((a.detach() - b.detach()).abs().max()) <= 1e-5 * max(1.0, float(b.detach().abs().max()))


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_iteration_and_its_gradients(fused, shape, constant, leaky):
    batch, children, parents, dim, child_dim = shape
    given = draws((batch, parents, dim), (batch, children, child_dim), (children, parents, dim, child_dim))
    total, inputs, weight = given
    votes = torch.einsum("ijed,bid->bije", weight, inputs)
    logits = torch.einsum("bije,bje->bij", votes, total)
    others = [logits, torch.zeros_like(logits[..., :1])] if leaky else [logits]
    couplings = torch.cat(others, dim=2).softmax(dim=2)[..., :parents]
    sums = torch.einsum("bij,bije->bje", couplings.detach() if constant else couplings, votes)
    found = fused.routed_sum(total, inputs, weight, leaky, constant)
    close(found, (sums, couplings))

    ways = draws(sums.shape, couplings.shape)  # the gradient of the couplings counts in any case

    def gradients(results):
        return torch.autograd.grad(sum((a * b).sum() for a, b in zip(results, ways, strict=True)), given)

    close(gradients(found), gradients((sums, couplings)))


@pytest.mark.parametrize("options", [{}, {"detach": True}, {"bias": True}, {"leaky": True}])
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_routing_by_the_kernel_is_that_of_the_paper(kernel, iterations, options):
    leaves = draws((3, 7, 4), (7, 5, 6, 4), (5, 6))
    with torch.no_grad():
        leaves[1].mul_(0.5)  # five iterations of long votes are next to a step, which amplifies rounding
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]

    def gradients(poses, leaves):
        return torch.autograd.grad(poses.square().sum(), leaves[: 3 if "bias" in options else 2])

    def with_bias(leaves):
        return {**options, "bias": leaves[2]} if "bias" in options else options

    votes = torch.einsum("ijed,bid->bije", exact[1], exact[0])
    expected = dynamic_routing(votes, iterations, **with_bias(exact))
    found = linear_dynamic_routing_with_couplings(*leaves[:2], iterations, **with_bias(leaves))
    close(found, expected)
    close(gradients(found[0], leaves), gradients(expected[0], exact))


def test_without_gradients_nothing_is_kept(kernel):
    inputs, weight = draws((3, 7, 4), (7, 5, 6, 4))
    with torch.no_grad():
        assert not linear_dynamic_routing(inputs, weight).requires_grad


def test_the_same_inputs_give_the_same_bits(kernel, monkeypatch):
    inputs, weight = draws((18, 9, 4), (9, 5, 6, 4))
    monkeypatch.setattr(kernel, "PROGRAMS", 8)  # several parts, of several children
    assert kernel._parts(18, 9) == (3, 3)

    def once():
        poses = linear_dynamic_routing(inputs, weight)
        return [poses, *torch.autograd.grad(poses.square().sum(), (inputs, weight))]

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))
    votes = torch.einsum("ijed,bid->bije", weight, inputs)
    close(once()[:1], dynamic_routing(votes)[:1])


def test_every_child_is_in_one_part(fused):
    for batch in (1, 16, 17, 128, 1024):
        for children in (1, 7, 511, 1152, 9216):
            parts, each = fused._parts(batch, children)
            assert (parts - 1) * each < children <= parts * each


def test_layers_that_do_not_fit_take_the_other_form(fused):
    inputs, wide, whole = torch.zeros(1, 2, 8), torch.zeros(2, 100, 16, 8), torch.zeros(2, 10, 16, 8)
    assert not fused.runs_here(inputs, wide)
    assert not fused.runs_here(inputs.double(), whole.double())


def test_a_kernel_that_does_not_compile_is_not_used(fused, caplog):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, on which it compiles")
    fused._compiles.cache_clear()
    assert not fused.runs_here(torch.zeros(1, 2, 8), torch.zeros(2, 10, 16, 8))  # no GPU: as a driver that fails
    assert "does not run here and is not used" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    inputs, weight = (draw.detach().cuda().requires_grad_() for draw in draws((128, 1152, 8), (1152, 10, 16, 8)))
    assert dynamic._has_kernel(inputs, weight)
    expected = dynamic_routing(torch.einsum("ijed,bid->bije", weight, inputs))[0]
    found = linear_dynamic_routing(inputs, weight)
    close([found], [expected])

    # lengths away from 1, where squashing leaves no gradient
    leaves = [inputs, (0.03 * weight).detach().requires_grad_()]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    found, poses = linear_dynamic_routing(*leaves), dynamic_routing(torch.einsum("bid,ijed->bije", *exact))[0]
    ours, theirs = (torch.autograd.grad(p.square().sum(), given) for p, given in ((found, leaves), (poses, exact)))
    for gradient, expected_gradient in zip(ours, theirs, strict=True):
        assert float((gradient - expected_gradient).norm() / expected_gradient.norm()) < 1e-4
