"""Writes docs/rules.md, docs/deployment.schema.json and catalogue/flags.json:
`python -m vivace.deploy.document`."""

from __future__ import annotations

import json
from pathlib import Path

from vivace.deploy.catalogue.flags import FILE, flags_json
from vivace.deploy.files import packaged
from vivace.deploy.report.rules import render_markdown
from vivace.deploy.rules.judge import RULES
from vivace.deploy.schema.deployment import json_schema

DOCS = Path(__file__).resolve().parents[2] / "docs"


def pages() -> dict[str, str]:
    """File name -> content."""
    return {
        "rules.md": render_markdown(RULES),
        "deployment.schema.json": json.dumps(json_schema(), indent=2) + "\n",
    }


if __name__ == "__main__":
    Path(packaged(FILE)).write_bytes(flags_json())
    for name, content in pages().items():
        (DOCS / name).write_text(content, encoding="utf-8")
