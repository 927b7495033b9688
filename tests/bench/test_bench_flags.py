"""Every flag of SGLang's bench_serving parses: to a value, or to a reason."""

from __future__ import annotations

import pytest

from vivace.bench.flags import REFUSED, parse
from vivace.bench.offline import parse as parse_offline
from vivace.bench.serving import build_headers, join_address
from vivace.bench.workload import BenchError
from vivace.errors import CannotStart

WORKS = """
--backend vllm
--base-url http://h:1
--host h
--port 5
--ready-check-timeout-sec 3
--dataset-name random
--dataset-path p
--model m
--served-model-name s
--tokenizer t
--num-prompts 3
--sharegpt-output-len 4
--sharegpt-context-len 5
--random-input-len 6
--random-output-len 7
--random-range-ratio 0.5
--request-rate 2.5
--max-concurrency 8
--output-file f
--output-details
--goodput ttft:500 tpot:50 e2el:2000
--print-requests
--disable-tqdm
--disable-stream
--return-logprob
--top-logprobs-num 2
--token-ids-logprob 1 2
--logprob-start-len 0
--return-routed-experts
--cache-report
--seed 9
--disable-ignore-eos
--temperature 0.5
--top-p 0.9
--extra-request-body {"a":1}
--apply-chat-template
--plot-throughput
--prompt-suffix x
--pd-separated
--flush-cache
--flush-cache-timeout 5
--warmup-requests 2
--tokenize-prompt
--gsp-num-groups 2
--gsp-prompts-per-group 3
--gsp-system-prompt-len 4
--gsp-question-len 5
--gsp-output-len 6
--gsp-range-ratio 0.7
--gsp-fast-prepare
--gsp-send-routing-key
--gsp-num-turns 2
--gsp-ordered
--gsp-group-distribution zipf
--gsp-zipf-alpha 1.5
--tag t
--header A=b C=d
""".strip().splitlines()

REFUSED_IN_SGLANG = """
--dataset-offset 1
--agentic-max-turns 1
--speed-bench-category mixed
--speed-bench-output-len 1
--image-count 1
--image-resolution 1080p
--random-image-count
--image-format png
--image-content blank
--profile
--profile-activities CPU
--profile-start-step 1
--profile-steps 1
--profile-num-steps 1
--profile-by-stage
--profile-stages x
--profile-output-dir d
--profile-prefix p
--lora-name a b
--lora-request-distribution uniform
--lora-zipf-alpha 1.5
--profile-prefill-url u
--profile-decode-url u
--mooncake-slowdown-factor 1
--mooncake-num-rounds 1
--mooncake-workload toolagent
--fake-prefill
--rust-client
--rust-worker-threads 2
""".strip().splitlines()

SHARED = ["--dataset-name", "generated-shared-prefix"]


@pytest.mark.parametrize("line", WORKS)
def test_flag_is_taken(line: str) -> None:
    words = line.split()
    args = parse([*SHARED, *words])
    value = getattr(args, words[0].removeprefix("--").replace("-", "_"))
    assert value != parse([]).__dict__[words[0].removeprefix("--").replace("-", "_")]


@pytest.mark.parametrize("line", REFUSED_IN_SGLANG)
def test_flag_is_refused_with_a_reason(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(line.split())
    assert stopped.value.code == 2
    flag = line.split()[0]
    assert f"{flag} is not offered: {REFUSED[flag]}" in capsys.readouterr().err


def test_the_two_lists_are_all_refusals() -> None:
    assert {line.split()[0] for line in REFUSED_IN_SGLANG} == set(REFUSED)


@pytest.mark.parametrize(
    "line",
    [
        "--dataset-name image",
        "--dataset-name mooncake",
        "--backend trt",
        "--backend sglang-embedding",
        "--backend nonsense",
        "--goodput ttft",
        "--goodput speed:3",
        "--extra-request-body [1]",
        "--extra-request-body {",
        "--flush-cache-timeout 0",
        "--gsp-zipf-alpha -1",
        "--gsp-range-ratio 1.5",
        "--random-range-ratio 2",
        "--random-range-ratio nan",
        "--max-concurrency 0",
        "--num-prompts 0",
        "--num-prompt 5",
        "--use-trace-timestamps",
    ],
)
def test_nonsense_stops(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(line.split())
    assert len(capsys.readouterr().err) > 30


def test_defaults_are_sglangs() -> None:
    args = parse([])
    assert (args.backend, args.dataset_name, args.num_prompts) == ("sglang", "sharegpt", 1000)
    assert (args.random_input_len, args.random_output_len) == (1024, 1024)
    assert (args.random_range_ratio, args.request_rate) == (0.0, float("inf"))
    assert (args.gsp_num_groups, args.gsp_prompts_per_group) == (64, 16)
    assert (args.gsp_system_prompt_len, args.gsp_question_len) == (2048, 128)
    assert (args.gsp_output_len, args.seed, args.warmup_requests) == (256, 42, 1)
    assert args.max_concurrency is None


def test_trace_times_belong_to_files() -> None:
    assert parse("--dataset-name custom --use-trace-timestamps".split()).use_trace_timestamps


def test_offline_leaves_server_flags_to_the_server() -> None:
    args, words = parse_offline("--num-prompts 4 --model-path m --tp 1".split())
    assert (args.num_prompts, args.dataset_name) == (4, "random")
    assert words == ["--model-path", "m", "--tp", "1"]


@pytest.mark.parametrize(
    "line",
    [
        "--request-rate 0",
        "--request-rate nan",
        "--port 99999",
        "--port 0",
        "--base-url ftp://h:1",
        "--base-url http://h:99999",
        "--base-url http://",
        "--base-url http://a..b",
        "--base-url http://h:1?x=1",
    ],
)
def test_what_no_server_has_is_refused_before_one_is_waited_for(line: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(line.split())
    assert stopped.value.code == 2


def test_an_address_may_be_without_its_scheme() -> None:
    assert parse(["--base-url", "127.0.0.1:30000"]).base_url == "http://127.0.0.1:30000"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_host_may_be_an_address_of_ipv6(host: str) -> None:
    assert join_address(host, 1) == "http://[::1]:1"
    assert join_address("0.0.0.0", 1) == "http://127.0.0.1:1"
    with pytest.raises(CannotStart, match="--host"):
        join_address("a b", 1)


@pytest.mark.parametrize("header", ["X", "=x", "X=a\nb", "a b=x", "ü=x"])
def test_what_is_no_header_is_refused(header: str) -> None:
    with pytest.raises(BenchError, match="--header"):
        build_headers(parse(["--header", header]))
