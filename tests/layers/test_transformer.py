"""Layers of transformers, against torch's own and against what presences and stochastic depth mean."""

import pytest
import torch

from capsbench.layers.transformer import Attention, TransformerLayer

WIDTH, HEADS = 8, 2


def tokens(batch=2, count=5):
    return torch.randn(batch, count, WIDTH)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return TransformerLayer(WIDTH, HEADS, hidden=12)


def test_a_layer_computes_what_torchs_own_does(layer):
    theirs = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 12, 0.0, "gelu", batch_first=True, norm_first=True)
    ours = layer.attention
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(torch.cat([ours.queries.weight, ours.keys.weight, ours.values.weight]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([ours.queries.bias, ours.keys.bias, ours.values.bias]).normal_())
        for part, bias in zip(
            (ours.queries, ours.keys, ours.values), theirs.self_attn.in_proj_bias.chunk(3), strict=True
        ):
            part.bias.copy_(bias)
    theirs.self_attn.out_proj.load_state_dict(ours.out.state_dict())
    theirs.norm1.load_state_dict(layer.attention_norm.state_dict())
    for part, number in ((theirs.norm2, 0), (theirs.linear1, 1), (theirs.linear2, 4)):
        part.load_state_dict(layer.perceptron[number].state_dict())
    given = tokens()
    torch.testing.assert_close(layer(given), theirs(given))


def test_tokens_in_another_order_give_the_same_in_that_order(layer):
    given, order = tokens(), torch.tensor([3, 0, 4, 2, 1])
    torch.testing.assert_close(layer(given[:, order]), layer(given)[:, order])


def test_presence_weights_attention_by_itself():
    attention, given, queries = Attention(WIDTH, HEADS), tokens(1, 3), tokens(1, 2)
    doubled = torch.cat([given, given[:, :1]], dim=1)  # the first token twice, at half its presence each
    halves = torch.tensor([[0.25, 0.8, 1.0, 0.25]])
    torch.testing.assert_close(
        attention(queries, doubled, halves), attention(queries, given, torch.tensor([[0.5, 0.8, 1.0]]))
    )
    torch.testing.assert_close(attention(queries, given, torch.full((1, 3), 0.3)), attention(queries, given))


def test_a_token_that_is_absent_is_not_seen():
    attention, given, queries = Attention(WIDTH, HEADS), tokens(1, 3), tokens(1, 2)
    presences = torch.tensor([[1.0, 0.0, 1.0]], requires_grad=True)
    found = attention(queries, given, presences)
    torch.testing.assert_close(found, attention(queries, given[:, [0, 2]]), rtol=0, atol=1e-5)
    found.sum().backward()
    assert presences.grad.isfinite().all()
    assert presences.grad[0, 0] != 0


def test_queries_attend_to_others_alone(layer):
    queries, others = tokens(2, 3), tokens(2, 5)
    alone = layer(queries[:, 1:2], others)
    torch.testing.assert_close(layer(queries, others)[:, 1:2], alone)  # they do not see each other
    assert not torch.allclose(layer(queries[:, 1:2], others.flip(0)), alone)


def test_stochastic_depth_leaves_out_whole_samples_and_keeps_the_mean():
    torch.manual_seed(0)
    layer = TransformerLayer(WIDTH, HEADS, hidden=12, stochastic_depth=0.4)
    change = torch.ones(20_000, 2, 3)
    kept = layer._kept(change)
    whole = kept.flatten(1).unique(dim=0)  # no sample is left out in part
    torch.testing.assert_close(whole, torch.tensor([[0.0], [1 / 0.6]]).expand(2, 6))
    assert float(kept.mean()) == pytest.approx(1, abs=0.03)
    assert layer.eval()._kept(change) is change


@pytest.mark.parametrize("dropout", [{"dropout": 0.5}, {"attention_dropout": 0.5}])
def test_dropout_acts_in_training_alone(dropout):
    layer, given = TransformerLayer(WIDTH, HEADS, hidden=12, **dropout), tokens()
    assert not torch.equal(layer(given), layer(given))
    layer.eval()
    assert torch.equal(layer(given), layer(given))


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="a width of 8 cannot be cut into 3 heads"):
        Attention(WIDTH, 3)
