"""What is known about hardware, models, flags and variables, as data with sources."""
