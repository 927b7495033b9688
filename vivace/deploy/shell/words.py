"""Words, expansions and arithmetic of bash, without running anything."""

from __future__ import annotations

import re

from tree_sitter import Node

from vivace.deploy.shell.state import ScriptState
from vivace.deploy.shell.strings import (
    PLAIN,
    UNARY,
    NotUnderstood,
    alter,
    arithmetic_literal,
    braces,
    combine,
    fields,
    formatted,
    integer,
    part_of_list,
    sequence,
)
from vivace.deploy.shell.text import (
    EMPTY,
    Text,
    Unknown,
    concatenate,
    join_elements,
    known_text,
    split,
    text,
    unknown,
    with_default,
)

MAX_DEPTH = 200
"""nested expressions"""
ALL = ("@", "*")
DEFAULTS = (":-", "-", ":=", "=", ":+", "+")
BLANK_BEFORE = re.compile(r"\s+(?=[$`])")
EXPANSIONS = ("expansion", "command_substitution", "arithmetic_expansion")
"""nodes of a string that the grammar may begin with the blank before them"""
FROM_OUTSIDE = re.compile(r"\$\{\w+:-\}")
"""the origin of what is unset here, and empty by default"""
ECHO = re.compile(r"-[neE]+")
STEPS = {"++": 1, "--": -1}
ASSIGNING = re.compile(r"(?:[-+*/%&|^]|<<|>>)?=")
ARGUMENTS = ("$@", "$*", "${@}", "${*}")


def to_parser(content: str) -> bytes:
    """UTF-8 bytes as one character each: the grammar's scanner looks characters up in
    a table of 256 and reads beyond it for larger ones (tree-sitter-bash 0.25: it crashes)."""
    return content.encode("utf-8", "replace").decode("latin-1").encode()


def from_parser(raw: bytes) -> str:
    if raw.isascii():
        return raw.decode("ascii")
    return raw.decode("utf-8", "replace").encode("latin-1", "replace").decode("utf-8", "replace")


def source(node: Node) -> str:
    return from_parser(node.text or b"")


def line_number(node: Node) -> int:
    return node.start_point[0] + 1


def expand_words(node: Node, state: ScriptState) -> list[Text]:
    """The words that an argument becomes: none or several where an expansion is not quoted."""
    many = array_words(node, state)
    if many is not None:
        return many
    if node.type == "concatenation":
        listed = braces(source(node))
        if listed is not None:
            return [text(word) for word in listed]
    if node.type in ("simple_expansion", "expansion", "command_substitution"):
        return split_words(expand_text(node, state), state)
    if node.type == "brace_expression":
        listed = braces(source(node))
        if listed is None:
            raise NotUnderstood(f"brace expansion {source(node)}")
        return [text(word) for word in listed]
    return [expand_text(node, state)]


def split_words(value: Text, state: ScriptState) -> list[Text]:
    """An unquoted expansion, cut by IFS."""
    separators, plain = known_text(state.scalar("IFS") or (" ",)), known_text(value)
    if plain is None or separators is None or not separators.strip():
        return split(value)
    return [text(word) for word in fields(plain, separators)]


def array_words(node: Node, state: ScriptState) -> list[Text] | None:
    """The elements if the word is "${A[@]}", ${A[@]}, "$@" or $@, else None."""
    inner = node
    if node.type == "string" and node.named_child_count == 1:
        child = node.named_child(0)
        if child is None or source(node) != f'"{source(child)}"':
            return None
        inner = child
    if source(inner) in ARGUMENTS:
        return state.elements("@") or []
    if inner.type != "expansion" or inner.children[1].type == "#":
        return None
    target = next(each for each in inner.children[1:] if each.is_named or each.type == "}")
    index = source(target) if target.type == "special_variable_name" else subscript_index(target)
    if index not in ALL:
        return None
    elements = state.elements("@" if target.type != "subscript" else subscript_name(target))
    if elements is None:
        return [unknown(source(inner))] if target.type == "subscript" else []
    if inner.children[1].type == "!":
        return [text(str(index)) for index in range(len(elements))]
    return altered_words(inner, target, elements, state)


