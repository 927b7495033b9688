"""What a script's author leaves to its reader is unknown, in whatever form it is written."""

from __future__ import annotations

import pytest

from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import Overrides, build_case
from vivace.deploy.rules.judge import judge
from vivace.deploy.shell.placeholders import mark_placeholders

SERVER = "python -m sglang.launch_server --device npu --attention-backend ascend"
SETTINGS = f"""\
MODEL_PATH={{"weights path"}}
export ASCEND_NPU_PHY_ID=xxx
export ASCEND_MF_STORE_URL="tcp://xxx.xx.xxx.xxx:xxxx"
{SERVER} --model-path $MODEL_PATH --disaggregation-mode prefill --port xxxx \\
  --host your ip --disaggregation-transfer-backend ascend &
{SERVER} --model-path $MODEL_PATH --disaggregation-mode decode --port 8001 \\
  --host x.x.x.x --disaggregation-transfer-backend ascend --base-gpu-id 1 &
"""
NODES = f"""\
IPS=('your ip1' 'your ip2')
IP_MASTER="${{IPS[0]}}:your port"
LOCAL_HOST1=$(hostname -I | awk '{{print $1}}')
for i in "${{!IPS[@]}}"; do
  if [[ "$LOCAL_HOST1" == "${{IPS[$i]}}" ]]; then
    {SERVER} --model-path /models/m --tp-size 32 --nnodes 2 --node-rank $i \\
      --dist-init-addr $IP_MASTER --host ${{IPS[$i]}}
  fi
done
"""


def errors(script: str) -> list[tuple[str, str]]:
    case = build_case(import_scripts([("start.sh", script)]), Overrides())
    return [(e.rule, e.text) for e in judge(case).findings if e.severity == "error"]


ALIKE = NODES.replace("your ip1", "x.x.x.x").replace("your ip2", "x.x.x.x")


@pytest.mark.parametrize("script", [SETTINGS, NODES, ALIKE])
def test_what_is_left_to_the_reader_is_no_error(script: str) -> None:
    assert errors(script) == []


def test_names_of_hosts_that_are_left_open_still_tell_them_apart() -> None:
    mistaken = NODES.replace("--node-rank $i", "--node-rank 0")
    assert [rule for rule, _ in errors(mistaken)] == ["node-ranks"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("your first ip:your port", "<your first ip>:<your port>"),
        ("http://your ip:8000", "http://<your ip>:8000"),
        ("tcp://x.x.x.x:24669", "tcp://<x.x.x.x>:24669"),
        ("<your ip>", "<your ip>"),
        ("{host}", "{host}"),
        ("/xxx/model", "/xxx/model"),
        ("yours truly", "yours truly"),
        ("1.2.3.x", "1.2.3.x"),
    ],
)
def test_forms_of_what_is_left_open(written: str, read: str) -> None:
    assert mark_placeholders(written) == read
