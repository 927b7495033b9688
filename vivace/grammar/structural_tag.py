"""Structural tags: text in which parts between given words obey grammars, as tool calls do.

A format (`{"type": ...}`, as xgrammar has it) becomes rules of Lark, with schemas inside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vivace.grammar.backend import GrammarError, JsonFormat
from vivace.grammar.endless_rules import check_ends, check_input_ends
from vivace.grammar.flat_grammars import NO_FORCING, flat_terminals
from vivace.grammar.json_schema import check_schema, json_options
from vivace.grammar.limits import MAX_DEPTH
from vivace.grammar.quoted_regex import quote_regex
from vivace.grammar.tag_forms import (
    ANY_TEXT,
    KINDS,
    REPEATED,
    REPEATS,
    as_pattern,
    blaming,
    has_type,
    node_list,
    node_text,
    node_texts,
    quote_text,
    read_kind,
    schema_place,
)
from vivace.grammar.text_ends import first_ends
from vivace.grammar.vocabulary import SpecialWords

MAX_PARTS = 10_000
"""of a tag: constants, schemas, sequences ..."""
MAX_WORDS = 10_000
"""strings and special tokens in all of its texts"""
MAX_RULES = 10_000
MAX_RULE_CHARACTERS = 1 << 20
"""A tag whose begin several triggers begin has its inside as often."""
TEXT = "TEXT"
"""the rule of any text"""
MAY_GO_ON = re.compile(r"[*+)]|,\}|\{\d\d|\{.*\{|.{65}", re.DOTALL)
"""what those have that do so, or whose texts are long, which takes as much work; and some others"""


def tag_grammars(
    root: dict[str, Any],
    form: JsonFormat,
    to_lark: Callable[[str], str],
    to_regex: Callable[[str], str],
    special_ids: Mapping[str, int],
) -> Iterator[str]:
    """In llguidance's language; an answer obeys all. `to_lark`: of a grammar in GBNF; `to_regex`:
    of an expression between slashes; `special_ids`: of texts that are tokens of their own."""
    rules = _TagRules(form, to_lark, to_regex, special_ids)
    yield rules.whole(root)
    if rules.guarded:
        yield _TagRules(form, to_lark, to_regex, special_ids, guarding=True).whole(root)


class _TagRules:
    """Rules of Lark, a line each. `part` and what it calls return an expression of one term."""

    def __init__(
        self,
        form: JsonFormat,
        to_lark: Callable[[str], str],
        to_regex: Callable[[str], str],
        special_ids: Mapping[str, int],
        *,
        guarding: bool = False,
    ) -> None:
        """`guarding`: with guards instead of what they guard"""
        self._guarding, self.guarded = guarding, False
        self._form = form
        self._to_lark, self._to_regex = to_lark, to_regex
        self._special = SpecialWords(special_ids)
        self.lines: list[str] = []
        self.grammars: list[dict[str, str]] = []
        """those that are referred to"""
        self._foreign = False
        """expressions or grammars of others are among them"""
        self._parts = self._count = self._characters = 0
        self._kinds: dict[str, Callable[[dict[str, Any], str, bool], str]] = {
            "const_string": self._constant,
            "json_schema": self._schema,
            "regex": self._regex,
            "grammar": self._grammar,
            ANY_TEXT: self._any_text,
            "sequence": self._sequence,
            "or": self._choice,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._separated_tags,
            **dict.fromkeys(REPEATS, self._repeated),
            "definitions": self._definitions,
            "defined": self._defined_part,
            "optional_newlines": self._with_optional_newlines,
            "guarded": self._guarded_part,
        }
        self._defined: dict[str, str] = {}
        self._rules: dict[tuple[str, str], str] = {}
        """attributes and bodies -> names"""
        self._newlines_optional = False
        self._texts: dict[str, str] = {}
        """terminals of text that lacks something"""
        self._later: dict[str, str] = {}
        """of those that may fit only behind the first end: terminals of what goes on behind it"""
        self._flats: dict[str, str] = {}
        """terminals of whole grammars"""
        self._joined = ""
        """a term that texts obey, too"""

    def whole(self, root: dict[str, Any]) -> str:
        start = self.part(root, "format", last=True)
        head = NO_FORCING if self._foreign else ""
        lark = head + "\n".join([f"start: {start}", rf"{TEXT}: /(.|\n)*/", *self.lines])
        return json.dumps({"grammars": [{"name": "tags", "lark_grammar": lark}, *self.grammars]})

    def part(self, node: Any, place: str, *, last: bool) -> str:
        """`last`: nothing follows it."""
        self._parts += 1
        if self._parts > MAX_PARTS or place.count(".") > MAX_DEPTH:
            raise GrammarError(f"has over {MAX_PARTS} parts, or nests deeper than {MAX_DEPTH}")
        if not isinstance(node, dict):
            raise GrammarError(f"{place}: must be an object with a type")
        build = self._kinds.get(kind := read_kind(node))
        if build is None:
            raise GrammarError(f"{place}.type: {kind!r:.60} is none of {', '.join(KINDS)}")
        return build(node, place, last)

    def _constant(self, node: dict[str, Any], place: str, last: bool) -> str:
        text = node_text(node, "value", place)
        last_line = "\n" if self._newlines_optional and text.endswith("\n") else ""
        words = [*self._words(text.removesuffix(last_line)), *self._framing(last_line)]
        return self._rule(" ".join(words) or '""')

    def _schema(self, node: dict[str, Any], place: str, last: bool) -> str:
        schema = node.get("json_schema", True)
        self._refuse_others(node, place, style="json", excludes=[], max_whitespace_cnt=None)
        check_schema(schema, schema_place(node, place))
        whole = schema if isinstance(schema, dict) else {"allOf": [schema]}
        options = {k: v for k, v in json_options(self._form, schema).items() if v is not None}
        return self._rule("%json " + json.dumps({**whole, "x-guidance": options}))

    def _regex(self, node: dict[str, Any], place: str, last: bool) -> str:
        self._foreign = True
        pattern = node_text(node, "pattern", place)
        with blaming(node, f"{place}.pattern"):
            if node.get("quoted", False):
                pattern = quote_regex(pattern)
            pattern = self._to_regex(pattern)
        return self._rule(f"/{pattern}/")

    def _grammar(self, node: dict[str, Any], place: str, last: bool) -> str:
        self._foreign = True
        name = f"grammar_{len(self.grammars)}"
        with blaming(node, place):
            lark = self._to_lark(node_text(node, "grammar", place))
            check_ends(lark)
        self.grammars.append({"name": name, "lark_grammar": lark})
        return self._rule(f"@{name}")

    def _any_text(self, node: dict[str, Any], place: str, last: bool) -> str:
        if not (last or node.get("closed", False)):
            raise GrammarError(f"{place}: any_text must end the answer, or a constant text follow")
        return self._text_terminal(node, place)

    def _text_terminal(self, node: dict[str, Any], place: str, *, until: Sequence[str] = ()) -> str:
        """The terminal of any text without `excludes` in it (and tokens of `until`), that obeys all
        `patterns` and is not `unlike`, expressions for the whole of it up to one of `until`."""
        self._refuse_others(node, place, max_tokens=None, max_chars=None)
        plain = [one for one in until if self._special.split(one) == [one]]
        patterns, unlike = node_texts(node, "patterns", place), node_texts(node, "unlike", place)
        ends = [one for one in until if patterns or unlike or one not in plain]
        excluded = [*node_texts(node, "excludes", place), *ends]
        self._foreign |= bool(unlike or self._joined) or any(map(MAY_GO_ON.search, patterns))
        terms = self._expressions(node, "patterns", place)
        terms += [f"~{one}" for one in self._expressions(node, "unlike", place)]
        short = [one for one in plain if len(one) == 1]
        for words, before in ((excluded, "(?s:.*)"), (short, "")):  # short: see `_text_until`
            if words:
                listed = "|".join(map(as_pattern, dict.fromkeys(words)))
                terms.append(f"~/{self._to_regex(f'{before}(?:{listed})(?s:.*)')}/")
        terms += [self._joined] * bool(self._joined)
        if not terms:
            return TEXT
        name = self._terminal(" & ".join([TEXT, *terms]))
        within = "".join(one[bool(one in plain) :] for one in until)
        if (patterns or unlike) and {one[0] for one in plain} & {*within}:
            listed = " | ".join(map(quote_text, plain))
            self._later[name] = self._terminal(f"{TEXT} ({listed}) /(.|\\n)+/")
        return name

    def _terminal(self, body: str) -> str:
        if body not in self._texts:
            self._texts[body] = f"{TEXT}_{len(self._texts)}"
            self._write(f"{self._texts[body]}: {body}")
        return self._texts[body]

    def _refuse_others(self, node: dict[str, Any], place: str, **enforced: Any) -> None:
        """Other values than these of what xgrammar has."""
        for key, value in enforced.items():
            if node.get(key, value) != value:
                raise GrammarError(f"{place}.{key}: cannot be enforced; leave it out")

    def _expressions(self, node: dict[str, Any], key: str, place: str) -> list[str]:
        """Between slashes."""
        found = list[str]()
        for index, pattern in enumerate(node_texts(node, key, place)):
            with blaming(node, f"{place}.{key}.{index}"):
                found.append(f"/{self._to_regex(pattern)}/")
        return found

    def _sequence(self, node: dict[str, Any], place: str, last: bool) -> str:
        terms, text = list[str](), ""
        for index, element in enumerate(elements := node_list(node, "elements", place)):
            at, rest = f"{place}.elements.{index}", elements[index + 1 :]
            fixed = rest and has_type(rest[0], "const_string") and rest[0].get("value") != ""
            if text:
                terms.append(self._text_until(node_text(element, "value", at), text))
                text = ""
            elif has_type(element, ANY_TEXT) and fixed:
                text = self._text_terminal(element, at, until=[node_text(rest[0], "value", at)])
            else:
                terms.append(self.part(element, at, last=last and not rest))
        return self._rule(" ".join(terms))

    def _choice(self, node: dict[str, Any], place: str, last: bool) -> str:
        return self._any(self._list(node, "elements", place, last=last))

    def _list(self, node: dict[str, Any], key: str, place: str, *, last: bool) -> list[str]:
        listed = node_list(node, key, place)
        return [self.part(one, f"{place}.{key}.{i}", last=last) for i, one in enumerate(listed)]

    def _tag(self, node: dict[str, Any], place: str, last: bool) -> str:
        begin = self._frame(node_text(node, "begin", place))
        return self._rule(f"{begin} {self._inside(node, place, last)}")

    def _inside(self, node: dict[str, Any], place: str, last: bool) -> str:
        """What follows a tag's begin."""
        ends: Any = node.get("end")
        options: list[Any] = ends if isinstance(ends, list) else [ends]
        if not options or not all(isinstance(end, str) for end in options):
            raise GrammarError(f"{place}.end: must be a text, or a list of texts")
        options = list(dict.fromkeys(options))
        content: Any = node.get("content")
        if has_type(content, ANY_TEXT) and "" not in options:
            text = self._text_terminal(content, f"{place}.content", until=options)
            first = first_ends(options, self._special)
            return self._any([self._text_until(end, text, first[end]) for end in first])
        inner = self.part(content, f"{place}.content", last=last and options == [""])
        return f"{inner} {self._any([self._frame(end) for end in options])}"

    def _triggered_tags(self, node: dict[str, Any], place: str, last: bool) -> str:
        tags, _ = node_list(node, "tags", place), node_list(node, "triggers", place)
        triggers = list(dict.fromkeys(node_texts(node, "triggers", place)))
        once, needed = (bool(node.get(key)) for key in ("stop_after_first", "at_least_one"))
        if not last and not (once and needed):
            raise GrammarError(f"{place}: triggered_tags must end the answer")
        first = self._list(node, "tags", place, last=False) if needed else []
        if first and once:
            return self._any(first)
        text = self._text_terminal(node, place, until=triggers)
        inside = {trigger: self._triggered(trigger, tags, place) for trigger in triggers}
        begins = first_ends(triggers, self._special)
        calls = [f"{self._text_until(one, text, begins[one])} {inside[one]}" for one in begins]
        if once:
            return self._rule(" | ".join([*calls, text]))
        rest = f"({' | '.join(calls)})* {text}"
        return self._rule(f"{self._any(first)} {rest}" if needed else rest)

    def _triggered(self, trigger: str, tags: list[Any], place: str) -> str:
        """The rest of the tags that begin with it."""
        inside: list[str] = []
        for index, tag in enumerate(tags):
            at = f"{place}.tags.{index}"
            begin = node_text(tag, "begin", at) if isinstance(tag, dict) else ""
            if begin.startswith(trigger):
                rest = self._frame(begin[len(trigger) :])
                inside.append(self._rule(f"{rest} {self._inside(tag, at, last=False)}"))
        if not inside:
            raise GrammarError(f"{place}.triggers: no tag begins with {trigger!r:.60}")
        return self._any(inside)

    def _separated_tags(self, node: dict[str, Any], place: str, last: bool) -> str:
        separator = self._frame(node_text(node, "separator", place))
        one = self._any(self._list(node, "tags", place, last=False))
        several = one if node.get("stop_after_first") else self._rule(f"{one} ({separator} {one})*")
        return several if node.get("at_least_one") else self._rule(f"{several}?")

    def _repeated(self, node: dict[str, Any], place: str, last: bool) -> str:
        least, most = REPEATS[node["type"]] or (node.get("min", ""), node.get("max", ""))
        if least not in REPEATED or most not in (-1, *REPEATED[max(1, int(least)) :]):
            raise GrammarError(f"{place}: min and max must be 0 to {REPEATED[-1]}, in order, or -1")
        part = self.part(node.get("content"), f"{place}.content", last=last and most == 1)
        return self._rule(f"{part}{{{int(least)},{int(most) if most > 0 else ''}}}")

    def _definitions(self, node: dict[str, Any], place: str, last: bool) -> str:
        """Formats that the one behind them, and those behind each, refer to by their names."""
        formats = node.get("formats")
        if not isinstance(formats, dict):
            raise GrammarError(f"{place}.formats: must be an object: names and formats")
        for index, (name, form) in enumerate(formats.items()):
            self._defined[name] = self.part(form, f"{place}.formats.{index}", last=False)
        return self.part(node.get("format"), f"{place}.format", last=last)

    def _defined_part(self, node: dict[str, Any], place: str, last: bool) -> str:
        name = node_text(node, "name", place)
        if name not in self._defined:
            raise GrammarError(f"{place}.name: {name!r:.60} is not defined before")
        return self._defined[name]

    def _guarded_part(self, node: dict[str, Any], place: str, last: bool) -> str:
        """The guard alone where what it guards is one terminal, which its text is, too, then."""
        self._joined = self._flat(node, place)
        self.guarded |= not self._joined
        chosen = "guard" if self._guarding or self._joined else "format"
        part = self.part(node.get(chosen), f"{place}.{chosen}", last=last)
        self._joined = ""
        return part

    def _flat(self, node: dict[str, Any], place: str) -> str:
        """The term of a grammar and what stands around it; empty where it is not one."""
        text = node_text(node, "grammar", place)
        if text not in self._flats:
            prefix = f"FLAT_{len(self._flats)}_"
            with blaming(node, place):
                lines = flat_terminals(lark := self._to_lark(text), prefix)
                if lines is None:
                    check_input_ends(lark)
            self._flats[text] = f"{prefix}0" if lines else ""
            for line in lines or ():
                self._write(line)
        begin, end = (quote_text(node_text(node, key, place)) for key in ("before", "behind"))
        return (name := self._flats[text]) and f"({begin} {name} {end})"

    def _with_optional_newlines(self, node: dict[str, Any], place: str, last: bool) -> str:
        before, self._newlines_optional = self._newlines_optional, True
        part = self.part(node.get("format"), f"{place}.format", last=last)
        self._newlines_optional = before
        return part

    def _rule(self, body: str, attributes: str = "") -> str:
        """One for each body: models write the same tools in several ways."""
        name = self._rules.get((attributes, body))
        if name is None:
            name = self._rules[attributes, body] = f"part_{len(self.lines)}"
            self._write(f"{name}{attributes}: {body}")
        return name

    def _write(self, line: str) -> None:
        self.lines.append(line)
        self._characters += len(line)
        if len(self.lines) > MAX_RULES or self._characters > MAX_RULE_CHARACTERS:
            raise GrammarError("becomes too large: give fewer triggers, tags or schemas")

    def _any(self, terms: Sequence[str]) -> str:
        return terms[0] if len(terms) == 1 else self._rule(" | ".join(terms))

    def _text_until(self, end: str, text: str = TEXT, sooner: Sequence[str] = ()) -> str:
        """Such a text up to the first `end`, and that (`sooner`: `first_ends`). The library misses
        a byte that ends what is before, too: no text begins with it, and it is a terminal alone."""
        head, *rest = self._framing(end)
        whole = text if head.startswith("<[") else f"{text} {head}"
        if sooner:
            others = self._to_regex(f"(?s:.*)(?:{'|'.join(map(as_pattern, sooner))})")
            whole = self._terminal(f"({whole}) & ~/{others}/")
        if head.startswith("<["):
            return self._rule(" ".join([whole, head, *rest]))
        if text in self._later:
            whole = self._terminal(f"({whole}) & ~{self._later[text]}")
        if rest and rest[0].startswith("<["):
            self._foreign = True  # looking ahead, the library fails where no text can go on
            return self._rule(" ".join([self._terminal(whole), *rest]))
        until = self._rule(whole, "[lazy]")
        if head == quote_text(end[:1]):
            until = self._any([until, self._terminal(f"({text} {head}) & {head}")])
        return " ".join([until, *rest])

    def _frame(self, text: str) -> str:
        """Of a tag, or between them."""
        return " ".join(self._framing(text)) if text else '""'

    def _framing(self, text: str) -> list[str]:
        parts = re.split("(\n)", text) if self._newlines_optional else [text]
        lines = {"\n": ['"\\n"?']} if self._newlines_optional else {}
        return [word for part in parts if part for word in lines.get(part) or self._words(part)]

    def _words(self, text: str) -> list[str]:
        """A text as strings and special tokens."""
        found = self._special.split(text)
        self._count += len(found)
        if self._count > MAX_WORDS:
            raise GrammarError(f"has over {MAX_WORDS} texts and special tokens in them")
        return [f"<[{word}]>" if isinstance(word, int) else quote_text(word) for word in found]
