"""Prints the table of docs/schemes.md, from the code.

python -m experiments.scheme_table
"""

from experiments.program import command_line
from experiments.program import tables
import gradsparse as gs
import jax
import jax.numpy as jnp
import pandas as pd

# A model of one large matrix: sizes are those of large leaves.
ELEMENTS = 1_000_000
WORKERS = 4


def rows() -> list[tuple[str, ...]]:
  """A row for each scheme of `gs.recipes.RECIPES`."""
  shape = (1000, ELEMENTS // 1000)
  params = {'kernel': jax.ShapeDtypeStruct(shape, jnp.float32)}
  out = []
  for name, recipe in gs.recipes.RECIPES.items():
    tx = recipe.make(axis_name='workers')
    plan = gs.plan(tx, params, WORKERS)
    shown = ', '.join(
      f'{v:g}' if k in ('density', 'alpha', 'levels', 'rank') else f'{k}={v:g}'
      for k, v in recipe.example.items()
    )
    payloads = [payload for payload, _ in plan.rungs] or [plan.payload_bytes]
    bits = [8 * payload / ELEMENTS for payload in payloads]
    size = f'{bits[0]:.3g}' + (f' to {bits[-1]:.3g}' if bits[1:] else '')
    scheme = tx.scheme
    expectation = 'unbiased' if scheme.compressor.unbiased else 'biased'
    out.append(
      (
        f'`{name}({shown})`',
        recipe.paper,
        size,
        expectation + (f' about {recipe.about}' if recipe.about else ''),
        f'{4 * scheme.memory.floats}',
        scheme.exchange.name,
      )
    )
  return out


def markdown() -> str:
  """The table as the page has it."""
  head = (
    'scheme',
    'paper',
    'bits an element',
    'expectation',
    'memory, bytes a parameter',
    'exchange',
  )
  return tables.markdown(pd.DataFrame(rows(), columns=head))


def main() -> None:
  """Prints the table as the page has it."""
  print(markdown())


if __name__ == '__main__':
  command_line.run(main)
