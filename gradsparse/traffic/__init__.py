"""Bytes: what collectives send, what is planned, what a program does."""