def altered_words(
    node: Node, target: Node, elements: list[Text], state: ScriptState
) -> list[Text] | None:
    """Of "${A[@]:1}", "${A[@]%.x}" and the like; None for a default that is used."""
    operators = [each.type for each in node.children[2:-1] if not each.is_named]
    if not operators or operators[0] in DEFAULTS:
        return list(elements) if elements and "+" not in "".join(operators) else None
    arguments = [known_text(expand_text(each, state)) for each in node.named_children[1:]]
    if operators[0] == ":":
        part = part_of_list(arguments, first=int(target.type != "subscript"))
        return [unknown(source(node))] if part is None else elements[part]
    plain = [each for each in arguments if each is not None]
    changed = (
        alter(operators, word, plain) if word is not None and plain == arguments else None
        for word in map(known_text, elements)
    )
    return [unknown(source(node)) if each is None else text(each) for each in changed]


def expand_text(node: Node, state: ScriptState, depth: int = 0) -> Text:
    """One word's text. Raises NotUnderstood."""
    if depth > MAX_DEPTH:
        raise NotUnderstood("expressions nested too deeply")
    plain = PLAIN.get(node.type)
    if plain is not None:
        return text(plain(source(node)))
    if node.type in ("string", "concatenation", "heredoc_body", "translated_string"):
        return expand_pieces(node, state, depth)
    if node.type == "simple_expansion":
        blank, _, name = source(node).partition("$")  # the grammar may take blanks into it
        return concatenate(text(blank), variable(name, state))
    if node.type == "expansion":
        return expansion(node, state, depth)
    if node.type == "arithmetic_expansion":
        return arithmetic(node, state)
    if node.type == "command_substitution":
        return substitution(node, state, depth)
    if node.type == "process_substitution":
        return unknown(source(node))
    raise NotUnderstood(f"{node.type.replace('_', ' ')}: {source(node)}")


def expand_pieces(node: Node, state: ScriptState, depth: int) -> Text:
    """Children and the bytes between them: the grammar omits blanks."""
    parts: list[Text] = []
    raw, at = node.text or b"", 0
    quoted = node.type == "string"
    for child in node.children:
        begin, end = child.start_byte - node.start_byte, child.end_byte - node.start_byte
        parts.append(text(from_parser(raw[at:begin])))
        at = end
        if not child.is_named and child.type in ('"', '$"'):
            continue
        if quoted and not child.is_named:
            parts.append(text(source(child)))
        else:
            blank = BLANK_BEFORE.match(source(child)) if child.type in EXPANSIONS else None
            parts.append(text(blank[0] if blank else ""))
            parts.append(expand_text(child, state, depth + 1))
    parts.append(text(from_parser(raw[at:])))
    return concatenate(*parts)


def variable(name: str, state: ScriptState) -> Text:
    """$name; unknown where the script never sets it."""
    if name == "#":
        known = state.elements("@")
        return unknown("$#") if known is None else text(str(len(known)))
    if name in ("@", "*"):
        return concatenate(*join_elements(state.elements("@") or []))
    value = state.scalar(name)
    if value is not None:
        return value
    return EMPTY if name in state.unset else unknown(f"${name}")


def subscript_name(subscript: Node) -> str:
    name = subscript.child_by_field_name("name")
    return source(name) if name is not None else ""


def subscript_index(subscript: Node) -> str:
    index = subscript.child_by_field_name("index")
    return source(index) if index is not None else ""


