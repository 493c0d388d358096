"""One place of a run, simulated again in full: what results.parquet has as sums is here round by round.

Each policy plays at its own best gamma there; autoregressive decoding always plays, as the baseline.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from pearl_sim.acceptance import Iid
from pearl_sim.cost import Cost
from pearl_sim.drivers import kernel, sim
from pearl_sim.judge import Censored, Request
from pearl_sim.metrics import Interval, Totals, acceptance_by_depth, ratio
from pearl_sim.point import censored_of, requests_of
from pearl_sim.policies import POLICIES
from pearl_sim.report.section import Text, told
from pearl_sim.rules import Policy, candidates
from pearl_sim.run import Place, Run
from pearl_sim.timeline import Timeline
from pearl_sim.timing import Timing

MOST_TOKENS = 50_000
"""Output tokens whose rounds are kept for each policy; more requests add nothing that could be seen."""


class Played(NamedTuple):
    """One policy at its best gamma: what every request took, and the rounds of `Study.few`."""

    policy: Policy
    totals: list[Totals]
    timelines: list[Timeline]


class ClosedForm(NamedTuple):
    """The place as the closed forms see it: i.i.d. acceptance and constant times, in nanoseconds.

    exact: the place is of that kind, so that nothing was fitted.
    """

    alpha: float
    t_draft: float
    t_target: float
    sync: float
    exact: bool


class Study(NamedTuple):
    """A place of a run in detail.

    gammas: those that the run tried there.
    few:    the first requests, of MOST_TOKENS output tokens in all.
    censored: where the requests' runs are known only to be at least so long; None if they are known everywhere.
    """

    run: Run
    place: Place
    cost: Cost
    gammas: list[int]
    requests: list[Request]
    few: list[Request]
    played: dict[str, Played]
    censored: list[Censored] | None

    @property
    def title(self) -> str:
        """Return the run's title and the place."""
        return self.run.record.title + (f": {told(self.place)}" if self.place else "")

    def heading(self, studied: int) -> list[Text]:
        """Return what stands above the place's figures: nothing where it is the only one studied."""
        return [Text(self.title, level=3)] if studied > 1 else []

    @property
    def best(self) -> str:
        """Return the policy that takes the least time."""
        return min(self.played, key=lambda name: sum(request.time_ns for request in self.played[name].totals))

    @property
    def drafting(self) -> list[str]:
        """Return the policies that draft."""
        return [name for name, played in self.played.items() if played.policy.gamma]

    def speedup(self, name: str, over: str) -> Interval:
        """Return the time of policy `over` over that of `name`, paired request by request."""
        times = [[request.time_ns / 1e9 for request in self.played[policy].totals] for policy in (over, name)]
        return ratio(*times)


def studied(runs: Sequence[Run]) -> list[Study]:
    """Return the places that the report looks at in detail.

    The middle place of every run on a recorded trace; where there is none, of the first run.
    """
    recorded = [run for run in runs if run.trace]
    return [study(run, *run.places(1)) for run in recorded or runs[:1]]


def study(run: Run, place: Place) -> Study:
    """Return the place played again; InputError if its trace is gone or has changed."""
    rows = run.at(place).filter(pl.col("gamma") > 0)
    best = rows.sort("speedup", descending=True, maintain_order=True).unique("policy", keep="first")
    gamma_of = dict(best.select("policy", "gamma").iter_rows())
    gammas = sorted(rows["gamma"].unique().to_list())
    played = {}
    for name in [name for name in POLICIES if name == "ar" or name in gamma_of]:
        gamma = gamma_of.get(name, gammas[0] if gammas else 0)
        point, policy = run.point(place, gamma), POLICIES[name](gamma)
        requests = requests_of(point.source)
        few = first(requests, MOST_TOKENS)
        timing = point.cost.timing(policy)
        played[name] = Played(
            policy, totals(policy, requests, timing, point.seed), timelines(policy, few, timing, point.seed)
        )
    return Study(run, place, point.cost, gammas, requests, few, played, censored_of(point.source))


def totals(policy: Policy, requests: list[Request], timing: Timing, seed: int) -> list[Totals]:
    """Return what each request takes, by the kernel where its clock suffices."""
    try:
        return kernel.tally(policy, requests, timing, seed, None).totals
    except OverflowError:
        return sim.tally(policy, requests, timing, seed, None).totals


def timelines(policy: Policy, requests: list[Request], timing: Timing, seed: int) -> list[Timeline]:
    """Return the timeline of each request, by the kernel where its clock suffices."""
    try:
        return kernel.simulate(policy, requests, timing, seed)
    except OverflowError:
        return sim.simulate(policy, requests, timing, seed)


def closed_form(study: Study) -> ClosedForm | None:
    """Return the place as the closed forms see it; None where no draft was ever checked.

    alpha: of all draft tokens that were checked, the share accepted, under PEARL where it played.
    times: means over the rounds played: a drafted token's under SD where it played, a target forward's under
           AR, a hand-over's over the rounds in which drafts were checked.
    """
    if not study.drafting:
        return None
    pearl, sd = (name if name in study.played else study.drafting[0] for name in ("pearl", "sd"))
    point = study.run.point(study.place, study.played[pearl].policy.gamma)
    law = point.law
    rounds = [step for timeline in study.played[pearl].timelines for step in timeline[1:]]
    # What lies past the end of a record is neither accepted nor refused.
    by_depth = acceptance_by_depth(study.played[pearl].timelines, study.censored)
    checked, accepted = (sum(row[column] for row in by_depth) for column in (1, 2))
    drafts = [
        step.draft_ns / step.round.draft
        for timeline in study.played[sd].timelines
        for step in timeline[1:]
        if step.round.draft
    ]
    targets = [step.score_ns for timeline in study.played["ar"].timelines for step in timeline[1:]]
    hand_overs = [
        step.stop - step.start - max(step.draft_ns, step.score_ns)
        for step in rounds
        if candidates(step.frontier, step.round)
    ]
    if not (checked and drafts and targets):
        return None
    return ClosedForm(
        law.alpha if isinstance(law, Iid) else accepted / checked,
        float(np.mean(drafts)),
        float(np.mean(targets)),
        float(np.mean(hand_overs)),
        isinstance(law, Iid) and study.cost.model == "constant" and study.cost.contention == 1,
    )


def first(requests: list[Request], tokens: int) -> list[Request]:
    """Return the first requests with so many tokens in all; one at least, cut short if it must be."""
    ends = np.cumsum([request.limit for request in requests])
    count = max(1, int(np.searchsorted(ends, tokens, side="right")))
    return [request._replace(limit=min(request.limit, tokens)) for request in requests[:count]]
