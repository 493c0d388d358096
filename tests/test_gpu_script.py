"""The script for GPU machines goes through its steps on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra: models")
pytest.importorskip("transformers", reason="needs the extra: models")

from pearl_sim.trace import load

SCRIPT = Path(__file__).parents[1] / "traces" / "on_gpu.sh"


@pytest.mark.slow
def test_the_dry_run_records_four_traces(tmp_path):
    environment = os.environ | {"DRY_RUN": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run([str(SCRIPT), str(tmp_path)], env=environment, check=True, capture_output=True, text=True)
    names = {"bundled_gpu_eager", "bundled_gpu_graph", "random_7b_eager", "random_7b_graph"}
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in names:
        trace = load(tmp_path / name)
        assert set(trace.steps["source"]) == {"ar", "sd-2", "pearl-2", "pearl-no-pre-2", "pearl-no-post-2"}
