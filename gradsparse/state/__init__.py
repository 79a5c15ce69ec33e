"""The state of a scheme: what it holds, how to read it, how to switch."""
