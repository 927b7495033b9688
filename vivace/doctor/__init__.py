"""`vivace doctor`: is this node set up to serve?"""
