"""A deployment as one typed file: what runs where, with which flags, for which load."""
