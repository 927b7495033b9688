"""Memory and communication windows against published and recomputed figures."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from deployments import LEAVE_OUT, case, found, mixed, separated
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.checkpoint.errors import SourceError
from vivace.commands.check import main as check
from vivace.deploy.case import Case
from vivace.deploy.catalogue.hardware import devices, find_device
from vivace.deploy.catalogue.models import (
    find_model,
    guess_model,
    known_architecture,
    models,
    read_description,
)
from vivace.deploy.load_case import Overrides, build_case, open_command
from vivace.deploy.memory import buffers
from vivace.deploy.memory.plan import MemoryPlan, default_fraction, plan_role
from vivace.deploy.memory.stages import list_stages
from vivace.deploy.memory.weights import PRECISIONS, weights
from vivace.deploy.server_plan import PARTITION
from vivace.deploy.suggest import suggest
from vivace.models.architecture import parse_architecture

GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "total", "active", "kv_bytes"),
    [
        ("deepseek-r1", 671.0, 36.6, 1152),
        ("deepseek-v3.2", 671.9, 37.5, 1408),
        ("qwen3-32b", 32.8, 32.0, 4096),
        ("qwen3-30b-a3b", 30.5, 3.0, 2048),
        ("qwen3-235b-a22b", 235.1, 21.6, 2048),
        ("qwen3-coder-480b-a35b", 480.2, 34.5, 4096),
        ("qwen3-next-80b-a3b", 79.7, 3.6, 2048),
        ("llama-3-8b", 8.0, 7.5, 4096),
    ],
)
def test_models_have_their_published_sizes(
    name: str, total: float, active: float, kv_bytes: int
) -> None:
    """Active ones without the embedding, which some authors count."""
    model = find_model(name)
    assert model is not None
    shape = known_architecture(model)
    assert round(shape.parameters() / 1e9, 1) == total
    assert round(shape.parameters(active=True) / 1e9, 1) == active
    assert shape.attention.kv_elements(1) * 2 == kv_bytes


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/Deepseek-R1-bf16-hfd-w8a8", "deepseek-r1"),
        ("/mnt/Qwen3-Next-80B-A3B-Instruct-W8A8-3", "qwen3-next-80b-a3b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-r1"),
        ("xxx", None),
    ],
)
def test_paths_name_models(path: str, name: str | None) -> None:
    found = guess_model(path)
    assert (None if found is None else found.name) == name


def test_the_catalogue_has_sources_and_one_entry_for_a_name() -> None:
    names = [name for each in (*devices(), *models()) for name in (each.name, *each.aliases)]
    assert len(names) == len(set(names))
    assert all(device.sources for device in devices())
    assert find_device("Atlas 800I A3") is find_device("atlas-800i-a3") is not None
    assert find_device("abacus") is None


ODD = [None, True, -1, 0, 3, 2.0, 2.5, 10**30, float("nan"), float("inf"), "8", [], {}, [4] * 99]
"""What a key of a config.json may hold: wrong types, numbers out of range, and 2.0, which is 2."""


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_configuration_has_sane_shapes_or_one_line(data: st.DataObject) -> None:
    config = dict(data.draw(st.sampled_from(models())).config)
    keys = st.sampled_from([*sorted(config), "text_config", "num_local_experts", "layer_types"])
    for key in data.draw(st.lists(keys, max_size=3)):
        config[key] = data.draw(st.sampled_from(ODD))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        try:
            shape = read_description(folder).architecture
        except SourceError as error:
            line = str(error)
            assert line.isprintable() and "config.json" in line and len(line) < 500, line
            return
    assert 0 < shape.parameters(active=True) <= shape.parameters()
    assert shape.attention.kv_elements(8) > 0 and shape.context > 0
    assert 0 <= shape.linear_layers <= shape.layers and 0 <= shape.dense_layers <= shape.layers


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many'; it must be a whole number"),
        ({"num_hidden_layers": 2, "hidden_size": -1}, "hidden_size is -1; it must be"),
        ({"num_hidden_layers": 2, "n_routed_experts": 8}, "intermediate_size is missing"),
    ],
)
def test_bad_configurations_name_the_key(config: dict[str, Any], says: str) -> None:
    with pytest.raises(SourceError, match=f"^test: {says}"):
        parse_architecture(config, "test")


DEPLOYMENT = """\
name: toy
model: {config: config.json}
hardware: {device: atlas-800i-a2, cards: 8}
roles: {mixed: {kind: mixed, flags: {device: npu}}}
"""


def test_a_configuration_lies_beside_its_deployment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "inner" / "link.json").symlink_to(tmp_path / "secret.json")
    path = tmp_path / "inner" / "d.yaml"
    for name in ("../secret.json", str(tmp_path / "secret.json"), "link.json", "/etc/passwd"):
        path.write_text(DEPLOYMENT.replace("config.json", name))
        assert check([str(path)]) == 2
        line = capsys.readouterr().err
        assert f"{path}: model.config: {name}: it must lie in the same folder" in line


def test_a_broken_config_json_ends_the_check_in_one_line(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"num_hidden_layers": NaN}', "\udcff"):
        (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        (tmp_path / "d.yaml").write_text(DEPLOYMENT)
        command = [sys.executable, "-m", "vivace", "check", "d.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and done.stdout == "", done
        assert done.stderr.count("\n") == 1 and "model.config: " in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("name", "tokens", "megabytes"),
    [("deepseek-r1", 96, 717), ("deepseek-r1", 78, 583)],
)
def test_low_latency_windows(name: str, tokens: int, megabytes: int) -> None:
    """Set by the authors of published configurations: 720 and 650."""
    model = find_model(name)
    assert model is not None
    assert round(buffers.low_latency(known_architecture(model), tokens) / (1 << 20)) == megabytes


@pytest.mark.parametrize(
    ("name", "tokens", "rounds", "megabytes"),
    [
        ("qwen3-coder-480b-a35b", 3584, 1, 1788),
        ("qwen3-235b-a22b", 4096, 1, 1472),
        ("qwen3-next-80b-a3b", 7168, 1, 1606),
        ("qwen3-235b-a22b", 1024, 16, 808),
        ("qwen3-coder-480b-a35b", 1024, 10, 1000),
    ],
)
def test_normal_windows(name: str, tokens: int, rounds: int, megabytes: int) -> None:
    model = find_model(name)
    assert model is not None
    size = buffers.normal(known_architecture(model), tokens, rounds)
    assert round(size / (1 << 20)) == megabytes


def test_a_long_context_decode_server_is_at_its_limit() -> None:
    """DeepSeek-V3.2, 32 dies: 27.6 GiB of weights, 259,769 tokens at 0.79 where 64 thousand in
    and 3,072 out take 268,288."""
    made = mixed(
        flags={
            "tp-size": 32,
            "dp-size": 8,
            "nnodes": 2,
            "moe-dense-tp-size": 1,
            "enable-dp-lm-head": True,
            "quantization": "modelslim",
            "mem-fraction-static": 0.79,
            "max-running-requests": 32,
            "speculative-algorithm": "NEXTN",
            "speculative-num-steps": 3,
            "speculative-eagle-topk": 1,
        },
        role={"nodes": 2},
        model={"name": "deepseek-v3.2", "quantization": "W8A8"},
        workload={"input": 64000, "output": 3072, "concurrency": 32},
    )
    it = case(made)
    plan = plan_role(it, it.servers[0])
    assert plan is not None
    held = plan.total("static") - plan.pool
    embedding = next(part.size for part in plan.parts if part.name == "embedding")
    assert abs((held - embedding) / GIB - 27.6) < 0.3, "the published estimate leaves it out"
    assert abs(plan.capacity - 259_769) < 0.01 * 259_769
    assert plan.needed == 268_288 and plan.capacity < plan.needed
    assert plan.binding == "KV cache"


def test_a_draft_of_its_own_is_counted_where_somebody_knows_it(tmp_path: Path) -> None:
    """From its folder, or by a model's name in its path; a head without the embedding."""

    def plan(algorithm: str, path: str) -> Any:
        flags = {
            "tp-size": 2,
            "dp-size": 1,
            "enable-dp-attention": False,
            "speculative-algorithm": algorithm,
            "speculative-draft-model-path": path,
            "speculative-num-steps": 3,
            "speculative-eagle-topk": 1,
        }
        it = case(mixed(flags=flags, model={"name": "qwen3-32b"}))
        return plan_role(it, it.servers[0])

    unknown = plan("STANDALONE", "/models/somebody's")
    assert unknown.external_draft
    named = plan("STANDALONE", "/models/Qwen3-30B-A3B")
    assert not named.external_draft
    sizes = {part.name: part.size for part in named.parts}
    assert 28 < sizes["draft model"] / GIB < 29, "30.5 billion weights of two bytes on two ranks"
    assert named.token_bytes == unknown.token_bytes + 48 * 2 * 2 * 128 * 2
    assert named.capacity < unknown.capacity
    head = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    }
    (tmp_path / "config.json").write_text(json.dumps(head))
    eagle = plan("EAGLE3", str(tmp_path))
    assert (
        not eagle.external_draft and eagle.token_bytes == unknown.token_bytes + 2 * 4 * 128 * 2
    ), "one layer"
    (part,) = (one.size for one in eagle.parts if one.name == "draft model")
    assert 0.5 < part / GIB < 3
    (part,) = (one for one in eagle.parts if one.name == "draft features")
    assert part.size == int(part.why.split()[0]) * 3 * 5120 * 2
    assert not any(one.name == "draft features" for one in named.parts)
    (tmp_path / "config.json").write_text("{}")
    assert plan("EAGLE3", str(tmp_path)).external_draft


