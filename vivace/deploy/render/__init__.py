"""A deployment -> what starts it."""
