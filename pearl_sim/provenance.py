"""Where a recording made here comes from: the pair, the machine, the software, the command."""

import datetime
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from pearl_sim import __version__
from pearl_sim.models.lm import describe
from pearl_sim.models.pair import Pair
from pearl_sim.trace import Provenance


def provenance(pair: Pair, source: str, command: str, prompts: str | None, notes: Sequence[str]) -> Provenance:
    """Return what trace.json says of a recording with `pair`, made now."""
    layers = pair.draft_settings.layers
    own = [] if layers is None else [f"the draft is the first {layers} layers of its model"]
    return Provenance(
        source=source,
        created=datetime.date.today().isoformat(),
        command=command,
        target=describe(pair.target_settings),
        draft=describe(pair.draft_settings),
        device=_device(pair.target_settings.device),
        software={
            "pearl_sim": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        threads=pair.threads,
        execution="graph" if pair.target.graph else "eager",
        sampling={"mode": "greedy"} if pair.sampling.mode == "greedy" else pair.sampling.model_dump(exclude_none=True),
        seed=None if pair.sampling.mode == "greedy" else pair.sampling.seed,
        prompts=prompts,
        git_commit=_git_commit(),
        notes=(*own, *notes),
    )


def _device(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git_commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
