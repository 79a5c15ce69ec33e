"""The demo: a small network trained five ways, with a report."""

from collections.abc import Mapping, Sequence
import pathlib
import shutil
from typing import Any

from configs import digits
from experiments.program import progress
from experiments.program import tables
from experiments.report import page
from experiments.run import byte_counter
from experiments.run import display
from experiments.run import records
from experiments.studies import scheme_runs


def results_table(summaries: Sequence[Mapping[str, Any]]) -> tables.Table:
  """Returns the final table, one row a scheme."""
  both = byte_counter.last_and_average
  return tables.make(
    (
      'scheme',
      'test\naccuracy',
      'message\n(bytes)',
      'sent a step\n(bytes)',
      'compression\nratio',
      'seconds',
    ),
    [
      (
        summary['scheme'],
        f'{summary["final"]["test_accuracy"]:.1%}',
        both(summary['comm'], 'payload_bytes_per_step'),
        both(summary['comm'], 'sent_bytes_per_step'),
        both(summary['comm'], 'ratio', '{:,.1f}x'),
        f'{summary["seconds"]:.1f}',
      )
      for summary in summaries
    ],
    title='digits, 4 simulated workers; bytes are those of one worker',
    caption='second line: the average over the whole run, warm-up included',
  )


def run(
  workdir: pathlib.Path, schemes: Sequence[str], steps: int | None = None
) -> list[dict[str, Any]]:
  """Trains each scheme afresh below `workdir` and writes the report.

  Args:
    workdir: gets one folder a scheme; a former demo's are replaced.
    schemes: of `configs.digits`.
    steps: fewer than the setting's, for a quick look.

  Returns:
    The summaries.
  """
  summaries = []
  with progress.Bar().shown() as bar:
    for scheme in schemes:
      config, folder = digits.get_config(scheme), workdir / scheme
      config.train.steps = steps or config.train.steps
      config.train.checkpoint_every = 0
      if (folder / records.CONFIG).exists():
        shutil.rmtree(folder)
      name = f'{scheme:<18} '
      bar.start(name, config.train.steps)
      summaries.append(
        scheme_runs.train_one(
          scheme_runs.Run(scheme, config, folder),
          progress=display.Display(bar, name, tests=True),
        )
      )
  page.write(
    [workdir / scheme for scheme in schemes],
    workdir / 'report.html',
    title='Five ways to exchange gradients: digits, 4 workers',
  )
  tables.show(results_table(summaries))
  print(f'Report: {workdir / "report.html"}')
  return summaries
