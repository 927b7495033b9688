"""Jinja in a sandbox, as chat templates expect it.

The environment equals the one that model authors test with: trimmed blocks, loop controls,
`raise_exception`, `strftime_now`, plain `tojson`. It says what templates may touch. How long they
may run and how much they may take is not its business: see `template_process`, the only module
that imports this one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


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


def text_of(template: jinja2.Template, variables: Mapping[str, Any], characters: int) -> str:
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
