"""From what the workers measured to the rows of the exchange benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
import statistics
from typing import Any

from experiments.cluster import network

_HEADER = 66  # bytes of Ethernet, IP and TCP with time stamps
_SEGMENT = 1448  # bytes of payload in a full packet


def bytes_limit(plan_bytes: int) -> float:
  """The most that may be counted for a plan, protocol overhead included."""
  headers = _HEADER * math.ceil(plan_bytes / _SEGMENT)
  return 1.05 * (plan_bytes + headers) + 4096


def break_even_mbit(
  scheme: Mapping[str, float], dense: Mapping[str, float]
) -> float | None:
  """The bandwidth below which a scheme's step is shorter than a dense one's.

  compute + 8 bytes / B, of both, are equal at
  B = 8 (dense bytes - bytes) / (compute - dense compute).

  Args:
    scheme: has compute_ms and serial_bytes.
    dense: likewise.

  Returns:
    Mbit/s; 0 if it beats dense at no bandwidth, None if at any.
  """
  fewer = dense['serial_bytes'] - scheme['serial_bytes']
  slower = scheme['compute_ms'] - dense['compute_ms']
  if fewer <= 0:
    return 0.0 if slower >= 0 else None
  if slower <= 0:
    return None
  return 8 * fewer / (slower * 1e-3) / 1e6


def quartile_distance(values: Sequence[float]) -> float:
  """The distance between the first quartile and the third."""
  if len(values) < 2:
    return 0.0
  low, _, high = statistics.quantiles(values, n=4, method='inclusive')
  return high - low


def make_rows(
  measured: Mapping[str, Any], rate: str, density: float
) -> list[dict[str, Any]]:
  """Turns what the workers measured into rows of the result.

  Args:
    measured: from `exchange_worker.measure`.
    rate: as given; 'loopback' where nothing was shaped.
    density: of the sparse schemes.
  """
  rows = []
  shaped = rate not in ('loopback', 'unlimited')
  for scheme in measured['schemes']:
    ms = {
      mode: [1e3 * s for s in seconds]
      for mode, seconds in scheme['seconds'].items()
    }
    middle = {mode: statistics.median(values) for mode, values in ms.items()}
    sent = scheme['sent_bytes']
    wire = None
    if sent is not None:
      wire = max(round(statistics.median(host)) for host in sent)
    serial_ms = None
    if shaped:
      bits = 8 * scheme['serial_bytes']
      serial_ms = 1e3 * bits / network.bits_per_second(rate)
    plan_bytes = scheme['plan_bytes']
    rows.append(
      {
        'scheme': scheme['scheme'],
        'floats': measured['floats'],
        'workers': measured['workers'],
        'rate': rate,
        'density': density,
        'step_ms': middle['step'],
        'step_ms_spread': quartile_distance(ms['step']),
        'compute_ms': middle['compute'],
        'collectives_ms': middle['collectives'],
        'exchange_ms': middle['step'] - middle['compute'],
        'wire_bytes': wire,
        'plan_bytes': plan_bytes,
        'bytes_ok': None if wire is None else wire <= bytes_limit(plan_bytes),
        'serial_bytes': scheme['serial_bytes'],
        'serial_ms': serial_ms,
        'rounds': len(ms['step']),
      }
    )
  dense = next((row for row in rows if row['scheme'] == 'dense'), None)
  for row in rows:
    row['speedup'] = row['break_even_mbit'] = None
    if dense is not None:
      row['speedup'] = dense['step_ms'] / row['step_ms']
      if row is not dense:
        row['break_even_mbit'] = break_even_mbit(row, dense)
  return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
  """The rows of one size, number of workers and rate, for reading."""
  columns = {
    'scheme': '{}',
    'step_ms': '{:.1f}',
    'step_ms_spread': '{:.1f}',
    'compute_ms': '{:.1f}',
    'exchange_ms': '{:.1f}',
    'collectives_ms': '{:.1f}',
    'serial_ms': '{:.1f}',
    'wire_bytes': '{:,}',
    'plan_bytes': '{:,}',
    'speedup': '{:.2f}',
    'break_even_mbit': '{:,.0f}',
  }
  lines = [
    tuple(name.removesuffix('_ms').replace('_', ' ') for name in columns)
  ]
  for row in rows:
    lines.append(
      tuple(
        '-' if row[name] is None else form.format(row[name])
        for name, form in columns.items()
      )
    )
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  first = rows[0]
  head = (
    f'{first["floats"]:,} floats, {first["workers"]} workers, '
    f'{first["rate"]}; times in ms, break even in Mbit/s'
  )
  return '\n'.join(
    [head]
    + [
      f'{line[0]:<{widths[0]}}  '
      + '  '.join(
        f'{x:>{w}}' for x, w in zip(line[1:], widths[1:], strict=True)
      )
      for line in lines
    ]
  )
