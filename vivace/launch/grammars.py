"""What makes answers obey grammars: a compiler for the model, and what it does in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vivace.config.parallelism import requested_sizes
from vivace.grammar.availability import why_no_grammars
from vivace.grammar.backend import GrammarBackend, JsonFormat
from vivace.grammar.compiler import GrammarCompiler

if TYPE_CHECKING:
    from vivace.config.config import Config
    from vivace.sampling.processors import ProcessorFactory


def grammar_compiler(config: Config) -> GrammarCompiler | None:
    """None where there is no structured output."""
    if why_no_grammars(config):
        return None

    def create() -> GrammarBackend:
        from vivace.frontend.tokenizer import load_encoder
        from vivace.grammar.llguidance_backend import LLGuidanceBackend
        from vivace.grammar.thinking import ThinkingBackend
        from vivace.grammar.vocabulary import token_vocabulary
        from vivace.worker.build import platform_settings

        facts = config.facts
        tokenizer = load_encoder(config.source)
        vocabulary = token_vocabulary(tokenizer, facts.eos_ids, facts.vocabulary)
        ranks = requested_sizes(config).node_devices
        threads = platform_settings(config, ranks, owns_process=False).threads
        answers = LLGuidanceBackend(vocabulary, json_format(config), threads)
        return ThinkingBackend(answers, vocabulary)

    return GrammarCompiler(create)


def json_format(config: Config) -> JsonFormat:
    asked = config.optimization
    return JsonFormat(
        whitespace_pattern=asked.constrained_json_whitespace_pattern,
        compact=bool(asked.constrained_json_disable_any_whitespace),
    )


def grammar_processors(compiler: GrammarCompiler | None) -> list[ProcessorFactory]:
    """Of a worker's sampling."""
    if compiler is None:
        return []
    from vivace.grammar.processor import GrammarLogitsProcessor

    return [lambda ops, history: GrammarLogitsProcessor(ops, history, compiler)]
