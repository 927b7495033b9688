"""Launch scripts are read, not run: what they would start, with which environment, and where."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import vivace.deploy.shell
from vivace.deploy.shell.reader import MAX_BYTES, Reading, ScriptError, read_script
from vivace.deploy.shell.state import Launch

SEPARATED = r"""
# A script that every node runs; which part is its own it finds by its address.
sysctl -w vm.swappiness=0
export SGLANG_SET_CPU_AFFINITY=1
unset HTTPS_PROXY
source /usr/local/Ascend/ascend-toolkit/set_env.sh
export PATH=/opt/tools/bin:$PATH
P_IP=('10.0.0.1' '10.0.0.2')
D_IP=('10.0.1.1' "10.0.1.2")
MODEL=/models/big
FIRST=`hostname -I|awk -F " " '{print$1}'`
SECOND=$(hostname -I | awk '{print $2}')
echo "${FIRST}"
for i in "${!P_IP[@]}";
do
    if [[ "$FIRST" == "${P_IP[$i]}" || "$SECOND" == "${P_IP[$i]}" ]];
    then
        export HCCL_BUFFSIZE=1536
        python -m sglang.launch_server --model-path ${MODEL} --disaggregation-mode prefill \
        --host ${P_IP[$i]} --port 8000 --disaggregation-bootstrap-port $((8998+$i)) \
        --tp-size 16  # of one node
        NODE_RANK=$i
        break
    fi
