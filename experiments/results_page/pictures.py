"""The pictures of RESULTS.md and docs/results.

Differences are drawn so that up, or right, is better.
"""

from collections.abc import Callable, Mapping
import functools
import math
import re
from typing import Any, NamedTuple

from experiments.papers import judging
from experiments.papers import outcomes
from experiments.papers import table as papers
from experiments.report import drawing
from experiments.results_page import summaries
from experiments.run import scores
import numpy as np
import pandas as pd

Draw = Callable[[], bytes]
Outcomes = Mapping[str, outcomes.Outcome]
Slow = Mapping[str, Mapping[str, Any]]

_VERDICTS = {
  judging.SUPPORTED: drawing.GREEN,
  judging.CONTRADICTED: drawing.ORANGE,
  judging.OPEN: drawing.BLUE,
  'fewer seeds': drawing.GREY,
}
# Rows whose learning curves are drawn, beside dense.
_CURVES = {
  'cifar10_resnet20': 'dense dgc dgc_4bit gtopk dropping qsgd_4bit',
  'dgc_table4_ptb': 'dense dgc',
  'schemes_cifar10_longer': 'dense dgc dgc_4bit gtopk dropping qsgd_4bit',
  'schemes_digits': 'dense gradient_dropping dgc gtopk qsgd one_bit_sgd',
  'schemes_ptb': 'dense dropping dgc gtopk qsgd_4bit partial',
  'schemes_speech': 'dense dropping dgc gtopk qsgd_4bit',
  'schemes_translation': 'adam_dense adam_dropping partial qsgd_4bit',
}
# Rows that are drawn like those of other tables.
_ALIKE = {
  'adam_dense': 'dense',
  'adam_dropping': 'dropping',
  'gradient_dropping': 'dropping',
  'qsgd': 'qsgd_4bit',
}
_SHOWN = 10  # margins below the last scores, of curves that rise
_DEEPEST = 12  # margins; what is further behind is at the edge
_SENT = 'sent by a worker (bytes)'
_RATES = {'1gbit': '1 Gbit/s', '100mbit': '100 Mbit/s'}


class Panel(NamedTuple):
  """Lines in one panel.

  Attributes:
    title: of the panel.
    x: label of the horizontal axis.
    score: what is drawn.
    lines: by name, a column for each seed.
    target: a line across the panel.
  """

  title: str
  x: str
  score: scores.Score
  lines: Mapping[str, pd.DataFrame]
  target: float | None = None


def drawn(
  tables: Mapping[str, papers.Table], found: Mapping[str, Outcomes], slow: Slow
) -> dict[str, Draw]:
  """Returns what draws each picture, by the name of its file."""
  tasks = {n: tables[n].score for n in summaries.TASKS if n in found}
  made = {
    f'{n}.png': functools.partial(forest, s, found[n]) for n, s in tasks.items()
  }
  made['pareto.png'] = functools.partial(pareto, tasks, found)
  by_time = {n: _by_time(n, tables[n].score, own) for n, own in slow.items()}
  curves = {n: _curves(n, tables[n], found[n]) for n in _CURVES if n in found}
  panels = {
    'curves': [panel for n, panel in curves.items() if n in tasks],
    **{n: [panel] for n, panel in curves.items() if n not in tasks},
    'dgc_table2': _by_workers(found.get('dgc_table2', {})),
    'slow_network': [p for n in tasks for p in by_time.pop(n, [])],
    **{
      f'{name}_network': own + _by_bytes(tables[name].score, slow[name])
      for name, own in by_time.items()
    },
  }
  for name, own in panels.items():
    if own:
      made[f'{name}.png'] = functools.partial(lines, own)
  if of_tasks := {n: slow[n] for n in tasks if n in slow}:
    made['slow_network_step.png'] = functools.partial(steps, of_tasks)
  return made


def forest(score: scores.Score, found: Outcomes) -> bytes:
  """Returns a PNG: each row's difference to dense, beside the margin."""
  shown = [each for each in found.values() if each.difference]
  picture = drawing.canvas(8, 1.6 + 0.27 * len(shown))
  axes = picture.add_subplot()
  axes.axvspan(-score.margin, score.margin, color='#eeeeee', label='margin')
  axes.axvline(0, color=drawing.BLACK, linewidth=1)
  edge = -_DEEPEST * score.margin
  for place, each in enumerate(shown):
    mean, below, above = _span(score, each)
    colour, judged = _colour(each)
    axes.errorbar(
      max(mean, edge),
      place,
      xerr=[[min(below, mean - edge)], [above]] if mean > edge else None,
      marker='o' if mean > edge else '<',
      color=colour,
      markerfacecolor=None if judged else 'white',
      capsize=3,
    )
    if mean - below < edge < mean:  # its interval goes on
      axes.plot(edge, place, '<', color=colour, markersize=5)
    if mean <= edge:
      axes.text(edge, place, f'   {each.difference}', va='center', fontsize=8)
  names = [f'{each.name} ({each.difference.n})' for each in shown]
  axes.set_yticks(range(len(shown)), names, fontsize=8)
  axes.set_ylim(len(shown) - 0.4, -0.6)  # the first on top
  axes.set_xlim(left=max(axes.get_xlim()[0], 1.05 * edge))
  _turn(axes.xaxis, score)
  said = f'{score.unit} to dense, 95 % interval over (so many) seeds'
  drawing.describe(axes, '', said, '')
  _legend(picture, axes)
  return drawing.png(picture)


