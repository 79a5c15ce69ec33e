"""The primitives whose best form depends on the platform.

The forms of a primitive stand side by side, and all give the same bits. A
program's form is chosen when the program is lowered, so a program that a CPU
lowers for a TPU gets the TPU's form. No other folder asks for the platform.
"""