def expansion(node: Node, state: ScriptState, depth: int) -> Text:
    """${...}: a variable or an element, its length, or a default."""
    inner = [child for child in node.children if child.type not in ("${", "}")]
    operators = [child.type for child in inner if not child.is_named]
    named = [child for child in inner if child.is_named]
    if not named:
        return unknown(source(node))
    target = named[0]
    plain = target.type != "subscript"
    value = state.scalar(source(target)) if plain else element(target, state, depth)
    if operators and operators[0].startswith(":") and value and not as_compared(value):
        value = None
    if not operators and value is None:
        return variable(source(target), state) if plain else unknown(source(node))
    if not operators and value is not None:
        return value
    if inner[0].type == "#":  # not ${name#pattern}
        return length(target, value, state, source(node))
    if operators[0] in DEFAULTS and len(operators) == 1:
        default = expand_text(named[1], state, depth + 1) if len(named) > 1 else EMPTY
        found = with_default(operators[0], value, default)
        outside = plain and value is None and found == EMPTY and not operators[0].endswith("+")
        return from_outside(source(target), state) if outside else found
    plain = None if value is None else known_text(value)
    arguments = [known_text(expand_text(each, state, depth + 1)) for each in named[1:]]
    if plain is None or any(each is None for each in arguments):
        return unknown(source(node))
    changed = alter(operators, plain, [each or "" for each in arguments])
    return unknown(source(node)) if changed is None else text(changed)


def from_outside(name: str, state: ScriptState) -> Text:
    """`${NAME:-}` of a variable that is not set here: empty for the conditions of the script, and
    unknown where it is used, for the environment may have it. Certainly empty where it was unset,
    or is an argument that a call does not give."""
    given = state.elements("@")
    missing = name.isdecimal() and given is not None and int(name[:9]) > len(given)
    return EMPTY if name in state.unset or missing else unknown(f"${{{name}:-}}")


def as_compared(value: Text) -> Text:
    """What a condition sees: without what `from_outside` makes."""
    kept = (each for each in value if isinstance(each, str) or not is_outside(each))
    return concatenate(*((each,) for each in kept))


def is_outside(piece: Unknown) -> bool:
    return FROM_OUTSIDE.fullmatch(piece.origin) is not None


def expand_compared(node: Node, state: ScriptState) -> Text:
    """A side of a condition. Raises NotUnderstood."""
    return as_compared(expand_text(node, state))


def element(subscript: Node, state: ScriptState, depth: int) -> Text | None:
    elements, index = (
        state.elements(subscript_name(subscript)),
        subscript.child_by_field_name("index"),
    )
    if elements is None or index is None:
        return None
    if source(index) in ALL:
        return concatenate(*join_elements(elements))
    where = number(index, state, depth)
    if where is None:
        return None
    if -len(elements) <= where < len(elements):
        return elements[where]
    return EMPTY


def length(target: Node, value: Text | None, state: ScriptState, origin: str) -> Text:
    if target.type == "subscript" and subscript_index(target) in ALL:
        elements = state.elements(subscript_name(target))
        return unknown(origin) if elements is None else text(str(len(elements)))
    plain = None if value is None else known_text(value)
    return unknown(origin) if plain is None else text(str(len(plain)))


def arithmetic(node: Node, state: ScriptState) -> Text:
    value = None
    for inner in node.named_children:  # `i++, j`: the last one counts
        value = number(inner, state, 0)
    return unknown(source(node)) if value is None else text(str(value))


