"""Trains a small network five ways and compares accuracy and bytes.

  python -m experiments.demo          (what `make demo` runs)

Four simulated workers, scikit-learn's handwritten digits, one fixed seed; the
setting is `configs/digits.py`. Takes under three minutes on two cores and
writes `runs/demo/report.html` beside each run's records.
"""

import argparse
from collections.abc import Mapping, Sequence
import pathlib
import shutil
from typing import Any

from absl import logging
from configs import digits
from experiments import communication
from experiments import records
from experiments import report
from experiments import train
import jax
from rich import box
from rich import console
from rich import progress
from rich import table

_WORKDIR = pathlib.Path('runs', 'demo')


class Display:
  """A live bar on a terminal, a line now and then elsewhere."""

  def __init__(self, screen: console.Console):
    """Prepares to write on `screen`."""
    self._screen = screen
    self._live = screen.is_terminal
    self._bar = progress.Progress(
      progress.TextColumn('{task.description:<18}'),
      progress.BarColumn(),
      progress.MofNCompleteColumn(),
      progress.TimeElapsedColumn(),
      progress.TextColumn('{task.fields[note]}'),
      console=screen,
      disable=not self._live,
    )
    self._task: Any = None
    self._scheme = ''
    self._shown = 0

  def __enter__(self) -> 'Display':
    self._bar.start()
    return self

  def __exit__(self, *exception) -> None:
    self._bar.stop()

  def start(self, scheme: str, steps: int) -> None:
    """Begins the bar of a run."""
    self._scheme, self._shown = scheme, 0
    self._task = self._bar.add_task(scheme, total=steps, note='compiling')

  def update(self, step: int, steps: int, line: Mapping[str, float]) -> None:
    """Shows where the run is."""
    self._bar.update(self._task, completed=step)
    accuracy = line.get('test/accuracy')
    if accuracy is None or line['step'] == self._shown:
      return
    self._shown = line['step']
    note = f'loss {line["train/loss"]:.4f}, test accuracy {accuracy:.1%}'
    self._bar.update(self._task, note=note)
    if not self._live:
      self._screen.print(
        f'{self._scheme:<18} step {self._shown}/{steps}  {note}', soft_wrap=True
      )


def results_table(summaries: Sequence[Mapping[str, Any]]) -> table.Table:
  """Returns the final table, one row a scheme."""
  shown = table.Table(
    box=box.SIMPLE_HEAD,
    pad_edge=False,
    padding=(0, 1, 0, 0),
    title='digits, 4 simulated workers; bytes are those of one worker',
    caption='second line: the average over the whole run, warm-up included',
  )
  shown.add_column('scheme', no_wrap=True)
  for heading in (
    'test\naccuracy',
    'message\n(bytes)',
    'sent a step\n(bytes)',
    'compression\nratio',
    'seconds',
  ):
    shown.add_column(heading, justify='right', no_wrap=True)
  for summary in summaries:
    comm = summary['comm']
    shown.add_row(
      summary['scheme'],
      f'{summary["final"]["test_accuracy"]:.1%}',
      communication.last_and_average(comm, 'payload_bytes_per_step'),
      communication.last_and_average(comm, 'sent_bytes_per_step'),
      communication.last_and_average(comm, 'ratio', '{:,.1f}x'),
      f'{summary["seconds"]:.1f}',
    )
  return shown


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
  screen = console.Console()
  summaries = []
  with Display(screen) as display:
    for scheme in schemes:
      config = digits.get_config(scheme)
      config.train.checkpoint_every = 0  # short enough to begin again
      config.train.steps = steps or config.train.steps
      folder = workdir / scheme
      if (folder / records.CONFIG).exists():
        shutil.rmtree(folder)
      display.start(scheme, config.train.steps)
      summaries.append(
        train.train_and_evaluate(config, folder, progress=display.update)
      )
      jax.clear_caches()  # the next scheme compiles its own programs
  report.write(
    [workdir / scheme for scheme in schemes],
    workdir / 'report.html',
    title='Five ways to exchange gradients: digits, 4 workers',
  )
  screen.print(results_table(summaries))
  screen.print(f'Report: {workdir / "report.html"}', soft_wrap=True)
  return summaries


def main(argv: Sequence[str] | None = None) -> None:
  """Parses the command line and runs the demo."""
  parser = argparse.ArgumentParser(
    prog='python -m experiments.demo', description=__doc__
  )
  parser.add_argument('--workdir', type=pathlib.Path, default=_WORKDIR)
  parser.add_argument(
    '--schemes', nargs='+', choices=digits.SCHEMES, default=digits.SCHEMES
  )
  parser.add_argument('--steps', type=int, help='fewer, for a quick look')
  options = parser.parse_args(argv)
  logging.set_verbosity(logging.WARNING)
  run(options.workdir, list(options.schemes), options.steps)


if __name__ == '__main__':
  main()
