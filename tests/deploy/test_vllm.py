"""Commands of vLLM: what means the same is translated, and the rest is listed."""

from __future__ import annotations

import json
import shlex

import pytest

from vivace.commands.check import main
from vivace.config.releases.tables import flags_at, latest
from vivace.deploy.from_script.script import import_command, import_scripts
from vivace.deploy.from_script.vllm import NEAREST, SAME, SPECIAL, USUAL, translate
from vivace.deploy.load_case import Overrides, build_case, open_command
from vivace.deploy.rules.judge import judge


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("Qwen/Qwen3-8B", "--model-path Qwen/Qwen3-8B"),
        ("--model=m --tokenizer t", "--model-path m --tokenizer-path t"),
        ("-tp 4 --pipeline_parallel_size=2", "--tp-size 4 --pp-size 2"),
        ("--max-model-len 4096 --block-size 16", "--context-length 4096 --page-size 16"),
        ("--max-num-seqs 64", "--max-running-requests 64"),
        (
            "--enforce-eager --no-enable-prefix-caching",
            "--disable-cuda-graph --disable-radix-cache",
        ),
        ("-tp 8 -ep", "--tp-size 8 --ep-size 8"),
        ("--kv-cache-dtype fp8", "--kv-cache-dtype fp8_e4m3"),
        ("--tool-call-parser llama3_json", "--tool-call-parser llama3"),
        ("--reasoning-parser deepseek_r1", "--reasoning-parser deepseek-r1"),
        ("--quantization ascend", "--quantization modelslim"),
        (
            "--master-addr a --master-port 9 -n 2 -r 1",
            "--dist-init-addr a:9 --nnodes 2 --node-rank 1",
        ),
        ("--no-enable-chunked-prefill", "--chunked-prefill-size -1"),
        ("--enable-prefix-caching", ""),
        (
            "--distributed-executor-backend ray --data-parallel-backend=ray -n 2",
            "--use-ray --nnodes 2",
        ),
        ("--distributed-executor-backend mp", ""),
        ("-tp 8 --distributed-executor-backend ray", "--tp-size 8 --use-ray"),
        (
            "-tp 8 -pp 2 --distributed-executor-backend ray",
            "--tp-size 8 --pp-size 2 --use-ray --nnodes '<machines of Ray>'",
        ),
        ("--num-redundant-experts 32", "--ep-num-redundant-experts 32"),
    ],
)
def test_flags_of_the_same_meaning_are_translated(typed: str, words: str) -> None:
    found = translate(shlex.split(typed))
    assert found.words == shlex.split(words) and found.left == []


def test_each_data_parallel_rank_of_vllm_has_its_own_limit() -> None:
    found = translate(shlex.split("-dp 4 --max-num-seqs 16"))
    assert found.words == ["--dp-size", "4", "--max-running-requests", "64"]
    assert found.left == []


def test_data_parallel_ranks_with_experts_are_those_of_dp_attention() -> None:
    """vLLM counts ranks of both kinds, SGLang's --tp-size all of them: vllm-ascend's documented
    DeepSeek on 16 dies is no server of 4."""
    typed = "m -tp 4 -dp 4 -ep --data-parallel-size-local 2 --data-parallel-start-rank 2"
    found = translate(
        f"{typed} --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 13".split()
    )
    words = "--model-path m --tp-size 16 --dp-size 4 --enable-dp-attention --ep-size 16"
    nodes = "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:13"
    assert found.words == f"{words} {nodes}".split() and found.left == []


@pytest.mark.parametrize(
    "typed",
    [
        "--gpu-memory-utilization 0.9",
        """--speculative-config '{"method":"medusa","num_speculative_tokens":3}'""",
        "--speculative-config [1]",
        "--speculative-config {",
        "--num-speculative-tokens many",
        "--reasoning-parser of-nobody",
        "--quantization bitblas",
        "--all2all-backend pplx",
        "--distributed-executor-backend uni",
        "--no-such-flag",
    ],
)
def test_what_has_no_equal_is_listed_and_left_out(typed: str) -> None:
    found = translate(shlex.split(typed), ["VLLM_USE_V1", "HCCL_BUFFSIZE"])
    assert found.words == []
    flags = [flag for flag, _ in found.left]
    assert flags[0].startswith(typed.split()[0]) and flags[1:] == ["VLLM_USE_V1"]


def test_every_translation_is_a_flag_of_sglang() -> None:
    known = flags_at(latest())
    other = {"disable-cuda-graph"}
    assert all(f"--{flag}" in known for flag in {*SAME.values()} - other)
    assert not {*SAME} & {*SPECIAL} and not {*SAME, *SPECIAL} & {*NEAREST, *USUAL}


