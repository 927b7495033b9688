"""/parse_function_call and /separate_reasoning: texts that were generated elsewhere."""

from __future__ import annotations

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import abbreviate
from vivace.parsers.events import ParsedAnswer, gather
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
    tools = read_tools(params.tools)
    schemas = {name: tool.definition.parameters or {} for name, tool in tools.items()}
    options = ParseOptions(tools=schemas, forwarded=context.syntax.forwards_unknown)
    found = await parse(context, answer_format(name, None), options, params.text)
    places = {name: place for place, name in enumerate(schemas)}
    calls = [
        FoundCall(tool_index=places.get(call.name, -1), name=call.name, parameters=call.arguments)
        for call in found.calls
    ]
    return json_response(ParseFunctionCallResponse(normal_text=found.text, calls=calls))


async def separate_reasoning(context: Context, _request: web.Request, body: Body) -> web.Response:
    """The thinking in a text, and the rest."""
    params = await REASONING.read(context, body)
    name = known(params.reasoning_parser, "reasoning_parser", REASONING_PARSERS)
    form = answer_format(None, name)
    options = ParseOptions(state=form.state("", ""))
    found = await parse(context, form, options, params.text)
    return json_response(SeparateReasoningResponse(reasoning_text=found.reasoning, text=found.text))


def known(name: str, field: str, names: tuple[str, ...]) -> str:
    """The name of a format. BadRequest for one that there is not."""
    if name not in names:
        raise BadRequest(field, f"{abbreviate(name)!r}: must be one of {', '.join(names)}")
    return name


async def parse(
    context: Context, form: ParserFormat, options: ParseOptions, text: str
) -> ParsedAnswer:
    """What a text consists of."""
    parser = AnswerParser(form, options)
    events = await context.slicer.run(parser.push_slices(text)) + parser.finish()
    return await context.slicer.run(gather(events))
