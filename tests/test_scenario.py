"""A scenario file becomes validated design points, or one line that says what is wrong and what would be right."""

from pathlib import Path

import pytest

from pearl_sim.errors import InputError
from pearl_sim.scenario import read
from pearl_sim.sweep import run

GOOD = """
[acceptance]
law = "iid"
alpha = 0.8
[cost]
model = "constant"
draft = "1 ms"
target = "10 ms"
[policy]
names = ["sd", "pearl"]
gamma = 4
[workload]
requests = 3
tokens = 40
"""
RECORDED = GOOD.replace('law = "iid"\nalpha = 0.8', 'law = "recorded"\ntrace = "recorded"').replace(
    "requests = 3\ntokens = 40\n", ""
)


@pytest.fixture
def scenario_file(tmp_path):
    """Return a function that writes a scenario, some text of it replaced, and returns its path."""

    def write(old="", new="", text=GOOD):
        assert old in text
        file = tmp_path / "case.toml"
        file.write_text(text.replace(old, new) if old else text + new)
        return file

    return write


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("", "surprise = 1\n", "unknown key 'surprise'"),
        ("alpha = 0.8", "alpha = 0.8\nbeta = 1", "acceptance: unknown key 'beta'; the keys here are law, alpha"),
        ("alpha = 0.8", "alpha = 1.01", "acceptance.alpha = 1.01: must be less than or equal to 1"),
        ("alpha = 0.8", "alpha = -0.1", "acceptance.alpha = -0.1: must be greater than or equal to 0"),
        ("alpha = 0.8", "alpha = nan", "acceptance.alpha = nan"),
        ("alpha = 0.8", "alpha = '0.8'", "acceptance.alpha = '0.8': must be a valid number"),
        ("alpha = 0.8", "", "acceptance.alpha: is missing"),
        ('law = "iid"', 'law = "fair"', "acceptance.law = 'fair': must be one of 'iid', 'per_depth'"),
        ('law = "iid"\n', "", "acceptance.law: is missing"),
        ('"1 ms"', '"0 ms"', "cost.draft = '0 ms': must be greater than 0"),
        ('"1 ms"', '"-1 ms"', "cost.draft = '-1 ms': not a duration"),
        ('"1 ms"', "1", "cost.draft = 1: not a duration"),
        ('"1 ms"', '"0.1 ns"', "cost.draft = '0.1 ns': shorter than the simulator's clock"),
        ("gamma = 4", "gamma = -1", "policy.gamma = -1: must be greater than or equal to 0"),
        ("gamma = 4", "gamma = 2.5", "policy.gamma = 2.5: must be a valid integer"),
        ("gamma = 4", "gamma = true", "policy.gamma = True: must be a valid integer"),
        ("gamma = 4", "", "gamma is missing; sd needs it"),
        ('"sd", "pearl"', "", "policy.names = []: must have at least 1 item"),
        ('"sd", "pearl"', '"sd", "sd"', "names lists a policy twice"),
        ('"sd", "pearl"', '"sd", "perl"', "policy.names.1 = 'perl': must be one of ar, sd, pearl"),
        ('"sd", "pearl"', '"ar"', "gamma changes nothing"),
        ("requests = 3", "requests = 0", "workload.requests = 0: must be greater than or equal to 1"),
        ("requests = 3", "", "workload.requests and workload.tokens are needed"),
        ("tokens = 40", "tokens = 40\nprompt_tokens = 8", "workload.prompt_tokens changes nothing"),
        ("tokens = 40", "tokens = 40\nseed = -1", "workload.seed = -1"),
        ("", "[sweep]\npolicy.gamma = [1, 2]\n", "policy.gamma is both set and swept"),
        ("gamma = 4", "[sweep]\npolicy.gamma = []", "sweep.policy.gamma = []: the sweep is empty"),
        ("gamma = 4", "[sweep]\npolicy.gamma = 3", "sweep.policy.gamma = 3: must be a list, or a table"),
        ("gamma = 4", "[sweep]\npolicy.gamma = [1, 1]", "sweep.policy.gamma has a value twice"),
        ("gamma = 4", "[sweep]\npolicy.gamma = [1, 'x']", "sweep.policy.gamma: not a duration"),
        ("gamma = 4", "[sweep]\npolicy.gamma = [1, '2 ms']", "mixes numbers and durations"),
        ("gamma = 4", "[sweep]\npolicy.gamma = [4, -4]", "policy.gamma = -4"),
        ("gamma = 4", "[sweep]\npolicy.gamma = { start = 1, stop = 4 }", "num: is missing"),
        ("gamma = 4", "[sweep]\npolicy.gamma = { start = 1, stop = 4, num = 1 }", "num = 1"),
        ("gamma = 4", "[sweep]\npolicy.gamma = { start = 1, stop = 4, num = 4, step = 1 }", "unknown key 'step'"),
        (
            "gamma = 4",
            "[sweep]\npolicy.gamma = { start = 0, stop = 4, num = 4, scale = 'log' }",
            "start and stop above 0",
        ),
        ("gamma = 4", "[sweep]\npolicy.gamma = { start = 4, stop = 4, num = 4 }", "start and stop are equal"),
        ("gamma = 4", "[sweep]\npolicy.gama = [1]\npolicy.gamma = [1]", "unknown key 'gama'"),
        ("tokens = 40", "tokens = 1_000_000_000", "GiB of memory"),
        ("tokens = 40", f"tokens = {10**400}", "workload.tokens = "),
        ("requests = 3", "requests = 1_000_000_001", "must be less than or equal to 1000000000"),
        ('law = "iid"\nalpha = 0.8', 'law = "recorded"\ntrace = "nowhere"', "nowhere: no such trace"),
        ("[cost]", "[cost", "is not TOML"),
        ("tokens = 40", "tokens = nan", "workload.tokens = nan: must be a valid integer"),
        ("requests = 3", "requests = inf", "workload.requests = inf: must be a"),
        ("tokens = 40", "tokens = 40\n[sweep]\ncost.sync = { start = 0.1, stop = inf, num = 3 }", "must be finite"),
        ('["sd", "pearl"]', '"pearl"', "policy.names = 'pearl': must be a list"),
        (
            'law = "iid"\nalpha = 0.8',
            'law = "beta"\na = 1e-300\nb = 1.0',
            "acceptance.a = 1e-300: must be greater than",
        ),
    ],
)
def test_bad_input_is_one_line_naming_file_key_and_remedy(scenario_file, old, new, complaint):
    file = scenario_file(old, new)
    with pytest.raises(InputError) as error:
        read(file)
    line = str(error.value)
    assert complaint in line
    assert "\n" not in line
    assert "case.toml" in line or "no such trace" in line


