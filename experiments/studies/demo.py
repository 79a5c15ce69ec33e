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
from experiments.run import records
from experiments.studies import scheme_runs


class Display(scheme_runs.Watch):
  """A bar where a person watches, a line now and then elsewhere."""

  def __init__(self, bar: progress.Bar):
    """Prepares to move `bar`."""
    self._bar = bar
    self._scheme = ''
    self._shown = 0

  def start(self, run: scheme_runs.Run) -> None:
    """Begins the bar of a run."""
    self._scheme, self._shown = run.scheme, 0
    self._bar.start(f'{run.scheme:<18}', run.config.train.steps)

  def update(self, step: int, steps: int, line: Mapping[str, float]) -> None:
    """Shows where the run is."""
    self._bar.update(step)
    accuracy = line.get('test/accuracy')
    if accuracy is None or line['step'] == self._shown:
      return
    self._shown = line['step']
    note = f'loss {line["train/loss"]:.4f}, test accuracy {accuracy:.1%}'
    self._bar.update(step, note)
    if self._bar.lines:
      print(
        f'{self._scheme:<18} step {self._shown}/{steps}  {note}', flush=True
      )

  def end(self, run: scheme_runs.Run, summary: Mapping[str, Any]) -> None:
    """Leaves the bar as it is."""


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


def list_runs(
  schemes: Sequence[str], workdir: pathlib.Path, steps: int | None = None
) -> list[scheme_runs.Run]:
  """Returns a run for each scheme, see `run`; they write no checkpoints."""
  runs = []
  for scheme in schemes:
    config = digits.get_config(scheme)
    config.train.steps = steps or config.train.steps
    config.train.checkpoint_every = 0
    runs.append(scheme_runs.Run(scheme, config, workdir / scheme))
  return runs


def train_afresh(
  runs: Sequence[scheme_runs.Run], watch: scheme_runs.Watch | None = None
) -> list[dict[str, Any]]:
  """Trains all in place of former runs, and returns their summaries.

  Args:
    runs: from `list_runs`.
    watch: is told what happens.
  """
  summaries = []
  for each in runs:
    if (each.folder / records.CONFIG).exists():
      shutil.rmtree(each.folder)
    summaries.append(scheme_runs.train_one(each, watch=watch))
  return summaries


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
  runs = list_runs(schemes, workdir, steps)
  with progress.Bar().shown() as bar:
    summaries = train_afresh(runs, Display(bar))
  page.write(
    [run.folder for run in runs],
    workdir / 'report.html',
    title='Five ways to exchange gradients: digits, 4 workers',
  )
  tables.show(results_table(summaries))
  print(f'Report: {workdir / "report.html"}')
  return summaries
