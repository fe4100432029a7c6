"""What every test starts from: the same random numbers in each run and on each machine."""

import pytest
import torch
from hypothesis import settings

# No deadline: a shared machine makes any example slow once. No database: a run depends on the code alone.
settings.register_profile("evenkeel", derandomize=True, deadline=None, database=None)
settings.load_profile("evenkeel")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
