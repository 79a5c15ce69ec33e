"""The primitives whose best form depends on the platform.

The forms of a primitive stand side by side, and give the same bits, except for
sums of floating-point numbers. Where shapes allow, JAX chooses the form when it
lowers a program. Only `platforms` asks JAX for the platform.
"""