def test_more_ranks_hold_less_of_the_weights_and_more_tokens() -> None:
    def plan(tp: int) -> Any:
        flags = {"tp-size": tp, "dp-size": 1, "enable-dp-attention": False}
        it = case(mixed(flags=flags, model={"name": "qwen3-32b"}))
        return plan_role(it, it.servers[0])

    small, large = plan(4), plan(8)
    ratio = small.total("static") - small.pool, large.total("static") - large.pool
    assert 1.9 < ratio[0] / ratio[1] < 2.1
    assert large.capacity > 2 * small.capacity
    assert small.token_bytes == 2 * large.token_bytes


def staged(counts: str, **more: Any) -> Case:
    """DeepSeek-V3 (61 layers, 3 of them dense) on as many stages as there are numbers."""
    pp = counts.count(",") + 1
    flags = {"pp-size": pp, "dp-size": LEAVE_OUT, "enable-dp-attention": LEAVE_OUT, **more}
    own = {PARTITION: counts} if pp > 1 else {}
    model = {"name": "deepseek-r1", "quantization": "w4a8"}
    return case(mixed(flags=flags, environment=own, model=model))


@pytest.mark.parametrize("counts", ["61", "41,20", "2,19,40"])
def test_stages_have_all_of_the_weights_together(counts: str) -> None:
    it = staged(counts)
    server, model = it.servers[0], it.known_model
    stages = list_stages(model, server)
    assert [each.layers for each in stages] == [int(count) for count in counts.split(",")]
    whole = weights(
        model, server, PRECISIONS["fp8"], list_stages(model, staged("61").servers[0])[0]
    )
    parts = [weights(model, server, PRECISIONS["fp8"], stage) for stage in stages]
    for name, size in whole.items():
        assert sum(part.get(name, 0) for part in parts) == pytest.approx(size, abs=len(parts))
    assert ["embedding" in part for part in parts] == [each.first for each in stages]
    assert ["head" in part for part in parts] == [each.last for each in stages]


