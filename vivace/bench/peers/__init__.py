"""`vivace bench peers`: this server and others on the same host, under the same load."""
