"""Scores that say the mean cross-entropy in other units."""

import math


def perplexity(nats: float, symbols: float) -> float:
  """Returns how many equally likely symbols would be as hard to tell.

  Args:
    nats: total cross-entropy.
    symbols: how many it is the total of; more than 0.

  Example:
    >>> perplexity(3 * math.log(100), 3)
    100.0
  """
  try:
    return math.exp(nats / symbols)
  except OverflowError:  # of a model that has diverged
    return math.inf


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
