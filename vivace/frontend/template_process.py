"""Jinja in a sandbox, as chat templates expect it.

The environment equals the one that model authors test with: trimmed blocks, loop controls,
`raise_exception`, `strftime_now`, plain `tojson`. It says what templates may touch. How long they
may run and how much they may take is not its business: see `template_process`, the only module
that imports this one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import socket
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vivace.config.trial_process import frame, limit_memory, open_parent, processor_time, receive
from vivace.frontend.render_process import (
    LoadResult,
    LoadTemplates,
    RenderError,
    RenderLimits,
    RenderMessage,
    RenderReply,
    RenderResult,
)


class TooLong(Exception):
    """A text beyond the limit; a clause about the chat template."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks the model's own words for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def rehearse(sandbox: ImmutableSandboxedEnvironment) -> None:
    """Go through what Jinja and Python import or open at first use, while files can be opened."""
    sandbox.from_string(
        "{{ lipsum(n=1) ~ '\\n' ~ strftime_now('%c %Z') ~ ('<b>&amp;</b>' | striptags) }}"
    ).render()
    for wrong in (
        "{% if %}",
        "{{ raise_exception('x') }}",
        "{{ missing.attribute }}",
        "{{ 1 + '' }}",
    ):
        with contextlib.suppress(jinja2.TemplateError, TypeError):
            sandbox.from_string(wrong).render()


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def render_text(template: jinja2.Template, variables: Mapping[str, Any], characters: int) -> str:
    """What the template makes of the variables, if it is at most so long.

    Raises TooLong, and whatever the template's own errors are.
    """
    parts: list[str] = []
    size = 0
    for part in template.generate(variables):
        size += len(part)
        if size > characters:
            raise TooLong(f"makes more than {characters} characters of them")
        parts.append(part)
    return "".join(parts)


def walks_content(sandbox: ImmutableSandboxedEnvironment, source: str) -> bool:
    """Does the template loop over a message's content as a list of parts?"""
    tree = sandbox.parse(source)
    aliases = {"content"}
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, frozenset()):
            aliases.add(assignment.target.name)
    known = frozenset(aliases)
    return any(_is_content(loop.iter, known) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node, aliases: frozenset[str]) -> bool:
    if isinstance(node, nodes.Filter | nodes.Test) and node.node is not None:
        return _is_content(node.node, aliases)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Const):
            return node.arg.value == "content"
        return isinstance(node.arg, nodes.Slice) and _is_content(node.node, aliases)
    return isinstance(node, nodes.Name) and node.name in aliases


KEPT_BYTES = 64 << 20
"""A process that stays larger than it was by more than this ends; the next one is small again."""
MAX_REASON_CHARACTERS = 1000
PAGE = resource.getpagesize()

decode = msgspec.json.Decoder(RenderMessage).decode
encode = msgspec.msgpack.Encoder().encode


def main() -> None:
    with contextlib.suppress(EOFError, OSError):  # the frontend is gone
        serve(open_parent())


def serve(sock: socket.socket) -> None:
    """Raises EOFError and OSError at the end of the socket."""
    data = receive(sock)
    load = decode(data)
    assert isinstance(load, LoadTemplates)
    try:
        renderer = TemplateRenderer(load.limits)
    except FileNotFoundError as error:
        sys.exit(f"chat templates are rendered under a limit of memory: mount /proc ({error})")
    while True:
        sock.sendall(frame(renderer.reply(data)))
        if renderer.spent:
            return
        data = receive(sock)


class TemplateRenderer:
    """The compiled templates, and the limits under which everything here happens.

    `spent`: memory ran out or is not given back; the process has to end.
    """

    def __init__(self, limits: RenderLimits) -> None:
        self.spent = False
        self._limits = limits
        self._sandbox = environment()
        self._templates: dict[str, jinja2.Template] = {}
        rehearse(self._sandbox)
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        mapped, self._resident = self._sizes()
        limit_memory(mapped + limits.memory)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))

    def reply(self, data: bytearray) -> bytes:
        """The encoded answer to a message; the timer runs until it is made."""
        with processor_time(self._limits.cpu_seconds):
            reply = self._reply(data)
        self.spent = self.spent or self._sizes()[1] > self._resident + KEPT_BYTES
        return reply

    def _reply(self, data: bytearray) -> bytes:
        try:
            return encode(self._answer(data))
        except MemoryError:
            self.spent = True
        except TooLong as error:
            return encode(RenderError(str(error), over_limit=True))
        except (jinja2.TemplateError, ArithmeticError, LookupError) as error:
            return encode(RenderError(f"refuses them: {clear(error)}"))
        except Exception as error:
            return encode(RenderError(f"cannot render them: {clear(error)}"))
        # Out of the handler, so that what took the memory is gone.
        mebibytes = self._limits.memory >> 20
        return encode(RenderError(f"takes more memory than the limit of {mebibytes} MiB", True))

    def _answer(self, data: bytearray) -> RenderReply:
        message = decode(data)
        if isinstance(message, LoadTemplates):
            return self._load(message)
        template = self._templates[message.template]
        return RenderResult(render_text(template, message.variables, self._limits.characters))

    def _load(self, message: LoadTemplates) -> RenderReply:
        self.spent = True  # unless all goes well: without templates there is nothing to do here
        walking = []
        for name, source in message.sources.items():
            try:
                self._templates[name] = self._sandbox.from_string(source)
                if walks_content(self._sandbox, source):
                    walking.append(name)
            except MemoryError:
                raise
            except Exception as error:
                line = (
                    f"line {error.lineno}: "
                    if isinstance(error, jinja2.TemplateSyntaxError)
                    else ""
                )
                reason = " ".join(clear(error).split())
                return RenderError(f"does not compile: {line}{reason}", template=name)
        gc.freeze()
        self._resident = self._sizes()[1]
        self.spent = False
        return LoadResult(walking)

    def _sizes(self) -> tuple[int, int]:
        """Bytes that are mapped, and that are in memory."""
        mapped, resident = os.pread(self._statm, 128, 0).split()[:2]
        return int(mapped) * PAGE, int(resident) * PAGE


def clear(error: Exception) -> str:
    """A short text that UTF-8 has bytes for."""
    text = str(error)[:MAX_REASON_CHARACTERS] or type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()


if __name__ == "__main__":
    main()