def test_a_missing_or_binary_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.toml: no such scenario file"):
        read(tmp_path / "gone.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"binary\.toml: cannot be read"):
        read(tmp_path / "binary.toml")


def test_a_sweep_is_the_product_of_its_axes_in_order(scenario_file):
    file = scenario_file(
        "gamma = 4",
        "[sweep]\npolicy.gamma = [1, 2]\ncost.sync = { start = '1 us', stop = '4 us', num = 3, scale = 'log' }",
    )
    points = read(file).points
    assert [(swept["policy.gamma"], point.cost.sync) for swept, point in points] == [
        (1, 1000), (1, 2000), (1, 4000), (2, 1000), (2, 2000), (2, 4000),
    ]  # fmt: skip


def test_an_override_is_read_as_toml_and_ends_a_sweep_over_its_key(scenario_file):
    file = scenario_file("gamma = 4", "[sweep]\npolicy.gamma = [1, 2]")
    assert [point.policy.gamma for _, point in read(file, {"policy.gamma": "8"}).points] == [8]
    assert [point.policy.gamma for _, point in read(file, {"sweep.policy.gamma": "[3, 5]"}).points] == [3, 5]
    assert read(file, {"cost.draft": "2 ms"}).points[0][1].cost.draft == 2_000_000


ALTERED = {
    "constant": """
        cost.draft = '2 ms'; cost.target = '11 ms'; cost.sync = '1 ms'; cost.contention = 1.5; cost.prefill = '90 ms'
    """,
    "affine": """
        cost.draft.base = '2 ms'; cost.draft.per_token = '1 ms'; cost.draft.per_context_token = '50 us';
        cost.target.base = '11 ms'; cost.target.per_token = '1 ms'; cost.target.per_context_token = '50 us';
        cost.batch = 3; workload.prompt_tokens = 900
    """,
    "roofline": """
        cost.draft.parameters = 2e9; cost.target.parameters = 80e9; cost.target.bytes_per_parameter = 1.0;
        cost.target.kv_bytes_per_token = 1e6; cost.target.bandwidth_bytes_per_s = 2e12; cost.target.flop_per_s = 1e12;
        cost.target.efficiency = 0.5; cost.target.tensor_parallel = 2; cost.batch = 400; workload.prompt_tokens = 9000
    """,
    "any": """
        workload.requests = 4; workload.tokens = 50; workload.seed = 9; policy.gamma = 5; acceptance.alpha = 0.7;
        policy.names = ["sd"]
    """,
}
COSTS = {
    "constant": "draft = '1 ms'\ntarget = '10 ms'",
    "affine": "draft = {base = '1 ms', per_token = '1 us', per_context_token = '1 us'}\n"
    "target = {base = '9 ms', per_token = '1 us', per_context_token = '1 us'}",
    "roofline": "draft = {parameters = 1e9, bandwidth_bytes_per_s = 3e12, flop_per_s = 1e15}\n"
    "target = {parameters = 70e9, bandwidth_bytes_per_s = 3e12, flop_per_s = 1e15}",
}


CASES = [(model, line.strip()) for model in COSTS for part in (model, "any") for line in ALTERED[part].split(";")]


@pytest.mark.parametrize(("model", "altered"), CASES)
def test_every_accepted_key_changes_the_result(scenario_file, model, altered):
    prompt = "" if model == "constant" else "prompt_tokens = 100\n"
    text = GOOD.replace('draft = "1 ms"\ntarget = "10 ms"', COSTS[model]).replace('"constant"', f'"{model}"') + prompt
    file = scenario_file(text=text)
    key, _, value = altered.partition(" = ")
    before, after = run(read(file)), run(read(file, {key: value}))
    assert not before.rows.equals(after.rows)


def test_an_overridden_scenario_says_so_in_its_title(scenario_file):
    assert read(scenario_file(), {"policy.gamma": "8"}).title == "case [policy.gamma=8]"


def test_what_an_empirical_cost_lacks_is_said_before_anything_runs(scenario_file, tmp_path):
    make_trace(tmp_path / "recorded")
    text = GOOD.replace('"constant"\ndraft = "1 ms"\ntarget = "10 ms"', '"empirical"\ntrace = "recorded"')
    with pytest.raises(InputError, match="no draft steps were recorded"):
        read(scenario_file(text=text))


def test_the_seed_is_refused_where_nothing_is_random(scenario_file, tmp_path):
    make_trace(tmp_path / "recorded")
    text = RECORDED
    assert len(read(scenario_file(text=text)).points) == 1
    with pytest.raises(InputError, match="seed changes nothing"):
        read(scenario_file(text=text + "seed = 1\n"))


def test_gamma_beyond_what_was_recorded_is_refused(scenario_file, tmp_path):
    make_trace(tmp_path / "recorded", run_limit=3)
    text = RECORDED
    with pytest.raises(InputError, match=r"policy\.gamma = 4: .* at most 3 drafts in a row"):
        read(scenario_file(text=text))


def make_trace(path: Path, run_limit=None):
    import polars as pl

    from pearl_sim.trace import REQUESTS, STEPS, TOKENS, Provenance, Trace, save

    runs = [0, 2, 1, 0, 3, 2, 1, 0, 0, 1]
    save(
        Trace(
            path,
            Provenance(source="made by a test", created="2026-01-01", command="pytest", run_limit=run_limit),
            pl.DataFrame([("a", None, 5, len(runs), None)], REQUESTS, orient="row"),
            pl.DataFrame([("a", i, None, run, None, None, None) for i, run in enumerate(runs)], TOKENS, orient="row"),
            pl.DataFrame(schema=STEPS),
        )
    )
