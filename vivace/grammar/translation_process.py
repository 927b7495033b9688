"""Translates constraints, and ends when one takes too much: `python -m` of `TranslatorProcess`."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec

from vivace.config.child_process import STOPPING, die_with
from vivace.config.time_slices import be_less_urgent
from vivace.grammar.backend import GrammarError, TokenVocabulary
from vivace.grammar.limits import STACK
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.source import GrammarDialect, translate
from vivace.grammar.translator import (
    BeginTranslating,
    TranslatedGrammar,
    TranslationLimits,
    encode,
    frame,
    receive,
)
from vivace.protocol.constraints import Constraint


def main() -> None:
    with contextlib.suppress(OSError):  # the end of the socket is watched as well
        die_with(int(sys.argv[1]))
    obey_the_engine_only()
    sock = socket.socket(fileno=0)
    threading.stack_size(STACK)
    with contextlib.suppress(EOFError, OSError):
        begin = msgspec.msgpack.decode(receive(sock), type=BeginTranslating)
        limit_resources(begin.limits)
        worker = threading.Thread(target=serve, args=(sock, begin), daemon=True)
        worker.start()
        worker.join()


def obey_the_engine_only() -> None:
    """The timer's signal must kill, even when whoever started the server ignores or blocks it."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    be_less_urgent()


def limit_resources(limits: TranslationLimits) -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = mapped + STACK + limits.memory
    _, allowed = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:  # `ulimit -v` of whoever started this
        limit = min(limit, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(sock: socket.socket, begin: BeginTranslating) -> None:
    """One constraint after the other, to the end of the socket."""
    backend = LLGuidanceBackend(byte_vocabulary(begin.dialect), begin.dialect.form, threads=1)
    with contextlib.suppress(EOFError, OSError):
        while True:
            constraint = msgspec.msgpack.decode(receive(sock), type=Constraint)
            signal.setitimer(signal.ITIMER_PROF, begin.limits.cpu_seconds)
            answer = encode(answer_to(constraint, begin.dialect, backend))
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            sock.sendall(frame(answer))


def byte_vocabulary(dialect: GrammarDialect) -> TokenVocabulary:
    """All bytes, and the special tokens of the model: what a grammar costs shows with these."""
    special = dialect.special_ids
    words = {token: word.encode() for word, token in special.items()}
    plain = (bytes([byte]) for byte in range(256))
    size = max(words, default=0) + 258  # one token is left for the end
    tokens = [words.get(token) or next(plain, b"") for token in range(size)]
    ids = {text[0]: token for token, text in enumerate(tokens) if text and token not in words}
    return TokenVocabulary(
        tokens=tokens,
        special_ids=[*sorted(words), size - 1],
        special_texts=special,
        eos_ids=(size - 1,),
        encode=lambda text: [ids[byte] for byte in text.encode()],
    )


def answer_to(
    constraint: Constraint, dialect: GrammarDialect, backend: LLGuidanceBackend
) -> TranslatedGrammar:
    try:
        grammar = translate(constraint, dialect)
        backend.build(constraint, grammar)
    except GrammarError as error:
        return TranslatedGrammar(refusal=str(error))
    except MemoryError:
        return TranslatedGrammar(refusal="takes too much memory to compile; make it simpler")
    return TranslatedGrammar(grammar=grammar)


if __name__ == "__main__":
    main()
