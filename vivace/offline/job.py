"""The requests of one `generate` call and what has come of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from vivace.frontend.errors import BadRequest, EngineUnavailable
from vivace.frontend.fairness import run_now
from vivace.frontend.frontend import Frontend
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.sglang_output import SGLangOutput
from vivace.offline.conversations import ChatPrompts
from vivace.offline.prompts import pythons_words, read_prompts, read_texts
from vivace.protocol.messages import FINISH_ABORT, Finish, Request
from vivace.protocol.tasks import Embed, Generate
from vivace.requests.answer_rules import is_cut
from vivace.requests.embeddings import EncodeRequest
from vivace.requests.prompts import expand
from vivace.requests.schema import GenerateRequest


def create_job(
    frontend: Frontend,
    call: GenerateRequest,
    prompt: Any,
    input_ids: Any,
    *,
    disjoint: bool,
    chat: ChatPrompts | None = None,
) -> Job:
    """The job of one call, everything checked and nothing sent yet; `chat`: of conversations.
    Raises BadRequest."""
    if not isinstance(frontend.served.task, Generate):
        raise BadRequest("", "this engine has is_embedding=True: it generates no text; call encode")
    arrival = time.monotonic()
    inputs, batch = read_prompts(frontend, call, prompt, input_ids)
    limit = frontend.served.max_live
    with pythons_words():
        expanded = expand(frontend, inputs, limit=limit, stream=call.stream, arrival=arrival)
        requests = run_now(expanded)
    several = batch or len(requests) > 1
    answers = [
        SGLangOutput(
            request,
            weight_version=frontend.served.weight_version,
            index=index if several and call.stream else None,
            token_text=_token_text(frontend) if call.return_text_in_logprobs else None,
            disjoint=disjoint,
        )
        for index, request in enumerate(requests)
    ]
    if chat is None:
        return Job(frontend, requests, answers, several=several)
    samples = len(requests) // len(chat.rules)
    return Job(
        *(frontend, requests, answers),
        several=several,
        shown=chat.shown,
        fields=lambda index, answer: chat.fields(
            index // samples, answer.text, cut=is_cut(answer.finish)
        ),
    )


def create_embedding_job(
    frontend: Frontend, params: EncodeRequest, prompt: Any, input_ids: Any
) -> Job:
    """As `create_job`, of vectors."""
    if not isinstance(frontend.served.task, Embed):
        raise BadRequest(
            "", "this engine generates text; for vectors create one with is_embedding=True"
        )
    arrival = time.monotonic()
    inputs, batch = read_texts(frontend, params, prompt, input_ids)
    limit = frontend.served.max_live
    with pythons_words():
        requests = run_now(expand(frontend, inputs, limit=limit, stream=False, arrival=arrival))
    version = frontend.served.weight_version
    answers = [SGLangOutput(request, weight_version=version) for request in requests]
    return Job(frontend, requests, answers, several=batch, show=SGLangOutput.embedding)


def _token_text(frontend: Frontend) -> Callable[[int], str]:
    if frontend.tokenizer is None:
        raise BadRequest("return_text_in_logprobs", "skip_tokenizer_init is set: there is no text")
    return frontend.tokenizer.token_text


class Job:
    """Collects outputs in whatever thread turns the engine; read by the thread that asked."""

    def __init__(
        self,
        frontend: Frontend,
        requests: list[Request],
        answers: list[SGLangOutput],
        *,
        several: bool,
        show: Callable[[SGLangOutput], dict[str, Any]] = SGLangOutput.body,
        shown: frozenset[int] = frozenset(),
        fields: Callable[[int, SGLangOutput], dict[str, Any]] = lambda index, answer: {},
    ) -> None:
        """`show`: makes the result of a whole answer, `fields` what is added to the index-th;
        `shown`: as in `Frontend.start`."""
        self._frontend = frontend
        self._requests = requests
        self._answers = answers
        self._several = several
        self._show = show
        self._shown = shown
        self._fields = fields
        self._news: deque[tuple[int, RequestOutput]] = deque()
        self._open = len(requests)

    def start(self) -> None:
        try:
            for index, request in enumerate(self._requests):
                self._frontend.start(request, JobSink(self._news, index), self._shown)
        except BaseException:
            self.cancel()
            raise

    @property
    def done(self) -> bool:
        """Every request has ended and its last output was taken."""
        return not self._open

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def cancel(self) -> None:
        """Stop what still runs; harmless when nothing does."""
        self._frontend.cancel([request.key for request in self._requests])

    def take(self) -> None:
        """Add the news to the answers. Raises what a failed request failed of."""
        while self._news:
            index, output = self._news.popleft()
            self._answers[index].add(output)
            self._close(output.finish)

    def take_event(self) -> dict[str, Any]:
        """The next streamed event; call only with `has_news`."""
        index, output = self._news.popleft()
        event = self._answers[index].event(output)
        if output.finish is not None:
            event |= self._fields(index, self._answers[index])
        self._close(output.finish)
        return event

    def result(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The whole answers: a list for a batch and for n > 1."""
        bodies = [
            self._show(answer) | self._fields(index, answer)
            for index, answer in enumerate(self._answers)
        ]
        return bodies if self._several else bodies[0]

    def _close(self, finish: Finish | None) -> None:
        if finish is None:
            return
        self._open -= 1
        if finish.type != FINISH_ABORT or finish.status is None:
            return
        message = finish.message or "the request was aborted"
        if finish.status < 500:
            raise BadRequest("", message, finish.status)
        raise EngineUnavailable(message)


class JobSink:
    """The sink of one request of a job."""

    def __init__(self, news: deque[tuple[int, RequestOutput]], index: int) -> None:
        self._news = news
        self._index = index

    def push(self, output: RequestOutput) -> None:
        self._news.append((self._index, output))
