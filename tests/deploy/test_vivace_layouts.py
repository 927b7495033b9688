"""`vivace check` says of a layout what the server says: of models that are not here, too."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from deployments import case

from vivace.checkpoint.errors import SourceError
from vivace.config.config import Options
from vivace.config.errors import ConfigError
from vivace.config.parsing import parse
from vivace.deploy.catalogue.models import describe_known, find_model, models
from vivace.deploy.load_case import Overrides, build_case, open_command
from vivace.deploy.own_checks import describe_source
from vivace.deploy.rules.judge import Finding, judge
from vivace.deploy.rules.parallelism import PARTITION
from vivace.launch.configure import configure
from vivace.models.facts import read_facts
from vivace.models.registry import ARCHITECTURES, check_architecture

LOW_LATENCY = "--moe-a2a-backend deepep --deepep-mode low_latency"
REFUSED = [
    ("qwen3-30b-a3b", "--tp-size 3"),
    ("qwen3-30b-a3b", "--tp-size 5"),
    ("qwen3-30b-a3b", "--tp 12 --ep 4"),
    ("qwen3-30b-a3b", "--tp 4 --ep 4 --ep-num-redundant-experts 2"),
    ("qwen3-30b-a3b", "--pp 49"),
    ("qwen3-235b", "--tp 8 --enable-eplb"),
    ("qwen3-235b", "--tp 8 --moe-a2a-backend deepep --enable-deterministic-inference"),
    ("qwen3-coder-480b", "--tp 3"),
    ("qwen3-8b", "--tp 2 --moe-a2a-backend deepep"),
    ("deepseek-v3", f"--tp 8 {LOW_LATENCY}"),
    ("deepseek-v3", f"--tp 16 {LOW_LATENCY} --chunked-prefill-size 2000"),
    ("qwen3-8b", "--init-expert-location elsewhere.json"),
    ("deepseek-v3", "--tp 3"),
    ("deepseek-v3", "--tp 64"),
    ("deepseek-v2-lite", "--tp 32"),
    ("glm-4.5", "--tp 12"),
    ("llama-4-scout", "--tp 5"),
    ("llama-4-scout", "--tp 16"),
    ("mixtral-8x7b", "--tp 64"),
    ("gpt-oss-20b", "--tp 6"),
    ("smollm2-135m", "--tp 2"),
    ("llama-3.1-8b", "--pp 33"),
    ("qwen1.5-moe-a2.7b", "--tp 5 --ep 5"),
    ("llama-3.1-8b", "--tp 2 --model-impl transformers"),
    ("llama-3.1-8b", "--pp 2 --model-impl transformers"),
    ("llama-3.1-8b", "--tp 8 --dp 4096"),
    ("llama-3.1-8b", "--tp 4 --dp 4 --enable-dp-attention --max-running-requests 2"),
]
TAKEN = [
    ("qwen3-30b-a3b", "--tp 8 --ep 4"),
    ("qwen3-235b", "--tp 8 --ep 8 --enable-eplb"),
    ("qwen3-235b", "--tp 8 --ep 8 --init-expert-location elsewhere.json"),
    ("deepseek-v3", "--tp 16 --dp 16 --enable-dp-attention --moe-a2a-backend deepep"),
    ("glm-4.5", "--tp 8 --pp 2"),
    ("gpt-oss-20b", "--tp 8"),
    ("smollm2-135m", "--tp 3"),
]


def errors(line: str, model: str | None = None) -> list[Finding]:
    words = ["vivace", "serve", "--device", "cpu", *shlex.split(line)]
    made = build_case(open_command(words), Overrides(target="vivace", model=model))
    return [each for each in judge(made).findings if each.severity == "error"]


def write(folder: Path, name: str, **more: Any) -> str:
    """A folder with the model's config.json and nothing else."""
    known = find_model(name)
    assert known is not None
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(known.config | more))
    return str(folder)


def start(folder: str, line: str) -> str:
    """What the server says before it loads; empty where it would load."""
    words = ["--model-path", folder, "--load-format", "dummy", "--device", "cpu", *line.split()]
    try:
        configure(parse(words, {}))
    except (ConfigError, SourceError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("model", "line"), REFUSED)
