"""How the answers of the served model are parsed: what flags, chat template and tokenizer say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vivace.frontend.frontend import Frontend
from vivace.frontend.tokenizer import Tokenizer
from vivace.parsers.auto import choose_reasoning_parser, choose_tool_parser
from vivace.parsers.names import AUTO
from vivace.parsers.parser import ParserFormat, TextParserFormat, answer_format

log = logging.getLogger("vivace.server")


@dataclass(frozen=True, kw_only=True)
class AnswerSyntax:
    """`shown`, `shown_for_tools`: special tokens that the parser must see, without and with
    tools. `reasoning_ends`: what ends reasoning, none where it is not split off; `token_bytes`:
    those of a token. `finds_calls`, `finds_reasoning`: what the answers are parsed for.
    `tells_tools`: the model hears of those that requests have."""

    form: ParserFormat
    tells_tools: bool = True
    finds_calls: bool = False
    finds_reasoning: bool = False
    shown: frozenset[int] = frozenset()
    shown_for_tools: frozenset[int] = frozenset()
    reasoning_ends: tuple[bytes, ...] = ()
    token_bytes: Callable[[int], bytes] = bytes
    forwards_unknown: bool = False


def answer_syntax(
    frontend: Frontend, tool_parser: str | None, reasoning_parser: str | None, *, forwards: bool
) -> AnswerSyntax:
    """What --tool-call-parser and --reasoning-parser ask for, for this model. `forwards`: calls of
    functions that are not offered are calls."""
    tokenizer = frontend.tokenizer
    chat = tokenizer.chat if tokenizer is not None else None
    template = "\n".join(chat.texts) if chat is not None else ""
    model_type = frontend.served.model_type
    tools = choose_tool_parser(tool_parser, template, model_type)
    reasoning = choose_reasoning_parser(reasoning_parser, template, model_type)
    tell("--tool-call-parser", tool_parser, tools)
    tell("--reasoning-parser", reasoning_parser, reasoning)
    if tools is None and "tools" in template:
        log.info("without --tool-call-parser calls stay text, and strict tools are not enforced")
    tells = not template or "tools" in template
    if tokenizer is None or (tools is None and reasoning is None):
        return AnswerSyntax(form=TextParserFormat(), tells_tools=tells)
    form = answer_format(tools, reasoning)
    return AnswerSyntax(
        form=form,
        tells_tools=tells,
        finds_calls=tools is not None,
        finds_reasoning=reasoning is not None,
        shown=special_tokens(tokenizer, form.literals(tools=False)),
        shown_for_tools=special_tokens(tokenizer, form.literals(tools=True)),
        reasoning_ends=tuple(text.encode() for text in form.reasoning_ends),
        token_bytes=tokenizer.token_bytes,
        forwards_unknown=forwards,
    )


def tell(flag: str, asked: str | None, chosen: str | None) -> None:
    """Log what came of `auto`."""
    if asked == AUTO:
        nothing = "the chat template shows no format that is known; if it has one, name it"
        log.info("%s auto: %s", flag, chosen or nothing)


def special_tokens(tokenizer: Tokenizer, literals: Sequence[str]) -> frozenset[int]:
    """Ids of the special tokens that these texts consist of or contain."""
    words = {token: tokenizer.token_text(token) for token in tokenizer.special_ids}
    return frozenset(
        token for token, word in words.items() if word and any(word in text for text in literals)
    )
