"""Who may import whom: section 3 of the design, held against the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pearl_sim

PACKAGE = Path(pearl_sim.__file__).parent
SOURCES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
MODELS = ("models/", "capture.py", "provenance.py", "drivers/real.py")
PURE = ("rules.py", "policies.py", "judge.py", "acceptance.py", "trace.py", "cost.py", "affine.py", "timing.py")
PURE += ("timeline.py", "point.py", "scenario.py", "metrics.py", "theory.py", "duration.py", "settings.py", "errors.py")
PURE += ("drafts.py", "recorded.py", "perfetto.py", "ascii_timeline.py")
PURE += ("counts.py", "survival.py", "dependence.py", "fit.py")
ONLY_IN = {
    "simpy": ("drivers/sim",),
    "numba": ("drivers/compiled.py",),
    "torch": MODELS,
    "transformers": MODELS,
    "safetensors": MODELS,
    "ray": ("workers.py",),
}


def imported(path):
    """Return the full names of what a module imports, at its top or inside a function."""
    here = ("pearl_sim", *path.relative_to(PACKAGE).parts[:-1])
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def tops(path):
    return {name.split(".")[0] for name in imported(path)}


def own(path):
    """Return which of pearl_sim's modules a module imports, as "drivers.sim" or "rules"."""
    return {name.removeprefix("pearl_sim.") for name in imported(path) if name.startswith("pearl_sim.")}


def test_there_is_something_to_hold_the_rules_against():
    assert {"rules.py", "theory.py", "drivers/sim.py"} <= set(SOURCES)


def test_rules_import_typing_only():
    assert tops(SOURCES["rules.py"]) == {"typing"}


@pytest.mark.parametrize("module", [module for module in PURE if module in SOURCES])
def test_the_core_imports_no_driver_no_model_and_no_command(module):
    outer = ("drivers", "models", "cli", "sweep", "report", "capture", "profile", "compare", "recommend")
    assert not {name for name in own(SOURCES[module]) if name.split(".")[0] in outer}


def test_policies_and_judge_know_nothing_but_the_rules():
    for module in ("policies.py", "judge.py"):
        assert {name.split(".")[0] for name in own(SOURCES[module])} <= {"rules"}


def test_theory_shares_no_code_with_what_it_checks():
    assert {name.split(".")[0] for name in own(SOURCES["theory.py"])} <= {"acceptance", "rules"}
    assert {name for name in own(SOURCES["theory.py"]) if name.startswith("rules.")} == {"rules.Policy"}


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_a_heavy_library_is_imported_only_where_it_belongs(module):
    for library in ONLY_IN.keys() & tops(SOURCES[module]):
        assert module.startswith(ONLY_IN[library]), f"{module} imports {library}"


@pytest.mark.parametrize("module", [module for module in sorted(SOURCES) if module.startswith("drivers/")])
def test_a_driver_imports_no_command(module):
    outer = ("cli", "sweep", "report", "capture", "profile", "compare", "recommend")
    assert not {name for name in own(SOURCES[module]) if name.split(".")[0] in outer}


@pytest.mark.parametrize("module", [module for module in sorted(SOURCES) if module != "__main__.py"])
def test_nothing_imports_the_command_line(module):
    assert not {name for name in own(SOURCES[module]) if name.split(".")[0] == "cli"}


def test_importing_the_command_line_loads_no_heavy_library():
    entry = "pearl_sim.cli" if "cli.py" in SOURCES else "pearl_sim"
    heavy = ("torch", "transformers", "polars", "altair", "numba", "ray")
    code = f"import sys, {entry}; print(*[name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == ""


def test_what_only_reads_recordings_needs_no_torch():
    """Compare and the report work where the models are not installed."""
    names = "compare, compare_figure, measure_table, cli_measure, recommend, report.page"
    block = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None"
    code = f"{block}; import importlib; [importlib.import_module('pearl_sim.' + n) for n in '{names}'.split(', ')]"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)
