"""Loading a Hugging Face causal LM and its tokenizer, safely and without surprises.

Safetensors only and no code from a model repository, unless told otherwise; with no network, local files only.
"""

import hashlib
import math
import os
import socket
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from huggingface_hub.constants import ENDPOINT
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from pearl_sim.errors import InputError
from pearl_sim.models.cache import GRAPH_CONTEXT
from pearl_sim.trace import Model

BUNDLED = Path(__file__).parent / "bundled"
BYTES, BOS, EOS = 256, 256, 257

MARKS = 3
REACH_S = 3.0

transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


class ModelSettings(NamedTuple):
    """Which model, where, and how: plain data, so that it can be sent to another process.

    `name` is a directory or a hub name, or "bundled/target", "bundled/draft", or a config.json, which is given random
    weights: latency does not depend on them.  `layers`, if given, keeps only the first so many layers: a layer-skip
    draft.  `graph` compiles the forwards.
    """

    name: str
    device: str = "cpu"
    dtype: str = "float32"
    layers: int | None = None
    trust_remote_code: bool = False
    graph: bool = False


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a prompt, with whatever the model expects at its beginning."""

    def decode(self, tokens: list[int]) -> str:
        """Return the text of output tokens."""

    def vocabulary(self) -> dict[str, int]:
        """Return every token by its text; two models can work together if theirs are equal."""


class ByteTokenizer:
    """The bundled pair's tokenizer: a token is a byte; BOS 256, EOS 257."""

    def encode(self, text: str) -> list[int]:
        """Return BOS and the bytes of `text`."""
        return [BOS, *text.encode()]

    def decode(self, tokens: list[int]) -> str:
        """Return the text of the tokens that are bytes; a byte sequence that is no UTF-8 shows as U+FFFD."""
        return bytes(token for token in tokens if token < BYTES).decode(errors="replace")

    def vocabulary(self) -> dict[str, int]:
        """Return the bytes."""
        return {chr(byte): byte for byte in range(BYTES)}


