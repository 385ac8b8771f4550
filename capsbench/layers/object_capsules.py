"""Object capsules of stacked capsule autoencoders: a set transformer that sees parts, capsules that vote for them.

Kosiorek, Sabour, Teh, Hinton 2019, section 2.1; "authors' code" is google-research/stacked_capsule_autoencoders.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.layers.part_capsules import TINY, affine, compose

Tokens = Float[Tensor, "batch tokens dim"]
Presences = Float[Tensor, "batch tokens"]

DUMMY = -4 * math.log(10)  # log-weight and log-density, -2 log 10 each, of what no object explains


class Attention(nn.Module):
    """Attention of one head, queries [B, Q, q] over tokens [B, M, d] -> [B, Q, d].

    Deviation: a token has weight in proportion to its presence. The authors' code takes (1 - presence) x 1e32 from the
    logits, with which, presences being below 1, all attention goes to the most present part.
    """

    def __init__(self, query_dim: int, dim: int):
        super().__init__()
        self.query, self.key = nn.Linear(query_dim, dim), nn.Linear(dim, dim, bias=False)
        self.value, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(
        self, queries: Float[Tensor, "batch queries query_dim"], tokens: Tokens, presences: Presences
    ) -> Float[Tensor, "batch queries dim"]:
        """Return what each query finds."""
        logits = self.query(queries) @ self.key(tokens).transpose(1, 2) / math.sqrt(tokens.shape[2])
        weights = (logits + (presences + TINY).log().unsqueeze(1)).softmax(dim=2)
        found: Tensor = self.out(weights @ self.value(tokens))
        return found


class SelfAttention(nn.Module):
    """Attention among tokens and an MLP, each with what it was given added and a layer norm."""

    def __init__(self, dim: int):
        super().__init__()
        self.attention = Attention(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim), nn.ReLU())
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])

    def forward(self, tokens: Tokens, presences: Presences) -> Tokens:
        """Tokens [B, M, d] -> tokens [B, M, d]."""
        tokens = self.norms[0]((tokens + self.attention(tokens, tokens, presences)) * presences.unsqueeze(2))
        mixed: Tensor = self.norms[1](tokens + self.mlp(tokens))
        return mixed


class Standardise(nn.BatchNorm1d):
    """Gives all values of all capsules, [B, K, d], mean 0 and variance 1 over the batch, in a test over the training.

    A batch of one image is standardised as in a test.
    """

    def __init__(self, capsules: int, dim: int):
        super().__init__(capsules * dim, affine=False)

    def forward(self, values: Float[Tensor, "batch capsules dim"]) -> Float[Tensor, "batch capsules dim"]:
        """Return the standardised values."""
        flat = values.flatten(1)
        alone = len(flat) == 1
        flat = F.batch_norm(flat, self.running_mean, self.running_var, eps=self.eps) if alone else super().forward(flat)
        return flat.view_as(values)


class SetTransformer(nn.Module):
    """Layers of self-attention among M tokens, then one learned query for each output: [B, M, i] -> [B, K, d].

    Deviations: what comes in and what goes out is standardised, and tokens have a learned vector each, by which they
    differ, in place of the parts' templates, which but for their colours are the same for all images. The MLP of a
    layer ends in a ReLU, so that it only adds; the authors' ends in a linear layer. As the authors' code has it, poses
    are a twentieth of what is seen of a part, what goes out hardly differs between images at the start, and in short
    trainings presences stay as they are on average.
    """

    def __init__(self, tokens: int, in_dim: int, dim: int, layers: int, outputs: int, out_dim: int):
        super().__init__()
        self.standardise_in, self.standardise_out = Standardise(tokens, in_dim), Standardise(outputs, out_dim)
        self.embed = nn.Linear(in_dim, dim)
        self.which = nn.Parameter(0.5 * torch.randn(tokens, dim))
        self.layers = nn.ModuleList(SelfAttention(dim) for _ in range(layers))
        self.expand = nn.Linear(dim, out_dim)
        self.queries = nn.Parameter(torch.empty(outputs, out_dim))
        nn.init.xavier_uniform_(self.queries)
        self.pool = Attention(out_dim, out_dim)

    def forward(self, tokens: Tokens, presences: Presences) -> Float[Tensor, "batch outputs out_dim"]:
        """Tokens and their presences [B, M] -> outputs."""
        tokens = self.embed(self.standardise_in(tokens)) + self.which
        for layer in self.layers:
            tokens = layer(tokens, presences)
        pooled = self.pool(self.queries.expand(len(tokens), -1, -1), self.expand(tokens), presences)
        standard: Tensor = self.standardise_out(pooled)
        return standard


class LinearPerCapsule(nn.Module):
    """A linear layer of each capsule's own: [B, K, i] -> [B, K, o]."""

    def __init__(self, capsules: int, ins: int, outs: int, bias: bool = True):
        super().__init__()
        std = 1 / math.sqrt(ins)
        self.weight = nn.Parameter(torch.empty(capsules, ins, outs))
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        self.bias = nn.Parameter(torch.zeros(capsules, outs)) if bias else None

    def forward(self, values: Float[Tensor, "batch capsules ins"]) -> Float[Tensor, "batch capsules outs"]:
        """Return W_k x_k + b_k."""
        out = torch.bmm(values.transpose(0, 1), self.weight).transpose(0, 1)
        return out if self.bias is None else out + self.bias


