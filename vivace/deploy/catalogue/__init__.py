"""What is known about hardware and models, as data with sources."""
