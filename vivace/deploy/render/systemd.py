"""A systemd unit for each process, beside its script."""

from __future__ import annotations

from vivace.deploy.render.process import Process, list_processes
from vivace.deploy.render.shell import WARNING, render_shell
from vivace.deploy.schema.deployment import Deployment
from vivace.terminal import printable

FOLDER = "/opt/vivace"
"""where the scripts are to be put"""


def render_systemd(deployment: Deployment) -> dict[str, str]:
    files = render_shell(deployment)
    for process in list_processes(deployment):
        if process.kind != "benchmark":
            files[f"{process.name}.service"] = unit(process)
    return files


def unit(process: Process) -> str:
    where = f"\n# for the node {one_line(process.host)}" if process.host else ""
    return f"""# {WARNING}{where}
[Unit]
Description=Vivace {escape(process.title)}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=600
StartLimitBurst=5

[Service]
Type=exec
ExecStart=/usr/bin/env bash {FOLDER}/{process.name}.sh
Restart=on-failure
RestartSec=5
KillMode=mixed
TimeoutStopSec=180
LimitNOFILE=1048576
LimitMEMLOCK=infinity
LimitCORE=0

[Install]
WantedBy=multi-user.target
"""


def escape(text: str) -> str:
    return one_line(text).replace("%", "%%")


def one_line(text: str) -> str:
    return printable(" ".join(text.split()))
