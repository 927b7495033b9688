"""Follows the statements of a script in every state it can be in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from tree_sitter import Node

from vivace.deploy.shell.placeholders import show_placeholders
from vivace.deploy.shell.state import NAMES, Note, ScriptState, States, merge_results
from vivace.deploy.shell.text import TextTooLong
from vivace.deploy.shell.words import NotUnderstood, line_number, source

MAX_STATES = 128
MAX_STATEMENTS = 20_000
MAX_ITERATIONS = 4_096
"""iterations of one loop"""
MAX_DEPTH = 100
"""depth of nested statements"""


MAX_NESTED = 1 << 22
"""bytes of texts that are read as scripts: sourced files, `bash -c`, here-documents"""
MAX_LAUNCHES = 1024
"""commands on one path through a script"""

Follow = Callable[[str], "tuple[str, str] | None"]
"""the path of a sourced file -> (its name, its content); None: not to be followed"""
Handler = Callable[["Interpreter", Node, ScriptState, bool], States]
"""follows a statement in one state; bool: in the background"""


class ScriptTooLarge(Exception):
    """The script exceeds a limit of the interpreter; the text says which."""


class Interpreter(msgspec.Struct):
    """Follows statements in every state; `handlers` by type of the syntax node. `notes` says what
    was not understood; `file` and `above`: the sourced file that is read and the lines above it."""

    handlers: Mapping[str, Handler]
    parse: Callable[[str], Node]
    follow: Follow
    notes: list[Note] = []
    functions: dict[str, Node] = {}
    written: dict[str, tuple[str, int]] = {}
    """files that the script writes as here-documents -> (content, lines above it)"""
    files: dict[str, str] = {}
    """files that it sources"""
    file: str = ""
    above: int = 0
    reading: tuple[str, ...] = ()
    """the files that are being read, the outermost first"""
    _statements: int = 0
    _depth: int = 0
    _nested: int = 0

    def line(self, node: Node) -> int:
        return self.above + line_number(node)

    def block(self, statements: Sequence[Node], states: States) -> States:
        """Statements in order; a `&` after one puts it into the background."""
        for node in (each for each in statements if each.type != "comment"):
            behind = node.next_sibling
            background = behind is not None and behind.type == "&"
            going = [state for state in states if state.runs]
            resting = [state for state in states if not state.runs]
            if not going:
                return states
            states = [*resting, *self.statement(node, going, background)]
            if len(states) > MAX_STATES:
                states = self.fewer(node, states)
            if len(states) > MAX_STATES:
                raise ScriptTooLarge(f"line {self.line(node)}: more than {MAX_STATES} branches")
        return states

    def fewer(self, node: Node, states: States) -> States:
        """Of paths on one machine that started the same, the first: where conditions were true."""
        kept: dict[object, ScriptState] = {}
        for state in states:
            named = [each for each in state.assumptions if NAMES.search(each.origin)]
            started = [launch.line for launch in state.launches]
            kept.setdefault((*named, *started, state.ended, state.leaves), state)
        self.note(
            node, f"more than {MAX_STATES} branches: conditions are read as if they were true"
        )
        return list(kept.values())

    def statement(self, node: Node, states: States, background: bool = False) -> States:
        self._statements += 1
        if self._statements > MAX_STATEMENTS:
            raise ScriptTooLarge(f"line {self.line(node)}: more than {MAX_STATEMENTS} statements")
        work = self.handlers.get(node.type)
        if work is None:
            self.note(node, f"not understood ({node.type.replace('_', ' ')})")
            return states
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ScriptTooLarge(
                f"line {self.line(node)}: statements nested more than {MAX_DEPTH} deep"
            )
        found: States = []
        for state in states:
            try:
                after = work(self, node, state.copy() if background else state, background)
                if background:  # in a shell of its own
                    after = merge_results(state, after)
                    for each in after:
                        each.serving = state.serving
                found += after
            except NotUnderstood as error:
                self.note(node, f"not understood: {error}")
                found.append(state)
            except TextTooLong as error:
                raise ScriptTooLarge(f"line {self.line(node)}: {error}") from None
        self._depth -= 1
        return found

    def nested(self, content: str, above: int, state: ScriptState, file: str = "") -> States:
        """A text that is a script itself, from another file where `file` is given."""
        self._nested += len(content)
        if self._nested > MAX_NESTED:
            raise ScriptTooLarge(f"line {above + 1}: more than {MAX_NESTED >> 20} MiB of scripts")
        if file in self.reading:
            raise NotUnderstood(f"{file} is read again while it is read")
        before = self.file, self.above, self.reading
        self.file, self.above = file or self.file, above
        self.reading = (*self.reading, *[file][: bool(file)])
        try:
            return self.block(self.parse(content).named_children, [state])
        finally:
            self.file, self.above, self.reading = before

    def opened(self, name: str) -> str | None:
        """The text of a file that the script wrote, or that lies beside it; None: neither."""
        if name in self.written:
            return self.written[name][0]
        found = self.follow(name) if name else None
        if found is not None:
            self.files[found[0]] = found[1]
        return found and found[1]

    def note(self, node: Node, why: str) -> None:
        first = show_placeholders(source(node).split("\n", 1)[0].strip())
        found = Note(self.line(node), f"{show_placeholders(why)}: {first[:120]}", self.file)
        if found not in self.notes:
            self.notes.append(found)
