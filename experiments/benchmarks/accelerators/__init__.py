"""What the compilers of accelerators make of a step."""
