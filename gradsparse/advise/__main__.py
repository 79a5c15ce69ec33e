"""Advises whether to compress gradients, and with which scheme.

  python -m gradsparse.advise --params=25e6 --step_ms=150 --workers=8 \
    --bandwidth=1gbit

The advice is a verdict, a table, the assumptions, and the code to use.
docs/choose.md explains how to read it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import math
import pathlib
import signal
import sys
from typing import Any

from gradsparse.advise import advising
from gradsparse.advise import question
from gradsparse.advise import recorded
from gradsparse.advise.candidates import BY_LABEL


def _number(
  unit: str, scale: float, least: float, most: float
) -> Callable[[str], float]:
  """A parser of numbers in a range, which it multiplies by `scale`."""

  def read(text: str) -> float:
    try:
      number = float(text)
    except ValueError:
      number = math.nan
    if not least <= number <= most:
      raise argparse.ArgumentTypeError(
        f'must be a number of {unit} in {least:g}..{most:g}, without a unit, '
        f'got {text!r}'
      )
    return scale * number

  return read


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    'python -m gradsparse.advise',
    description='Advises whether to compress gradients, and with which scheme.',
    epilog='docs/choose.md has examples, and explains the answer.',
    allow_abbrev=False,
  )
  add = parser.add_argument
  add(
    '--params',
    required=True,
    help='number of parameters, such as 25e6 or 1.3B, or a JSON file of shapes',
  )
  add(
    '--step_ms',
    required=True,
    type=_number('ms', 1e-3, 1e-6, 1e5),
    help="time of a worker's step without any exchange, ms",
  )
  add(
    '--workers',
    required=True,
    type=int,
    help='number of workers that exchange over the slow link',
  )
  add(
    '--bandwidth',
    required=True,
    help="bandwidth of a worker's link in one direction, such as 10gbit or "
    '450gbyte; for a worker of several hosts, the sum over its hosts',
  )
  add(
    '--backward_ms',
    type=_number('ms', 1e-3, 0, 1e5),
    help='time of the backward pass, ms (default: two thirds of step_ms)',
  )
  add(
    '--latency_ms',
    type=_number('ms', 1e-3, 0, 1e4),
    default=0.0,
    help='latency of a message, ms (default: 0)',
  )
  add(
    '--inner',
    type=int,
    default=1,
    help='devices of a worker that share one copy of the model (default: 1)',
  )
  add(
    '--optimizer',
    choices=question.OPTIMIZERS,
    default='sgd',
    help='the optimizer after the scheme (default: sgd, with momentum)',
  )
  add(
    '--task',
    choices=recorded.TASKS,
    help='the task whose recorded results are quoted (default: resnet20 with '
    'sgd, gpt with adam and adamw)',
  )
  add(
    '--schemes',
    help=f"labels of the table, separated by ';': {'; '.join(BY_LABEL)} "
    '(default: all; one_bit_adam with adam and adamw)',
  )
  add(
    '--sync_every',
    type=int,
    default=30,
    help='steps from one exchange of diloco and sparse_loco to the next '
    '(default: 30)',
  )
  add(
    '--memory_bandwidth',
    type=_number('GB/s', 1e9, 1, 1e6),
    help="the device's memory bandwidth, GB/s (default: 819, a TPU v5e's)",
  )
  add(
    '--calibrate',
    action='store_true',
    help="measure the schemes' arithmetic on this machine's device, in some "
    'minutes; run it on the machine that will train',
  )
  add('--json', type=pathlib.Path, help='a JSON file to write the advice to')
  return parser


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the advice; the exit status is 2 if an argument is wrong."""
  parser = _parser()
  given: dict[str, Any] = vars(parser.parse_args(argv))
  path = given.pop('json')
  step, backward = given['step_ms'], given['backward_ms']
  if backward is not None and backward > step:
    parser.error(
      f'--backward_ms must be at most --step_ms ({1e3 * step:g}), got '
      f'{1e3 * backward:g}'
    )
  for name in ('step', 'backward', 'latency'):
    given[f'{name}_s'] = given.pop(f'{name}_ms')
  if given['schemes'] is not None:
    given['schemes'] = [s.strip() for s in given['schemes'].split(';')]
  try:
    advice = advising.advise(given.pop('params'), **given)
  except (TypeError, ValueError, OSError) as e:
    parser.error(str(e))
  try:
    if path is not None:
      path.write_text(advice.to_json() + '\n')
  except OSError as e:
    parser.error(f'--json must be a file that can be written, got {path}: {e}')
  print(advice)
  return 0


if __name__ == '__main__':
  if hasattr(signal, 'SIGPIPE'):  # `| head` ends it without a message
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
  sys.exit(main())