def test_the_fullest_stage_decides() -> None:
    def plan(counts: str, **more: Any) -> MemoryPlan:
        it = staged(counts, **more)
        found = plan_role(it, it.servers[0])
        assert found is not None
        return found

    one, even, uneven = plan("61"), plan("31,30"), plan("20,41")
    assert "stage" not in one.place and "the fullest of 2" in even.place
    assert "stage 1 (41 layers)" in uneven.place
    assert uneven.token_bytes == pytest.approx(one.token_bytes * 41 / 61, abs=1)
    assert one.capacity < uneven.capacity < even.capacity
    full = plan("60,1", **{"mem-fraction-static": 0.3})
    assert full.pool < 0 and full.binding == "weights"
    assert plan("31,30", **{"mem-fraction-static": 0.3}).pool > 0


@pytest.mark.parametrize(("target", "first"), [("sglang", 20), ("vivace", 21)])
def test_layers_that_stages_do_not_divide(target: str, first: int) -> None:
    flags = {"pp-size": 3, "dp-size": LEAVE_OUT, "enable-dp-attention": LEAVE_OUT}
    it = case(mixed(flags=flags, model={"name": "deepseek-r1"}), target)
    found = [each.layers for each in list_stages(it.known_model, it.servers[0])]
    assert found[0] == first and sorted(found) == [20, 20, 21]


def test_quantized_weights_are_smaller() -> None:
    def held(form: str) -> int:
        it = case(mixed(model={"name": "deepseek-r1", "quantization": form}))
        plan = plan_role(it, it.servers[0])
        assert plan is not None
        return plan.total("static") - max(plan.pool, 0)

    assert held("bf16") > 1.8 * held("w8a8") > 1.8 * held("w4a8")


def test_the_default_share_follows_the_device() -> None:
    it = case(mixed(flags={"mem-fraction-static": None}))
    device = it.device
    assert device is not None
    fraction = default_fraction(it.servers[0], device, it)
    assert 0.7 < fraction < 0.9
    plan = plan_role(it, it.servers[0])
    assert plan is not None and plan.fraction == fraction and not plan.chosen