def test_the_check_says_what_the_server_says(model: str, line: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", model)
    said = [each.text for each in errors(f"--model-path elsewhere {line}", model)]
    assert said == [start(folder, line)]
    assert [each.text for each in errors(f"--model-path elsewhere {line}", folder)] == said
    assert [each.text for each in errors(line, model)] == said, "the embedded model is not meant"


@pytest.mark.parametrize(("model", "line"), TAKEN)
def test_what_can_be_served_is_no_error(model: str, line: str, tmp_path: Path) -> None:
    if "elsewhere.json" not in line:
        assert start(write(tmp_path / "m", model), line) == ""
    assert errors(f"--model-path elsewhere {line}", model) == []


def test_the_flag_is_called_as_it_was_typed() -> None:
    (found,) = errors("--model-path Qwen/Qwen3-30B-A3B --tp 3")
    assert (found.rule, found.flag) == ("vivace-layout", "--tp")


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("Qwen/Qwen3-32B", False),
        ("Qwen/Qwen3-32B-FP8", True),
        ("somebody/Qwen3-32B-FP8", False),
        ("Qwen/Qwen3-32B-AWQ", False),
        ("deepseek-ai/DeepSeek-V3.2-Exp", True),
        ("somebody/DeepSeek-V3.2-Exp-GGUF", False),
    ],
)
def test_how_weights_are_stored_is_not_guessed(path: str, refused: bool) -> None:
    """25,600 numbers of blocks of 128 cannot go to 16 ranks; without blocks they can."""
    model = "qwen3-32b" if "Qwen" in path else "deepseek-v3.2"
    assert bool(errors(f"--model-path {path} --tp 16", model)) == refused


def test_a_size_that_no_number_of_devices_fits_is_named() -> None:
    (found,) = errors("--tp 5 --ep 5", "qwen1.5-moe-a2.7b")
    assert "no number of them with --ep 5" in found.text


def test_blocks_that_are_too_few_for_ranks_are_named() -> None:
    (found,) = errors("--model-path Kimi-K2 --tp 64", "kimi-k2")
    assert "16 blocks of 128" in found.text and "--expert-parallel-size" in found.text
    (found,) = errors("--model-path Kimi-K2 --tp 5", "kimi-k2")
    assert "blocks of" not in found.text


def test_heads_count_however_weights_are_stored() -> None:
    for path in ("somebody/Qwen3-32B-FP8", "Qwen/Qwen3-32B-AWQ", "a/Qwen3-32B-GGUF:Q4_K_M"):
        found = errors(f"--model-path {path} --tp 3", "qwen3-32b")
        assert [each.flag for each in found] == ["--tp"]


def test_a_model_that_its_path_only_resembles_is_a_warning() -> None:
    words = "vivace serve --device cpu --tp 3 --model-path my-qwen3-32b-tuned".split()
    found = judge(build_case(open_command(words), Overrides(target="vivace"))).findings
    (layout,) = [each for each in found if each.rule == "vivace-layout"]
    assert layout.severity == "warning"


@pytest.mark.parametrize(
    "line",
    [
        "--tp $TP --ep 4",
        "--tp 3 --json-model-override-args $MORE",
        "--tp $TP --nnodes 2 --node-rank 0 --dist-init-addr 127.0.0.1:5000",
        "--tp 2 --nnodes 2 --node-rank $RANK --dist-init-addr $FIRST",
        "--tp 4 --enable-eplb --ep $EP",
    ],
)
def test_a_size_that_only_the_machine_knows_is_not_guessed(line: str, tmp_path: Path) -> None:
    here = write(tmp_path / "m", "qwen3-30b-a3b")
    for path in ("Qwen/Qwen3-30B-A3B", f"{shlex.quote(here)} --load-format dummy"):
        script = f"vivace serve --device cpu --model-path {path} {line}\n"
        findings = judge(case({"script": script}, "vivace")).findings
        assert [each for each in findings if each.rule in ("vivace-start", "vivace-layout")] == []


@pytest.mark.parametrize(
    ("address", "key", "rules"),
    [
        ("10.0.0.1:5000", {}, ["vivace-start"]),
        ("{first}:5000", {}, ["vivace-start"]),
        ("127.0.0.1:5000", {}, []),
        ("{first}:5000", {"cluster-key-file": "/key"}, []),
    ],
)
def test_nodes_without_a_key_are_told(address: str, key: dict[str, str], rules: list[str]) -> None:
    """A warning: what is rendered for containers has one."""
    sizes = {"tp-size": 2, "nnodes": 2, "node-rank": "{node}", "device": "cpu"}
    role = {
        "kind": "mixed",
        "nodes": 2,
        "hosts": ["10.0.0.1", "10.0.0.2"],
        "flags": {"model-path": "m", "dist-init-addr": address, **sizes, **key},
    }
    found = judge(case({"engine": "vivace", "roles": {"all": role}}, "vivace")).findings
    about = [each for each in found if each.rule == "vivace-start"]
    assert [each.rule for each in about] == rules
    assert all(each.severity == "warning" and "openssl" in each.text for each in about)


