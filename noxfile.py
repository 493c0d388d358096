"""The things to run here, each in an environment of its own.

simulate, tests, validate, fidelity, bench, train_pair, lint, types.

Arguments after `--` go to the command itself: nox -s simulate -- scenarios/gamma_sweep.toml --set policy.gamma=8
"""

from argparse import ArgumentParser
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "venv"
PYPROJECT = nox.project.load_toml("pyproject.toml")
TORCH = "torch==2.13.0"  # the CPU build, where a range would take gigabytes
BENCH = ("tests/bench", "-o", "python_files=bench_*.py", "-o", "python_functions=bench_*")
BENCH += ("--benchmark-json=results/bench.json", "-W", "default")


@nox.session
def simulate(session: nox.Session) -> None:
    """Sweep the scenarios and write results/: tables, figures, report.html.  Needs no GPU and no torch."""
    session.install("-e", ".")
    shipped = [str(file) for file in sorted(Path("scenarios").glob("*.toml"))]
    named = [argument for argument in session.posargs if argument.endswith(".toml")]
    session.run("pearl-sim", "simulate", *([] if named else shipped), *session.posargs)
    options = ArgumentParser(allow_abbrev=False)
    options.add_argument("--out", type=Path, default=Path("results"))
    out = options.parse_known_args(session.posargs)[0].out
    runs = [str(out / Path(file).stem) for file in named or shipped]
    session.run("pearl-sim", "report", *runs, "--out", str(out / "report.html"))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the test suite."""
    session.install(TORCH)
    session.install("-e", ".[models,ray]", *nox.project.dependency_groups(PYPROJECT, "tests"))
    session.run("pytest", "-n", "auto", *session.posargs)


@nox.session
def validate(session: nox.Session) -> None:
    """Predict published hardware measurements and print the errors.  Needs no GPU and no torch."""
    session.install("-e", ".")
    session.run("pearl-sim", "validate", "published", *session.posargs)


@nox.session
def fidelity(session: nox.Session) -> None:
    """Measure how well simulation tells the time here, in minutes; writes docs/fidelity.md.  Wants a quiet machine."""
    session.install(TORCH)
    session.install("-e", ".[models]")
    where = ["--out", "traces/bundled_fidelity", "--page", "docs/fidelity.md"]
    session.run("pearl-sim", "fidelity", *where, *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure speed; writes results/bench.json."""
    session.install("-e", ".", *nox.project.dependency_groups(PYPROJECT, "tests", "bench"))
    Path("results").mkdir(exist_ok=True)
    session.run("pytest", *BENCH, *session.posargs)


@nox.session
def train_pair(session: nox.Session) -> None:
    """Train the bundled pair anew (over an hour), or with -- --stage evaluate measure it."""
    session.install(TORCH)
    session.install("-e", ".[models]")
    session.run("python", "-m", "pearl_sim.models.train_pair", "--out", "pearl_sim/models/bundled", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly."""
    session.install(TORCH)
    session.install("-e", ".[models]", *nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("mypy")
