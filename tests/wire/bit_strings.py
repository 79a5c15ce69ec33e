"""Elias codes and streams as strings of '0' and '1': slow, and plain."""

from __future__ import annotations


def gamma(value: int) -> str:
  digits = format(value, 'b')
  return '0' * (len(digits) - 1) + digits


def delta(value: int) -> str:
  digits = format(value, 'b')
  return gamma(len(digits)) + digits[1:]


def omega(value: int) -> str:
  bits = '0'
  while value > 1:
    digits = format(value, 'b')
    bits = digits + bits
    value = len(digits) - 1
  return bits


def unary(value: int) -> str:
  return '0' * (value - 1) + '1' if value < 8 else '0' * 7 + omega(value - 7)


CODES = {'unary': unary, 'gamma': gamma, 'delta': delta, 'omega': omega}


def to_words(bits: str, count: int) -> list[int]:
  """The first `count` words of a stream, the first bit on top."""
  bits = bits.ljust(32 * count, '0')
  return [int(bits[32 * i : 32 * i + 32], 2) for i in range(count)]


def dense(levels: list[int], kind: str) -> str:
  """QSGD's dense code: Elias(|level| + 1), a sign where it is not zero."""
  code = CODES[kind]
  signs = {-1: '1', 0: '', 1: '0'}
  return ''.join(
    code(abs(level) + 1) + signs[(level > 0) - (level < 0)] for level in levels
  )


def sparse(levels: list[int], kind: str) -> str:
  """QSGD's sparse code: Elias(gap), sign, Elias(|level|) of each nonzero."""
  code = CODES[kind]
  bits, last = '', -1
  for index, level in enumerate(levels):
    if level:
      sign = '1' if level < 0 else '0'
      bits += code(index - last) + sign + code(abs(level))
      last = index
  return bits
