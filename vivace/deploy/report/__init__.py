"""A verdict for people and for programs."""
