"""Chat answers that are parsed: reasoning and tool calls apart from the content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from vivace.frontend.fairness import Work, run_now
from vivace.frontend.request_output import RequestOutput
from vivace.parsers.events import (
    AnswerEvent,
    CallArguments,
    CallInput,
    CallStart,
    ContentText,
    ParsedCall,
    ReasoningText,
    gather,
)
from vivace.parsers.json_values import is_object
from vivace.parsers.parser import SLICE, AnswerParser
from vivace.protocol.messages import FINISH_STOP, Finish
from vivace.requests.answer_rules import AnswerRules, is_cut
from vivace.server.openai.logprobs import encoded_chat_logprobs
from vivace.server.openai.response import ChunkContext, ChunkEncoder
from vivace.server.openai.schema import (
    AnswerCall,
    AnswerFunction,
    AnswerInput,
    ChatChoice,
    ChunkDelta,
    CompletionChoice,
)

encode = msgspec.json.encode
FINISH_TOOL_CALLS = "tool_calls"
SLICE_TOKENS = 1 << 10
"""that are looked at without a pause"""


@dataclass(frozen=True)
class ChatParsing:
    """How the answers to one request are parsed."""

    rules: AnswerRules

    def parser(self) -> AnswerParser:
        return AnswerParser(self.rules.syntax.form, self.rules.options)

    def counter(self) -> ReasoningCounter:
        syntax, ends = self.rules.syntax, self.rules.options.thinking_ends
        known = syntax.reasoning_ends
        if known and ends:
            known = tuple(end.encode() for end in ends)
        return ReasoningCounter(known, syntax.token_bytes, thinks=ends != ())

    def chunks(self, context: ChunkContext, index: int) -> ParsedChunks:
        """Encodes the index-th choice of a stream."""
        return ParsedChunks(context, index, self.parser(), self.counter())

    def parse(
        self, choice: ChatChoice | CompletionChoice, output: RequestOutput
    ) -> Work[int | None]:
        """Fill in the message of a choice; how many of its tokens are reasoning, if known."""
        assert isinstance(choice, ChatChoice)
        parser, message = self.parser(), choice.message
        events = yield from parser.push_slices(output.text)
        reasoning = yield from self.counter().count_slices(output.tokens, parser)
        found = yield from gather(events + parser.finish(cut=is_cut(output.finish)))
        message.content, message.reasoning_content = found.content, found.reasoning or None
        if found.calls:
            message.tool_calls = [shown_call(call) for call in found.calls]
            if ends_by_calls(output.finish, found.calls[-1]):
                choice.finish_reason = FINISH_TOOL_CALLS
        return reasoning


class ReasoningCounter:
    """Counts the tokens of an answer up to the first of the texts `ends`, which may be several
    tokens; None where there are none. The first one is reasoning itself, others follow it. Without
    `thinks` nothing is reasoning, whatever it says."""

    def __init__(
        self, ends: Sequence[bytes], token_bytes: Callable[[int], bytes], *, thinks: bool = True
    ) -> None:
        self._ends, self._token_bytes, self._thinks = ends, token_bytes, thinks
        self._kept = max(map(len, ends), default=1) - 1
        self._tail = b""
        self._seen = 0
        self._reasoning: int | None = None
        """tokens, once it is over"""

    def count(self, tokens: list[int], parser: AnswerParser) -> int | None:
        """Tokens of reasoning so far, with `tokens`, which are new to `parser`, too."""
        if not self._ends:
            return None
        if parser.plain or not self._thinks:
            return 0
        for token in tokens if self._reasoning is None else ():
            self._look_at(token)
            if self._reasoning is not None:
                break
        if self._reasoning is not None:
            return self._reasoning
        return self._seen if parser.thinking else 0

    def count_slices(self, tokens: list[int], parser: AnswerParser) -> Work[int | None]:
        """`count` of a long answer."""
        for start in range(0, len(tokens) if self._ends else 0, SLICE_TOKENS):
            self.count(tokens[start : start + SLICE_TOKENS], parser)
            yield
        return self.count([], parser)

    def _look_at(self, token: int) -> None:
        text = self._tail + self._token_bytes(token)
        found = next((end for end in self._ends if end in text), None)
        if found is not None:
            self._reasoning = self._seen + (found == self._ends[0])
        self._seen += 1
        self._tail = text[max(0, len(text) - self._kept) :]


class ParsedChunks(ChunkEncoder):
    """The events of one choice of a chat stream whose text is parsed."""

    def __init__(
        self,
        context: ChunkContext,
        index: int,
        parser: AnswerParser,
        counter: ReasoningCounter,
    ) -> None:
        super().__init__(context, index, b"delta")
        self._parser = parser
        self._counter = counter
        self._call: list[AnswerEvent] = []
        """the events of the last one"""

    def encode_text(self, text: str, tokens: list[int], count: int) -> bytes | None:
        if not self._text_only:
            return None
        deltas = self._parse(text, tokens)
        return b"".join([b"".join((self._choice, delta, self._suffix)) for delta in deltas])

    def parts(self, output: RequestOutput) -> Work[list[bytes]] | None:
        return self._in_slices(output) if len(output.text) > SLICE else super().parts(output)

    def _in_slices(self, output: RequestOutput) -> Work[list[bytes]]:
        """Of a reader that was slow, and gets much at once."""
        self._context.usage.update(self._index, output)
        events = [self._begin()]
        last = (len(output.text) - 1) // SLICE * SLICE
        for start in range(0, last, SLICE):
            deltas = self._parse(output.text[start : start + SLICE], [])
            events += [self._event(delta) for delta in deltas]
            yield
        rest = msgspec.structs.replace(output, text=output.text[last:])
        events += yield from self._in_parts(rest)
        return [b"".join(events)]

    def _parse(self, text: str, tokens: list[int]) -> list[bytes]:
        """The deltas that new text makes."""
        events = self._parser.push(text)
        reasoning = self._counter.count(tokens, self._parser)
        self._context.usage.note_reasoning(self._index, reasoning)
        return self._deltas(events)

    def _deltas(self, events: list[AnswerEvent]) -> list[bytes]:
        for event in events:
            if isinstance(event, CallStart):
                self._call = [event]
            elif isinstance(event, CallArguments):
                self._call.append(event)
        return [encode_delta(event) for event in events]

    def _events(self, output: RequestOutput, logprobs: bytes) -> bytes:
        data = self._begin()
        deltas = self._parse(output.text, output.tokens)
        if output.finish is not None:
            deltas += self._deltas(self._parser.finish(cut=is_cut(output.finish)))
        ids = b""
        if self._context.token_ids and output.tokens:
            ids = b',"token_ids":' + encode(output.tokens)
        if not deltas and (ids or logprobs != b"null"):
            deltas = [b'{"content":""}']
        for delta in deltas:
            data += self._event(delta, logprobs=logprobs, ids=ids)
            logprobs, ids = b"null", b""
        if output.finish is not None:
            data += self._event(b"{}", finish=self._finish(output.finish))
        return data

    def _finish(self, finish: Finish) -> Finish:
        calls = run_now(gather(self._call)).calls
        if not calls or not ends_by_calls(finish, calls[0]):
            return finish
        return msgspec.structs.replace(finish, type=FINISH_TOOL_CALLS)

    def _logprobs(self, output: RequestOutput) -> Work[bytes]:
        if not self._context.logprobs or not output.logprobs:
            return b"null"
        return bytes((yield from encoded_chat_logprobs(output.logprobs, self._context.tokenizer)))


def ends_by_calls(finish: Finish | None, last: ParsedCall) -> bool:
    """Whether an answer ended with this call, which neither a limit nor a text of `stop` has cut
    off. Where an input is cut nobody can tell."""
    if finish is None or finish.type != FINISH_STOP:
        return False
    return last.custom or not isinstance(finish.matched, str) or is_object(last.arguments)


def encode_delta(event: AnswerEvent) -> bytes:
    """The `delta` that tells of an event."""
    match event:
        case ReasoningText(text):
            return b'{"reasoning_content":%b}' % encode(text)
        case ContentText(text):
            return b'{"content":%b}' % encode(text)
        case CallStart(index, _, _):
            call = shown_call(event)
            call.index = index
            return encode(ChunkDelta(tool_calls=[call]))
        case CallArguments(index, text):
            arguments = encode(text)
            return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (index, arguments)
        case CallInput(index, text):
            return b'{"tool_calls":[{"index":%d,"custom":{"input":%b}}]}' % (index, encode(text))


def shown_call(call: CallStart | ParsedCall) -> AnswerCall:
    """With its arguments, or its input, if they are known."""
    said = call.arguments if isinstance(call, ParsedCall) else ""
    if call.custom:
        custom = AnswerInput(name=call.name, input=said)
        return AnswerCall(id=call.id, type="custom", custom=custom)
    function = AnswerFunction(name=call.name, arguments=said)
    return AnswerCall(id=call.id, type="function", function=function)