class Votes(NamedTuple):
    """What K objects say of M parts: votes [B, K, M, 2, 3], their presences and standard deviations [B, K, M].

    poses [B, K, 2, 3] of the objects; deformation: scalar, half the squares of what is added to the learned places of
    parts in objects, summed over an image.
    """

    poses: Float[Tensor, "batch objects 2 3"]
    votes: Float[Tensor, "batch objects parts 2 3"]
    presences: Float[Tensor, "batch objects parts"]
    deviations: Float[Tensor, "batch objects parts"]
    deformation: Float[Tensor, ""]

    def prior(self) -> Float[Tensor, "batch objects"]:
        """Return the presences of objects, those of their most present votes, [B, K]."""
        return self.presences.amax(dim=2)

    def explain(
        self, poses: Float[Tensor, "batch parts 2 3"]
    ) -> tuple[Float[Tensor, "batch parts"], Float[Tensor, "batch objects parts"]]:
        """Poses [B, M, 2, 3] -> the log-likelihood of each part [B, M], and what each object explains [B, K, M].

        The likelihood is a mixture over objects, weighted by their votes' presences, which do not add up to one; what
        objects explain of a part adds up to less than one, by what none explains.
        """
        distances = (poses.unsqueeze(1) - self.votes).square().flatten(3).sum(dim=3)  # [B, K, M]
        densities = -distances / (2 * self.deviations.square()) - 6 * (
            self.deviations.log() + math.log(2 * math.pi) / 2
        )
        logits = densities + (self.presences + TINY).log()
        logits = torch.cat([logits, torch.full_like(logits[:, :1], DUMMY)], dim=1)
        return logits.logsumexp(dim=1), logits.softmax(dim=1)[:, :-1]


class ObjectCapsules(nn.Module):
    """Features of each object [B, K, d] -> votes, by two MLPs of each capsule's own.

    A vote is the pose of the object times the place of the part in it, which is learned, plus a deformation that
    depends on the image. In training, noise uniform in +-`noise` / 2 is added to the logits of presences.

    Deviations: the object's parameters, between the MLPs, are standardised. Deformations start near zero and presences
    near `presence`; in the authors' code both start large, and what the loss takes from them, it takes at first from
    all that the second MLP knows of the image.
    """

    def __init__(self, objects: int, parts: int, in_dim: int, params: int, hidden: int, noise: float, presence: float):
        super().__init__()
        self.parts, self.noise = parts, noise
        self.summary = nn.Sequential(
            LinearPerCapsule(objects, in_dim, hidden),
            nn.ReLU(),
            LinearPerCapsule(objects, hidden, params),
            Standardise(objects, params),
        )
        last = LinearPerCapsule(objects, hidden, 6 * parts + 6 + 1 + 2 * parts, bias=False)
        self.outputs = nn.Sequential(LinearPerCapsule(objects, params, hidden), nn.ReLU(), last)
        last.weight.detach()[:, :, : 6 * parts] *= 0.02
        self.bias = nn.Parameter(torch.zeros(objects, 6 + 1 + 2 * parts))
        self.bias.detach()[:, 6] = math.log(presence / (1 - presence))
        self.places = nn.Parameter(torch.empty(objects, parts, 6))
        nn.init.xavier_uniform_(self.places)

    def forward(self, features: Float[Tensor, "batch objects dim"]) -> Votes:
        """Features [B, K, d] -> votes."""
        outputs = self.outputs(self.summary(features))
        deformations, rest = outputs.split([6 * self.parts, outputs.shape[2] - 6 * self.parts], dim=2)
        poses, logit, vote_logits, widths = (rest + self.bias).split([6, 1, self.parts, self.parts], dim=2)
        if self.training:
            logit, vote_logits = (x + self.noise * (torch.rand_like(x) - 0.5) for x in (logit, vote_logits))
        deformations = deformations.unflatten(2, (self.parts, 6))
        poses = affine(poses)
        return Votes(
            poses,
            compose(poses.unsqueeze(2), affine(self.places + deformations)),
            logit.sigmoid() * vote_logits.sigmoid(),
            F.softplus(widths + 0.5) + 0.01,
            deformations.square().sum() / (2 * len(features)),
        )
