"""How large what an answer has to obey may be, and the stack that takes."""

from vivace.grammar.thinking_rule import THINKING
from vivace.protocol.constraints import EBNF, JSON_SCHEMA, REGEX, STRUCTURAL_TAG

MAX_CHARACTERS = {
    JSON_SCHEMA: 128 << 10,
    REGEX: 16 << 10,
    EBNF: 64 << 10,
    STRUCTURAL_TAG: 512 << 10,
    THINKING: 1280 << 10,
}
"""of a constraint of each kind"""
MAX_TEXTS = 256 << 10
"""characters of what a client sends as JSON"""
MAX_DEPTH = 100
"""objects and lists in each other"""
MAX_VALUES = 50_000
"""strings, numbers, objects and lists"""
STACK = 256 << 20
"""bytes of addresses of a thread that compiles: the library goes down a chain of thousands of
references in one stack. What fits where it is tried must fit in the engine."""
