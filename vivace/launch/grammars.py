"""What makes answers obey grammars: a compiler for the model, and what it does in a worker."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from vivace.config.parallelism import requested_sizes
from vivace.errors import CannotStart, cause
from vivace.grammar.availability import XGRAMMAR, why_no_grammars
from vivace.grammar.backend import WHITESPACE, GrammarBackend, JsonFormat
from vivace.grammar.compiled import LIVING_BYTES
from vivace.grammar.compiler import GrammarCompiler
from vivace.platforms.cpu.facts import memory

if TYPE_CHECKING:
    from vivace.config.config import Config
    from vivace.sampling.processors import ProcessorFactory


def grammar_compiler(config: Config, *, checked: bool = False) -> GrammarCompiler | None:
    """None where there is no structured output. `checked`: constraints come from an engine whose
    own compiler has found that they take little."""
    if why_no_grammars(config):
        return None
    if (pattern := config.optimization.constrained_json_whitespace_pattern) is not None:
        check_whitespace(pattern)
    by_xgrammar = config.kernels.grammar_backend == XGRAMMAR
    if by_xgrammar:
        load_xgrammar()

    def create() -> GrammarBackend:
        from vivace.frontend.tokenizer import load_encoder
        from vivace.grammar.llguidance_backend import LLGuidanceBackend
        from vivace.grammar.source import GrammarDialect
        from vivace.grammar.thinking import ThinkingBackend
        from vivace.grammar.translator import TranslatorProcess
        from vivace.grammar.vocabulary import token_vocabulary
        from vivace.worker.build import platform_settings

        facts = config.facts
        tokenizer = load_encoder(config.source)
        vocabulary = token_vocabulary(tokenizer, facts.eos_ids, facts.vocabulary)
        ranks = requested_sizes(config).node_devices
        threads = platform_settings(config, ranks, owns_process=False).threads
        form = json_format(config)
        process = TranslatorProcess(GrammarDialect(form, vocabulary.special_texts))
        translator = None if checked else process.translate
        answers = LLGuidanceBackend(vocabulary, form, threads, translator)
        if by_xgrammar:
            from vivace.grammar.xgrammar_backend import XGrammarBackend

            answers = XGrammarBackend(vocabulary, form, answers, checked=checked)
        return ThinkingBackend(answers, vocabulary)

    return GrammarCompiler(create, room=max(LIVING_BYTES, memory()[0] // 8))


def check_whitespace(pattern: str) -> None:
    """Raises CannotStart for what is no expression."""
    from llguidance import LLMatcher

    from vivace.grammar.schema_refusals import explain_expression

    if reason := LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern), None):
        told = explain_expression(reason)
        raise CannotStart(
            f"--constrained-json-whitespace-pattern {pattern!r:.60} is no expression: {told:.200}"
        )


def load_xgrammar() -> None:
    """Seconds of imports, which are the start's and not the first answer's. Raises CannotStart."""
    try:
        import_module(XGRAMMAR)
    except Exception as error:  # it loads native libraries, and transformers
        raise CannotStart(
            f"--grammar-backend {XGRAMMAR}: its package does not load: {cause(error)}; install it "
            "again, or start with llguidance"
        ) from error


def json_format(config: Config) -> JsonFormat:
    asked = config.optimization
    pattern = asked.constrained_json_whitespace_pattern
    return JsonFormat(
        whitespace=WHITESPACE if pattern is None else pattern,
        compact=bool(asked.constrained_json_disable_any_whitespace),
    )


def grammar_processors(config: Config, compiler: GrammarCompiler | None) -> list[ProcessorFactory]:
    """Of a worker's sampling."""
    if compiler is None:
        return []
    from vivace.grammar.processor import GrammarLogitsProcessor

    return [lambda ops, history: GrammarLogitsProcessor(ops, history, compiler)]
