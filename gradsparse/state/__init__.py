"""The state of a scheme: its fields, how to read it, how to switch schemes."""
