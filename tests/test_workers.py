"""Whoever computes the partitions, each is computed, and a worker that dies takes nothing with it."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import parent_process
from pathlib import Path

import psutil
import pytest
from polars.testing import assert_frame_equal

from pearl_sim import workers
from pearl_sim.errors import InputError
from pearl_sim.scenario import read
from pearl_sim.sweep import run

ROOT = Path(__file__).parents[1]
FEW = {"workload.requests": "3", "workload.tokens": "50"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Other processes are started at once."""
    monkeypatch.setattr(workers, "ALONE_S", 0)


def by_whom(number):
    time.sleep(0.02)
    return os.getpid()


def dying(number):
    if parent_process() and number % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return number


def failing(parent, number):
    time.sleep(0.02)
    if os.getpid() != parent:
        raise InputError("file", "is wrong")


def test_results_are_the_same_for_any_number_of_processes():
    scenario = read(ROOT / "scenarios" / "decaying_alpha.toml", FEW)
    alone, together = run(scenario), run(scenario, processes=3)
    assert_frame_equal(together.rows, alone.rows, check_exact=True)
    assert_frame_equal(together.depths, alone.depths, check_exact=True)


def test_this_process_and_the_others_all_work():
    done = list(workers.here(by_whom, range(200), 2))
    assert sorted(number for number, _ in done) == list(range(200))
    assert len({process for _, process in done}) == 2
    assert os.getpid() in dict(done).values()


def test_what_a_worker_that_died_was_at_is_computed_again():
    assert sorted(workers.here(dying, range(200), 3)) == [(number, number) for number in range(200)]


def test_an_error_in_a_worker_is_the_error_here():
    with pytest.raises(InputError, match=r"^file: is wrong$"):
        list(workers.here(partial(failing, os.getpid()), range(10**6), 2))


def test_a_short_sweep_starts_no_process(monkeypatch):
    monkeypatch.setattr(workers, "ALONE_S", 1000)
    monkeypatch.setattr(workers, "_beside", None)
    assert len({process for _, process in workers.here(by_whom, range(3), 8)}) == 1


def test_workers_end_when_this_process_is_killed(tmp_path):
    """Then nothing is left running, and the next run may start."""
    code = (
        "from test_workers import by_whom, workers\nworkers.ALONE_S = 0\nlist(workers.here(by_whom, range(10**6), 3))"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    run = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE)
    found = psutil.Process(run.pid)
    helpers = []
    for _ in range(200):
        helpers = [child for child in found.children() if "spawn_main" in " ".join(child.cmdline())]
        if len(helpers) == 2 and time.sleep(1) is None:
            break
        time.sleep(0.05)
    run.kill()
    run.communicate()
    _, alive = psutil.wait_procs(helpers, timeout=10)
    assert len(helpers) == 2
    assert alive == []
