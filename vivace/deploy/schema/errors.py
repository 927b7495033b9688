"""What can be wrong with a deployment file."""

from __future__ import annotations

from vivace.errors import CannotStart


class DeploymentError(CannotStart):
    """The file is not a deployment; the text names the file, the key and the remedy."""
