"""The nodes of a server whose devices and actors a Ray cluster provides."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vivace.config.child_process import no_process
from vivace.config.config import all_options
from vivace.config.environment import PREFIXES
from vivace.config.nodes import CLUSTER_KEY, address
from vivace.config.process_environment import KEYS_OF_THE_SERVER
from vivace.config.secret import Secret
from vivace.errors import CannotStart, why_no_answer
from vivace.launch.node_hello import node_ranks
from vivace.launch.screen import is_terminal
from vivace.protocol.message_socket import SocketClosed
from vivace.supervisor.child import Child, process_command, spawn
from vivace.supervisor.messages import Failure, RayReservation, RaySetup

if TYPE_CHECKING:
    from vivace.config.config import Config

ANSWER_SECONDS = 30.0
"""of Ray, to who wants to join and reserve"""
TCP_SECONDS = 5.0
END_SECONDS = 10.0
"""in which Ray ends the actors"""


@contextlib.contextmanager
def nodes_of_ray(config: Config, words: Sequence[str]) -> Iterator[tuple[Config, Child]]:
    """With the devices of all nodes reserved, and the other nodes started with `words`: the
    configuration of this one, and the process that watches them. Raises CannotStart."""
    parallel = config.parallel
    key = parallel.cluster_key or Secret(secrets.token_hex(32))
    check_ray(config.environment.get("RAY_ADDRESS", ""))
    child = start_process()
    try:
        child.control.send(ray_setup(config, words, key))
        where = wait_for_reservation(child)
        parallel = replace(parallel, cluster_key=key, dist_init_addr=where)
        yield replace(config, parallel=parallel), child
    finally:
        end(child)


def check_ray(text: str) -> None:
    """Is it installed, and does anybody listen at RAY_ADDRESS, `text`? Ray itself would try for
    minutes. Raises CannotStart."""
    if find_spec("ray") is None:
        raise CannotStart("--use-ray needs the package ray: pip install ray, on all machines")
    if text in ("", "auto"):
        return
    if "://" in text:
        raise CannotStart(
            f"RAY_ADDRESS={text}: the server must run on a machine of the cluster, and gives its "
            "HOST:PORT, or auto"
        )
    try:
        socket.create_connection(address(text, "RAY_ADDRESS"), TCP_SECONDS).close()
    except OSError as error:
        raise CannotStart(
            f"RAY_ADDRESS={text}: no Ray cluster answers there: {why_no_answer(error)}"
        ) from None


def start_process() -> Child:
    try:
        return spawn("ray", process_command, piped=is_terminal(sys.stderr))
    except OSError as error:
        raise no_process("Ray", error) from error


def ray_setup(config: Config, words: Sequence[str], key: Secret) -> RaySetup:
    kept = {
        name: value
        for name, value in config.environment.items()
        if name.startswith(PREFIXES) and name not in KEYS_OF_THE_SERVER
    }
    return RaySetup(
        devices=[len(ranks) for ranks in node_ranks(config)],
        resource=config.platform.ray_device_key,
        words=without_typed_keys(words),
        environment={**kept, CLUSTER_KEY: key.reveal()},
        directory=str(Path.cwd()),
        dist_init_addr=config.parallel.dist_init_addr,
    )


def without_typed_keys(words: Sequence[str]) -> list[str]:
    """Only node 0 has an HTTP server; on the others a list of processes would show them."""
    keys = {flag for option in all_options() if option.secret for flag in option.flags}
    kept, following = list[str](), iter(words)
    for word in following:
        flag, equals, _ = word.partition("=")
        if flag not in keys:
            kept.append(word)
        elif not equals:
            next(following, "")
    return kept


def wait_for_reservation(child: Child) -> str:
    """--dist-init-addr of all nodes. Raises CannotStart."""
    try:
        answer = child.control.wait(ANSWER_SECONDS)
    except TimeoutError:
        raise CannotStart(
            f"--use-ray: the Ray cluster did not answer within {ANSWER_SECONDS:g} s; see "
            "`ray status`"
        ) from None
    except SocketClosed:
        raise CannotStart(f"--use-ray: {child.name}: {child.cause()}") from None
    if isinstance(answer, Failure):
        raise CannotStart(answer.text)
    if not isinstance(answer, RayReservation):
        raise TypeError(f"Ray's process says {type(answer).__name__} first")
    return answer.dist_init_addr


def end(child: Child) -> None:
    """It ends the actors when its socket closes."""
    child.close()
    try:
        child.process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.process.wait()
