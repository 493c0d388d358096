"""A sweep on a Ray cluster of two nodes on this machine gives what one process gives, even if a worker dies."""

import os
import signal
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from pearl_sim import workers
from pearl_sim.errors import InputError
from pearl_sim.scenario import read
from pearl_sim.sweep import run

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'pearl-sim[ray]'")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FEW = {"workload.requests": "3", "workload.tokens": "50"}


@pytest.fixture(scope="module")
def address():
    """Return the address of a cluster of two nodes with a core each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


def test_results_are_those_of_one_process(address):
    scenario = read(ROOT / "scenarios" / "ratio_sweep.toml", FEW)
    told = []
    found, expected = run(scenario, told.append, ray=address), run(scenario)
    assert_frame_equal(found.rows, expected.rows, check_exact=True)
    assert_frame_equal(found.depths, expected.depths, check_exact=True)
    assert (found.key, found.driver) == (expected.key, expected.driver)
    assert sum(told) == len(scenario)


def test_a_lost_worker_costs_its_partition_only_and_that_is_computed_again(address, tmp_path):
    died = tmp_path / "died"

    def work(number):
        if number == 2 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number

    assert sorted(workers.on_ray(work, range(6), address)) == [(number, number * number) for number in range(6)]
    assert died.exists()


def test_bad_input_on_a_worker_is_the_same_line_as_here(address):
    def work(number):
        raise InputError("trace/tokens.parquet", f"partition {number} cannot read it")

    with pytest.raises(InputError, match=r"^trace/tokens\.parquet: partition 7 cannot read it$"):
        list(workers.on_ray(work, [7], address))


@pytest.mark.parametrize("nowhere", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_where_no_cluster_answers_that_is_one_line(nowhere):
    with pytest.raises(InputError, match=rf"^--ray {nowhere}: no cluster answers there: .+$"):
        list(workers.on_ray(abs, [1], nowhere))
