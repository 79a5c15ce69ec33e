"""Ticks on an axis of bytes, and the Pareto front."""

from experiments.report import drawing
from matplotlib import figure
import pytest


def _names(left, right, minor):
  canvas = figure.Figure()
  axes = canvas.subplots()
  drawing.by_bytes(axes)
  axes.set_xlim(left, right)
  canvas.draw_without_rendering()
  places = axes.get_xticks(minor=minor)
  labels = axes.get_xticklabels(minor=minor)
  return [
    label.get_text()
    for place, label in zip(places, labels, strict=True)
    if left <= place <= right and label.get_text()
  ]


@pytest.mark.parametrize(
  'left, right, names',
  [
    (1.1e5, 3e6, ['200 kB', '500 kB', '2 MB']),
    (1.5e3, 9e3, ['2 kB', '5 kB']),
    (0.9e3, 2e6, []),
  ],
)
def test_ticks_between_powers_have_names_where_powers_are_few(
  left, right, names
):
  assert _names(left, right, minor=True) == names


def test_powers_have_names():
  assert {'1 kB', '100 kB', '1 MB'} <= set(_names(0.9e3, 2e6, minor=False))


def test_the_front_is_of_points_that_none_beats_in_both():
  points = [
    ('worse', 30, 97.0),
    ('dense', 1000, 99.0),
    ('fewest', 10, 97.0),
    ('worse_at_as_many', 100, 98.0),
    ('middle', 100, 98.5),
  ]
  assert drawing.front(points) == ['fewest', 'middle', 'dense']
