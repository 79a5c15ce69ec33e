"""Pictures are made, open, and can be read."""

import dataclasses
import io
import itertools

from experiments.papers import interval
from experiments.program import errors
from experiments.results_page import drawing
from experiments.results_page import labels
from experiments.results_page import pictures
from experiments.run import scores
from matplotlib import figure
from matplotlib import text
import numpy as np
from PIL import Image
import pytest
from tests.experiments.results_page import made_up


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
  root = tmp_path_factory.mktemp('root')
  made_up.write(root)
  return made_up.measure(root)


def _point(label, sent, mean, half=0.5):
  return drawing.Point(label, sent, interval.Interval(mean, half, 3))


def test_there_is_a_picture_for_the_schemes_and_for_each_group(measured):
  found = [*pictures.paretos(measured), *pictures.differences(measured)]
  assert [picture.name for picture in found] == [
    'made_up_quick_pareto_dense.png',
    'made_up_quick_schemes.png',
    'made_up_quick_parts.png',
    'made_up_quick_density.png',
    'made_up_quick_workers.png',
  ]
  for picture in found:
    image = Image.open(io.BytesIO(picture.draw()))
    image.load()
    assert image.format == 'PNG' and min(image.size) > 200
    # Something is drawn: a blank picture has one colour.
    assert len(image.convert('RGB').getcolors(1 << 20)) > 10


def test_the_rows_of_a_line_are_ascending_and_named_without_the_number(
  measured,
):
  groups = measured.groups
  found = pictures._lines(measured, 'workers', groups['workers'])
  assert {n: [x for x, _ in own] for n, own in found.items()} == {
    'gtopk': [8, 16]
  }
  found = pictures._lines(measured, 'density', groups['density'])
  assert {n: [x for x, _ in own] for n, own in found.items()} == {
    'without_it': [0.01],
    'gtopk': [0.02, 0.04],
  }


def test_a_row_without_the_number_of_its_group_is_refused(measured):
  dense = measured.rows['dense']._replace(groups=('density',))
  with pytest.raises(errors.ConfigError, match="'dense' is of the group 'den"):
    pictures._lines(measured, 'density', [dense])


def test_the_front_is_what_no_other_point_beats():
  points = [
    _point('dear and bad', 100, 90),
    _point('dear and good', 100, 95),
    _point('cheap', 10, 92),
    _point('cheap and worse', 11, 91),
    _point('as good as cheap', 20, 92),
  ]
  found = [point.label for point in drawing.front(scores.ACCURACY, points)]
  assert found == ['cheap', 'dear and good']


def test_a_row_that_learnt_nothing_does_not_press_the_others_together():
  assert 2 <= drawing._depth([0.5] * 8 + [88], 2.0) < 4
  # Where many are far behind, they are shown in their places.
  assert drawing._depth([38] * 8 + [88], 2.0) > 38


def test_no_axis_shows_what_no_score_can_be(monkeypatch):
  make, drawn = drawing._canvas, []

  def canvas(*given):
    made = make(*given)
    drawn.append(made[1])
    return made

  monkeypatch.setattr(drawing, '_canvas', canvas)
  for score, mean in ((scores.WER, 3), (scores.ACCURACY, 98)):
    dense, other = _point('dense', 100, mean, 9), _point('other', 10, mean, 9)
    drawing.pareto('', score, dense, [other])
  errors_of_words, accuracies = drawn
  assert errors_of_words.get_ylim()[0] == 0
  assert 100 < accuracies.get_ylim()[1] <= 101


