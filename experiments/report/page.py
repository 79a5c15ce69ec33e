"""One HTML page of finished or running experiments, with its picture inside."""

import base64
from collections.abc import Mapping, Sequence
import html
import os
import pathlib
import string
from typing import Any, NamedTuple

from experiments.program import errors
from experiments.program import files
from experiments.report import plots
from experiments.report import rows
from experiments.run import records
from experiments.run import scores
import pandas as pd

TITLE = 'Training with compressed gradients'


class Run(NamedTuple):
  """What a working directory holds."""

  name: str
  config: Mapping[str, Any]
  metrics: list[dict[str, Any]]
  summary: Mapping[str, Any] | None  # None: not at its last step yet


# By name in the summary's `comm`, heading and form; older runs lack some.
_BYTES = {
  'payload_bytes_per_step': ('payload of a worker (bytes/step)', '{:,.0f}'),
  'sent_bytes_per_step': ('sent by a worker (bytes/step)', '{:,.0f}'),
  'ratio': ('compression ratio', '{:,.1f}×'),
}
_TEMPLATE = pathlib.Path(__file__).with_name('template.html')


def find_runs(directories: Sequence[str | os.PathLike]) -> list[Run]:
  """Returns the runs in the directories and in their subfolders.

  Raises:
    UserError: a directory holds no run.
  """
  found = {}
  for directory in map(pathlib.Path, directories):
    folders = [directory, *sorted(directory.glob('*/'))]
    runs = [f for f in folders if (f / records.CONFIG).exists()]
    if not runs:
      raise errors.UserError(
        f'no run in {directory}: neither this folder nor a folder in it has a '
        f'{records.CONFIG}'
      )
    found.update({folder.resolve(): folder for folder in runs})
  names = [folder.name for folder in found]
  return [
    Run(
      name=folder.name if names.count(folder.name) == 1 else str(given),
      config=files.read_json(folder / records.CONFIG),
      metrics=records.read_metrics(folder / records.METRICS),
      summary=files.read_json(folder / records.SUMMARY),
    )
    for folder, given in found.items()
  ]


def picture(runs: Sequence[Run]) -> bytes:
  """Returns the plots of the runs as a PNG."""
  return plots.draw({run.name: run.metrics for run in runs})


def page(runs: Sequence[Run], title: str, png: bytes) -> str:
  """Returns the report as HTML that needs no other file."""
  done = [run.summary['environment'] for run in runs if run.summary]
  environments = {', '.join(f'{k} {v}' for k, v in e.items()) for e in done}
  return string.Template(_TEMPLATE.read_text()).substitute(
    title=html.escape(title),
    table=table(runs).to_html(index=False, border=0, na_rep='–'),
    picture=base64.b64encode(png).decode(),
    details='\n'.join(_details(run) for run in runs),
    environment=html.escape('; '.join(sorted(environments))),
  )


def table(runs: Sequence[Run]) -> pd.DataFrame:
  """Returns the table of the report, a line a run, as it is shown."""
  return pd.DataFrame([_cells(run) for run in runs])


def write(
  directories: Sequence[str | os.PathLike],
  output: pathlib.Path,
  *,
  title: str = TITLE,
  figure: pathlib.Path | None = None,
) -> None:
  """Writes the report, and its picture alone if `figure` is given."""
  runs = find_runs(directories)
  png = picture(runs)
  files.write_bytes(output, page(runs, title, png).encode())
  if figure is not None:
    files.write_bytes(figure, png)


def _cells(run: Run) -> dict[str, str]:
  """Returns a row of the table, by heading."""
  if run.summary is None:
    last = run.metrics[-1]['step'] if run.metrics else 0
    return {'run': run.name, 'steps': f'not finished, at step {last}'}
  summary, comm = run.summary, run.summary['comm']
  score = scores.main_of(summary['final'])
  cells = {'run': run.name, 'scheme': summary['scheme']}
  # Of all workers' mean, and where their models differ of the first one's.
  models = {'': summary, ', one worker': summary.get('one_worker', {})}
  for whose, tests in models.items():
    for split in ('final', 'final_split'):
      if score and split in tests:
        where = tests[split].get('split', '')
        heading = score.label + (where and f', on {where}') + whose
        cells[heading] = score.form.format(score.of(tests[split]))
  cells['steps'] = f'{summary["steps"]:,}'
  if 'best_step' in summary:
    cells['by the model of step'] = f'{summary["best_step"]:,}'
  for name, (heading, form) in _BYTES.items():
    for key, what in ((name, ''), (f'run_average_{name}', ', the whole run')):
      if key in comm:
        cells[heading + what] = form.format(comm[key])
  if inner := comm.get('inner_sent_bytes_per_step'):
    cells['sent inside a node (bytes/step)'] = f'{inner:,}'
  return cells | {'time (s)': f'{summary["seconds"]:,.1f}'}


def _details(run: Run) -> str:
  config = rows.flat(run.config).items()
  lines = '\n'.join(f'{name} = {value!r}' for name, value in config)
  return (
    f'<details><summary>configuration of {html.escape(run.name)}</summary>'
    f'<pre>{html.escape(lines)}</pre></details>'
  )
