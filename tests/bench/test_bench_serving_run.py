"""`vivace bench serving` as a whole, against the scripted server."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from scripted_site import served
from terminal import ProcessOnTerminal

from vivace.bench.fake_server import Script
from vivace.bench.serving import accept_length, main
from vivace.config.process_environment import GIVE_A_KEY

FLAGS = "--dataset-name random --num-prompts 6 --random-input-len 12 --random-output-len 5"

RANDOM = ["--dataset-name", "random"]
NOBODY = "http://127.0.0.1:9"


def run(url: str, folder: Path, *extra: str) -> tuple[int, dict]:
    file = folder / "result.jsonl"
    words = [*FLAGS.split(), "--base-url", url, "--output-file", str(file), *extra]
    code = main(words)
    return code, json.loads(file.read_text().splitlines()[-1])


@pytest.mark.parametrize("backend", ["vivace", "sglang", "sglang-oai", "sglang-oai-chat"])
def test_a_run_prints_the_block_and_stores_a_trusted_record(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "p.png"
    with served(Script()) as url:
        code, record = run(
            url,
            tmp_path,
            *("--backend", backend, "--random-range-ratio", "1", "--max-concurrency", "2"),
            *("--explain", "--plot", str(picture), "--plot-throughput", "--print-requests"),
        )
    shown = capsys.readouterr()
    assert (code, shown.err) == (0, "")
    assert (record["trusted"], record["completed"]) == (True, 6)
    assert (record["total_input_tokens"], record["total_output_tokens"]) == (72, 30)
    assert record["server_info"]["api_key"] == "(hidden)"
    assert record["versions"]["server"] == "scripted"
    assert "============ Serving Benchmark Result ============" in shown.out
    assert "Successful requests:                     6         " in shown.out
    assert "Sum of the end-to-end latencies / duration" in shown.out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_server_that_counts_wrongly_is_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(Script(miscount=1)) as url:
        code, record = run(url, tmp_path)
    assert (code, record["trusted"]) == (1, False)
    shown = capsys.readouterr().err
    assert "SELF-CHECK VIOLATED: generated tokens = asked tokens" in shown
    assert "do not trust these figures" in shown


def test_failed_requests_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Script(fail_every=3)) as url:
        code, record = run(url, tmp_path, "--warmup-requests", "0", "--max-concurrency", "1")
    assert (code, record["failed"], record["trusted"]) == (1, 2, True)
    assert [failure["request"] for failure in record["failures"]] == [2, 5]
    assert "2 of 6 requests failed" in capsys.readouterr().err


def test_exact_lengths_with_token_ids(tmp_path: Path) -> None:
    script = Script(keep=True)
    with served(script) as url:
        code, _ = run(url, tmp_path, "--tokenize-prompt", "--random-range-ratio", "1")
    assert code == 0
    assert all(len(body["input_ids"]) == 12 for body in script.bodies)


def test_an_unreachable_server_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*RANDOM, "--base-url", NOBODY, "--ready-check-timeout-sec", "0.1"])
    assert code == 1
    shown = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in shown] == [
        "waiting for the server at http",
        "vivace bench serving",
    ]


UNUSABLE = {
    "no data set": ["--dataset-name", "sharegpt"],
    "a data set that is not there": ["--dataset-path", "{folder}/none.json"],
    "a folder as data set": ["--dataset-path", "{folder}"],
    "a folder as record": ["--output-file", "{folder}"],
    "a record below a file": ["--output-file", "{file}/r.jsonl"],
    "a picture of no kind": ["--plot", "{folder}/run.xyz"],
    "a picture below a file": ["--plot", "{file}/run.png"],
}


@pytest.mark.parametrize("words", UNUSABLE.values(), ids=list(UNUSABLE))
def test_files_are_tried_before_a_server_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("[]")
    words = [word.format(folder=tmp_path, file=file) for word in words]
    try:
        code = main([*RANDOM, "--base-url", NOBODY, *words])
    except SystemExit as stopped:
        code = stopped.code
    shown = capsys.readouterr().err
    assert code in (1, 2) and words[0] in shown
    assert "waiting" not in shown and sorted(tmp_path.iterdir()) == [file]


def test_accept_length_is_where_sglang_puts_it() -> None:
    states = [{"avg_spec_accept_length": 2.5}]
    assert accept_length({"internal_states": states}, False) == 2.5
    assert accept_length({"decode": [{"internal_states": states}]}, True) == 2.5
    assert accept_length({"internal_states": [{}]}, False) is None
    assert accept_length({}, True) is None


def test_modules_start_and_need_no_torch() -> None:
    for module in ("bench_serving", "bench_one_batch", "bench_offline_throughput"):
        done = subprocess.run(
            [sys.executable, "-m", f"vivace.{module}", "--help"], capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    code = (
        "import sys, vivace.bench.serving, vivace.bench.offline, vivace.bench.one_batch, "
        "vivace.bench.sse, vivace.bench.peers.run, vivace.bench.peers.export; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


class Closed(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_server_that_wants_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), Closed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        code = main([*RANDOM, "--base-url", address, "--ready-check-timeout-sec", "0"])
        server.shutdown()
    assert code == 1 and GIVE_A_KEY in capsys.readouterr().err


def test_a_server_that_is_silent_is_not_waited_for_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        words = ["--port", str(port), "--ready-check-timeout-sec", "1.5"]
        words += ["--dataset-name", "random"]
        assert main(words) != 0
    told = capsys.readouterr().err
    assert "no answer yet" in told  # before the first question ends
    assert f"127.0.0.1:{port}" in told and "1.5 s (--ready-check-timeout-sec)" in told


FOR_CTRL_C = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize("words", [[], ["--disable-tqdm"]], ids=["a bar", "none"])
def test_ctrl_c_says_what_is_lost(words: list[str], tmp_path: Path) -> None:
    file, script = tmp_path / "result.jsonl", Script()
    with served(script) as url:
        command = [sys.executable, "-c", FOR_CTRL_C, "-m", "vivace", "bench", "serving"]
        command += [*FLAGS.split(), "--base-url", url, "--output-file", str(file), *words]
        command += ["--max-concurrency", "1", "--warmup-requests", "0", "--random-range-ratio", "1"]
        script.gap = 0.1
        with ProcessOnTerminal(command, columns=80) as process:
            deadline = time.monotonic() + 60
            while script.num_requests < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            process.type("\x03")
            assert process.wait() == 130
            lines = process.terminal.lines()
    assert re.fullmatch("stopped after [23] of 6 requests; nothing is recorded", lines[-1])
    assert len([line for line in lines if "requests" in line]) == (1 if words else 2)
    assert not file.exists() and "^C" not in process.text
