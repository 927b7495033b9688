"""Flags of several machines: what is refused before any of them starts, and what they compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from config_kit import PLATFORM, SOURCE
from hypothesis import given
from hypothesis import strategies as st
from toy_config import LLAMA

from vivace.config.config import Config
from vivace.config.errors import ConfigError
from vivace.config.nodes import address, comparable, difference
from vivace.config.parsing import parse
from vivace.config.resolution import resolve
from vivace.models.facts import read_facts

DIVISIBLE = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
TWO = ("--tp-size", "2", "--nnodes", "2", "--dist-init-addr", "127.0.0.1:5000")
KEY = "k" * 32
AWAY = (*TWO[:-1], "10.0.0.1:5000")
KERNELS = replace(PLATFORM, cpu_kernels=True, features=(*PLATFORM.features, "kernels"))


def resolved(*argv: str, environ: dict[str, str] | None = None, kernels: bool = True) -> Config:
    changes = {"hidden_size": 64, "intermediate_size": 128, **DIVISIBLE}
    source = replace(SOURCE, config={**LLAMA, **changes})
    options = parse(argv, environ or {})
    return resolve(options, source, read_facts(source), KERNELS if kernels else PLATFORM)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((*TWO, "--node-rank", "2"), "0 to 1"),
        (("--node-rank", "1"), "--nnodes"),
        (("--tp-size", "2", "--nnodes", "2"), "--dist-init-addr"),
        (("--nnodes", "2", *TWO[4:]), "multiple"),
        ((*TWO, "--dp-size", "2"), "--enable-dp-attention"),
        ((*TWO[:-1], "127.0.0.1"), "HOST:PORT"),
        ((*TWO[:-1], "127.0.0.1:0"), "1 to 65535"),
        ((*TWO[:-1], "::1:5000"), "HOST:PORT"),
        (AWAY, "openssl"),
        ((*TWO[:-1], "head.cluster:5000"), "--cluster-key-file"),
        ((*TWO, "--dist-timeout", "0"), "--dist-timeout"),
        ((*TWO, "--nccl-port", "70000"), "--nccl-port"),
        ((*TWO[:1], "4", *TWO[2:], "--nccl-port", "65535"), "give 65534"),
        ((*TWO, "--disable-cpu-kernels"), "gloo"),
    ],
)
def test_what_cannot_be_is_refused(argv: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolved(*argv)
    assert said in str(refused.value)


def test_ray_says_where_node_0_is_and_brings_the_key() -> None:
    assert resolved(*TWO[:4], "--use-ray").parallel.dist_init_addr is None
    assert resolved(*AWAY, "--use-ray").parallel.cluster_key is None  # one is made
    assert resolved("--use-ray").parallel.use_ray


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((*TWO[:4], "--node-rank", "1"), "only the first node"),
        ((*TWO[:-1], "nonsense"), "HOST:PORT"),
        (("--tp-size", "3", "--nnodes", "2"), "multiple"),
        (("--node-rank", "1"), "--nnodes"),
        ((*TWO[:4], "--disable-cpu-kernels"), "gloo"),
    ],
)
def test_what_cannot_be_with_ray_is_refused(argv: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolved(*argv, "--use-ray")
    assert said in str(refused.value)


def test_an_actor_is_a_node_like_any_other() -> None:
    actor = resolved(*TWO, "--use-ray", "--node-rank", "1")
    assert comparable(actor) == comparable(resolved(*TWO))


def test_kernels_that_were_not_built_are_said() -> None:
    with pytest.raises(ConfigError, match="compiler"):
        resolved(*TWO, kernels=False)


def test_two_nodes_of_one_machine_need_no_key() -> None:
    assert resolved(*TWO).parallel.nnodes == 2
    assert resolved(*TWO[:-1], "[::1]:5000").parallel.cluster_key is None
    assert resolved(*TWO, "--nccl-port", "65535").parallel.nccl_port == 65535  # one rank each


def test_a_key_lets_nodes_meet_over_a_network(tmp_path: Path) -> None:
    assert resolved(*AWAY, environ={"VIVACE_CLUSTER_KEY": KEY}).parallel.cluster_key
    file = tmp_path / "key"
    file.write_text(f"# of the cluster\n{KEY}\n")
    file.chmod(0o600)
    config = resolved(*AWAY, "--cluster-key-file", str(file))
    assert config.parallel.cluster_key
    assert config.parallel.cluster_key.reveal() == KEY
    assert KEY not in repr(config)


@pytest.mark.parametrize("text", ["short", f"{KEY}\n{KEY[1:]}x", "", "with blank" * 3])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="--cluster-key-file"):
        parse([*AWAY, "--cluster-key-file", str(file)], {})


def test_flags_of_nodes_without_nodes_are_said() -> None:
    notices = resolved("--dist-init-addr", "10.0.0.1:5000", "--nccl-port", "6000").notices
    assert sum("no effect: there is one machine" in line for line in notices) == 2


@given(host=st.sampled_from(["10.0.0.1", "head", "[fd00::1]"]), port=st.integers(1, 65535))
def test_addresses_are_read(host: str, port: int) -> None:
    assert address(f"{host}:{port}") == (host.strip("[]"), port)
    assert address(f"tcp://{host}:{port}") == (host.strip("[]"), port)


@given(st.text(max_size=40))
def test_no_text_breaks_an_address(text: str) -> None:
    try:
        _, port = address(text)
    except ConfigError:
        return
    assert 1 <= port <= 65535


def test_nodes_differ_in_what_was_asked_not_in_what_was_drawn() -> None:
    """Seeds are drawn, threads are counted, addresses are each node's own."""
    first = comparable(resolved(*TWO, "--cpu-threads", "1"))
    same = comparable(resolved(*TWO, "--node-rank", "1", "--nccl-port", "7000", "--port", "1"))
    assert first == same
    other = comparable(
        resolved(*TWO, "--node-rank", "1", "--page-size", "32", "--dtype", "float32")
    )
    assert difference(1, other, first) == [
        '--dtype: "float32" on node 1, "bfloat16" on node 0',
        '--kv-cache-dtype: "float32" on node 1, "bfloat16" on node 0',
        "--page-size: 32 on node 1, unset on node 0",
    ]
