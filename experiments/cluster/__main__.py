"""Command line of the cluster; see the package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
import pathlib
import sys

from experiments import cluster
from experiments import errors

_EXIT_FAILED, _EXIT_USAGE, _EXIT_NOT_PERMITTED, _EXIT_TIMEOUT = 1, 2, 3, 124

_LOOPBACK_NOTE = (
  'loopback: all processes on 127.0.0.1, without shaping; bytes are not counted'
)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='python -m experiments.cluster',
    description=cluster.__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--hosts', type=int, default=2, help='default: 2')
  parser.add_argument(
    '--rate',
    default='1gbit',
    help="of every link, such as 100mbit, or 'unlimited'; default: 1gbit",
  )
  parser.add_argument('--delay', help='of a packet on its way, such as 1ms')
  parser.add_argument(
    '--loopback',
    action='store_true',
    help='no namespaces: for where they are not permitted',
  )
  parser.add_argument('--json', type=pathlib.Path, help='file for the table')
  parser.add_argument(
    '--grace',
    type=float,
    default=10.0,
    help='seconds the others get when one process has failed; default: 10',
  )
  parser.add_argument(
    '--timeout', type=float, help='seconds the whole run may take'
  )
  parser.add_argument(
    'command', nargs=argparse.REMAINDER, help='after --: what to run'
  )
  return parser


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command on the cluster; returns the exit status."""
  parser = _parser()
  options = parser.parse_args(argv)
  command = options.command
  if command[:1] == ['--']:
    command = command[1:]
  if not command:
    parser.error('nothing to run: write the command after --')
  try:
    with cluster.stopping_on_signals():
      for name in cluster.remove_leftovers():
        _say(f'removed {name}, left over from an earlier run')
      if options.loopback:
        _say(_LOOPBACK_NOTE)
      result = cluster.run(
        command,
        num_hosts=options.hosts,
        shape=cluster.Shape(options.rate, options.delay),
        loopback=options.loopback,
        grace=options.grace,
        timeout=options.timeout,
      )
  except cluster.NotPermittedError as error:
    _say(
      f'error: {error}\nThe cluster needs root (CAP_NET_ADMIN and '
      'CAP_SYS_ADMIN) on Linux. --loopback runs the same processes on '
      '127.0.0.1, without shaping and without counting bytes.'
    )
    return _EXIT_NOT_PERMITTED
  except errors.UserError as error:
    _say(f'error: {error}')
    return _EXIT_USAGE
  except cluster.StoppedError as stopped:
    _say(f'stopped by {stopped}; everything is cleaned up')
    return 128 + stopped.number
  if result.traffic is not None:
    _say(str(result.traffic))
  if options.json is not None:
    _write(options.json, options, result)
  if result.outcome.timed_out:
    _say(f'error: the run took more than {options.timeout:g} s')
    return _EXIT_TIMEOUT
  if result.outcome.first_failed is not None:
    _say(f'error: {result.outcome}')
    return _EXIT_FAILED
  return 0


def _write(path: pathlib.Path, options, result: cluster.Result) -> None:
  traffic = result.traffic
  record = {
    'hosts': options.hosts,
    'rate': None if options.loopback else options.rate,
    'delay': options.delay,
    'command': options.command,
    'statuses': list(result.outcome.statuses),
    'traffic': [] if traffic is None else traffic.rows(),
  }
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(record, indent=2) + '\n')


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == '__main__':
  sys.exit(main())
