"""The tables of docs/large_models.md, from what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.cost_model import costs
from experiments.program import tables

_SHOWN = 8  # collectives of a scheme
_MEMORY = {
  'inside, GB': ('inside_bytes', '.2f', 1e9),
  'parameters and state, GB': ('argument_bytes', '.2f', 1e9),
  'peak, GB': ('peak_bytes', '.2f', 1e9),
  'compile s': ('compile_seconds', '.0f'),
}


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
  sent = {row['scheme']: row['sent_bytes'] for row in record['rows']}
  dense = sent.get('dense')
  rows = [
    {
      **row,
      'less': dense and dense / row['sent_bytes'],
      **{f'{r:g}': exchange_ms(row['sent_bytes'], r, link) for r in rates},
    }
    for row in record['rows']
  ]
  columns = {
    'scheme': ('scheme', ''),
    'between replicas, B': ('sent_bytes', ','),
    'times less': ('less', ',.0f'),
    **{f'exchange ms at {r:g} Gbit/s': (f'{r:g}', ',.1f') for r in rates},
    **_MEMORY,
  }
  return tables.markdown([*columns], tables.cells(columns, rows))


def slices_table(record: Mapping[str, Any]) -> str:
  """A row a kind of slice and scheme: bytes and memory."""
  columns = {
    'slice': ('target', ''),
    'scheme': ('scheme', ''),
    'between slices, B': ('sent_bytes', ','),
    'plan, B': ('plan_bytes', ','),
    **_MEMORY,
  }
  return tables.markdown([*columns], tables.cells(columns, record['rows']))


def collectives_table(record: Mapping[str, Any]) -> str:
  """The largest collectives between replicas and inside, by scheme.

  FSDP's own are the same under every scheme: those of the first are shown.
  """
  shown = []
  for row in record['rows']:
    for c in [c for c in row['collectives'] if c['axes'] != 'fsdp'][:_SHOWN]:
      shown.append({'whose': row['scheme'], **c, 'axes': c['axes'] or '-'})
    if row is record['rows'][0]:
      inside = [c for c in row['collectives'] if c['axes'] == 'fsdp']
      shown += [{'whose': 'FSDP itself', **c} for c in inside[:_SHOWN]]
  columns = {
    'whose': ('whose', ''),
    'crosses': ('axes', ''),
    'collective': ('kind', ''),
    'operand, B': ('bytes', ','),
    'times': ('times', ''),
  }
  return tables.markdown([*columns], tables.cells(columns, shown))


def plans_table(record: Mapping[str, Any]) -> str:
  """A row a recipe: payload, ratio, seconds."""
  columns = {
    'scheme': ('scheme', ''),
    'message, B': ('payload_bytes', ','),
    'ratio': ('ratio', ',.1f'),
    'plan s': ('seconds', '.1f'),
  }
  return tables.markdown([*columns], tables.cells(columns, record['rows']))


def leaves_table(record: Mapping[str, Any]) -> str:
  """A row a scheme, a column a number of leaves: CPU seconds."""
  columns = {'scheme': ('scheme', '')}
  by_scheme: dict[str, dict[str, Any]] = {}
  for row in record['rows']:
    heading = f'{row["leaves"]:,} leaves'
    columns[heading] = (heading, '.1f')
    own = by_scheme.setdefault(row['scheme'], {'scheme': row['scheme']})
    own[heading] = row['trace_cpu_seconds'] + row['compile_cpu_seconds']
  cells = tables.cells(columns, [*by_scheme.values()])
  return tables.markdown([*columns], cells)


# By part of the record.
TABLES = {
  'steps': (steps_table, collectives_table),
  'slices': (slices_table,),
  'plans': (plans_table,),
  'leaves': (leaves_table,),
}
