r"""Lowers and compiles training steps of models that this machine cannot hold.

  python -m experiments.studies.large_models \
    --json=experiments/results/large_models.json

It compiles one step of a transformer for CPU devices, with a scheme between
replicas of several devices each, and does not run it. It reports bytes by mesh
axis, memory of a device and modelled exchange times. It also reports the plans
of a larger transformer, and the CPU seconds to compile the updates of trees of
few and many leaves.

--parts=steps, plans or leaves does one of these parts; the JSON file keeps its
rows of the other parts. --parts=slices compiles the same step for slices of
TPUs that are not here (--target), a replica on each. The tables are printed as
docs/large_models.md has them.
"""

import itertools
from typing import Any

from absl import flags
from experiments.benchmarks.accelerators import programs
from experiments.benchmarks.accelerators import targets
from experiments.hosts import placement
from experiments.program import command_line
from experiments.program import files
from experiments.run import machine
from experiments.studies.large_models import model
from experiments.studies.large_models import page
from experiments.studies.large_models import plans
from experiments.studies.large_models import steps
import jax


def _size(name: str, default: int, text: str) -> flags.FlagHolder[int]:
  return flags.DEFINE_integer(name, default, text, lower_bound=1)


_JSON = command_line.define_json()
_PARTS = command_line.define_list(
  'parts',
  ('steps', 'plans', 'leaves'),
  flags.EnumParser([*page.TABLES]).parse,
  'which of: ' + ', '.join(page.TABLES),
)
_SCHEMES = command_line.define_schemes(steps.SCHEMES)
_LAYERS = _size('layers', 24, 'layers of the model whose step is compiled')
_WIDTH = _size('width', 2048, 'width of that model')
_HEADS = _size('heads', 16, 'attention heads of that model')
_VOCABULARY = _size('vocabulary', 50_257, 'vocabulary of both models')
_CONTEXT = _size('context', 1024, 'tokens that both models see')
_SEQUENCES = _size('sequences', 1, 'of tokens that a device has in a step')
_REPLICAS = _size('replicas', 2, 'copies of the model')
_SHARDS = _size('shards', 4, 'devices of a replica')
_TARGET = command_line.define_list(
  'target', ('v5e:4x4', 'v5p:2x2x4'), targets.parse, 'slices of TPUs'
)
_GBITS = command_line.define_list(
  'gbits', (1.0, 10.0, 100.0), float, 'rates between replicas, Gbit/s'
)
_DEVICES_A_LINK = flags.DEFINE_integer(
  'devices_a_link',
  None,
  'number of devices that share a link to other replicas; all devices of a '
  'replica if not given, 1 if each has its own link',
  lower_bound=1,
)
_PLAN_LAYERS = _size('plan_layers', 32, 'layers of the model that is planned')
_PLAN_WIDTH = _size('plan_width', 4096, 'width of that model')
_PLAN_WORKERS = _size('plan_workers', 8, 'that exchange it')
_LEAVES = command_line.define_list(
  'leaves',
  (10, 100, 1000),
  command_line.whole,
  'numbers of leaves of the trees that are compiled',
)
_ELEMENTS = _size('elements', 16_000_000, 'elements of each of these trees')


def _transformer(shards: int, scanned: bool = False) -> model.Transformer:
  sizes = (_LAYERS, _WIDTH, _HEADS, _VOCABULARY, _CONTEXT)
  return model.Transformer(*(flag.value for flag in sizes), shards, scanned)


def _compiled(
  devices: Any, scanned: bool = False, **options: Any
) -> list[dict[str, Any]]:
  """A row a scheme."""
  mesh, rows = steps.make_mesh(devices), []
  transformer = _transformer(mesh.shape[programs.INSIDE], scanned)
  for name in _SCHEMES.value:
    rows.append(
      steps.compiled(name, transformer, mesh, _SEQUENCES.value, **options)
    )
    jax.clear_caches()
    told = {k: v for k, v in rows[-1].items() if k != 'collectives'}
    command_line.say(str(told))
  return rows


def _steps() -> dict[str, Any]:
  replicas, shards = _REPLICAS.value, _SHARDS.value
  return {
    'parameters': _transformer(shards).parameters,
    'mesh': {steps.REPLICAS: replicas, programs.INSIDE: shards},
    'devices_a_link': _DEVICES_A_LINK.value or shards,
    'gbits': _GBITS.value,
    'rows': _compiled(steps.devices_here(replicas, shards)),
  }


def _slices() -> dict[str, Any]:
  rows = []
  for name in _TARGET.value:
    target = targets.make(name, _REPLICAS.value)
    here = {'target': name, 'devices': target.devices.size}
    found = _compiled(target.devices, scanned=True, options=target.options)
    rows += [{**here, **row} for row in found]
  return {
    'parameters': _transformer(1).parameters,
    'slices': _REPLICAS.value,
    'rows': rows,
  }


def _plans() -> dict[str, Any]:
  transformer = model.Transformer(
    _PLAN_LAYERS.value, _PLAN_WIDTH.value, 1, _VOCABULARY.value, _CONTEXT.value
  )
  return {
    'parameters': transformer.parameters,
    'workers': _PLAN_WORKERS.value,
    'rows': plans.planned(transformer, _PLAN_WORKERS.value),
  }


def _leaves() -> dict[str, Any]:
  rows = []
  for name, number in itertools.product(plans.TREES, _LEAVES.value):
    rows.append(plans.compile_tree(name, number, _ELEMENTS.value))
    jax.clear_caches()
    command_line.say(str(rows[-1]))
  return {'elements': _ELEMENTS.value, 'rows': rows}


_MEASURE = dict(steps=_steps, slices=_slices, plans=_plans, leaves=_leaves)


def main() -> None:
  """Compiles, writes the record, prints the tables."""
  placement.pose_as(max(2, _REPLICAS.value * _SHARDS.value))
  if 'slices' in _PARTS.value:
    targets.prepare(_TARGET.value, _REPLICAS.value)
  record = (_JSON.value and files.read_json(_JSON.value)) or {}
  for part in _PARTS.value:
    record[part] = {
      'command': command_line.typed(),
      'environment': machine.describe(),
      **_MEASURE[part](),
    }
    if _JSON.value:
      files.write_json(_JSON.value, record)
    for table in page.TABLES[part]:
      print(table(record[part]), end='\n\n')


if __name__ == '__main__':
  command_line.run(main)
