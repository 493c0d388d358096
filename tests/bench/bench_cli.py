"""How long the command line takes to answer: the unit is one start; beside it, Python doing nothing."""

import subprocess
import sys


def started(*code):
    subprocess.run([sys.executable, *code], check=True, capture_output=True)


def entered(*arguments):
    command = f"import sys; from pearl_sim.cli import main; sys.argv = ['pearl-sim', *{arguments!r}]; main()"
    started("-c", command)


def bench_bare_start(per_unit):
    per_unit(lambda: started("-c", "pass"), 1)


def bench_cli_version(per_unit):
    per_unit(lambda: entered("--version"), 1)


def bench_cli_help(per_unit):
    per_unit(lambda: entered("--help"), 1)


def bench_cli_simulate_help(per_unit):
    per_unit(lambda: entered("simulate", "--help"), 1)
