"""The named policies.  To add one that the rules can already express, add a function and its name here."""

from collections.abc import Callable
from types import MappingProxyType

from pearl_sim.rules import Policy


def autoregressive(gamma: int = 0) -> Policy:
    """Return plain decoding: the target writes one token a round; there is no draft, so gamma is not used."""
    return Policy(0, True, False)


def speculative(gamma: int) -> Policy:
    """Return vanilla speculative decoding: draft gamma tokens, then score them and one bonus position."""
    return Policy(gamma, False, False)


def pearl(gamma: int) -> Policy:
    """Return PEARL (Liu et al., ICLR 2025): draft and target work in parallel in every round."""
    return Policy(gamma, True, True)


def without_pre_verify(gamma: int) -> Policy:
    """Return PEARL's ablation whose target waits while the first gamma tokens of a chain are drafted."""
    return Policy(gamma, False, True)


def without_post_verify(gamma: int) -> Policy:
    """Return PEARL's ablation whose draft waits while the target scores."""
    return Policy(gamma, True, False)


POLICIES: MappingProxyType[str, Callable[[int], Policy]] = MappingProxyType(
    {
        "ar": autoregressive,
        "sd": speculative,
        "pearl": pearl,
        "pearl-no-pre": without_pre_verify,
        "pearl-no-post": without_post_verify,
    }
)
"""Each policy by the name that scenarios, tables and pictures use: name -> (gamma -> Policy)."""


def label(name: str, gamma: int) -> str:
    """Return what a trace calls the runs of a policy: ar, sd-4, pearl-4, ..."""
    return f"{name}-{gamma}" if POLICIES[name](gamma).gamma else name


def of_label(text: str) -> tuple[str, int] | None:
    """Return the (name, gamma) that a trace calls `text`, or None if that is no policy's run."""
    if text == "ar":
        return text, 0
    name, _, gamma = text.rpartition("-")
    drafts = name in POLICIES and name != "ar" and gamma.isdecimal() and gamma == str(int(gamma)) and gamma != "0"
    return (name, int(gamma)) if drafts else None
