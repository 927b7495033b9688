"""`python tools/request_files.py`: how many files a warm streamed chat request passes.

Starts the server with the embedded model, asks the same question several times over one connection,
and prints which files ran a function in the frontend and the engine during every one of them. The
process of the chat templates is not looked into: it is one file more. docs/architecture.md names
the limit.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PORT = 31415
HOOK = """
import mmap, os, sys, threading
if "REQUEST_FILES" in os.environ:
    folder, root = os.environ["REQUEST_FILES"], os.environ["PYTHONPATH"].split(":")[1] + "/vivace/"
    window = mmap.mmap(os.open(folder + "/window", os.O_RDONLY), 1, prot=mmap.PROT_READ)
    seen = set()
    def look(frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and window[0] != 48 and name.startswith(root):
            line = f"{chr(window[0])} {sys.argv[1:2]} {name[len(root):]}\\n"
            if line not in seen:
                seen.add(line)
                out = os.open(folder + "/seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(out, line.encode())
                os.close(out)
    sys.setprofile(look)
    threading.setprofile(look)
"""
"""loaded by the server's interpreters as `sitecustomize`; a window is the time of a request"""
WINDOWS = "12345"


def ask(connection: http.client.HTTPConnection) -> None:
    message = {"role": "user", "content": "Tell me of the sea."}
    body = {"model": "any", "stream": True, "max_tokens": 12, "messages": [message]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    connection.getresponse().read()


def wait_ready(connection: http.client.HTTPConnection) -> None:
    for _ in range(300):
        try:
            connection.request("GET", "/ready")
            connection.getresponse().read()  # while it starts, too: requests wait for the engine
            return
        except OSError:
            connection.close()
            time.sleep(0.3)
    raise SystemExit("the server did not start")


def measure(folder: Path) -> list[set[str]]:
    """The files of each window."""
    (folder / "sitecustomize.py").write_text(HOOK)
    (folder / "window").write_bytes(b"0")
    found = {"PYTHONPATH": f"{folder}:{ROOT}", "REQUEST_FILES": str(folder)}
    command = [sys.executable, "-m", "vivace", "serve", "--port", str(PORT)]
    server = subprocess.Popen(command, env={**os.environ, **found}, cwd=folder)
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=100)
    try:
        wait_ready(connection)
        for _ in range(3):
            ask(connection)
        for window in WINDOWS:
            with (folder / "window").open("r+b") as file:
                file.write(window.encode())
                file.flush()
                ask(connection)
                file.seek(0)
                file.write(b"0")
            time.sleep(0.5)
    finally:
        server.terminate()
        server.wait(60)
    lines = [line.split(" ", 2) for line in (folder / "seen").read_text().splitlines()]
    return [
        {
            file
            for at, child, file in lines
            if at == window and ("engine" in child or "front" in child)
        }
        for window in WINDOWS
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        always = set.intersection(*measure(Path(name)))
    print(*sorted(always), f"{len(always)} files, and frontend/template_process.py", sep="\n")