@pytest.mark.parametrize(
    ("line", "limit", "refused"),
    [
        ("", "", True),
        ("", "1024", False),
        ("--chunked-prefill-size -1", "1024", True),
        ("--chunked-prefill-size 128 --max-running-requests 64", "128", False),
        ("--deepep-mode auto", "", False),
        ("--chunked-prefill-size $CHUNK", "", False),
        ("", "$MOST", False),
    ],
)
def test_a_step_has_no_more_tokens_than_ranks_send(line: str, limit: str, refused: bool) -> None:
    """With low latency, as the start says it; what only the machine knows may be enough."""
    variable = f"export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK={limit}\n" if limit else ""
    ranks = f"--tp 2 --dp 2 --enable-dp-attention {LOW_LATENCY}"
    path = "--device cpu --model-path deepseek-ai/DeepSeek-V3"
    script = f"{variable}vivace serve {path} {ranks} {line}\n"
    found = judge(case({"script": script}, "vivace")).findings
    assert [each.rule for each in found if "at most" in each.text] == ["vivace-layout"] * refused


def test_the_model_that_lies_here_counts(tmp_path: Path) -> None:
    here = write(tmp_path / "m", "qwen3-8b", num_attention_heads=24, num_key_value_heads=6)
    line = f"--model-path {shlex.quote(here)} --load-format dummy"
    assert errors(f"{line} --tp 3", "qwen3-8b") == []
    assert [each.rule for each in errors(f"{line} --tp 16", "qwen3-8b")] == ["vivace-start"]


def test_a_folder_without_weights_is_judged_by_its_configuration(tmp_path: Path) -> None:
    """Nothing here needs weights; pickled ones are no weights, which is said."""
    here = write(tmp_path / "m", "qwen3-8b")
    typed = f"--model-path {shlex.quote(here)}"
    assert errors(f"{typed} --tp 8") == []
    assert [each.text for each in errors(f"{typed} --tp 3")] == [start(here, "--tp 3")]
    (tmp_path / "m" / "pytorch_model.bin").touch()
    (found,) = errors(f"{typed} --tp 8")
    assert "pickled" in found.text


def test_the_device_is_the_one_that_is_asked_for() -> None:
    """A node with GPUs has a CPU."""
    for device, wrong in (("cpu", False), ("cuda", True)):
        words = ["vivace", "serve", "--device", device, "--model-path", "m"]
        it = build_case(open_command(words), Overrides(target="vivace", hardware="h200"))
        rules = {each.rule for each in judge(it).findings if each.severity == "error"}
        assert ("vivace-flag" in rules) == wrong


def test_overridden_shapes_count() -> None:
    heads = json.dumps({"num_attention_heads": 30, "num_key_value_heads": 6})
    more = f"--json-model-override-args {shlex.quote(heads)}"
    assert errors(f"--model-path m --tp 3 {more}", "qwen3-8b") == []
    assert len(errors(f"--model-path m --tp 8 {more}", "qwen3-8b")) == 1


def test_stages_have_the_layers_that_a_variable_says() -> None:
    content = {
        "engine": "vivace",
        "model": {"name": "llama-3.1-8b"},
        "roles": {
            "mixed": {
                "kind": "mixed",
                "flags": {"device": "cpu", "pp-size": 2},
                "environment": {PARTITION: "16,17"},
            }
        },
    }
    found = [each for each in judge(case(content, "vivace")).findings if each.severity == "error"]
    assert [(each.rule, each.flag) for each in found] == [("vivace-layout", PARTITION)]


def test_all_models_of_the_catalogue_that_are_served_can_be_read() -> None:
    """Else what the catalogue leaves out would be taken for a mistake of the model."""
    read = set[str]()
    for known in models():
        source = describe_source(describe_known(known), Options())
        config = {key: value for key, value in known.config.items() if "quant" not in key}
        try:
            check_architecture(source)
        except SourceError:
            continue
        plain = describe_known(known, "")
        facts = read_facts(
            describe_source(type(plain)(known.name, config, plain.architecture), Options())
        )
        read.add(facts.architecture)
        assert facts.parameters == plain.architecture.parameters()
    assert {"Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM"} <= read
    assert read <= set(ARCHITECTURES)
