"""Settings of the whole suite: no deadlines (machines are shared), few torch threads."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "vivace", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("vivace")
