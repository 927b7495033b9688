"""The JSON Schema of deployment.yaml, for editors."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.deploy.schema.deployment import Deployment

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Draft 2020-12."""
    return {"$schema": DIALECT, "title": "Vivace deployment", **msgspec.json.schema(Deployment)}