done
for i in "${!D_IP[@]}"; do
    if [[ "$FIRST" == "${D_IP[$i]}" || "$SECOND" == "${D_IP[$i]}" ]]; then
        export HCCL_BUFFSIZE=650
        tp=`expr 16 \* ${#D_IP[@]}`
        python -m sglang.launch_server --model-path ${MODEL} --disaggregation-mode decode \
        --host ${D_IP[$i]} --nnodes ${#D_IP[@]} --node-rank $i --tp-size $tp \
        --dist-init-addr ${D_IP[0]}:5000 --cuda-graph-bs 2 4 8
        break
    fi
done
python -m sglang_router.launch_router --pd-disaggregation --prefill http://${P_IP[0]}:8000 8998 \
    --decode http://${D_IP[0]}:8000 --port 6688
"""


def servers(reading: Reading, word: str = "sglang.launch_server") -> list[Launch]:
    """Those that do not wait for another one to end."""
    return [each for each in reading.launches if word in each.words and not each.behind]


def option(launch: Launch, flag: str) -> str:
    return launch.words[launch.words.index(flag) + 1]


def test_every_node_of_a_separated_deployment_is_found() -> None:
    reading = read_script(SEPARATED)
    assert reading.notes == ()
    found = servers(reading)
    assert [option(each, "--host") for each in found] == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.1.1",
        "10.0.1.2",
    ]
    assert [each.assumptions[0].value for each in found] == [
        option(each, "--host") for each in found
    ]
    assert [option(each, "--disaggregation-bootstrap-port") for each in found[:2]] == [
        "8998",
        "8999",
    ]
    assert [option(each, "--node-rank") for each in found[2:]] == ["0", "1"]
    assert option(found[3], "--tp-size") == "32"
    assert option(found[3], "--dist-init-addr") == "10.0.1.1:5000"
    assert found[3].words[-4:] == ("--cuda-graph-bs", "2", "4", "8")


def test_environment_is_what_was_exported_by_then() -> None:
    prefill, _, decode, _ = servers(read_script(SEPARATED))
    assert prefill.environment["HCCL_BUFFSIZE"] == "1536"
    assert decode.environment["HCCL_BUFFSIZE"] == "650"
    assert prefill.environment["PATH"] == "/opt/tools/bin:<$PATH>"
    assert "MODEL" not in prefill.environment and "HTTPS_PROXY" not in prefill.environment


def test_the_router_runs_where_no_server_does() -> None:
    (router,) = servers(read_script(SEPARATED), "sglang_router.launch_router")
    assert option(router, "--prefill") == "http://10.0.0.1:8000"
    assert router.assumptions == () and "HCCL_BUFFSIZE" not in router.environment


def test_a_rank_found_by_a_loop_is_known_behind_it() -> None:
    reading = read_script(
        """
IPs=(10.0.0.1 10.0.0.2)
NICS=('eth0' 'eth1')
HERE=`hostname -I`
for i in "${!IPs[@]}"; do
  if [ "$HERE" == "${IPs[$i]}" ]; then RANK=$i; break; fi
done
export HCCL_SOCKET_IFNAME=${NICS[$RANK]}
python3 -m sglang.launch_server --nnodes ${#IPs[@]} --node-rank $RANK
"""
    )
    first, second, nowhere = servers(reading)
    assert (option(first, "--node-rank"), option(second, "--node-rank")) == ("0", "1")
    assert second.environment == {"HCCL_SOCKET_IFNAME": "eth1"}
    assert option(nowhere, "--node-rank") == "<$RANK>" and nowhere.assumptions == ()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("a 'one two' three\\ four \"$x\"", ("a", "one two", "three four", "<$x>")),
        ("x='1 2'; a $x \"$x\"", ("a", "1", "2", "1 2")),
        ("x=(1 '2 3'); a ${x[@]} \"${x[1]}\" ${#x[@]} ${x[-1]}", None),
        ("a ${x:-d} ${y:=e}", ("a", "d", "e")),
        ("x=; a ${x:-d} ${x-d} end", ("a", "d", "end")),
        ("n=7; a $((n * (2 + 1) - 20 / 3)) $((-7 / 2)) $((n % 4))", ("a", "15", "-3", "3")),
        ("a $((1/0)) $(( $z + 1 ))", ("a", "<$((1/0))>", "<$(( $z + 1 ))>")),
        ('x=(1 2); x+=(3); x[0]=9; a "${x[@]}"', ("a", "9", "2", "3")),
        ("x=ab; x+=c; a ${#x} $x", ("a", "3", "abc")),
        ("a $(echo b c) `expr 3 + 4` $(date)", ("a", "b", "c", "7", "<date>")),
        ("a \\\n  --b \\\r\n  c", ("a", "--b", "c")),
        ('a "b\\\\\nc" "d\\\ne" "\\f\\\\\\"" \\\\g\\"', ("a", "b\\\nc", "de", '\\f\\"', '\\g"')),
        ("f() { a $1 $2; }; f x 'y z'", ("a", "x", "y", "z")),
        ("nohup env A=1 a b > log 2>&1 &", ("a", "b")),
        (
            'a --json \'{"k": [1]}\' "say \\"hi\\" \\$x"',
            ("a", "--json", '{"k": [1]}', 'say "hi" $x'),
        ),
        ("if [ 3 -gt 2 ] && [[ -n x && ! -z y ]]; then a yes; else a no; fi", ("a", "yes")),
        ("case b in a) a 1;; b|c) a 2;; *) a 3;; esac", ("a", "2")),
        ("for i in 1 2 3; do if [ $i = 2 ]; then continue; fi; x=$x$i; done; a $x", None),
        ("(x=1; a $x); true && a $x", None),
    ],
)
def test_words_are_what_bash_would_make(script: str, words: tuple[str, ...] | None) -> None:
    reading = read_script(script)
    assert reading.notes == ()
    if words is not None:
        assert [launch.words for launch in reading.launches] == [words]


def test_arrays_loops_and_subshells() -> None:
    (launch,) = read_script("x=(1 '2 3'); a ${x[@]} \"${x[1]}\" ${#x[@]} ${x[-1]}").launches
    assert launch.words in {
        ("a", "1", "2", "3", "2 3", "2", "2", "3"),
        ("a", "1", "2 3", "2 3", "2", "2", "3"),
    }
    loop = "x=; for i in 1 2 3; do if [ $i = 2 ]; then continue; fi; x=$x$i; done; a $x"
    assert [each.words for each in read_script(loop).launches] == [("a", "13")]
    inner, outer = read_script("x=0; (x=1; a $x); true && a $x").launches
    assert (inner.words, outer.words) == (("a", "1"), ("a", "0"))


def test_what_only_the_machine_knows_splits() -> None:
    reading = read_script("if [ -f /etc/a ]; then a yes; else a no; fi\nb")
    yes, no, both = reading.launches
    assert (yes.words, no.words) == (("a", "yes"), ("a", "no"))
    assert yes.assumptions[0].value == "true" and no.assumptions[0].value == "false"
    assert both.words == ("b",) and both.assumptions == ()


def test_prefix_environment_and_background() -> None:
    first, second = read_script(
        "export A=1\nB=2 C='x y' python -m vivace.launch_server &\nrest"
    ).launches
    assert first.environment == {"A": "1", "B": "2", "C": "x y"} and first.background
    assert second.words == ("rest",) and second.environment == {"A": "1"}


def test_what_waits_for_a_server_in_the_foreground_is_marked() -> None:
    server = "python -m sglang.launch_server --port 1"
    first, second = read_script(f"{server}\npython -m sglang.bench_serving").launches
    assert (first.behind, second.behind) == (0, 1)
    assert all(not each.behind for each in read_script(f"{server} &\nmeasure").launches)


@pytest.mark.parametrize(
    ("script", "line", "words"),
    [
        ("a\nb {1..3}{4..$x}", 2, "brace"),
        ("a\n\necho launch | bash", 3, "script from a pipe"),
        ("a\nsource env.sh", 2, "env.sh is not beside this script"),
        ("x=0\nuntil server_is_up; do x=$((x+1)); done", 2, "loop"),
        ("if true; then\n a\n", 3, "'fi' is missing"),
        ("a ${x^^}\nselect i in 1; do b; done", 2, "not understood"),
    ],
)
def test_what_is_not_understood_is_said_with_its_line(script: str, line: int, words: str) -> None:
    notes = read_script(script).notes
    assert any(note.line == line and words in note.text for note in notes), notes


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("a\n" * MAX_BYTES, "bytes"),
        ("for i in 1 2; do " * 60 + "a" + "; done" * 60, "statements|commands|nested"),
        ("\n".join(f"[ `hostname` = {i} ] && x{i}=1" for i in range(200)), "branches"),
        ("f() { f; }; f", "nested"),
    ],
)
def test_a_script_that_explodes_is_refused(script: str, words: str) -> None:
    with pytest.raises(ScriptError, match=words):
        read_script(script)


def test_many_optional_settings_leave_the_server() -> None:
    """As entry points of containers have them: read as if all were given, and said so."""
    options = "A=\n" + "\n".join(f'[ -n "$V{i}" ] && A="$A --v{i} $V{i}"' for i in range(20))
    reading = read_script(f"{options}\nserve $A\n")
    assert len({each.words for each in reading.launches}) <= 128
    assert all(each.words[:3] == ("serve", "--v0", "<$V0>") for each in reading.launches[:1])
    assert any("branches" in note.text for note in reading.notes)


FRAGMENTS = st.sampled_from(
    [
        *SEPARATED.split("\n"),
        "'",
        '"',
        "`",
        "$(",
        "${",
        "<<EOF",
        "((",
        "[[",
        "]]",
        "\r\n",
        "é",
        "\0",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(FRAGMENTS | st.text(max_size=20), max_size=30), st.integers(0, 2000))
@example(["\x1f<0"], 0)
@example(["\x1c | bash"], 0)
@example(["echo 1 | \x1d"], 0)
def test_no_text_breaks_it(pieces: list[str], cut: int) -> None:
    for script in ("\n".join(pieces), SEPARATED[:cut] + "".join(pieces)):
        try:
            reading = read_script(script)
        except ScriptError:
            continue
        assert all(isinstance(word, str) for each in reading.launches for word in each.words)


def test_the_reader_can_execute_nothing() -> None:
    """Its modules import neither what starts processes nor what opens files."""
    folder = Path(vivace.deploy.shell.__file__).parent
    allowed = {
        "__future__",
        "ast",
        "collections",
        "msgspec",
        "operator",
        "re",
        "tree_sitter",
        "typing",
    }
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            for name in names:
                ours = name.startswith("vivace.deploy.shell.") or name == "vivace.errors"
                assert ours or name.split(".")[0] in {*allowed, "tree_sitter_bash"}, (file, name)


@pytest.mark.parametrize("end", ["\\", "\\\n", " > log 2>&1 & \\\n", " \\\r\n"])
def test_a_backslash_that_ends_the_script_continues_nothing(end: str) -> None:
    reading = read_script("echo a\npython3 -m sglang.launch_server --tp 2" + end)
    assert not reading.notes
    assert [launch.words[-2:] for launch in reading.launches][-1] == ("--tp", "2")
