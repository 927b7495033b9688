"""`<your prefill ip>`: what a script's author leaves to its reader is an unknown word, where bash
would read two redirections."""

from __future__ import annotations

import re
from collections.abc import Sequence

PLACEHOLDER = re.compile(
    r"""(?P<before>^|[^<\d])<(?P<name>[^\W\d][^<>\n"'`$|&;(){}\\]{0,79})>(?P<after>(?![>(&]|/dev/))""",
    re.MULTILINE,
)
WRITTEN = re.compile(
    r"""(?<![\w<])your(?: [A-Za-z]\w*)+|\{[A-Za-z]\w*(?: \w+)+\}"""
    + (r"""|(?<![\w.<])[xX]{1,3}(?:\.[xX]{1,3}){3}(?![\w.])|(?<=:)[xX]{2,5}$""")
)
"""other ways to leave something to the reader: `your ip1`, `{weights path}`, `x.x.x.x:xxxx`"""
OPEN = re.compile(r"(?:(?<![\w<])your|\{[A-Za-z]\w*)(?: [A-Za-z]\w*)*$")
"""what the next word may go on with"""
TOKEN = re.compile(r"Vx([0-9a-f]+)xV")


def token(name: str) -> str:
    """A word of letters and digits that stands for what is unknown."""
    return f"Vx{name.encode('utf-8', 'replace').hex()}xV"


def with_tokens(content: str) -> str:
    """A script with a token in place of each placeholder; its lines stay where they are."""
    return PLACEHOLDER.sub(replace_placeholder, content) if "<" in content else content


def replace_placeholder(found: re.Match[str]) -> str:
    """`<in >`, and `cat <in>out`, are redirections."""
    name, apart = found["name"], found["before"].isspace() or not found["before"]
    follows = found.string[found.end() : found.end() + 1]
    if name[-1].isspace() or (apart and follows.isalnum()):
        return found[0]
    return found["before"] + token(name)


def token_name(found: str) -> str:
    """The name in a token's digits; digits that no token has stay what they are."""
    try:
        return bytes.fromhex(found).decode("utf-8", "replace")
    except ValueError:
        return found


def show_placeholders(content: str) -> str:
    """The text as its author wrote it."""
    return (
        TOKEN.sub(lambda found: f"<{token_name(found[1])}>", content)
        if "Vx" in content
        else content
    )


def join_placeholders(words: Sequence[str]) -> list[str]:
    """Words with `your first ip` as one: what is not quoted falls into words, which the address in
    its place would not."""
    found: list[str] = []
    for word in words:
        if found and word[:1].isalpha() and OPEN.search(found[-1]):
            found[-1] += " " + word
        else:
            found.append(word)
    return found


def mark_placeholders(word: str) -> str:
    """With angle brackets around what its author leaves to the reader."""
    return WRITTEN.sub(lambda found: f"<{found[0].strip('{}')}>", word)