@pytest.mark.parametrize(
    ("flags", "tokens"),
    [
        ({"tp-size": 32, "dp-size": 32, "max-running-requests": 832, "steps": 2}, "78"),
        ({"tp-size": 16, "dp-size": 16, "max-running-requests": 256, "steps": 3}, "64"),
        ({"tp-size": 16, "dp-size": 16, "max-running-requests": 384, "steps": 3}, "96"),
        ({"tp-size": 16, "dp-size": 4, "max-running-requests": 144, "steps": 3}, "36"),
        ({"tp-size": 4, "dp-size": 1, "max-running-requests": 80, "steps": None}, "20"),
        ({"tp-size": 32, "dp-size": 32, "max-running-requests": 1088, "steps": 2}, "102"),
    ],
)
def test_suggested_dispatch_tokens_are_the_published_ones(
    flags: dict[str, Any], tokens: str
) -> None:
    steps = flags.pop("steps")
    drafts = {}
    if steps is not None:
        drafts = {
            "speculative-algorithm": "NEXTN",
            "speculative-num-steps": steps,
            "speculative-eagle-topk": 1,
        }
    it = case(mixed(flags={**flags, **drafts}))
    found = {each.name: each.value for each in suggest(it)}
    assert found["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] == tokens


LONG = {"input": 65536, "output": 1024, "concurrency": 36}
ONE_GROUP = {"tp-size": 8, "dp-size": 1, "max-running-requests": 36, "mem-fraction-static": 0.6,
             "enable-dp-attention": LEAVE_OUT, "context-length": LEAVE_OUT}  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "load", "severity"),
    [
        ({}, {}, "warning"),
        ({}, {"prefix_share": 0.9}, None),
        ({"disable-radix-cache": True}, {"prefix_share": 0.9}, "warning"),
        ({"tp-size": 2}, {"concurrency": 1, "input": 4_000_000}, "error"),
        ({}, {"input": 1024, "output": 40000}, "note"),  # full only if all end at once
    ],
)
def test_a_load_that_does_not_fit(
    flags: dict[str, Any], load: dict[str, Any], severity: str | None
) -> None:
    made = mixed(
        flags={**ONE_GROUP, **flags}, model={"name": "qwen3-32b"}, workload={**LONG, **load}
    )
    assert [each.severity for each in found(made, "load-fits")] == ([severity] if severity else [])


def test_requests_hold_what_their_prompts_share_once() -> None:
    made = mixed(
        flags=ONE_GROUP, model={"name": "qwen3-32b"}, workload={**LONG, "prefix_share": 0.9}
    )
    it = case(made)
    plan = plan_role(it, it.servers[0])
    assert plan is not None and plan.held is not None and plan.needed is not None
    assert plan.shared == int(65536 * 0.9)
    assert plan.needed == plan.shared + 36 * (66560 - plan.shared)
    assert plan.usual == plan.needed - 36 * 512
    own = 66560 - plan.shared
    assert plan.shared + plan.held * own <= plan.capacity < plan.shared + (plan.held + 1) * own


@pytest.mark.parametrize("limit", [-1, 0])
def test_a_number_that_limits_nothing_leaves_the_pool_to_the_memory(limit: int) -> None:
    def plan(flags: dict[str, Any]) -> Any:
        it = case(mixed(flags={**ONE_GROUP, **flags}, workload=LONG))
        return plan_role(it, it.servers[0])

    assert plan({"max-total-tokens": limit}) == plan({})
    assert plan({"max-total-tokens": 1280}).capacity == 1280


def test_prompts_wait_for_one_another_on_a_prefill_server() -> None:
    load = {"input": 30000, "output": 100, "concurrency": 512}
    made = separated(prefill={"max-running-requests": 512}, workload=load)
    severities = {each.role: each.severity for each in found(made, "load-fits")}
    assert severities == {"prefill": "note", "decode": "warning"}


def test_the_pool_is_whole_pages_of_the_platform() -> None:
    line = "--model-path Qwen/Qwen3-30B-A3B --tp 4 --mem-fraction-static 0.8"
    for hardware, more, page in (
        ("h100", "--page-size 7", 7),
        ("h100", "--attention-backend flashinfer", 1),
        ("atlas-800i-a3", "", 128),
    ):
        words = ["python", "-m", "sglang.launch_server", *line.split(), *more.split()]
        made = build_case(open_command(words), Overrides(hardware=hardware))
        plan = plan_role(made, made.servers[0])
        assert plan is not None
        assert plan.page == page
        assert plan.room % page == 0
        assert 0 <= plan.pool - plan.room * plan.token_bytes < page * plan.token_bytes
