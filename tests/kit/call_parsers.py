"""Names of --tool-call-parser, one for each format of calls."""

from __future__ import annotations

from vivace.parsers.names import TOOL_CALL_PARSERS
from vivace.parsers.parser import answer_format

DISTINCT = list({answer_format(name, None).shape: name for name in TOOL_CALL_PARSERS}.values())
