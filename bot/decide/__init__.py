"""The second step: what a stored delivery asks for, and whether its author may ask."""