def pareto(
  tasks: Mapping[str, scores.Score], found: Mapping[str, Outcomes]
) -> bytes:
  """Returns a PNG with a panel a task: difference to dense by bytes sent.

  Only rows with enough seeds, each beside the dense row of the same seeds. What
  no other row beats in both has its name.
  """
  judged = {
    name: [e for e in found[name].values() if _colour(e)[1] and e.sent_ratio]
    for name in tasks
  }
  judged = {name: own for name, own in judged.items() if own}
  rows = -(-len(judged) // 2)
  picture = drawing.canvas(13, 5.2 * rows)
  for number, (name, own) in enumerate(judged.items(), 1):
    axes, score = picture.add_subplot(rows, 2, number), tasks[name]
    placed = [
      (e.name, e.sent_ratio, score.advantage(e.difference.mean)) for e in own
    ]
    points = pd.DataFrame(placed, columns=['name', 'x', 'y'])
    axes.axhspan(-score.margin, score.margin, color='#eeeeee', label='margin')
    axes.axhline(0, color=drawing.BLACK, linewidth=1, linestyle='--')
    points['colour'] = [_colour(each)[0] for each in own]
    edge = -2 * _DEEPEST * score.margin
    adam = ['^' if 'adam' in each.row.beside else 'o' for each in own]
    points['marker'] = np.where(points['y'] < edge, 'v', adam)
    points['y'] = points['y'].clip(lower=edge)
    for marker, shown in points.groupby('marker'):
      axes.scatter(shown['x'], shown['y'], color=shown['colour'], marker=marker)
    low, high = points['y'].min(), max(points['y'].max(), 0)
    room = max(2 * score.margin, high - low)
    axes.set_ylim(low - 0.2 * room, high + 0.55 * room)
    drawing.logarithmic(axes, 'x')
    axes.margins(x=0.15)
    _turn(axes.yaxis, score)
    less = 'times fewer bytes sent by a worker in the whole run than dense'
    drawing.describe(axes, summaries.task(name), less, f'{score.unit} to dense')
    drawing.front(axes, points, fewer=False)
  for marker, said in (('^', 'beside Adam'), ('v', 'further down')):
    picture.axes[0].plot([], [], marker, color=drawing.GREY, label=said)
  _legend(picture, picture.axes[0], 3)
  return drawing.png(picture)


def lines(panels: list[Panel]) -> bytes:
  """Returns a PNG with panels of lines: the mean, and a band over all seeds."""
  picture = drawing.canvas(5 * len(panels), 4.4)
  names = [
    *dict.fromkeys(_ALIKE.get(x, x) for panel in panels for x in panel.lines)
  ]
  # A row looks alike in all panels: at most as many rows as there are colours.
  styles = zip(drawing.COLOURS, drawing.MARKERS, strict=True)
  styles = dict(zip(names, styles, strict=False))
  for axes, panel in zip(
    picture.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
  ):
    for name, own in panel.lines.items():
      colour, marker = styles[_ALIKE.get(name, name)]
      style = {'marker': marker, 'color': colour, 'label': name}
      axes.plot(own.index, own.mean(axis=1), **style)
      band = own.min(axis=1), own.max(axis=1)
      axes.fill_between(own.index, *band, color=colour, alpha=0.15)
    if panel.target is not None:
      axes.axhline(panel.target, color=drawing.GREY, label='target')
    if not panel.score.rises:
      drawing.logarithmic(axes, 'y')
    elif panel.x == 'step':
      last = min(own.mean(axis=1).iloc[-1] for own in panel.lines.values())
      low = last - _SHOWN * panel.score.margin
      axes.set_ylim(bottom=max(low, axes.get_ylim()[0]))
    if panel.x == _SENT:
      drawing.logarithmic(axes, 'x', drawing.BYTES)
    if panel.x == 'workers':
      axes.set_xscale('log', base=2)
      places = sorted({n for own in panel.lines.values() for n in own.index})
      axes.set_xticks(places, places)
    drawing.describe(axes, panel.title, panel.x, panel.score.label)
    place = 'lower left' if panel.x == 'workers' else 'best'
    axes.legend(frameon=False, fontsize=8, loc=place)
  return drawing.png(picture)


def steps(slow: Slow) -> bytes:
  """Returns a PNG with a bar a row: the parts of a step, which add up to it."""
  parts = {
    f'{summaries.task(name)}: {row}': run['breakdown_ms']
    for name, rows in slow.items()
    for row, run in rows.items()
  }
  bars = pd.DataFrame(parts).T[::-1]
  picture = drawing.canvas(9, 1.5 + 0.35 * len(bars))
  axes = picture.add_subplot()
  drawing.bars(axes, bars)
  unit = 'milliseconds, medians'
  drawing.describe(axes, 'A step on 4 hosts, 1 Gbit/s', unit, '')
  picture.legend(loc='outside lower center', ncols=5, frameon=False)
  return drawing.png(picture)


def _curves(name: str, table: papers.Table, found: Outcomes) -> Panel:
  """Returns learning curves."""
  score = table.score
  shown = {
    row: pd.DataFrame(
      {
        seed: {test['step']: score.of(test) for test in tests}
        for seed, tests in found[row].runs['tests'].items()
      }
    )
    for row in _CURVES[name].split()
  }
  what = summaries.TASKS.get(name, table.title).split(',')[0]
  title = f'{what}:\nmean and range of 3 seeds'
  return Panel(title, 'step', score, shown)


def _by_workers(found: Outcomes) -> list[Panel]:
  """Returns the scores of DGC's table 2, published and ours."""
  published, ours = {}, {}
  for name, each in found.items():
    scheme, count = name.removesuffix('workers').rsplit('_', 1)
    for shown, top1 in (
      (published, each.row.published.get('top1')),
      (ours, each.middle('top1')),
    ):
      if top1 is not None:
        own = shown.setdefault(scheme, pd.DataFrame(columns=['top1']))
        own.loc[int(count)] = top1
  panels = ('published: ResNet-110', published), ('ours: ResNet-8', ours)
  return [Panel(t, 'workers', scores.ACCURACY, s) for t, s in panels if s]


def _by_time(name: str, score: scores.Score, rows) -> list[Panel]:
  """Returns scores by seconds on a slow network, a panel a rate."""
  panels = []
  for rate in dict.fromkeys(run['rate'] for run in rows.values()):
    own = [run for run in rows.values() if run['rate'] == rate]
    where = f'4 hosts, {_RATES.get(rate, rate)}'
    title = f'{summaries.task(name)}, {where}, one seed'
    shown = _along(own, 'seconds', score)
    panels.append(Panel(title, 'seconds', score, shown, own[0]['target']))
  return panels


def _by_bytes(score: scores.Score, rows) -> list[Panel]:
  """Returns the same scores by bytes sent, and by steps: of equal tokens."""
  last = {run['setting']: run for run in rows.values()}.values()
  return [
    Panel('The same runs', x, score, _along(last, key, score))
    for key, x in (('sent_bytes', _SENT), ('step', 'step'))
  ]


def _along(rows, key: str, score: scores.Score) -> dict[str, pd.DataFrame]:
  """Returns the scores of runs by what each test has under `key`."""
  return {
    run['setting'].partition(':')[0]: pd.Series(
      {test[key]: score.of(test) for test in run['evaluations']}
    ).to_frame()
    for run in rows
  }


def _span(score: scores.Score, each) -> tuple[float, float, float]:
  """Returns a difference, and how far its interval reaches down and up.

  It ends where the score does: no accuracy is above 100 %. More is better.
  """
  mean, half = score.advantage(each.difference.mean), each.difference.half or 0
  most = math.inf
  if not score.relative:
    # The target is behind dense by the margin.
    best = score.most if score.rises else 0.0
    most = abs(best - each.target) - score.margin
  return mean, half, max(0.0, min(half, most - mean))


def _colour(each: outcomes.Outcome) -> tuple[str, bool]:
  """Returns the colour of a row, and whether it has seeds for a verdict."""
  judged = bool(each.difference) and each.difference.n >= judging.FEWEST
  said = re.split('[,:]', each.verdict)[0] if judged else 'fewer seeds'
  return _VERDICTS.get(said, drawing.GREY), judged


def _legend(picture: Any, axes: Any, count: int = len(_VERDICTS)) -> None:
  for said, colour in list(_VERDICTS.items())[:count]:
    face = 'white' if said == 'fewer seeds' else colour
    axes.plot([], [], 'o', color=colour, markerfacecolor=face, label=said)
  handles = axes.get_legend_handles_labels()
  picture.legend(*handles, loc='outside lower center', ncols=5, frameon=False)


def _turn(axis: Any, score: scores.Score) -> None:
  """Names ticks by the difference itself where less is better."""
  if not score.rises:
    axis.set_major_formatter(lambda x, _: f'{0 - x:g}')
