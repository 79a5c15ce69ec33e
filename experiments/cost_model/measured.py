"""Steps that were measured: their network, and a figure beside the model."""

import json
import pathlib
from typing import Any

from experiments.cluster import network as links
from experiments.cost_model import costs
from experiments.cost_model import figures
from experiments.cost_model import papers
from experiments.cost_model.costs import Network
from experiments.program import errors

_NEEDED = ('scheme', 'floats', 'workers', 'rate', 'step_ms')


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns measured rows.

  Raises:
    UserError: there is no such file, or it holds something else.
  """
  try:
    rows = json.loads(path.read_text())
  except (OSError, ValueError) as error:
    raise errors.UserError(f'--measured: cannot read {path}: {error}') from None
  if isinstance(rows, dict):  # as in experiments/results, with its history
    rows = rows.get('rows')
  if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
    raise errors.UserError(f'--measured: {path} does not hold a list of rows')
  for number, row in enumerate(rows):
    lacks = [key for key in _NEEDED if key not in row]
    if lacks:
      raise errors.UserError(
        f'--measured: row {number} of {path} lacks {lacks}'
      )
  return rows


def bits_per_second(rate: str) -> float | None:
  """What tc's notation says ('1gbit', '100mbit'); None for anything else."""
  try:
    return links.bits_per_second(str(rate))
  except errors.ConfigError:
    return None


def fits(rows: figures.Rows) -> dict[str, Network]:
  """Alpha and beta of each rate that has a ping-pong or an all-reduce.

  Of the all-reduces, those of the most workers are taken.

  Raises:
    UserError: the times say nothing about a network.
  """
  found = {}
  for rate in {row['rate'] for row in rows}:
    own = [row for row in rows if row['rate'] == rate]
    pings = [row for row in own if row['scheme'] == 'ping_pong']
    reduces = [row for row in own if row['scheme'] == 'all_reduce']
    workers = max((row['workers'] for row in reduces), default=0)
    some = pings or [row for row in reduces if row['workers'] == workers]
    sizes = [4 * row['floats'] for row in some]
    seconds = [row['step_ms'] / 1e3 for row in some]
    if len(set(sizes)) < 2:
      continue
    try:
      if pings:
        found[rate] = costs.fit(sizes, seconds)
      else:
        found[rate] = costs.fit_all_reduce(sizes, seconds, workers)
    except ValueError as error:
      raise errors.UserError(f'--measured: rate {rate}: {error}') from None
  return found


def exchange_seconds(row: Any, network: Network) -> float:
  """The model of a measured row, by its planned bytes where it has them."""
  scheme = papers.SCHEMES[row['scheme']]
  if row.get('plan_bytes') is None:
    return scheme.seconds(network, 4 * row['floats'], row['workers'])
  rounds = scheme.exchange(Network(1, 0), 0, row['workers'])
  # What passes rank 0 of the tree: as much comes in as goes out.
  passes = 2 if row['scheme'] == 'gtopk_tree' else 1
  return network.seconds(passes * row['plan_bytes'], rounds)


def steps_figure(
  rows: figures.Rows, fitted: figures.Fits
) -> figures.Figure | None:
  """Measured steps beside the exchange alone; None if there are none."""
  rows = [row for row in rows if row['scheme'] in papers.SCHEMES]
  panels = []
  for rate, workers in sorted({(row['rate'], row['workers']) for row in rows}):
    own = [r for r in rows if (r['rate'], r['workers']) == (rate, workers)]
    network = fitted.get(rate)
    if network is None and bits_per_second(rate):
      network = Network.from_rate(bits_per_second(rate))
    series = []
    for (name, scheme), mark in zip(
      papers.SCHEMES.items(), 'os^Dv<>', strict=True
    ):
      some = [row for row in own if row['scheme'] == name]
      if not some:
        continue
      x, y = figures.points(some, lambda row: row['floats'])
      series.append(figures.Series(scheme.label, x, y, scheme.colour, mark))
      if network is not None:
        some = sorted(some, key=lambda row: row['floats'])
        y = [1e3 * exchange_seconds(row, network) for row in some]
        label = f'{scheme.label}, exchange by model'
        series.append(figures.Series(label, x, y, scheme.colour, listed=False))
    title = f'{rate}, {workers} workers'
    panels.append(figures.Panel(title, 'floats', 'time (ms)', series, 'xy'))
  if not panels:
    return None
  return figures.Figure(
    'measured',
    panels,
    'Marks: measured steps (selection, packing, exchange, update). Lines: '
    'their exchange alone by the model, from planned bytes where the rows have '
    'them; alpha and beta are fitted where a ping-pong or an all-reduce was '
    'measured, else the rate without latency.',
  )