def test_a_script_of_vllm_is_read_and_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    script = "export VLLM_USE_V1=1\npython3 -m vllm.entrypoints.openai.api_server --model m -tp 2\n"
    found = import_scripts([("serve.sh", script)])
    (role,) = found.deployment.roles.values()
    assert role.program == "sglang.launch_server" and role.flags == {
        "model-path": "m",
        "tp-size": 2,
        "port": 8000,
        "host": "0.0.0.0",
    }
    rules = {remark.rule: remark for remark in found.remarks}
    assert "--tp-size" in rules["from-vllm"].text and rules["from-vllm"].line == 2
    assert "VLLM_USE_V1" in rules["not-translated"].text
    assert main(["--json", "--", "vllm", "serve", "m", "--swap-space", "4"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [each["rule"] for each in findings if "vllm" in each["source"].lower()] == [
        "not-translated",
        "from-vllm",
    ]


def test_vivace_is_judged_as_vivace_and_sglang_as_sglang(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def target(*words: str) -> tuple[str, set[str]]:
        main(["--json", "--", *words])
        found = json.loads(capsys.readouterr().out)
        return found["deployments"][0]["target"], {each["rule"] for each in found["findings"]}

    device = ("--device", "cpu", "--port", "8000")
    assert target("vivace", "serve", *device)[0] == "vivace"
    assert "flag-value" in target("vivace", "serve", *device, "--stream-interval", "0")[1]
    assert target("sglang", "serve", "m", "--cpu-threads", "4")[0] == "sglang"
    assert "unknown-flag" in target("sglang", "serve", "m", "--cpu-threads", "4")[1]
    found = import_command(["sglang", "serve", "m", "--port", "1"])
    assert found.deployment.roles["mixed"].flags == {"model-path": "m", "port": 1}


def test_words_behind_a_switch_of_sglang_are_stray() -> None:
    words = ["sglang", "serve", "m", "--enable-mfu-metrics", "yes"]
    assert [each.rule for each in import_command(words).remarks] == ["stray-word"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("-tp=8 -q=fp8", "--tp-size 8 --quantization fp8"),
        ("-tp 8 -ep", "--tp-size 8 --ep-size 8"),
        (
            "-tp=8 -dp=2 --enable-expert-parallel",
            "--tp-size 16 --dp-size 2 --enable-dp-attention --ep-size 16",
        ),
    ],
)
def test_short_flags_and_ranks_of_experts(typed: str, words: str) -> None:
    assert translate(typed.split()).words == words.split()


@pytest.mark.parametrize(("fraction", "severity"), [("0.85", "warning"), ("", "error")])
def test_a_fraction_of_vllm_is_not_judged_as_the_default_of_sglang(
    fraction: str, severity: str
) -> None:
    """Kimi-K2 on 16 H800: its recipe fits, SGLang's own fraction is too small for it."""
    ranks = "--data-parallel-size 16 --data-parallel-size-local 8 --enable-expert-parallel"
    words = f"vllm serve moonshotai/Kimi-K2-Instruct {ranks} --data-parallel-address 10.0.0.1"
    words += f" --gpu-memory-utilization {fraction}" if fraction else ""
    made = build_case(open_command(words.split()), Overrides(hardware="h800", cards=16))
    found = [each for each in judge(made).findings if each.rule == "weights-fit"]
    assert [each.severity for each in found] == [severity]


CHAIN = "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (
            '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}',
            "NGRAM --speculative-num-draft-tokens 6 --speculative-ngram-max-match-window-size 4",
        ),
        (
            '{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 5}',
            f"EAGLE3 --speculative-draft-model-path org/head {CHAIN}",
        ),
        (
            '{"model": "org/small", "num_speculative_tokens": 5, "revision": "v1"}',
            f"STANDALONE --speculative-draft-model-path org/small {CHAIN} "
            "--speculative-draft-model-revision v1",
        ),
        ('{"method": "deepseek_mtp", "num_speculative_tokens": 5}', f"NEXTN {CHAIN}"),
    ],
)
def test_the_configuration_of_drafts_becomes_flags(typed: str, meant: str) -> None:
    found = translate(["--speculative-config", typed])
    assert found.words == f"--speculative-algorithm {meant}".split() and not found.left
    dotted = [
        word
        for key, value in json.loads(typed).items()
        for word in (f"--speculative-config.{key}", str(value))
    ]
    assert translate(dotted).words == found.words


def test_older_flags_of_drafts_are_one_configuration() -> None:
    line = "--speculative-model org/eagle-head --num-speculative-tokens 5"
    assert (
        translate(line.split()).words
        == (
            f"--speculative-algorithm EAGLE --speculative-draft-model-path org/eagle-head {CHAIN}"
        ).split()
    )


def test_keys_of_drafts_without_a_flag_are_listed() -> None:
    found = translate(["-sc", '{"method": "mtp", "disable_by_batch_size": 4}'])
    assert found.words == ["--speculative-algorithm", "NEXTN"]
    assert [flag for flag, _ in found.left] == ["disable_by_batch_size of --speculative-config"]
