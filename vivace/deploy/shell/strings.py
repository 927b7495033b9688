"""Strings and numbers as bash changes them, without its syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import add, and_, eq, ge, gt, invert, le, lt, mul, ne, neg, not_, or_, pos, sub, xor

MAX_WORDS = 4096
"""of a sequence"""
MAX_PATTERN = 64
"""characters of a pattern in ${name%pattern}"""
BRACES = re.compile(
    r"(?P<before>[^{}$`'\"\\]*)"
    r"\{(?:(?P<first>-?\d{1,9})\.\.(?P<last>-?\d{1,9})|(?P<words>[^{}$`'\"\\,]*(?:,[^{}$`'\"\\,]*)+))\}"
    r"(?P<after>[^{}$`'\"\\]*)"
)
LARGEST = 1 << 63
ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
ESCAPED_IN_QUOTES = re.compile(r'\\([\n"$`\\])')
ANSI_C = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})"
    r"|(?P<hexadecimal>x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8})|.)",
    re.DOTALL,
)
LETTERS = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
BLANKS = " \t\n"
"""IFS, if nothing is assigned to it"""
FORMAT = re.compile(r"%(0?\d?)([sd%])")


class NotUnderstood(Exception):
    """The message says which construct."""


def braces(word: str) -> list[str] | None:
    """a{1..3}b and a{x,y}b, without expansions or further braces in them; None for other words."""
    found = BRACES.fullmatch(word)
    if found is None:
        return None
    first, last = found["first"], found["last"]
    values = sequence(first, last) if first is not None else (found["words"] or "").split(",")
    return [f"{found['before']}{value}{found['after']}" for value in values]


def sequence(first: str, last: str, step: str = "1") -> list[str]:
    """Numbers from first to last. Raises NotUnderstood for too many."""
    bounds = integer(first), integer(last), integer(step)
    begin, end, width = bounds
    if begin is None or end is None or not width:
        raise NotUnderstood(f"a sequence from {first} to {last}")
    width = abs(width) if end >= begin else -abs(width)
    numbers = range(begin, end + (1 if width > 0 else -1), width)
    if len(numbers) > MAX_WORDS:
        raise NotUnderstood(f"a sequence of {len(numbers)} numbers")
    return [str(number) for number in numbers]


def fields(line: str, separators: str, count: int = 0) -> list[str]:
    """The words that bash cuts a line into with this IFS; the last of `count` has the rest."""
    blanks = "".join(each for each in separators if each.isspace())
    marks, line = re.escape("".join(separators.split())), line.strip(blanks)
    blank = f"[{blanks}]*" if blanks else ""
    either = [f"{blank}[{marks}]{blank}"] * bool(marks) + [f"[{blanks}]+"] * bool(blanks)
    if not either or not line or count == 1:
        return [line] * bool(line)
    found = re.split("|".join(either), line, maxsplit=max(0, count - 1))
    return found if found[-1] else found[:-1]


def formatted(words: list[str]) -> str | None:
    """What printf makes of a format and its arguments, where it has only %s, %d and %02d. The
    format is used again while there are arguments."""
    if not words:
        return None
    template, arguments = words[0].replace("\\n", "\n"), iter(words[1:])
    taken = sum(found[2] != "%" for found in FORMAT.finditer(template))
    if "\\" in template or "%" in FORMAT.sub("", template):
        return None

    def value(found: re.Match[str]) -> str:
        if found[2] == "%":
            return "%"
        word = next(arguments, "")
        number = arithmetic_literal(word) if found[2] == "d" else 0
        if number is None:
            raise ValueError
        return format(number, found[1]) if found[2] == "d" else word.rjust(int(found[1] or 0))

    rounds = max(1, -(-len(words[1:]) // taken)) if taken else 1
    try:
        return "".join(FORMAT.sub(value, template) for _ in range(rounds))
    except ValueError:  # no number
        return None


def unescape(word: str) -> str:
    """\\x is x, and a backslash before a line's end is nothing."""
    return ESCAPED.sub(meant, word)


def meant(escaped: re.Match[str]) -> str:
    return escaped[1].removeprefix("\n")


def ansi_c(escaped: re.Match[str]) -> str:
    """What an escape of $'...' stands for; those that bash does not know stay as they are."""
    digits = escaped[0][2:]
    if escaped["octal"]:
        return chr(int(escaped["octal"], 8) & 0xFF)
    if escaped["hexadecimal"]:
        return chr(min(int(digits, 16), 0x10FFFF))
    return LETTERS.get(escaped[0][1:], escaped[0])


def in_quotes(content: str) -> str:
    """Within double quotes a backslash is one unless it stands before \\ $ ` " or a line's end."""
    return ESCAPED_IN_QUOTES.sub(meant, content)


