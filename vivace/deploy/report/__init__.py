"""The verdict for people and for programs."""
