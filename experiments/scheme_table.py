"""Prints the README's table of schemes, from the code.

python -m experiments.scheme_table
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import gradsparse as gs
import jax
import jax.numpy as jnp

# A model of one large matrix: sizes are those of large leaves.
ELEMENTS = 1_000_000
WORKERS = 4


class Setting(NamedTuple):
  """A scheme as the papers use it.

  Attributes:
    paper: where it comes from.
    arguments: of the factory.
    about: what an unbiased scheme's expectation is, if not the gradient.
  """

  paper: str
  arguments: Mapping[str, Any]
  about: str = ''


SETTINGS: Mapping[str, Setting] = {
  'dense': Setting('the baseline', {}),
  'gradient_dropping': Setting('Aji & Heafield 2017', {'density': 0.01}),
  'dgc': Setting('Lin et al. 2018', {'density': 0.001}),
  'gtopk': Setting('Shi et al. 2019', {'density': 0.001}),
  'strom': Setting('Strom 2015', {'threshold': 0.01}),
  'variance_based': Setting('Tsuzuku et al. 2018', {'alpha': 1.5}),
  'variance_strom': Setting(
    'Tsuzuku et al. 2018, section 4.5', {'alpha': 2.0, 'threshold': 0.01}
  ),
  'qsgd': Setting('Alistarh et al. 2017', {'levels': 7}),
  'qsgd_descent': Setting('Alistarh et al. 2017, section 3.3', {}),
  'terngrad': Setting('Wen et al. 2017', {}, 'the clipped gradient'),
  'one_bit_sgd': Setting('Seide et al. 2014', {}),
  'sign_majority': Setting('Bernstein et al. 2018', {}),
  'dryden': Setting('Dryden et al. 2016', {'density': 0.001}),
  'ada_comp': Setting('Chen et al. 2018', {}),
  'random_k': Setting('baseline', {'density': 0.01}),
  'power_sgd': Setting('Vogels et al. 2019', {'rank': 2}),
}


def rows() -> list[tuple[str, ...]]:
  """A row for each recipe, in the order of `gs.recipes.RECIPES`."""
  shape = (1000, ELEMENTS // 1000)
  params = {'kernel': jax.ShapeDtypeStruct(shape, jnp.float32)}
  out = []
  for name, factory in gs.recipes.RECIPES.items():
    paper, arguments, about = SETTINGS[name]
    tx = factory(**arguments, axis_name='workers')
    plan = gs.plan(tx, params, WORKERS)
    shown = ', '.join(
      f'{v:g}' if k in ('density', 'alpha', 'levels', 'rank') else f'{k}={v:g}'
      for k, v in arguments.items()
    )
    payloads = [payload for payload, _ in plan.rungs] or [plan.payload_bytes]
    bits = [8 * payload / ELEMENTS for payload in payloads]
    size = f'{bits[0]:.3g}' + (f' to {bits[-1]:.3g}' if bits[1:] else '')
    scheme = tx.scheme
    expectation = 'unbiased' if scheme.compressor.unbiased else 'biased'
    out.append(
      (
        f'`{name}({shown})`',
        paper,
        size,
        expectation + (f' about {about}' if about else ''),
        f'{4 * scheme.memory.floats}',
        scheme.exchange.name,
      )
    )
  return out


def markdown() -> str:
  """The table as the README has it."""
  head = (
    'scheme',
    'paper',
    'bits an element',
    'expectation',
    'memory, bytes a parameter',
    'exchange',
  )
  lines = [head, tuple('---' for _ in head), *rows()]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


if __name__ == '__main__':
  print(markdown())