PLAIN: dict[str, Callable[[str], str]] = {
    "word": unescape,
    "number": str,
    "extglob_pattern": unescape,
    "test_operator": str,
    "variable_name": str,
    "special_variable_name": str,
    "raw_string": lambda quoted: quoted[1:-1],
    "string_content": in_quotes,
    "ansi_c_string": lambda quoted: ANSI_C.sub(ansi_c, quoted[2:-1]),
    "heredoc_content": str,
    "regex": str,
}


def alter(operators: list[str], value: str, arguments: list[str]) -> str | None:
    """${value,,}, ${value%pattern}, ${value/pattern/text} and ${value:from:count}."""
    operator = operators[0]
    if operator in CASES and not arguments:
        return CASES[operator](value)
    if operator == ":" and 0 < len(arguments) < 3:
        start, count = integer(arguments[0]), integer((*arguments, str(len(value)))[1])
        if start is None or count is None or start < 0 or count < 0:
            return None
        return value[start : start + count]
    if not arguments or len(arguments[0]) > MAX_PATTERN or len(value) > MAX_WORDS:
        return None
    if operator in ("#", "##", "%", "%%"):
        return trim(operator, value, arguments[0])
    if operator in ("/", "//") and not set("*?[\\") & set(arguments[0]):
        return value.replace(arguments[0], (*arguments, "")[1], 1 if operator == "/" else -1)
    return None


def part_of_list(arguments: Sequence[str | None], first: int) -> slice | None:
    """Of ${A[@]:from:count}, whose elements are counted from `first` on; None if not known."""
    start, count = integer((*arguments, None)[0]), integer((*arguments, str(MAX_WORDS))[1])
    if start is None or count is None or start < first or count < 0:
        return None
    return slice(start - first, start - first + count)


def trim(operator: str, value: str, pattern: str) -> str | None:
    """Without the shortest or longest beginning (#) or end (%) that `pattern` matches."""
    if set("?[\\") & set(pattern) or pattern.count("*") > 1:
        return None
    longest, lengths = len(operator) == 2, range(len(value) + 1)
    before, star, after = pattern.partition("*")
    for length in reversed(lengths) if longest else lengths:
        part = value[:length] if operator[0] == "#" else value[len(value) - length :]
        fits = len(part) >= len(before) + len(after) if star else part == pattern
        if fits and part.startswith(before) and part.endswith(after):
            return value[length:] if operator[0] == "#" else value[: len(value) - length]
    return value


CASES: dict[str, Callable[[str], str]] = {
    ",,": str.lower,
    "^^": str.upper,
    ",": lambda value: value[:1].lower() + value[1:],
    "^": lambda value: value[:1].upper() + value[1:],
}


def divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


UNARY: dict[str, Callable[[int], int | bool]] = {"-": neg, "+": pos, "!": not_, "~": invert}
BINARY: dict[str, Callable[[int, int], int | bool]] = {
    "+": add, "-": sub, "*": mul, "/": divide, "%": lambda a, b: a - b * divide(a, b),
    "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge, "&": and_, "|": or_, "^": xor,
    "<<": lambda a, b: a << b if 0 <= b < 64 else LARGEST,
    ">>": lambda a, b: a >> b if 0 <= b < 64 else LARGEST,
    "**": lambda a, b: a**b if 0 <= b < 64 else LARGEST,
    "&&": lambda a, b: bool(a and b), "||": lambda a, b: bool(a or b),
}  # fmt: skip


def combine(operator: str, left: int | None, right: int | None) -> int | None:
    work = BINARY.get(operator)
    if work is None or left is None or right is None or (operator in "/%" and right == 0):
        return None
    result = int(work(left, right))
    return result if abs(result) < LARGEST else None


def integer(value: str | None) -> int | None:
    if value is None or len(value) > 20:
        return None
    try:
        return int(value.strip() or "0")
    except ValueError:
        return None


def arithmetic_literal(value: str | None) -> int | None:
    """A number within $((..)): 010 is 8, and 0x10 is 16."""
    digits = (value or "").strip().lstrip("+-")
    if value is None or digits[:1] != "0" or not 1 < len(digits) < 20:
        return integer(value)
    try:
        return int(value, 16 if digits[1] in "xX" else 8)
    except ValueError:
        return None


def fnmatch(value: str, pattern: str) -> bool:
    """Patterns of * and ?; sets in brackets never match."""
    if len(value) > MAX_WORDS or len(pattern) > MAX_PATTERN or "[" in pattern:
        return False
    reached = {0}
    for letter in pattern:
        if letter == "*":
            reached = set(range(min(reached, default=len(value) + 1), len(value) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(value) and letter in ("?", value[at])}
    return len(value) in reached


def variables_in(text: str) -> dict[str, str]:
    """A file of NAME=VALUE lines, as docker and compose read it. Of equal names the last counts;
    comments and lines without a name are left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.strip().isidentifier():
            found[name.strip()] = unquote(value.strip())
    return found


def unquote(value: str) -> str:
    for quote in "'\"":
        if len(value) > 1 and value.startswith(quote) and quote in value[1:]:
            return value[1 : value.index(quote, 1)]
    return value.partition(" #")[0].rstrip()
