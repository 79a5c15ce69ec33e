"""The table of docs/faults.md, from what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.program import tables
from experiments.studies.network_faults import faults

_HEAD = (
  'fault',
  'what happened',
  'after s',
  'what was said',
  'went on after step',
  'what was lost',
)


def table(record: Mapping[str, Any]) -> str:
  """A row a fault."""
  return tables.markdown(
    _HEAD,
    [
      (
        faults.FAULTS[row['fault']].what,
        row['happened'],
        f'{row["seconds"]:.1f}',
        '<br>'.join(f'`{line}`' for line in _distinct(row['said'])) or '-',
        str(row['resumed']) if row['said'] else '-',
        ', '.join(row['differences']) or 'nothing',
      )
      for row in record['rows']
    ],
  )


def _distinct(lines: list[str]) -> list[str]:
  """Each line once, without what is the same in all."""
  return list(dict.fromkeys(line.partition(';')[0] for line in lines))
