"""A design point: everything that one simulation needs, each key checked against the others."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from pearl_sim.acceptance import Beta, Decaying, Iid, Law, Markov, PerDepth
from pearl_sim.cost import AffineCost, ConstantCost, EmpiricalCost, RooflineCost
from pearl_sim.judge import Censored, Request
from pearl_sim.policies import POLICIES
from pearl_sim.rules import Policy
from pearl_sim.settings import Count, Settings
from pearl_sim.trace import Trace, load


def _known(name: str) -> str:
    if name not in POLICIES:
        raise ValueError(f"must be one of {', '.join(POLICIES)}")
    return name


class Recorded(Settings):
    """Acceptance as a trace recorded it."""

    law: Literal["recorded"] = "recorded"
    trace: Path


AnyCost: TypeAlias = Annotated[ConstantCost | AffineCost | RooflineCost | EmpiricalCost, Field(discriminator="model")]
"""A [cost] table."""


class Policies(Settings):
    """Which policies to compare, and how many tokens the draft writes in a round."""

    names: Annotated[tuple[Annotated[str, AfterValidator(_known)], ...], Field(min_length=1, strict=False)]
    gamma: Annotated[int, Field(ge=0, le=1024)] | None = None

    @model_validator(mode="after")
    def _gamma_matters(self) -> Self:
        drafts = [name for name in self.names if name != "ar"]
        if drafts and self.gamma is None:
            raise ValueError(f"gamma is missing; {drafts[0]} needs it")
        if not drafts and self.gamma is not None:
            raise ValueError("gamma changes nothing: autoregressive decoding has no draft; remove it")
        if len(set(self.names)) < len(self.names):
            raise ValueError("names lists a policy twice")
        return self

    def chosen(self) -> dict[str, Policy]:
        """Return the policies by name, in the order given."""
        return {name: POLICIES[name](self.gamma or 0) for name in self.names}


class Workload(Settings):
    """What is decoded: so many requests of so many output tokens after prompts of so many."""

    requests: Count | None = None
    tokens: Annotated[Count, Field(ge=2)] | None = None
    prompt_tokens: Count | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None


class Point(Settings):
    """One design point: everything a simulation needs."""

    acceptance: Annotated[Iid | PerDepth | Decaying | Beta | Markov | Recorded, Field(discriminator="law")]
    cost: AnyCost
    policy: Policies
    workload: Workload = Workload()
    reading_note: bool = False
    """Show the reading note's estimate beside theory and simulation."""

    @model_validator(mode="after")
    def _every_key_matters(self) -> Self:
        work, recorded = self.workload, isinstance(self.acceptance, Recorded)
        random = not recorded or isinstance(self.cost, EmpiricalCost)
        reads_prompt = isinstance(self.cost, AffineCost | RooflineCost | EmpiricalCost)
        if not recorded and (work.requests is None or work.tokens is None):
            raise ValueError(
                "workload.requests and workload.tokens are needed: a synthetic law has no requests of its own"
            )
        if recorded and work.prompt_tokens is not None:
            raise ValueError("workload.prompt_tokens changes nothing: the trace has the prompts' lengths; remove it")
        if not recorded and reads_prompt and work.prompt_tokens is None:
            raise ValueError(f"workload.prompt_tokens is missing; cost model {self.cost.model!r} needs it")
        if not reads_prompt and work.prompt_tokens is not None:
            raise ValueError(f"workload.prompt_tokens changes nothing under cost model {self.cost.model!r}; remove it")
        if not random and work.seed is not None:
            raise ValueError("workload.seed changes nothing: nothing here is random; remove it")
        if self.reading_note and not (isinstance(self.acceptance, Iid) and isinstance(self.cost, ConstantCost)):
            raise ValueError(
                "reading_note needs acceptance law 'iid' and cost model 'constant', which the note assumes"
            )
        return self

    @property
    def seed(self) -> int:
        """Return the seed of everything random."""
        return self.workload.seed or 0

    @property
    def law(self) -> Law | None:
        """Return the synthetic law, or None for recorded acceptance."""
        return None if isinstance(self.acceptance, Recorded) else self.acceptance

    @property
    def source(self) -> "Source":
        """Return what makes the requests; the same for every policy and cost."""
        work = self.workload
        if isinstance(self.acceptance, Recorded):
            return Source(load(self.acceptance.trace), work.requests, work.tokens)
        return Source(
            self.acceptance, work.requests, work.tokens, work.prompt_tokens or 0, self.seed, self.policy.gamma or 0
        )


class Source(NamedTuple):
    """Where requests come from: equal sources give equal requests."""

    acceptance: Law | Trace
    requests: int | None
    tokens: int | None
    prompt_tokens: int = 0
    seed: int = 0
    gamma: int = 0


@lru_cache(maxsize=4)
def requests_of(source: Source) -> list[Request]:
    """Return the requests, recorded or drawn."""
    law, count, tokens, prompt_tokens, seed, gamma = source
    if isinstance(law, Trace):
        return law.workload(count, tokens)
    assert count and tokens  # checked with the point
    # A run may reach past the limit: the last round is not clipped, and its outcome must not depend on gamma.
    length = tokens + gamma + 1
    return [Request(prompt_tokens, tokens, law.runs(seed, number, length)) for number in range(count)]


def censored_of(source: Source) -> list[Censored] | None:
    """Return where the requests' runs are known only to be at least so long; None if they are known everywhere."""
    return source.acceptance.censored(source.requests) if isinstance(source.acceptance, Trace) else None
