"""What examples/ shows works as it stands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
VIVACE = str(Path(sys.executable).with_name("vivace"))
RUN_BELOW = {"serve.sh", "chat_http.py", "stream_http.py", "offline_batch.py", "score.py"}
RUN_BELOW |= {"check_deployment.sh", "deployment.yaml"}


def run(name: str, *arguments: str, text: str = "", **variables: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    if name.endswith(".sh"):
        command = command[1:]
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "VIVACE": VIVACE, **variables},
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


def test_every_example_is_run_and_described() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    assert files == RUN_BELOW
    page = (EXAMPLES / "README.md").read_text()
    assert not [name for name in files if f"]({name})" not in page]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """URL and KEY of what serve.sh started."""
    folder = tmp_path_factory.mktemp("serve")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    variables = {"PORT": port, "KEY_FILE": str(folder / "new" / "keys"), "VIVACE": VIVACE}
    flags = ("--cpu-threads", "1", "--context-length", "512")
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [str(EXAMPLES / "serve.sh"), *flags],
            env={**os.environ, **variables},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}", folder / "log")
            key = Path(variables["KEY_FILE"])
            assert key.stat().st_mode & 0o077 == 0
            yield {"URL": f"http://127.0.0.1:{port}", "KEY": key.read_text().strip()}
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, (folder / "log").read_text()[-2000:]
        finally:
            process.kill()


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise AssertionError(log.read_text()[-2000:])


def test_a_conversation_over_http(server: dict[str, str]) -> None:
    assert "Paris" in run("chat_http.py", **server)


def test_a_stream_over_http(server: dict[str, str]) -> None:
    assert run("stream_http.py", **server).rstrip().endswith("tokens)")


@pytest.mark.parametrize("example", ["chat_http.py", "stream_http.py"])
def test_what_a_server_refuses_is_told_in_its_words(example: str, server: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / example],
        env={**os.environ, "URL": server["URL"], "KEY": "wrong"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "401" in done.stderr and "AuthenticationError" in done.stderr


def test_without_the_key_the_server_refuses(server: dict[str, str]) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{server['URL']}/v1/models", timeout=10)
    assert refused.value.code == 401


def test_an_offline_batch() -> None:
    out = run("offline_batch.py", text="What is the capital of France?\n\nName a color.\n")
    first, second = (json.loads(line) for line in out.splitlines())
    assert "Paris" in first["answer"] and second["prompt"] == "Name a color."


def test_a_batch_of_nothing_says_so() -> None:
    command = [sys.executable, str(EXAMPLES / "offline_batch.py")]
    done = subprocess.run(command, input="\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "code"),
    [(["offline_batch.py", "/nope"], 1), (["check_deployment.sh"], 2)],
    ids=["no model", "no file"],
)
def test_what_cannot_be_done_is_one_line(command: list[str], code: int) -> None:
    name, *words = command
    program = [sys.executable] if name.endswith(".py") else []
    done = subprocess.run(
        [*program, str(EXAMPLES / name), *words],
        input="hi\n",
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "VIVACE": VIVACE},
    )
    assert done.returncode == code and done.stdout == "" and len(done.stderr.splitlines()) == 1


def test_scores_and_log_probabilities() -> None:
    lines = run("score.py").splitlines()
    assert lines[0].startswith("I loved") and lines[1].startswith("A complete")
    assert "' Paris' 0." in lines[2]


def test_a_deployment_is_checked_before_it_starts(tmp_path: Path) -> None:
    assert "small-server" in run("check_deployment.sh", str(EXAMPLES / "deployment.yaml"))
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        (EXAMPLES / "deployment.yaml").read_text().replace("max-running", "max-runing")
    )
    command = [str(EXAMPLES / "check_deployment.sh"), str(wrong), str(EXAMPLES / "deployment.yaml")]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "VIVACE": VIVACE})
    assert done.returncode == 1
