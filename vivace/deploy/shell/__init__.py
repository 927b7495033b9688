"""What a shell script would start, found out by reading it: nothing is executed.

`read_script` is the entrance. The syntax is tree-sitter's; the meaning of the statements that
launch scripts are made of is here.
"""
