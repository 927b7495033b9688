"""Follows the statements of a script in every state it can be in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from tree_sitter import Node

from vivace.deploy.shell.state import Note, ScriptState, States
from vivace.deploy.shell.words import NotUnderstood, line_of, source

MAX_STATES = 128
MAX_STATEMENTS = 20_000
MAX_ITERATIONS = 4_096
"""iterations of one loop"""
MAX_DEPTH = 100
"""depth of nested statements"""


Handler = Callable[["Interpreter", Node, ScriptState, bool], States]
"""follows a statement in one state; bool: in the background"""


class ScriptTooLarge(Exception):
    """The script exceeds a limit of the interpreter; the text says which."""


class Interpreter(msgspec.Struct):
    """Follows statements in every state; `handlers` by type of the syntax node. `notes` says what
    was not understood."""

    handlers: Mapping[str, Handler]
    notes: list[Note] = []
    functions: dict[str, Node] = {}
    _statements: int = 0
    _depth: int = 0

    def block(self, statements: Sequence[Node], states: States) -> States:
        """Statements in order; a `&` after one puts it into the background."""
        for node in statements:
            behind = node.next_sibling
            background = behind is not None and behind.type == "&"
            going = [state for state in states if state.runs]
            resting = [state for state in states if not state.runs]
            if not going:
                return states
            states = [*resting, *self.statement(node, going, background)]
            if len(states) > MAX_STATES:
                raise ScriptTooLarge(f"line {line_of(node)}: more than {MAX_STATES} branches")
        return states

    def statement(self, node: Node, states: States, background: bool = False) -> States:
        self._statements += 1
        if self._statements > MAX_STATEMENTS:
            raise ScriptTooLarge(f"more than {MAX_STATEMENTS} statements")
        work = self.handlers.get(node.type)
        if work is None:
            self.note(node, f"not understood ({node.type.replace('_', ' ')})")
            return states
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ScriptTooLarge(f"statements nested more than {MAX_DEPTH} deep")
        found: States = []
        for state in states:
            try:
                found += work(self, node, state, background)
            except NotUnderstood as error:
                self.note(node, f"not understood: {error}")
                found.append(state)
        self._depth -= 1
        return found

    def note(self, node: Node, why: str) -> None:
        first = source(node).split("\n", 1)[0].strip()
        found = Note(line_of(node), f"{why}: {first[:120]}")
        if found not in self.notes:
            self.notes.append(found)
