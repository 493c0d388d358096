"""The script for GPU machines goes through its steps on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra: models")
pytest.importorskip("transformers", reason="needs the extra: models")

from pearl_sim.trace import load, load_steps

SCRIPT = Path(__file__).parents[1] / "traces" / "on_gpu.sh"


@pytest.mark.slow
def test_the_dry_run_captures_profiles_replays_and_compares(tmp_path):
    environment = os.environ | {"DRY_RUN": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    told = subprocess.run([str(SCRIPT), str(tmp_path)], env=environment, check=True, capture_output=True, text=True)
    modes = ("eager", "graph")
    names = {
        f"{name}_{mode}{kind}" for mode in modes for name, kind in (("bundled", ""), ("7b", ""), ("7b", ".profile"))
    }
    assert {path.name for path in tmp_path.iterdir()} == names
    assert told.stdout.count("every round of every run is the simulator's") == 2
    for mode in modes:
        for name, gamma in ((f"bundled_{mode}", 2), (f"7b_{mode}", 1)):
            runs = {"ar", *(f"{policy}-{gamma}" for policy in ("sd", "pearl", "pearl-no-pre", "pearl-no-post"))}
            assert set(load(tmp_path / name).steps["source"]) == runs
        assert len(load_steps(tmp_path / f"7b_{mode}.profile"))
