"""The commands that run real models: generate and capture.  They need the extra `models`."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from pearl_sim.errors import InputError

if TYPE_CHECKING:
    from pearl_sim.models.lm import ModelSettings
    from pearl_sim.models.sampling import Sampling
    from pearl_sim.rules import Policy

Target = Annotated[str, typer.Option(help="The target: a directory or a hub name.")]
Draft = Annotated[str, typer.Option(help="The draft: a model, prompt-lookup, or layers:K for the target's first K.")]
Mode = Annotated[str, typer.Option(help="greedy, coupled or rejection.")]
Temperature = Annotated[float | None, typer.Option(help="Of sampling, as in transformers; so are top-k, top-p, min-p.")]
TopK = Annotated[int | None, typer.Option()]
TopP = Annotated[float | None, typer.Option()]
MinP = Annotated[float | None, typer.Option()]
Seed = Annotated[int | None, typer.Option(help="Of sampling.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or two devices: cuda:0,cuda:1 (target, draft).")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Graph = Annotated[bool, typer.Option("--graph", help="Compile the forwards; on CUDA, replay them as CUDA graphs.")]
TrustCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code from the model's repository.")]

DTYPES = ("float32", "bfloat16", "float16")


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue.")],
    policy: Annotated[str, typer.Option(help="ar, sd, pearl, pearl-no-pre or pearl-no-post.")] = "pearl",
    gamma: Annotated[int, typer.Option(help="Tokens drafted a round.")] = 4,
    tokens: Annotated[int, typer.Option(help="Write at most so many.")] = 128,
    target: Target = "bundled/target",
    draft: Draft = "bundled/draft",
    mode: Mode = "greedy",
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    graph: Graph = False,
    trust_remote_code: TrustCode = False,
) -> None:
    """Decode with real models and stream the text; how it went is told on stderr."""
    need_models()
    (chosen,) = policies_of([policy], [gamma]).values()
    at_least(tokens, 1, "--tokens")
    sampling = sampling_of(mode, temperature, top_k, top_p, min_p, seed)
    models = models_of(target, draft, device, dtype, graph, trust_remote_code)
    from pearl_sim.generate import stream

    with worker_errors():
        stream(prompt, chosen, tokens, models.target, models.draft, sampling)


def capture(
    out: Annotated[Path, typer.Option(help="The trace to make.")] = Path("traces/captured"),
    prompts: Annotated[Path | None, typer.Option(help="Lines of text, or JSONL; left out: the bundled set.")] = None,
    requests: Annotated[int | None, typer.Option(help="Use only the first so many prompts.")] = None,
    tokens: Annotated[int, typer.Option(help="Output tokens of each request.")] = 128,
    policies: Annotated[str, typer.Option(help="Policies to run and time, with commas.")] = "ar,sd,pearl",
    gammas: Annotated[str, typer.Option(help="Gammas to run them at, with commas.")] = "2,4,8",
    target: Target = "bundled/target",
    draft: Draft = "bundled/draft",
    mode: Mode = "greedy",
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    graph: Graph = False,
    trust_remote_code: TrustCode = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted recording.")] = False,
) -> None:
    """Record a trace from real models: acceptance at every position, and timed steps."""
    need_models()
    chosen = policies_of(policies.split(","), numbers_of(gammas, "--gammas"))
    at_least(tokens, 2, "--tokens")
    at_least(1 if requests is None else requests, 1, "--requests")
    sampling = sampling_of(mode, temperature, top_k, top_p, min_p, seed)
    models = models_of(target, draft, device, dtype, graph, trust_remote_code)

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from pearl_sim import capture as recording
    from pearl_sim import prompts as prompt_files
    from pearl_sim.models.pair import open_pair

    texts = prompt_files.read(prompts or prompt_files.BUNDLED)[:requests]
    columns = (TextColumn("capture"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
    try:
        with (
            worker_errors(),
            open_pair(models.target, models.draft, sampling) as pair,
            Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar,
        ):
            task = bar.add_task("capture", total=len(texts), speed="")
            show = speedometer(lambda speed: bar.update(task, advance=1, speed=speed))
            trace = recording.capture(pair, texts, tokens, chosen, out, command_line(), resume, show)
    except KeyboardInterrupt:
        print("pearl-sim: interrupted; finished requests are kept, go on with --resume", file=sys.stderr)
        raise typer.Exit(130) from None
    accepted = (trace.tokens["run"] > 0).sum() / len(trace.tokens)
    print(f"wrote {out}: {len(trace.requests)} requests, {len(trace.tokens)} tokens, {accepted:.3f} of them accepted")


class Models(NamedTuple):
    """Target and draft."""

    target: "ModelSettings"
    draft: "ModelSettings"


def need_models() -> None:
    """Raise InputError if the extra is not installed."""
    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        raise InputError("models", f"{missing[0]} is not installed; pip install 'pearl-sim[models]'")


def policies_of(names: Sequence[str], gammas: Sequence[int]) -> "dict[str, Policy]":
    """Return the policies by the name that a trace gives their steps: ar, sd-4, pearl-4, ..."""
    from pearl_sim.policies import POLICIES, label

    chosen: dict[str, Policy] = {}
    for name in names:
        if name not in POLICIES:
            raise InputError(f"policy {name!r}", f"must be one of {', '.join(POLICIES)}")
        for gamma in gammas:
            chosen[label(name, gamma)] = POLICIES[name](at_least(gamma, 1, "gamma"))
    return chosen


def numbers_of(text: str, option: str) -> list[int]:
    """Return the whole numbers in "2,4,8", none twice and all above 0."""
    try:
        numbers = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        raise InputError(f"{option} {text}", "must be whole numbers with commas, like 2,4,8") from None
    return [at_least(number, 1, option) for number in numbers]


def at_least(value: int, least: int, option: str) -> int:
    """Return `value`, or raise InputError if it is too small."""
    if value < least:
        raise InputError(f"{option} {value}", f"must be {least} or more")
    return value


def sampling_of(
    mode: str,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int | None,
) -> "Sampling":
    """Return the sampling that the options describe; those left out take their defaults."""
    from pearl_sim.models.sampling import Sampling

    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    return Sampling.read("sampling", {"mode": mode} | {key: value for key, value in given.items() if value is not None})


def models_of(target: str, draft: str, device: str, dtype: str, graph: bool, trust_remote_code: bool) -> Models:
    """Return the models that the options name."""
    from pearl_sim.models.lm import ModelSettings

    if dtype not in DTYPES:
        raise InputError(f"--dtype {dtype}", f"must be one of {', '.join(DTYPES)}")
    here, _, there = device.partition(",")
    name, layers = draft, None
    if draft.startswith("layers:"):
        if not draft.removeprefix("layers:").isdecimal():
            raise InputError(f"--draft {draft}", "must be layers:K with a whole number K, like layers:4")
        name, layers = target, int(draft.removeprefix("layers:"))
    return Models(
        ModelSettings(target, here, dtype, None, trust_remote_code, graph),
        ModelSettings(name, there or here, dtype, layers, trust_remote_code, graph),
    )


@contextmanager
def worker_errors() -> Iterator[None]:
    """Turn a failure on the models' side into a message and exit code 1."""
    from pearl_sim.capture import DivergenceError
    from pearl_sim.models.worker import WorkerError

    try:
        yield
    except (WorkerError, DivergenceError) as error:
        print(f"pearl-sim: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def speedometer(show: Callable[[str], object]) -> Callable[[int, int], None]:
    """Return a callback for each finished request that shows the output tokens a second so far."""
    start, total = time.monotonic(), 0

    def finished(_: int, tokens: int) -> None:
        nonlocal total
        total += tokens
        show(f"{total / (time.monotonic() - start):.0f} tokens/s")

    return finished


def command_line() -> str:
    """Return the command as given, without the directories that mean nothing elsewhere."""
    return " ".join(["pearl-sim", *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])])
