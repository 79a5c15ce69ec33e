"""Scores that say the mean cross-entropy in other units."""

import math
import sys


def perplexity(nats: float, symbols: float) -> float:
  """Returns how many equally likely symbols would be as hard to tell.

  Of a model that has diverged the largest number there is, which JSON can hold.

  Args:
    nats: total cross-entropy.
    symbols: how many it is the total of; more than 0.

  Example:
    >>> perplexity(3 * math.log(100), 3)
    100.0
  """
  try:
    return math.exp(nats / symbols)
  except OverflowError:
    return sys.float_info.max


def bits_per_symbol(nats: float, symbols: float) -> float:
  """Returns the mean cross-entropy in bits, such as bits a character.

  Args:
    nats: total cross-entropy.
    symbols: how many it is the total of; more than 0.

  Example:
    >>> bits_per_symbol(3 * math.log(8), 3)
    3.0
  """
  return nats / symbols / math.log(2)
