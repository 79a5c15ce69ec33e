"""The rows of schemes_ptb, schemes_speech and schemes_translation.

Every scheme is compared with a dense row. For schemes of papers that train with
momentum SGD it has momentum SGD; for those of the local-gradient paper it has
Adam where Adam does well. The variance-based schemes cannot be clipped (their
second moments are those of the gradient before clipping). So where the other
rows are clipped, they are compared with a dense row that is not.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from configs import local_table1
from configs.dgc_table2 import DGC
from configs.dgc_table2 import QUICK_WARMUP
from configs.gtopk_table5 import GTOPK
from configs.qsgd_table1 import qsgd
from experiments.papers.table import Question
from experiments.papers.table import Row
from gradsparse.wrappers import local_gradient

_UNCLIPPED = {'compression.clip_norm': 0.0}
# A warm-up is this part of a full run.
_SHARE = {'warmup_share': 0.1}
# Leaves of a small network are small.
_SMALL = {'compression.min_size': 1000}
_SYNC = 'PARTIAL with averaging'


def averaging(
  dropping: str, mean: str, modes: Sequence[str] = local_gradient.MODES
) -> tuple[Question, ...]:
  """Returns whether PARTIAL is better than dropping, and what averages do.

  Each asked twice: of one worker's own model, and of the mean of all workers'
  parameters, which is an average that is not counted.

  Args:
    dropping: name of the row without a local gradient; the row that ends in
      `_equal` sends as much as PARTIAL with averages.
    mean: the score of that mean, of `metrics.METRICS`; that of one worker has
      `worker_` before it.
    modes: of local gradients, that have a row with averages and one without.
  """
  beside = (
    (f'{_SYNC}, dropping (fewer bytes)', 'partial_sync', dropping),
    (f'{_SYNC}, dropping (equal bytes)', 'partial_sync', f'{dropping}_equal'),
    ('PARTIAL, dropping (equal bytes)', 'partial', dropping),
    *(
      (f'{mode.upper()} with averaging, without', f'{mode}_sync', mode)
      for mode in modes
    ),
  )
  return tuple(
    Question(f'{asks}; {of}', row, other, metric)
    for of, metric in (
      ('one worker', f'worker_{mean}'),
      ('the mean of all', mean),
    )
    for asks, row, other in beside
  )


def questions(dropping: str, mean: str) -> tuple[Question, ...]:
  """Returns what the rows of `with_local` answer: the paper's claims.

  Args:
    dropping: see `averaging`.
    mean: likewise.
  """
  return (
    *averaging(dropping, mean),
    Question(
      'dropping with a warm-up (more bytes), without',
      f'{dropping}_warmup',
      dropping,
    ),
    Question(
      f'{_SYNC} and a warm-up (more bytes), without',
      'partial_sync_warmup',
      'partial_sync',
    ),
    Question('DGC with a warm-up, without', 'dgc', 'dgc_without_warmup'),
  )


def with_momentum(
  own: Mapping[str, Any],
  *,
  dense: str,
  unclipped: Mapping[str, Any] | None = None,
  alpha: float = 1.5,
  hybrid: tuple[float, float] = (2.0, 0.01),
) -> dict[str, Row]:
  """Returns all schemes but local gradients, beside dense rows.

  Args:
    own: fields of all these rows: the optimizer.
    dense: name of the row that they stand beside.
    unclipped: where the others are clipped, the fields of a dense row that is
      not and of the variance-based ones beside it. None: no row is clipped.
    alpha: of `variance`; by default that of variance_table1, recalled.
    hybrid: alpha and threshold of `hybrid`; by default of variance_table1.
      The hybrid sends the threshold in place of a gradient that is larger, so
      one threshold fits only gradients of its size.
  """

  def row(fields, warmup=None, beside=dense):
    return Row(
      fields={**own, **fields},
      beside=beside,
      full=warmup | _SHARE if warmup else {},
      quick=warmup or {},
    )

  rows = {
    dense: Row(fields=own),
    'dropping': row(local_table1.DROPPING),
    'dgc': row(DGC, QUICK_WARMUP),
    'dgc_without_warmup': row(DGC),
    'gtopk': row(GTOPK | {'compression.density': 0.005}, QUICK_WARMUP),
    **{
      f'qsgd_{bits}bit': row(qsgd(bits, bucket) | _SMALL)
      for bits, bucket in ((2, 128), (4, 512), (8, 512))
    },
    'terngrad': row({'compression.name': 'terngrad'} | _SMALL),
  }
  variance = {'compression.name': 'variance_based', 'compression.alpha': alpha}
  both = {
    'compression.name': 'variance_strom',
    'compression.alpha': hybrid[0],
    'compression.threshold': hybrid[1],
  }
  plain, beside = {}, dense
  if unclipped is not None:
    plain, beside = _UNCLIPPED | unclipped, f'{dense}_unclipped'
    rows[beside] = Row(fields={**own, **plain})
  return rows | {
    'variance': row(variance | plain, beside=beside),
    'hybrid': row(both | plain, beside=beside),
  }


def with_local(
  own: Mapping[str, Any], *, dense: str, dropping: str, equal: float
) -> dict[str, Row]:
  """Returns gradient dropping and local gradients, beside a dense row.

  Each with and without a warm-up of the drop ratio; local gradients with and
  without synchronisation, too.

  Args:
    own: fields of all these rows: the optimizer.
    dense: name of the row that they stand beside.
    dropping: name of the row without a local gradient.
    equal: a density at which that row sends as much in a quick run as one with
      averages does; the row that ends in `_equal` has it.
  """
  rows = {dense: Row(fields=own)}
  for warmup in (False, True):
    end = '_warmup' if warmup else ''
    rows[f'{dropping}{end}'] = _local(own, dense, '', False, warmup)
    for mode in local_gradient.MODES:
      rows[f'{mode}{end}'] = _local(own, dense, mode, False, warmup)
      rows[f'{mode}_sync{end}'] = _local(own, dense, mode, True, warmup)
  plain = rows[dropping]
  fields = {**plain.fields, 'compression.density': equal}
  rows[f'{dropping}_equal'] = dataclasses.replace(plain, fields=fields)
  return rows


def at_rates(
  rows: Mapping[str, Row], rates: Mapping[str, float]
) -> dict[str, Row]:
  """Returns the rows, of which some take the learning rate of `rates`.

  Args:
    rows: by name.
    rates: of the quick setting, by name of a row, where trials chose another
      than that of `fields`.
  """
  return dict(rows) | {
    name: dataclasses.replace(rows[name], chosen_rate=rate)
    for name, rate in rates.items()
  }


def _local(
  own: Mapping[str, Any], dense: str, mode: str, sync: bool, warmup: bool
) -> Row:
  made = local_table1.local(mode, sync=sync, warmup=warmup)
  return Row(
    fields={**own, **made.fields},
    beside=dense,
    full=local_table1.QUICK_WARMUP | _SHARE if warmup else {},
    quick=made.quick,
  )
