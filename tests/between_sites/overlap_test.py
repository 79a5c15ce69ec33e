"""Between two slices, a late message travels while a step computes."""

import importlib.util
import subprocess
import sys

import pytest

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None, reason='no compiler for TPUs'
  ),
]


def parts(*args):
  """In a process of its own: a compiler reads its options once."""
  return subprocess.run(
    [sys.executable, '-m', 'tests.between_sites.overlap', *args],
    capture_output=True,
    text=True,
    check=True,
  ).stdout.split()


@pytest.mark.parametrize('scheme', ['dense', 'qsgd'])
def test_it_is_sent_before_the_forward_pass_and_received_after_the_backward(
  scheme,
):
  order = parts(scheme, 'delayed')
  matmuls = [i for i, part in enumerate(order) if part == 'matmul']
  assert len(matmuls) >= 8  # three layers: forward, and two of the backward
  sends = [i for i, part in enumerate(order) if part in ('send', 'recv')]
  done = [i for i, part in enumerate(order) if part == 'done']
  assert sends and max(sends) < min(matmuls)
  # The update is fused with the matmul of the last gradient.
  assert min(done) > matmuls[-2]


def test_without_the_delay_it_waits_for_the_gradient():
  order = parts('qsgd', 'prompt')
  assert order.index('send') > order.index('matmul')
  assert order.index('matmul') < order.index('done')
