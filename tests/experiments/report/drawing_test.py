"""Ticks on an axis of bytes, and the Pareto front."""

from experiments.report import drawing
from matplotlib import figure
import pandas as pd


def test_ticks_of_bytes_have_names():
  canvas = figure.Figure()
  axes = canvas.subplots()
  axes.set(xscale='log', xlim=(1.1e5, 3e6))
  drawing.logarithmic(axes, 'x', drawing.BYTES)
  canvas.draw_without_rendering()
  assert axes.get_xscale() == 'log'
  names = [label.get_text() for label in axes.get_xticklabels()]
  assert {'200 kB', '500 kB', '1 MB', '2 MB'} <= {*names}


def test_where_names_of_ticks_would_overlap_powers_of_ten_have_them():
  canvas = figure.Figure()
  axes = canvas.subplots()
  axes.plot([4e5, 3e9], [0, 1])
  drawing.logarithmic(axes, 'x', drawing.BYTES)
  canvas.draw_without_rendering()
  names = {label.get_text() for label in axes.get_xticklabels()}
  assert {'1 MB', '1 GB'} <= names and '2 MB' not in names


def test_the_front_is_of_points_that_none_beats_in_both():
  points = [
    ('worse', 30, 97.0),
    ('dense', 1000, 99.0),
    ('fewest', 10, 97.0),
    ('worse_at_as_many', 100, 98.0),
    ('middle', 100, 98.5),
  ]
  axes = figure.Figure().subplots()
  axes.set(xscale='log', xlim=(5, 2000))
  table = pd.DataFrame(points, columns=['name', 'x', 'y'])
  drawing.front(axes, table, fewer=True)
  names = [text.get_text() for text in axes.texts]
  assert names == ['fewest', 'middle', 'dense']
  ends = [text.get_horizontalalignment() for text in axes.texts]
  assert ends == ['left', 'left', 'right']
