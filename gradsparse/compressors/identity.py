"""The identity: every coordinate, as float32."""

from __future__ import annotations

from gradsparse.interfaces import Compressor


def identity(rule: Compressor | None = None) -> Compressor:
  """Sends the leaves as they are; payloads may be added up.

  Args:
    rule: a compressor whose name and choice of leaves to take over, where the
      exchange does the coding in its stead (`exchanges.reduce_scatter`).
  """

  def encode(signals, shared, ctx):
    del shared, ctx
    return [s.value for s in signals]

  plain = Compressor('dense', encode, linear=True, unbiased=True, raw=True)
  if rule is None:
    return plain
  return plain._replace(
    name=rule.name,
    accepts=rule.accepts,
    min_size=rule.min_size,
    dense_1d=rule.dense_1d,
    unbiased=rule.unbiased,
  )
