"""The primitives whose best form depends on the platform.

The forms of a primitive stand side by side. Which one a program gets is decided
when the program is lowered, so a program that a CPU lowers for a TPU has the
TPU's forms. All forms of a primitive give the same bits. No other room asks for
the platform.
"""
