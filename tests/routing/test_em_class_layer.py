"""EM routing as a class layer: what it learns, how that starts, and its options."""

import pytest
import torch
from test_em import B, H, I, J, draw

from capsbench.losses import spread_loss
from capsbench.registry import ROUTINGS
from capsbench.routing import LayerSize, em_routing, stored_votes
from capsbench.routing.contract import capsule_lengths, squash
from capsbench.routing.em import AUTHORS, Betas, EMRouting


def test_the_module_hands_on_what_it_learns_and_its_options():
    poses, weight = draw(B, I, 7, seed=5), draw(I, J, H, 7, seed=6)
    activations = draw(B, I, seed=1).sigmoid()
    options = {"inverse_temperature": 0.5, "damping": 0.3, "variance_floor": 0.1, "annealing": 0.7}
    routing = EMRouting(
        LayerSize(I, 7, J, H), iterations=2, class_temperature_factor=0.2, damp_first_mean=False, **options
    ).double()
    for seed, parameter in enumerate(routing.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed)
    votes = stored_votes(poses, weight)
    expected = em_routing(votes, activations, *routing.betas(), 2, 0.1, 0.3, 0.1, 0.7)
    found = routing(poses, activations, weight)
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=0, atol=0)
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=0)


def test_the_settings_of_the_authors_class_layer():
    routing = EMRouting(LayerSize(I, 7, J, H))
    assert vars(routing.settings) == vars(AUTHORS) | {"inverse_temperature": 0.005}
    assert (routing.settings.iterations, routing.settings.damping, routing.settings.variance_floor) == (3, 0.1, 5e-4)
    beta_u, beta_a = routing.betas()
    torch.testing.assert_close(beta_u, torch.full((J,), 2 * 1.4189385))
    torch.testing.assert_close(beta_a, torch.full((J,), -2500.0))
    assert ROUTINGS["em"].facts["loss"] == "spread"


def test_betas_in_their_units():
    beta_u, beta_a = Betas(3, inverse_temperature=0.02, u=0.5, a=0.5, logit_unit=50.0)()
    torch.testing.assert_close(beta_u, torch.full((3,), 0.25 * (1 + torch.tensor(2 * torch.pi).log())))
    torch.testing.assert_close(beta_a, torch.full((3,), -1250.0))


@pytest.mark.parametrize("inverse_temperature", [0.01, 1.0])
def test_a_class_without_data_starts_alike_at_every_temperature(inverse_temperature):
    routing = EMRouting(LayerSize(I, 7, J, H), inverse_temperature=inverse_temperature)
    poses, weight = torch.randn(B, I, 7), torch.randn(I, J, H, 7)
    logits = routing(poses, torch.zeros(B, I), weight).logits
    torch.testing.assert_close(logits, torch.full((B, J), -12.5 * (1 - 0.95**3)))


@pytest.mark.parametrize(
    ("options", "beta_u", "beta_a"), [({"beta_u": 0.0}, 0.0, -2500.0), ({"beta_a": 3}, None, -7500.0)]
)
def test_betas_start_where_the_options_say(options, beta_u, beta_a):
    routing = ROUTINGS.build("em", LayerSize(I, 7, J, H), **options)
    found_u, found_a = routing.betas()
    torch.testing.assert_close(found_a, torch.full((J,), beta_a))
    if beta_u is not None:
        torch.testing.assert_close(found_u, torch.full((J,), beta_u))


@pytest.mark.parametrize("option", ["beta_u", "beta_a"])
def test_betas_start_at_finite_numbers(option):
    with pytest.raises(ValueError, match=option):
        ROUTINGS.build("em", LayerSize(I, 7, J, H), **{option: float("nan")})


def first_step(**options):
    """Logits, activations and the norm of the gradient of the transforms at the first step of a class layer.

    2,048 children, as many as `capsnet` has on images of 32x32, in clusters that belong to 5 classes.
    """
    generator = torch.Generator().manual_seed(0)
    size, labels = LayerSize(2048, 8, 5, 16), torch.arange(10) % 5
    centres = torch.randn(5, 2048, 8, generator=generator)
    poses = squash(0.3 * (centres[labels] + 0.5 * torch.randn(10, 2048, 8, generator=generator)))
    weight = (0.1 * torch.randn(2048, 5, 16, 8, generator=generator)).requires_grad_()
    routed = ROUTINGS.build("em", size, **options)(poses, capsule_lengths(poses), weight)
    gradient = torch.autograd.grad(spread_loss(routed.activations, labels, 0.2), weight)[0]
    return routed.logits, routed.activations, float(gradient.norm())


def test_the_authors_class_layer_starts_where_it_can_learn():
    logits, activations, gradient = first_step()
    assert logits.abs().max() < 3
    assert activations.max() < 0.5
    assert gradient > 0.01


def test_betas_at_zero_start_saturated():
    """Why EM can stay at chance at a high inverse temperature: each activation is exactly 1, whatever its logit."""
    logits, activations, gradient = first_step(beta_u=0.0, beta_a=0.0, class_temperature_factor=1.0)
    assert logits.min() > 16
    assert (activations == 1).all()
    assert gradient < 1e-6
    assert logits.std() > 0.1  # where activations are ties, the logits are not
    assert first_step(beta_u=0.0, beta_a=0.0)[0].max() > 2 * first_step()[0].abs().max()  # the lower temperature: less
