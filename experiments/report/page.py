"""One HTML page of finished or running experiments, with its picture inside."""

import base64
from collections.abc import Callable, Mapping, Sequence
import html
import os
import pathlib
from typing import Any, NamedTuple

from experiments.program import errors
from experiments.program import files
from experiments.report import plots
from experiments.run import records
from experiments.run import scores
from flax import traverse_util

TITLE = 'Training with compressed gradients'


class Run(NamedTuple):
  """What a working directory holds."""

  name: str
  config: Mapping[str, Any]
  metrics: list[dict[str, Any]]
  summary: Mapping[str, Any] | None  # None: not at its last step yet


_WHOLE = 'over the whole run'


def _comm(
  name: str, form: str = '{:,.0f}'
) -> Callable[[Mapping[str, Any]], str]:
  """Returns what makes a cell of a number of the summary's `comm`."""

  def cell(summary: Mapping[str, Any]) -> str:
    value = summary['comm'].get(name)  # not in the records of older runs
    return '–' if value is None else form.format(value)

  return cell


_Column = tuple[str, Callable[[Mapping[str, Any]], str]]

# Heading, and how a cell is made from the summary of a run. Before them stand
# the scores by which the runs are judged.
_COLUMNS: tuple[_Column, ...] = (
  ('steps', lambda s: f'{s["steps"]:,}'),
  ('payload of a worker (bytes/step)', _comm('payload_bytes_per_step')),
  (_WHOLE, _comm('run_average_payload_bytes_per_step')),
  ('sent by a worker (bytes/step)', _comm('sent_bytes_per_step')),
  (_WHOLE, _comm('run_average_sent_bytes_per_step')),
  ('compression ratio', _comm('ratio', '{:,.1f}×')),
  (_WHOLE, _comm('run_average_ratio', '{:,.1f}×')),
  ('time (s)', lambda s: f'{s["seconds"]:,.1f}'),
)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }}
table {{ border-collapse: collapse; width: 100%; margin: 1rem 0 2rem;
  font-variant-numeric: tabular-nums; }}
th, td {{ padding: .35rem .7rem; text-align: right;
  border-bottom: 1px solid #ddd; }}
th {{ font-weight: 600; vertical-align: bottom; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ width: 100%; }}
pre {{ background: #f6f6f6; padding: .8rem; overflow-x: auto; }}
.note {{ color: #666; font-size: .9rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
<table>
<thead><tr><th>run</th>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
<img alt="{score} by step and by bytes sent, training loss, norm of the
 residual" src="data:image/png;base64,{picture}">
<p class="note">The compression ratio is the size of the uncompressed gradient
by one worker's message. Bytes and ratio are those at the end of the run, beside
each its average over the whole run, warm-up included. What a worker sends
depends on the exchange: an all-gather passes each message on to every other
worker.</p>
{details}
<p class="note">{environment}</p>
</body>
</html>
"""


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
  judged = _scores(runs)
  columns = (*(_of_a_test(score) for score in judged), *_COLUMNS)
  head = ''.join(f'<th>{html.escape(name)}</th>' for name, _ in columns)
  environments = {
    ', '.join(f'{k} {v}' for k, v in run.summary['environment'].items())
    for run in runs
    if run.summary
  }
  return _PAGE.format(
    title=html.escape(title),
    head=head,
    rows='\n'.join(_row(run, columns) for run in runs),
    score=html.escape(f'test {judged[0].name}'),
    picture=base64.b64encode(png).decode(),
    details='\n'.join(_details(run) for run in runs),
    environment=html.escape('; '.join(sorted(environments))),
  )


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


def _scores(runs: Sequence[Run]) -> list[scores.Score]:
  """Returns by what finished runs are judged; accuracy if none is finished."""
  found = dict.fromkeys(
    scores.main_of(run.summary['final']) for run in runs if run.summary
  )
  return [score for score in found if score] or [scores.ACCURACY]


def _of_a_test(score: scores.Score) -> _Column:
  def cell(summary: Mapping[str, Any]) -> str:
    found = score.of(summary['final'])
    return '–' if found is None else f'{found:.{score.digits}f}'

  return score.label, cell


def _row(run: Run, columns: Sequence[_Column]) -> str:
  if run.summary is None:
    last = run.metrics[-1]['step'] if run.metrics else 0
    cells = f'<td colspan="{len(columns)}">not finished, at step {last}</td>'
  else:
    cells = ''.join(
      f'<td>{html.escape(cell(run.summary))}</td>' for _, cell in columns
    )
  return f'<tr><td>{html.escape(run.name)}</td>{cells}</tr>'


def _details(run: Run) -> str:
  lines = '\n'.join(
    f'{name} = {value!r}'
    for name, value in traverse_util.flatten_dict(run.config, sep='.').items()
  )
  return (
    f'<details><summary>configuration of {html.escape(run.name)}</summary>'
    f'<pre>{html.escape(lines)}</pre></details>'
  )
