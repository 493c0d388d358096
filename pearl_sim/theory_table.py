"""What `pearl-sim theory` prints: every policy's exact speed at one setting, and the note's estimate beside it."""

from typing import Annotated, Any

from pydantic import Field
from rich.table import Table

from pearl_sim import theory
from pearl_sim.acceptance import Probability
from pearl_sim.duration import Nanoseconds, PositiveNanoseconds
from pearl_sim.policies import POLICIES
from pearl_sim.settings import Settings

LEAST_SEARCHED = 64


class Setting(Settings):
    """One setting of the closed forms."""

    alpha: Probability
    gamma: Annotated[int, Field(ge=1, le=1024)]
    t_draft: PositiveNanoseconds
    t_target: PositiveNanoseconds
    sync: Nanoseconds


def compute(alpha: float, gamma: int, t_draft: str, t_target: str, sync: str) -> dict[str, Any]:
    """Return the answer as plain data; InputError names the option that is out of range."""
    given = {"alpha": alpha, "gamma": gamma, "t_draft": t_draft, "t_target": t_target, "sync": sync}
    at = Setting.read("theory", given)
    survival, times = theory.iid(alpha), (at.t_draft / 1e9, at.t_target / 1e9, at.sync / 1e9)
    duration = theory.round_time(*times)
    # No policy gains from drafting for much longer than the target takes.
    searched = max(LEAST_SEARCHED, 2 * -(-at.t_target // at.t_draft))
    plain = theory.speed(POLICIES["ar"](0), survival, duration)
    rows = []
    for name, policy_of in POLICIES.items():
        speed = theory.speed(policy_of(gamma), survival, duration)
        best = theory.best_gamma(policy_of, survival, *times, max_gamma=searched) if name != "ar" else 0
        rows.append(
            {
                "policy": name,
                "gamma": policy_of(gamma).gamma,
                "tokens_per_s": speed,
                "speedup": speed / plain,
                "tokens_per_target_forward": theory.tokens_per_round(policy_of(gamma), survival),
                "best_gamma": best,
                "speedup_at_best_gamma": theory.speed(policy_of(best), survival, duration) / plain,
            }
        )
    note = [estimate(alpha, gamma, *times[:2]) for estimate in (theory.note_speculative_speed, theory.note_pearl_speed)]
    return {
        **given,
        "gammas_searched": searched,
        "pearl_tokens_per_correction": 1 / (1 - alpha) if alpha < 1 else None,
        "policies": rows,
        "pearl_ceiling_tokens_per_s": theory.pearl_ceiling(gamma, *times),
        "note_sd_tokens_per_s": note[0],
        "note_pearl_tokens_per_s": note[1] if alpha < 1 else None,
    }


def render(answer: dict[str, Any]) -> tuple[Table, str]:
    """Return the answer for a terminal."""
    headings = (
        "policy",
        "gamma",
        "tokens/s",
        "speed-up",
        "tokens\n/forward",
        "best\ngamma",
        "speed-up\nthere",
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for row in answer["policies"]:
        cells = [value if isinstance(value, str) else f"{value:.4g}" for value in row.values()]
        if row["best_gamma"] == answer["gammas_searched"]:
            cells[5] = f">= {cells[5]}"
        table.add_row(*cells)
    between, ceiling = answer["pearl_tokens_per_correction"], answer["pearl_ceiling_tokens_per_s"]
    promised = answer["note_pearl_tokens_per_s"]
    lines = [
        f"PEARL writes {f'{between:.4g}' if between else 'endlessly many'} tokens between corrections, at any gamma",
        f"PEARL at gamma {answer['gamma']} cannot exceed {ceiling:.4g} tokens/s, whatever is accepted",
        f"the reading note's estimate: SD {answer['note_sd_tokens_per_s']:.4g}, "
        f"PEARL {f'{promised:.4g}' if promised else 'no bound'} tokens/s",
    ]
    return table, "\n".join(lines)
