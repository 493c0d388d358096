"""What the tests share: where things lie, and Hypothesis without a deadline (machines are noisy)."""

from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

settings.register_profile("here", deadline=None)
settings.load_profile("here")


@pytest.fixture
def shared_data() -> Path:
    """Return the folder of reference data that is not part of the project, or skip."""
    data = ROOT.parent / "shared" / "data"
    if not data.is_dir():
        pytest.skip("the reference data (../shared/data) is not on this machine")
    return data
