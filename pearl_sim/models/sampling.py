"""How a token is chosen, and when the target accepts a draft token.

greedy:    both models take the argmax; a draft token is accepted iff it is the target's.
coupled:   both take argmax(log p + G), G Gumbel noise keyed by seed, request and position (Daliri et al. 2024).
           The text is the target's own sampling at that seed, whatever the policy, and only token ids are compared.
rejection: a draft token x ~ q is accepted with probability min(1, p(x) / q(x)), else the target draws from
           max(p - q, 0) (Leviathan et al. 2023; Chen et al. 2023).  Lossless in distribution.

All randomness is a hash of (seed, request, position, stream), so a token can be drawn anew after a rollback, on
either device, and come out the same.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pearl_sim.settings import Settings

GUMBEL, DRAFT, ACCEPT, TARGET = range(4)
"""Streams of randomness: shared noise (coupled), and the draft's, the verdict's and the target's own (rejection)."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Sampling(Settings):
    """How tokens are chosen; temperature, top-k, top-p and min-p are transformers' own."""

    mode: Literal["greedy", "coupled", "rejection"] = "greedy"
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _greedy_draws_nothing(self) -> "Sampling":
        changed = self.model_fields_set - {"mode"}
        if self.mode == "greedy" and changed:
            raise ValueError(f"{sorted(changed)[0]} changes nothing in greedy mode; remove it")
        return self


def scores(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return log-probabilities [k, vocabulary] after temperature, top-k, top-p and min-p, in float64."""
    warped = _warpers(sampling)(None, logits) if sampling.mode != "greedy" else logits
    return torch.log_softmax(warped.double(), dim=-1)


def choose(logits: torch.Tensor, sampling: Sampling, request: int, position: int, stream: int = GUMBEL) -> list[int]:
    """Return a token for each row of logits [k, vocabulary]; row i stands for output position `position` + i."""
    return contest(logits, sampling, request, position, stream).argmax(dim=-1).tolist()


def contest(
    logits: torch.Tensor, sampling: Sampling, request: int, position: int, stream: int = GUMBEL
) -> torch.Tensor:
    """Return what the tokens compete with, [k, vocabulary]: the greatest in a row is the row's token."""
    if sampling.mode == "greedy":
        return logits
    return perturbed(scores(logits, sampling), sampling.seed, request, position, stream)


def perturbed_argmax(log_p: torch.Tensor, seed: int, request: int, position: int, stream: int) -> list[int]:
    """Return argmax(log p + Gumbel noise) for each row: a draw from p (Gumbel-max)."""
    return perturbed(log_p, seed, request, position, stream).argmax(dim=-1).tolist()


def perturbed(log_p: torch.Tensor, seed: int, request: int, position: int, stream: int) -> torch.Tensor:
    """Return log p + Gumbel noise for each row; row i draws for output position `position` + i."""
    rows, vocabulary = log_p.shape
    noise = [_gumbel(key(seed, request, position + row, stream), vocabulary, log_p.device) for row in range(rows)]
    return log_p + torch.stack(noise)


def accepted(
    p: torch.Tensor, q: torch.Tensor, drafted: Sequence[int], sampling: Sampling, request: int, position: int
) -> tuple[int, int]:
    """Return (how many of `drafted` rejection sampling accepts, the target's own token behind them).

    p: target log-probabilities [len(drafted) + 1 or len(drafted), vocabulary]; q: the draft's [len(drafted), ...].
    The own token is the correction, or the bonus if all are accepted; -1 if p has no row for a bonus.
    """
    for row, token in enumerate(drafted):
        luck = uniform(key(sampling.seed, request, position + row, ACCEPT))
        if luck >= min(1.0, float(torch.exp(p[row, token] - q[row, token]))):
            residual = torch.clamp(torch.exp(p[row]) - torch.exp(q[row]), min=0.0)
            # Rounding can leave nothing where p and q are all but equal; then p itself is the residual.
            rest = residual.log() if bool(residual.sum() > 0) else p[row]
            return row, perturbed_argmax(rest[None], sampling.seed, request, position + row, TARGET)[0]
    count = len(drafted)
    if len(p) == count:
        return count, -1
    return count, perturbed_argmax(p[count:], sampling.seed, request, position + count, TARGET)[0]


def key(seed: int, request: int, position: int, stream: int) -> int:
    """Return a 64-bit key for one draw."""
    mixed = 0
    for word in (seed, request, position, stream):
        mixed = _mix((mixed + word + 1) * _GOLDEN & _MASK)
    return mixed


def uniform(key: int) -> float:
    """Return a number in (0, 1) made from a key."""
    return ((_mix(key) >> 11) + 0.5) * 2.0**-53


def _mix(x: int) -> int:
    """Return the splitmix64 finalizer (Steele, Lea & Flood 2014) of a 64-bit integer."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def _gumbel(key: int, vocabulary: int, device: torch.device) -> torch.Tensor:
    """Return Gumbel noise [vocabulary], the same on every device but for the last bit of log."""
    x = _counters(vocabulary, device) + _signed(key)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shift(x, 31)
    u = (_shift(x, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(u))


@lru_cache(maxsize=8)
def _counters(vocabulary: int, device: torch.device) -> torch.Tensor:
    return torch.arange(1, vocabulary + 1, device=device, dtype=torch.int64) * _signed(_GOLDEN)


def _signed(word: int) -> int:
    """Return a 64-bit word as torch's signed integer; multiplication wraps alike."""
    return word - (1 << 64) if word >= 1 << 63 else word


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Return a logical right shift of int64."""
    return x >> bits & (1 << 64 - bits) - 1


@lru_cache(maxsize=8)
def _warpers(sampling: Sampling) -> Any:
    warpers: list[Any] = [TemperatureLogitsWarper(float(sampling.temperature))]
    if sampling.top_k is not None:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p is not None:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    return LogitsProcessorList(warpers)