def number(node: Node, state: ScriptState, depth: int) -> int | None:
    """An integer expression; None where something in it is unknown."""
    if depth > MAX_DEPTH:
        raise NotUnderstood("expressions nested too deeply")
    if node.type == "binary_expression" and not ASSIGNING.fullmatch(operator_text(node)):
        left, *_, right = (number(each, state, depth + 1) for each in node.named_children)
        return combine(operator_text(node), left, right)
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        inner = node.named_child(0)
        return None if inner is None else number(inner, state, depth + 1)
    if operator_text(node) in STEPS:
        before = number(node.named_children[0], state, depth + 1)
        if not follow_assignment(node, state) and before is not None:
            raise NotUnderstood(f"arithmetic {source(node)}")
        changed = number(node.named_children[0], state, depth + 1)
        return before if node.type.startswith("postfix") else changed
    if node.type in ("variable_assignment", "binary_expression") and follow_assignment(node, state):
        return number(node.children[0], state, depth + 1)
    if node.type == "unary_expression" and operator_text(node) in UNARY:
        value = number(node.named_children[0], state, depth + 1)
        return None if value is None else int(UNARY[operator_text(node)](value))
    if node.type == "ternary_expression" and node.named_child_count == 3:
        value = number(node.named_children[0], state, depth + 1)
        chosen = node.named_children[1 if value else 2]
        return None if value is None else number(chosen, state, depth + 1)
    if node.type in ("word", "variable_name") and not source(node).lstrip("-").isdigit():
        value = state.scalar(source(node))
        return None if value is None else arithmetic_literal(known_text(value))
    return arithmetic_literal(known_text(expand_text(node, state, depth + 1)))


def operator_text(node: Node) -> str:
    return next((source(child) for child in node.children if not child.is_named), "")


def follow_assignment(node: Node, state: ScriptState) -> bool:
    """Follows i++, i+=2 and i=3 of arithmetic; False for anything else."""
    if node.type in ("postfix_expression", "unary_expression"):
        name = source(node.named_children[0]).removeprefix("$")
        step = STEPS.get(operator_text(node))
        before = arithmetic_literal(known_text(state.scalar(name) or EMPTY))
        if step is None or before is None or not name.isidentifier():
            return False
        state.assign(name, text(str(before + step)))
        return True
    if node.type not in ("binary_expression", "variable_assignment"):
        return False
    children = node.children
    name, operator = source(children[0]), source(children[1])
    if not ASSIGNING.fullmatch(operator) or not name.isidentifier():
        return False
    value, before = number(children[-1], state, 0), state.scalar(name) or EMPTY
    if operator != "=":
        value = combine(operator[:-1], arithmetic_literal(known_text(before)), value)
    state.assign(name, unknown(source(node)) if value is None else text(str(value)))
    return True


def substitution(node: Node, state: ScriptState, depth: int) -> Text:
    """$(...): what is known of its output, else it is unknown."""
    command = source(node).lstrip().strip("`").removeprefix("$(").removesuffix(")")
    found = output(node.named_children[0], state) if node.named_child_count == 1 else None
    return unknown(" ".join(command.split())) if found is None else text(found.rstrip("\n"))


def output(node: Node, state: ScriptState) -> str | None:
    """What `expr`, `seq`, `echo`, `printf` and `cat` of a known file print; None for others."""
    words = plain_words(node, state)
    if not words:
        return None
    program, *arguments = words
    if program == "printf":
        return formatted(arguments)
    if program == "echo" and not any("\\" in each for each in arguments):
        count = next((at for at, each in enumerate(arguments) if not ECHO.fullmatch(each)), 0)
        end = "" if any("n" in each for each in arguments[:count]) else "\n"
        return " ".join(arguments[count:]) + end
    if program == "cat" and len(arguments) == 1:
        return state.opened(arguments[0].removeprefix("./"))
    if program == "seq" and 0 < len(arguments) < 4:
        first, step = (*arguments[:1], "1") if len(arguments) < 3 else arguments[:2]
        return "\n".join(sequence("1" if len(arguments) == 1 else first, arguments[-1], step))
    if program == "expr" and len(arguments) == 3:
        left, operator, right = arguments
        value = combine(operator, integer(left), integer(right))
        return None if value is None else str(value)
    return None


def plain_words(node: Node, state: ScriptState) -> list[str]:
    """Of a command; empty where something of it is unknown."""
    words: list[Text] = []
    for child in node.named_children if node.type == "command" else ():
        if child.type == "command_name":
            words += expand_words(child.named_children[0], state) if child.named_children else []
        elif child.type in ("variable_assignment", "herestring_redirect"):
            return []
        else:
            words += expand_words(child, state)
    plain = [known_text(word) for word in words]
    return [] if None in plain else [word or "" for word in plain]