def test_what_is_beyond_the_edge_is_drawn_too():
  lost = _point('lost', 10, 10)
  points = [lost, *(_point(str(i), 10**i, 97) for i in range(1, 9))]
  dense = _point('dense', 1e9, 98)
  score = scores.ACCURACY
  assert drawing.pareto('', score, dense, points) != drawing.pareto(
    '', score, dense, points[1:]
  )
  rows = [
    drawing.Dot(p.label, p.score._replace(mean=p.score.mean - 98))
    for p in points
  ]
  made = drawing.dots('', score, rows, 'points')
  others = set()
  for far in (-87, 87):  # on either side
    rows[0] = drawing.Dot('lost', interval.Interval(far, 0.5, 3))
    others.add(drawing.dots('', score, rows, 'points'))
  assert len({made, *others}) == 3  # the number is written there


def test_a_picture_of_several_dense_rows_says_which(measured, monkeypatch):
  drawn = []
  monkeypatch.setattr(drawing, 'dots', lambda *given: drawn.append(given))
  rows = dict(measured.rows)
  rows['below'] = rows['below']._replace(beside='same')
  rows['with_it'] = rows['with_it']._replace(beside='same')
  several = measured._replace(rows=rows)
  assert several.several and not measured.several
  found = {p.name: p for p in pictures.differences(several)}
  # A group that is beside several is not drawn: its questions tell more.
  assert 'made_up_quick_parts.png' not in found
  found['made_up_quick_schemes.png'].draw()
  names = [dot.label for dot in drawn[0][2]]
  assert 'below (same)' in names and 'above (dense)' in names


def test_questions_are_drawn_where_there_are_several(measured, monkeypatch):
  assert not pictures.questions(measured)  # one
  drawn = []
  monkeypatch.setattr(drawing, 'dots', lambda *given: drawn.append(given))
  table = measured.table
  twice = dataclasses.replace(table, questions=table.questions[:1] * 2)
  (picture,) = pictures.questions(measured._replace(table=twice))
  assert picture.name == 'made_up_quick_questions.png'
  picture.draw()
  _, score, dots, unit = drawn[0]
  assert score is scores.ACCURACY and unit == 'points to the other'
  assert [(dot.label, str(dot.difference)) for dot in dots] == [
    ('with it, without', '+2.13 ± 1.00')
  ] * 2


@pytest.mark.parametrize('seed', range(3))
def test_no_name_covers_another_or_a_point(seed):
  rng = np.random.default_rng(seed)
  canvas = figure.Figure((8.5, 6), layout='constrained', dpi=120)
  axes = canvas.add_subplot()
  x, y = 10 ** rng.uniform(2, 5, 24), rng.normal(97, 0.4, 24)
  axes.plot(x, y, 'o')
  axes.set_xscale('log')
  names = [
    labels.Name(f'a_scheme_{i}', a, b)
    for i, (a, b) in enumerate(zip(x, y, strict=True))
  ]
  bars = [((a, b - 0.2), (a, b + 0.2)) for a, b in zip(x, y, strict=True)]
  taken = labels.place(canvas, axes, names, bars)
  assert len(taken) == len(names)
  for one, other in itertools.combinations(taken, 2):
    assert not one.overlaps(other)
  points = axes.transData.transform(np.stack([x, y], axis=1))
  assert not any(box.contains(*point) for box in taken for point in points)
  # Where it was written is where it is.
  canvas.draw_without_rendering()
  for note, box in zip(axes.texts, taken, strict=True):
    extent = text.Text.get_window_extent(note)  # without its line
    assert box.x0 <= extent.x0 and extent.x1 <= box.x1
    assert box.y0 <= extent.y0 and extent.y1 <= box.y1


def test_a_name_is_not_written_over_a_line_if_there_is_other_room():
  canvas = figure.Figure((6, 4), dpi=100)
  axes = canvas.add_subplot(xlim=(0, 10), ylim=(0, 10))
  line = ((0.0, 5.0), (10.0, 5.0))
  name = labels.Name('a scheme', 5, 5)
  (plain,) = labels.place(canvas, axes, [name])
  (moved,) = labels.place(canvas, axes, [name], [line])
  (_, height) = axes.transData.transform((5, 5))
  assert plain.y0 < height < plain.y1
  assert not moved.y0 < height < moved.y1
