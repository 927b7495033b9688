"""What structured output enforces of the JSON-Schema-Test-Suite, keyword by keyword.

The suite is in the source distribution of jsonschema: `pip download --no-deps --no-binary :all:
jsonschema`, unpack it, and give the folder `json/tests/draft2020-12` of it. Prints a Markdown table
for docs/structured_output.md, and which invalid instances could be produced; exits with 1 when
there are any.

`--backend xgrammar` is the server's, in which llguidance obeys what xgrammar would not enforce;
`xgrammar-alone` gives it every schema, as it says so itself.

An instance is producible when some way of writing it (properties in any order, compact) is an
answer that may end. Refused groups are those whose schema a request gets status 400 for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from vivace.grammar.backend import GrammarError, GrammarMatcher, JsonFormat, TokenVocabulary
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.xgrammar_backend import XGrammarBackend, XGrammarMatcher
from vivace.grammar.xgrammar_compiler import AnswerEnds
from vivace.protocol.constraints import JSON_SCHEMA, Constraint

EOS = 256
MOST_PROPERTIES = 4
"""of an object whose orders are all tried"""
MOST_WAYS = 500
"""of writing an instance"""


@dataclass
class KeywordCount:
    """Of one file of the suite."""

    groups: int = 0
    refused: int = 0
    by_xgrammar: int = 0
    valid: int = 0
    valid_produced: int = 0
    invalid: int = 0
    invalid_produced: list[str] = field(default_factory=list[str])

    def add(self, other: KeywordCount) -> None:
        self.groups += other.groups
        self.refused += other.refused
        self.by_xgrammar += other.by_xgrammar
        self.valid += other.valid
        self.valid_produced += other.valid_produced
        self.invalid += other.invalid
        self.invalid_produced += other.invalid_produced

    def row(self, name: str) -> str:
        cells = [self.groups, self.refused, f"{self.valid_produced} of {self.valid}"]
        cells += [f"{len(self.invalid_produced)} of {self.invalid}"]
        return f"| {' | '.join([name, *map(str, cells)])} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", choices=list(BACKENDS), default="llguidance")
    args = parser.parse_args()
    files = sorted(args.folder.glob("*.json"))
    if not files:
        parser.error(f"{args.folder} has no *.json; give the folder json/tests/draft2020-12")
    backend, total = BACKENDS[args.backend](), KeywordCount()
    print("| keyword | schemas | refused | valid producible | invalid producible |")
    print("|---|---|---|---|---|")
    for file in files:
        found = count_file(json.loads(file.read_text()), backend)
        print(found.row(f"`{file.stem}`"))
        total.add(found)
    print(total.row("all"))
    print(f"{total.by_xgrammar} of {total.groups - total.refused} by xgrammar", file=sys.stderr)
    print(*total.invalid_produced, sep="\n", file=sys.stderr)
    return 1 if total.invalid_produced else 0


VOCABULARY = TokenVocabulary(
    tokens=[*(bytes([byte]) for byte in range(256)), b"<eos>"],
    special_ids=[EOS],
    special_texts={},
    eos_ids=(EOS,),
    encode=lambda text: list(text.encode()),
)
"""Every byte is a token."""


class Backend(Protocol):
    def compile(self, constraint: Constraint) -> GrammarMatcher: ...


class XGrammarAlone:
    """Whatever it takes, as SGLang gives it to it."""

    def __init__(self) -> None:
        self._library: Any = import_module("xgrammar")
        tokens = self._library.TokenizerInfo(VOCABULARY.tokens, stop_token_ids=[EOS])
        self._compiler = self._library.GrammarCompiler(tokens, cache_enabled=False)

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        try:
            compiled = self._compiler.compile_json_schema(constraint.text)
        except RuntimeError as error:
            raise GrammarError(str(error)) from error
        return XGrammarMatcher(self._library.GrammarMatcher(compiled), AnswerEnds(VOCABULARY))


def byte_backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(VOCABULARY, JsonFormat())


def xgrammar_backend() -> XGrammarBackend:
    return XGrammarBackend(VOCABULARY, JsonFormat(), byte_backend(), checked=True)


BACKENDS: dict[str, Callable[[], Backend]] = {
    "llguidance": byte_backend,
    "xgrammar": xgrammar_backend,
    "xgrammar-alone": XGrammarAlone,
}


def count_file(groups: list[dict[str, Any]], backend: Backend) -> KeywordCount:
    found = KeywordCount(groups=len(groups))
    for group in groups:
        text = json.dumps(group["schema"], ensure_ascii=False)
        try:
            matcher = backend.compile(Constraint(kind=JSON_SCHEMA, text=text))
        except GrammarError:
            found.refused += 1
            continue
        found.by_xgrammar += isinstance(matcher, XGrammarMatcher)
        for test in group["tests"]:
            count_test(found, matcher, f"{group['description']}: {test['description']}", test)
    return found


def count_test(
    found: KeywordCount, matcher: GrammarMatcher, name: str, test: dict[str, Any]
) -> None:
    produced = any(may_end(matcher, text) for text in spellings(test["data"]))
    if test["valid"]:
        found.valid += 1
        found.valid_produced += produced
    else:
        found.invalid += 1
        found.invalid_produced += [name] if produced else []


def may_end(matcher: GrammarMatcher, text: str) -> bool:
    ids = [*text.encode(), EOS]
    return matcher.copy().accept(ids) == len(ids)


def spellings(instance: Any) -> Iterator[str]:
    for ordered in itertools.islice(orders(instance), MOST_WAYS):
        yield json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))


def orders(instance: Any) -> Iterator[Any]:
    """The instance with the properties of its objects in every order."""
    if isinstance(instance, list):
        for items in itertools.product(*[list(orders(item)) for item in instance]):
            yield list(items)
    elif isinstance(instance, dict):
        keys = list(instance)
        ways = itertools.permutations(keys) if len(keys) <= MOST_PROPERTIES else [tuple(keys)]
        for way in ways:
            for values in itertools.product(*[list(orders(instance[key])) for key in way]):
                yield dict(zip(way, values, strict=True))
    else:
        yield instance


if __name__ == "__main__":
    sys.exit(main())
