"""/parse_function_call and /separate_reasoning: texts that were generated elsewhere."""

from __future__ import annotations

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import abbreviate
from vivace.parsers.events import (
    AnswerEvent,
    CallArguments,
    CallStart,
    ContentText,
    ReasoningText,
)
from vivace.parsers.names import REASONING_PARSERS, TOOL_CALL_PARSERS
from vivace.parsers.parser import AnswerParser, ParseOptions, ParserFormat, answer_format
from vivace.requests.tools import read_tools
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.responses import json_response
from vivace.server.schema import (
    FoundCall,
    ParseFunctionCallRequest,
    ParseFunctionCallResponse,
    SeparateReasoningRequest,
    SeparateReasoningResponse,
)

CALLS = BodyReader(ParseFunctionCallRequest)
REASONING = BodyReader(SeparateReasoningRequest)


async def parse_function_call(context: Context, _request: web.Request, body: Body) -> web.Response:
    """The calls in a text, and the text without them."""
    params = await CALLS.read(context, body)
    name = known(params.tool_call_parser, "tool_call_parser", TOOL_CALL_PARSERS)
    schemas = read_tools(params.tools)
    options = ParseOptions(tools=schemas, forwarded=context.syntax.forwards_unknown)
    events = await parsed(context, answer_format(name, None), options, params.text)
    places = {name: place for place, name in enumerate(schemas)}
    calls: list[FoundCall] = []
    for event in events:
        if isinstance(event, CallStart):
            place = places.get(event.name, -1)
            calls.append(FoundCall(tool_index=place, name=event.name, parameters=""))
        elif isinstance(event, CallArguments):
            calls[-1].parameters += event.text
    return json_response(ParseFunctionCallResponse(normal_text=content(events), calls=calls))


async def separate_reasoning(context: Context, _request: web.Request, body: Body) -> web.Response:
    """The thinking in a text, and the rest."""
    params = await REASONING.read(context, body)
    name = known(params.reasoning_parser, "reasoning_parser", REASONING_PARSERS)
    form = answer_format(None, name)
    options = ParseOptions(inside=form.inside("", ""))
    events = await parsed(context, form, options, params.text)
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningText))
    return json_response(SeparateReasoningResponse(reasoning_text=reasoning, text=content(events)))


def known(name: str, field: str, names: tuple[str, ...]) -> str:
    """The name of a format. BadRequest for one that there is not."""
    if name not in names:
        raise BadRequest(field, f"{abbreviate(name)!r}: must be one of {', '.join(names)}")
    return name


async def parsed(
    context: Context, form: ParserFormat, options: ParseOptions, text: str
) -> list[AnswerEvent]:
    """What a text consists of."""
    parser = AnswerParser(form, options)
    return await context.slicer.run(parser.push_slices(text)) + parser.finish()


def content(events: list[AnswerEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ContentText))
