"""The checked arguments of `gs.advise`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import re
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse import recipes
from gradsparse.advise import candidates
from gradsparse.advise import costs
from gradsparse.advise import param_shapes
from gradsparse.advise import recorded

OPTIMIZERS = ('sgd', 'adam', 'adamw')
# The backward pass's share of a step.
BACKWARD = 2 / 3
# High-bandwidth memory of a TPU v5e, bytes a second, by its data sheet.
V5E_MEMORY = 819e9

_UNITS = {'': 1.0, 'k': 1e3, 'm': 1e6, 'g': 1e9, 't': 1e12}
_RATE = re.compile(
  r'((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([kmgt]?)(bit|byte)s?(?:/s|ps)?',
  re.IGNORECASE,
)
_RATES = arguments.Range(
  'a number of bits a second in 1e4..1e15', lambda x: (x >= 1e4) & (x <= 1e15)
)
_BYTES = arguments.Range(
  'a number of bytes a second in 1e9..1e15', lambda x: (x >= 1e9) & (x <= 1e15)
)
_STEP = arguments.Range(
  'a number of seconds in (0, 100], such as 0.15',
  lambda x: (x > 0) & (x <= 100),
)
_LATENCY = arguments.Range(
  'a number of seconds in 0..10, such as 1e-4', lambda x: (x >= 0) & (x <= 10)
)
_RECIPES = (*recipes.RECIPES, 'one_bit_adam')


class Question(NamedTuple):
  """The checked arguments; `gs.advise` describes them."""

  shapes: Any
  source: str
  step_s: float
  backward_s: float
  guessed_backward: bool
  link: costs.Link
  workers: int
  inner: int
  optimizer: str
  task: str
  schemes: tuple[candidates.Candidate, ...]
  schemes_given: bool
  code_s: Mapping[str, float]
  memory_bandwidth: float
  calibrate: bool

  @property
  def adam(self) -> bool:
    return self.optimizer != 'sgd'

  @property
  def inputs(self) -> dict[str, Any]:
    """The arguments that are numbers or words."""
    plain = {
      name: value
      for name, value in self._asdict().items()
      if isinstance(value, (int, float, str))
    }
    params = param_shapes.elements(self.shapes)
    return {'params': params, **plain, **self.link._asdict()}


def asked(
  params: Any,
  *,
  step_s: Any,
  backward_s: Any,
  workers: Any,
  bandwidth: Any,
  latency_s: Any,
  inner: Any,
  optimizer: Any,
  task: Any,
  schemes: Any,
  sync_every: Any,
  code_s: Any,
  memory_bandwidth: Any,
  calibrate: Any,
) -> Question:
  """Checks all arguments of `gs.advise`, with the errors that it lists."""
  step_s = arguments.number('step_s', step_s, _STEP)
  guessed = backward_s is None
  if guessed:
    backward_s = BACKWARD * step_s
  backward_s = arguments.number(
    'backward_s',
    backward_s,
    arguments.Range(
      f'in 0..step_s = {step_s:g}', lambda x: (x >= 0) & (x <= step_s)
    ),
  )
  latency_s = arguments.number('latency_s', latency_s, _LATENCY)
  workers = arguments.whole_number(
    'workers', workers, 1, arguments.MOST_WORKERS
  )
  inner = arguments.whole_number('inner', inner, 1, arguments.MOST_WORKERS)
  optimizer = arguments.one_of('optimizer', optimizer, OPTIMIZERS)
  if task is None:
    task = 'resnet20' if optimizer == 'sgd' else 'gpt'
  task = arguments.one_of('task', task, recorded.TASKS)
  if memory_bandwidth is None:
    memory_bandwidth = V5E_MEMORY
  memory_bandwidth = arguments.number(
    'memory_bandwidth', memory_bandwidth, _BYTES
  )
  calibrate = arguments.flag('calibrate', calibrate)
  link = costs.Link(bits_per_second(bandwidth), latency_s)
  sync_every = arguments.whole_number('sync_every', sync_every, 1)
  known = {
    each.label: dataclasses.replace(each, sync_every=sync_every)
    if each.outer
    else each
    for each in candidates.CANDIDATES
    if optimizer != 'sgd' or each.recipe != 'one_bit_adam'
  }
  chosen = _schemes(schemes, known)
  given = _code(code_s, chosen)
  shapes, source = param_shapes.of(params)
  return Question(
    shapes=shapes,
    source=source,
    step_s=step_s,
    backward_s=backward_s,
    guessed_backward=guessed,
    link=link,
    workers=workers,
    inner=inner,
    optimizer=optimizer,
    task=task,
    schemes=chosen,
    schemes_given=schemes is not None,
    code_s=given,
    memory_bandwidth=memory_bandwidth,
    calibrate=calibrate,
  )


def bits_per_second(bandwidth: Any) -> float:
  """A rate, from a number of bits a second or text such as '10gbit'.

  Raises:
    TypeError: bandwidth is neither a number nor text.
    ValueError: bandwidth is out of range, or the text is not a rate.
  """
  if isinstance(bandwidth, str):
    found = _RATE.fullmatch(bandwidth.strip())
    if not found or not 0 < float(found[1]) < float('inf'):
      raise ValueError(
        "bandwidth must be a rate > 0 with its unit, such as '10gbit', "
        f"'100mbit' or '1gbyte'{_meant(bandwidth)}, got {bandwidth!r}"
      )
    bits = 8 if found[3].lower() == 'byte' else 1
    bandwidth = bits * _UNITS[found[2].lower()] * float(found[1])
  return float(arguments.number('bandwidth', bandwidth, _RATES))


def _meant(text: str) -> str:
  """A hint where the letter b may stand for bits or for bytes."""
  found = re.fullmatch(
    r'([\d.]+)\s*([kmgt])b?(?:/s|ps)?', text.strip(), re.IGNORECASE
  )
  if not found:
    return ''
  number, unit = found[1], found[2].lower()
  return f" (is it '{number}{unit}byte' or '{number}{unit}bit'?)"


def _schemes(
  schemes: Any, known: Mapping[str, candidates.Candidate]
) -> tuple[candidates.Candidate, ...]:
  if schemes is None:
    return tuple(known.values())
  if isinstance(schemes, str) or not isinstance(schemes, Sequence):
    raise TypeError(f'schemes must be a list of labels, got {schemes!r}')
  found = []
  for scheme in schemes:
    if not isinstance(scheme, candidates.Candidate):
      scheme = known[arguments.one_of('each of schemes', scheme, known)]
    arguments.one_of('recipe of a Candidate', scheme.recipe, _RECIPES)
    arguments.whole_number('sync_every of a Candidate', scheme.sync_every, 1)
    found.append(scheme)
  labels = [candidates.BASELINE.label, *(scheme.label for scheme in found)]
  if len(set(labels)) < len(labels):
    raise ValueError(
      f'schemes must have each label once, counting the baseline, got {labels}'
    )
  return tuple(found)


def _code(
  code_s: Any, schemes: Sequence[candidates.Candidate]
) -> dict[str, float]:
  if code_s is None:
    return {}
  if not isinstance(code_s, Mapping):
    raise TypeError(f'code_s must be a mapping, got {code_s!r}')
  labels = [candidates.BASELINE.label, *(scheme.label for scheme in schemes)]
  return {
    arguments.one_of('each key of code_s', label, labels): arguments.number(
      f'code_s[{label!r}]', seconds, arguments.NOT_NEGATIVE
    )
    for label, seconds in code_s.items()
  }
