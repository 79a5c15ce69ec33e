"""A logarithmic axis of bytes."""

import math
from typing import Any

from matplotlib import ticker

# Numbers at ticks between two powers of ten that stand for themselves.
_BETWEEN = (2, 5)


def by_bytes(axes: Any) -> None:
  """Makes the horizontal axis logarithmic, with names such as 10 kB.

  Ticks between powers of ten have names where fewer than two powers are shown.

  Args:
    axes: of Matplotlib.
  """
  named = ticker.EngFormatter('B')

  def between(value: float, _: int | None = None) -> str:
    left, right = sorted(axes.get_xlim())
    powers = math.floor(math.log10(right)) - math.ceil(math.log10(left)) + 1
    first = round(value / 10 ** math.floor(math.log10(value)))
    return named(value) if powers < 2 and first in _BETWEEN else ''

  axes.set_xscale('log')
  axes.xaxis.set_major_formatter(named)
  axes.xaxis.set_minor_formatter(between)
