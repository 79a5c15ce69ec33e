"""Which runs want a GPU, those that tell most first.

All workers are simulated on one device. CIFAR-10 is tested on data_batch_5,
which training does not see, so that nobody needs its test file; PTB and
Multi30k are tested on their test files.
"""

from collections.abc import Callable, Sequence
import pathlib
import time
from typing import NamedTuple

from experiments.papers import catalogue
from experiments.papers import page
from experiments.papers import record as records
from experiments.papers import running
from experiments.papers import table as papers
from experiments.program import tables


class Part(NamedTuple):
  """Rows of one table.

  Attributes:
    table: its name.
    size: of `papers.SIZES`.
    rows: their names; each brings the dense row that it is compared to.
  """

  table: str
  size: str
  rows: tuple[str, ...]

  @property
  def text(self) -> str:
    """The rows in one line, the dense ones among them."""
    rows = running.with_dense(catalogue.load(self.table), self.rows)
    return f'{self.table}, {self.size}: {", ".join(rows)}'


def _workers(*counts: int) -> tuple[str, ...]:
  return tuple(f'dgc_{count}workers' for count in counts)


ORDER = (
  Part(
    'schemes_cifar10',
    papers.HELD_OUT,
    ('dgc', 'gtopk', 'dgc_4bit', 'qsgd_4bit', 'variance'),
  ),
  Part('cifar10_resnet20', papers.HELD_OUT, _workers(8, 16, 32)),
  Part('dgc_table2', papers.HELD_OUT, _workers(4, 8, 16, 32)),
  Part('dgc_table4_ptb', papers.FULL, ('dgc',)),
  Part('gtopk_figure7', papers.FULL, ('gtopk',)),
  Part('schemes_translation', papers.FULL, ('dgc', 'adam_dropping', 'gtopk')),
)


def run(
  workdir: pathlib.Path,
  *,
  seeds: Sequence[int],
  command: str,
  budget: float | None = None,
  order: Sequence[Part] = ORDER,
  clock: Callable[[], float] = time.monotonic,
) -> list[str]:
  """Trains what is missing, part by part, and prints each table.

  Args:
    workdir: gets a record and a folder of runs for each table.
    seeds: of parameters and data order.
    command: what the user typed.
    budget: seconds after which no further run begins.
    order: of the parts.
    clock: tells seconds.

  Returns:
    What is still missing, in words.

  Raises:
    StoppedError: a signal; the run goes on from there the next time.
  """
  begun, missing = clock(), []
  for part in order:
    table = catalogue.load(part.table)
    rows = running.with_dense(table, part.rows)
    record = records.Record(workdir / f'{part.table}.json', part.table, table)
    left = budget
    if budget is not None:
      left = max(0.0, budget - (clock() - begun))
    found = running.run(
      table,
      rows,
      size=part.size,
      seeds=seeds,
      workdir=workdir / part.table,
      record=record,
      command=command,
      budget=left,
      clock=clock,
    )
    missing += [
      f'{part.table}, {each.row}, seed {each.seed}: {each.why}'
      for each in found
    ]
    if any(record.runs(part.size, row) for row in rows):
      tables.show(page.results(table, record, part.size, rows))
  return missing
