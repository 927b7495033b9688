"""What a device cannot do."""

from __future__ import annotations

from vivace.errors import CannotStart


class PlatformError(CannotStart):
    """The device cannot be used; the text says what to do."""


class CaptureError(CannotStart):
    """A step does something that cannot be captured; the text names the op."""
