"""`sglang_router.launch_server` -> its workers and the router in front of them."""

from __future__ import annotations

import msgspec

from vivace.deploy.from_script.flags import canonical, groups, parse_flags
from vivace.deploy.from_script.programs import invocation, program_command
from vivace.deploy.from_script.roles import flag_value
from vivace.deploy.shell.state import Launch

BASE = "router-dp-worker-base-port"
MAX_WORKERS = 64


def started_by(launch: Launch) -> list[Launch]:
    """A server for each of --dp-size, on devices and a port of its own, and a router with the port
    of the command; any other command as it is. The program takes ports that are free: the first is
    known."""
    called = invocation(launch.words)
    if called is None or called.program != "sglang_router.launch_server":
        return [launch]
    flags, router, server = parse_flags(called.words, "server").flags, list[str](), list[str]()
    dp, tp = flag_value(flags, "dp-size"), flag_value(flags, "tp-size") or 1
    count = dp if isinstance(dp, int) and isinstance(tp, int) and 0 < dp <= MAX_WORKERS else 0
    for flag, values in groups(called.words):
        name = canonical(flag.partition("=")[0].removeprefix("--"))
        if flag.startswith("--router-"):
            router += ["--" + flag.removeprefix("--router-"), *values] if BASE not in flag else []
            continue
        router += [flag, *values] if name in ("host", "port") else []
        if name != "port" and not (name == "dp_size" and count):
            server += [each for each in (flag, *values) if each]
    first = base if isinstance(base := flags.get(BASE), int) else 31000
    ports = [str(first + at) for at in range(count or 1)]
    workers = [
        [*program_command("sglang.launch_server"), *server, "--port", port] for port in ports
    ]
    for at, words in enumerate(workers if count > 1 else ()):
        words += ["--base-gpu-id", str(at * tp)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    front = [*program_command("sglang_router.launch_router"), *router, "--worker-urls", *urls]
    return [
        msgspec.structs.replace(launch, words=tuple(words), round=launch.round + at)
        for at, words in enumerate([*workers, front])
    ]
