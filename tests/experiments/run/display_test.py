"""The bar: whole lines above it, and nothing where nobody watches."""

import io
import sys

from absl import logging
from experiments.run import display
import pytest


class _Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def look_at(monkeypatch):
  """Returns what makes a screen of standard error, where absl's messages go.

  Not a fixture itself: pytest takes hold of standard error before each test.
  """
  handler = logging.get_absl_handler().python_handler
  before = handler.stream

  def start():
    made = _Terminal()
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setattr(sys, 'stderr', made)
    handler.setStream(made)
    return made

  yield start
  handler.setStream(before)


def _logged(text):
  """What absl does with a line, when flags are parsed."""
  logging.get_absl_handler().python_handler.stream.write(f'{text}\n')


def test_messages_have_lines_of_their_own_above_the_bar(look_at, monkeypatch):
  screen = look_at()
  monkeypatch.setattr(sys, 'stdout', screen)
  with display.Display().shown() as bar:
    assert bar.live and not bar.lines
    bar.start('dgc', 60)
    bar(20, 60, {'step': 20, 'train/loss': 0.5})
    _logged('a warning')
    print('a result')
    print('a message', file=sys.stderr)
    bar(21, 60, {'step': 20, 'train/loss': 0.5})
  shown = screen.getvalue()
  for text in ('a warning', 'a result', 'a message'):
    before, _, after = shown.partition(text)
    assert before.endswith('\x1b[2K') and after.startswith('\n'), text
  last = shown.rpartition('\x1b[2K')[2]
  assert 'dgc' in last and '21/60' in last and 'loss 0.5' in last
  assert '\x1b[?25l' not in shown  # a killed run would leave no cursor
  assert sys.stderr is screen
  assert logging.get_absl_handler().python_handler.stream is screen


def test_what_goes_to_a_file_is_not_for_the_screen(look_at):
  screen = look_at()
  with display.Display().shown() as bar:
    assert bar.live and bar.lines
    print('a result')
  assert 'a result' not in screen.getvalue()


@pytest.mark.parametrize('why', ['another process', 'no terminal', 'dumb'])
def test_nothing_where_nobody_watches(why, look_at, monkeypatch):
  screen = look_at()
  if why == 'dumb':
    monkeypatch.setenv('TERM', 'dumb')
  if why == 'no terminal':
    monkeypatch.setenv('FORCE_COLOR', '1')
    monkeypatch.setattr(screen, 'isatty', lambda: False)
  with display.Display(wanted=why != 'another process').shown() as bar:
    assert not bar.live and bar.lines
    bar.start('dgc', 60)
    bar(20, 60, {'step': 20, 'train/loss': 0.5})
    _logged('a warning')
  assert screen.getvalue() == 'a warning\n'