class HubTokenizer:
    """A tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a transformers tokenizer."""
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text` with the special tokens the model expects."""
        return list(self._tokenizer(text)["input_ids"])

    def decode(self, tokens: list[int]) -> str:
        """Return the text of the tokens, special ones left out."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def vocabulary(self) -> dict[str, int]:
        """Return every token by its text."""
        return dict(self._tokenizer.get_vocab())


def locate(name: str) -> str:
    """Return a path or hub name; "bundled/target" and "bundled/draft" are the pair that comes with the package."""
    if name in ("bundled/target", "bundled/draft"):
        return str(BUNDLED / name.removeprefix("bundled/"))
    return name


def load_model(settings: ModelSettings) -> Any:
    """Return the model in evaluation mode; InputError says what to do if it cannot be had."""
    dtype = getattr(torch, settings.dtype)
    try:
        if settings.name.endswith(".json"):
            torch.manual_seed(0)
            with torch.device(settings.device):
                model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                    _config(settings), dtype=dtype
                )
        else:
            model = AutoModelForCausalLM.from_pretrained(
                locate(settings.name),
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=settings.trust_remote_code,
                local_files_only=_on_disk(settings),
            )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise InputError(settings.name, _advice(error)) from None
    if settings.layers is not None:
        _keep_layers(model, settings)
    return model.to(settings.device).eval()


def load_tokenizer(settings: ModelSettings) -> Tokenizer:
    """Return the tokenizer that belongs to a model; a directory without one holds a model of bytes."""
    path = Path(locate(settings.name))
    if path.suffix == ".json" or (path.is_dir() and not list(path.glob("tokenizer*"))):
        if path.is_dir() and vocabulary_size(settings) > BYTES + MARKS:
            raise InputError(settings.name, "has no tokenizer files, and too large a vocabulary to be a model of bytes")
        return ByteTokenizer()
    try:
        found = AutoTokenizer.from_pretrained(
            str(path) if path.is_dir() else settings.name,
            trust_remote_code=settings.trust_remote_code,
            local_files_only=_on_disk(settings),
        )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise InputError(settings.name, _advice(error)) from None
    return HubTokenizer(found)


def _title(name: str, path: Path) -> str:
    if path.suffix == ".json":
        return f"{path.name} (random weights)"
    return path.name if path.is_dir() and not name.startswith("bundled/") else name


def vocabulary_size(settings: ModelSettings) -> int:
    """Return how many logits the model has."""
    try:
        return int(_config(settings).vocab_size)
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(settings.name, _advice(error)) from None


def stop_tokens(model: Any) -> frozenset[int]:
    """Return the tokens that end a text."""
    eos = model.generation_config.eos_token_id if model.generation_config else None
    eos = model.config.eos_token_id if eos is None else eos
    return frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])


def context_length(settings: ModelSettings) -> int:
    """Return how many tokens the model can read; graph mode's cache may hold fewer."""
    try:
        longest = int(_config(settings).max_position_embeddings)
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(settings.name, _advice(error)) from None
    return min(longest, GRAPH_CONTEXT) if settings.graph else longest


def check_device(settings: ModelSettings) -> None:
    """Raise InputError if the model's device is none, or not on this machine."""
    try:
        device = torch.device(settings.device)
    except RuntimeError:
        raise InputError(f"device {settings.device!r}", "must be cpu, cuda or cuda:N") from None
    found = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= found:
        raise InputError(f"device {settings.device!r}", f"is not there: torch finds {found} CUDA devices")


def same_device(one: ModelSettings, other: ModelSettings) -> bool:
    """Return whether two models share a device; "cuda" is "cuda:0"."""
    first, second = torch.device(one.device), torch.device(other.device)
    return first.type == second.type and (first.index or 0) == (second.index or 0)


def describe(settings: ModelSettings) -> Model:
    """Return what a trace records of a model; of one that is not a local directory, only its name."""
    name, path = settings.name, Path(locate(settings.name))
    weights = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    digest, parameters = hashlib.sha256(), 0
    for file in weights:
        digest.update(file.read_bytes())
        with safe_open(file, "pt") as tensors:
            parameters += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return Model(
        id=_title(name, path),
        weights_sha256=digest.hexdigest() if weights else None,
        parameters=parameters or None,
        dtype=settings.dtype,
    )


def _config(settings: ModelSettings) -> Any:
    return AutoConfig.from_pretrained(
        locate(settings.name), trust_remote_code=settings.trust_remote_code, local_files_only=_on_disk(settings)
    )


def _keep_layers(model: Any, settings: ModelSettings) -> None:
    """Drop all but the first layers, which then write with the model's own head."""
    layers = getattr(getattr(model, "model", None), "layers", None)
    if layers is None:
        raise InputError(settings.name, "has no list of decoder layers at model.layers, so none can be skipped")
    if not 1 <= settings.layers <= len(layers):  # type: ignore[operator]
        raise InputError(settings.name, f"has {len(layers)} layers; cannot keep the first {settings.layers}")
    model.model.layers = layers[: settings.layers]
    model.config.num_hidden_layers = settings.layers


def _on_disk(settings: ModelSettings) -> bool:
    """Return whether only files on this disk may be read: always for a path."""
    return Path(locate(settings.name)).exists() or _offline()


@lru_cache(maxsize=1)
def _offline() -> bool:
    """Return whether to look on this disk only: as asked, or as the hub is out of reach (its client retries long)."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return True
    if getproxies():
        return False
    hub = urlsplit(ENDPOINT)
    try:
        socket.create_connection((hub.hostname, hub.port or 443), timeout=REACH_S).close()
    except OSError:
        return True
    return False


def _advice(error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "trust_remote_code" in str(error):
        return "needs code from its repository; read that code, then pass --trust-remote-code"
    if "safetensors" in str(error):
        return "has no safetensors weights; convert them first"
    return f"cannot be loaded ({first}); give a local directory, or a hub name where the hub can be reached"
