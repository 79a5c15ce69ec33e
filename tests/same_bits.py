"""Compares two checkouts: every scheme's bits, bytes and collectives.

  python -m tests.same_bits --against=../gradsparse-before

Each setting of `tests.schemes` runs for four steps on three simulated workers,
the last of which has a NaN in the third step. Of each checkout this program
keeps checksums of what the workers sent, of updates, of what was delivered and
of the state, the bytes of `gs.plan`, and the collectives of the program on a
mesh. It prints a line for each setting that differs, and a last line that
counts them. The exit status is 1 if any differ.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

STEPS, WORKERS, POISONED = 4, 3, 2
_COLLECTIVES = ('all_gather', 'all_reduce', 'all_to_all', 'collective_permute')


def record(only: str) -> dict[str, dict[str, str]]:
  """What the settings of the checkout in the working directory do."""
  import jax

  jax.config.update('jax_num_cpu_devices', 8)
  from tests import schemes

  return {
    setting.name: _record(setting)
    for setting in schemes.SETTINGS
    if re.search(only, setting.name)
  }


def _record(setting) -> dict[str, str]:
  import gradsparse as gs
  from gradsparse.collectives import comm
  import jax
  import numpy as np
  from tests import runs
  from tests import schemes

  def digest(tree):
    out = hashlib.sha256()
    for x in jax.tree.leaves(tree):
      x = np.asarray(x)
      out.update(f'{x.shape}{x.dtype}'.encode() + x.tobytes())
    return out.hexdigest()[:16]

  sent: collections.Counter = collections.Counter()

  def keep(kind, rank, *arrays):
    sent[kind, int(rank), digest(arrays)] += 1

  def spied(name):
    method = getattr(comm.Comm, name)

    def run(self, first, *rest):
      if self.mode == 'simulated':
        operands = jax.tree.leaves(rest[0] if name == '_reduce' else first)
        jax.debug.callback(lambda *x: keep(name, *x), self.index(), *operands)
      return method(self, first, *rest)

    return method, run

  tx, params = setting.make(), setting.params
  names = ('gather', 'permute', 'all_to_all', '_reduce')
  methods = {name: spied(name) for name in names}
  for name, (_, spy) in methods.items():
    setattr(comm.Comm, name, spy)
  step = jax.jit(
    jax.vmap(
      lambda grads, state, m: tx.step(grads, state, second_moment=m),
      axis_name=schemes.AXIS,
    )
  )
  state = gs.workers.stack(tx.init(params), WORKERS)
  # Any change would be visible in these: what is returned, and what is kept.
  seen = []
  for t in range(STEPS):
    grads = runs.gradients(params, WORKERS, seed=t)
    second_moment = runs.moments(grads, seed=100 + t)
    if t == POISONED:
      grads = runs.poison(grads)
    updates, state, delivered = step(grads, state, second_moment)
    seen.append((updates, delivered, state))
  jax.effects_barrier()
  for name, (method, _) in methods.items():
    setattr(comm.Comm, name, method)
  plan = gs.plan(tx, params, WORKERS)
  return {
    'updates': digest([x[0] for x in seen]),
    'delivered': digest([x[1] for x in seen]),
    'state': digest([x[2] for x in seen]),
    'messages': hashlib.sha256(repr(sorted(sent.items())).encode()).hexdigest()[
      :16
    ],
    'plan': f'{plan.payload_bytes} {plan.sent_bytes}',
    'collectives': _collectives(tx, params),
  }


def _collectives(tx, params) -> str:
  """Kinds and numbers, in the program of a mesh before XLA."""
  import gradsparse as gs
  from jax.sharding import PartitionSpec as P
  from tests import schemes

  specs = gs.workers.specs(tx, params, WORKERS)
  own = P(schemes.AXIS)
  fn = gs.workers.parallel(
    lambda grads, state, m: tx.update(grads, state, second_moment=m),
    runner='shard_map',
    num_workers=WORKERS,
    in_specs=(own, specs, own),
    out_specs=(P(), specs),
  )
  grads = gs.workers.stack(params, WORKERS)
  state = gs.workers.init(tx, params, WORKERS)
  text = fn.trace(grads, state, grads).lower().as_text()
  counts = {k: text.count(f'stablehlo.{k}') for k in _COLLECTIVES}
  return ' '.join(f'{k} {n}' for k, n in counts.items() if n)


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--against', help='folder of the other checkout')
  parser.add_argument('--record', help='only write what this checkout does')
  parser.add_argument('--only', default='', help='a pattern of settings')
  args = parser.parse_args()
  if args.record:
    found = record(args.only)
    pathlib.Path(args.record).write_text(json.dumps(found))
    return 0
  before, after = (
    _of_checkout(pathlib.Path(folder).resolve(), args.only)
    for folder in (args.against, '.')
  )
  differing = 0
  for name in before | after:
    old, new = before.get(name), after.get(name)
    if old == new:
      continue
    differing += 1
    parts = [k for k in old or () if not new or old[k] != new[k]]
    print(f'{name}: {", ".join(parts) or "only here"} differ')
    for part in {'plan', 'collectives'}.intersection(parts):
      print(f'  {part}: {old[part]} -> {new[part] if new else None}')
  print(f'{len(before | after)} settings, {differing} differ')
  return int(differing > 0)


def _of_checkout(folder: pathlib.Path, only: str):
  out = folder / '.same_bits.json'
  try:
    subprocess.run(
      [sys.executable, __file__, f'--record={out}', f'--only={only}'],
      check=True,
      cwd=folder,
      env=os.environ | {'PYTHONPATH': str(folder), 'JAX_PLATFORMS': 'cpu'},
    )
    return json.loads(out.read_text())
  finally:
    out.unlink(missing_ok=True)


if __name__ == '__main__':
  sys.exit(main())
