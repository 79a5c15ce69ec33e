"""The tables of docs/large_models.md, from what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.cost_model import costs
from experiments.program import tables

_SHOWN = 8  # collectives of a scheme


def exchange_ms(sent_bytes: int, gbits: float, devices_a_link: int) -> float:
  """Modelled milliseconds between replicas, without latency.

  Args:
    sent_bytes: by a device to other replicas.
    gbits: of a link, each way, in 10^9 bits a second.
    devices_a_link: devices that send through one link.
  """
  network = costs.Network.from_rate(gbits * 1e9)
  return 1e3 * network.seconds(devices_a_link * sent_bytes)


def steps_table(record: Mapping[str, Any]) -> str:
  """A row a scheme: bytes, memory, modelled milliseconds."""
  rates, link = record['gbits'], record['devices_a_link']
  dense = next(
    (r['sent_bytes'] for r in record['rows'] if r['scheme'] == 'dense'), None
  )
  rows = []
  for row in record['rows']:
    sent = row['sent_bytes']
    rows.append(
      (
        row['scheme'],
        f'{sent:,}',
        f'{dense / sent:,.0f}' if dense else '-',
        *(f'{exchange_ms(sent, rate, link):,.1f}' for rate in rates),
        f'{row["inside_bytes"] / 1e9:.2f}',
        f'{row["argument_bytes"] / 1e9:.2f}',
        f'{row["peak_bytes"] / 1e9:.2f}',
        f'{row["compile_seconds"]:.0f}',
      )
    )
  head = (
    'scheme',
    'between replicas, B',
    'times less',
    *(f'exchange ms at {rate:g} Gbit/s' for rate in rates),
    'inside, GB',
    'parameters and state, GB',
    'peak, GB',
    'compile s',
  )
  return tables.markdown(head, rows)


def slices_table(record: Mapping[str, Any]) -> str:
  """A row a kind of slice and scheme: bytes and memory."""
  rows = [
    (
      row['target'],
      row['scheme'],
      f'{row["sent_bytes"]:,}',
      f'{row["plan_bytes"]:,}',
      f'{row["inside_bytes"] / 1e9:.2f}',
      f'{row["argument_bytes"] / 1e9:.2f}',
      f'{row["peak_bytes"] / 1e9:.2f}',
      f'{row["compile_seconds"]:.0f}',
    )
    for row in record['rows']
  ]
  head = (
    'slice',
    'scheme',
    'between slices, B',
    'plan, B',
    'inside, GB',
    'parameters and state, GB',
    'peak, GB',
    'compile s',
  )
  return tables.markdown(head, rows)


def collectives_table(record: Mapping[str, Any]) -> str:
  """The largest collectives between replicas and inside, by scheme."""
  rows = []
  for row in record['rows']:
    for inside in (False, True):
      found = [c for c in row['collectives'] if (c['axes'] == 'fsdp') == inside]
      if inside and row is not record['rows'][0]:
        continue  # FSDP's own are the same under every scheme
      for c in found[:_SHOWN]:
        rows.append(
          (
            'FSDP itself' if inside else row['scheme'],
            c['axes'] or '-',
            c['kind'],
            f'{c["bytes"]:,}',
            str(c['times']),
          )
        )
  head = ('whose', 'crosses', 'collective', 'operand, B', 'times')
  return tables.markdown(head, rows)


def plans_table(record: Mapping[str, Any]) -> str:
  """A row a recipe: payload, ratio, seconds."""
  rows = [
    (
      row['scheme'],
      f'{row["payload_bytes"]:,}',
      f'{row["ratio"]:,.1f}',
      f'{row["seconds"]:.1f}',
    )
    for row in record['rows']
  ]
  return tables.markdown(('scheme', 'message, B', 'ratio', 'plan s'), rows)


def leaves_table(record: Mapping[str, Any]) -> str:
  """A row a scheme, a column a number of leaves: CPU seconds."""
  numbers = list(dict.fromkeys(row['leaves'] for row in record['rows']))
  by_scheme: dict[str, dict[int, str]] = {}
  for row in record['rows']:
    seconds = row['trace_cpu_seconds'] + row['compile_cpu_seconds']
    by_scheme.setdefault(row['scheme'], {})[row['leaves']] = f'{seconds:.1f}'
  return tables.markdown(
    ('scheme', *(f'{number:,} leaves' for number in numbers)),
    [
      (scheme, *(cells.get(number, '-') for number in numbers))
      for scheme, cells in by_scheme.items()
    ],
  )


# By part of the record.
TABLES = {
  'steps': (steps_table, collectives_table),
  'slices': (slices_table,),
  'plans': (plans_table,),
  'leaves': (leaves_table,),
}
