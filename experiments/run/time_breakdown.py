"""Where the time of a training step goes: a profile, told by phase.

  compute    forward and backward pass
  compress   selecting, quantising, packing, unpacking, the memory
  exchange   collectives, with the waiting for other workers in them
  update     the optimizer's rules, and the new parameters

JAX's profiler says when each operation of the compiled program ran; the name
that the program keeps of where it came from (`jax.named_scope`) says what for.
So the program that is timed is the one that trains. An operation that was fused
from several phases counts for that of its result. Compare gTop-k (arXiv
1901.04359), figure 11.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import pathlib
import re
import tempfile
import time
from typing import Any

import jax

PHASES = ('compute', 'compress', 'exchange', 'update')
# Steps profiled are told apart in `metrics.jsonl` by having these.
NAMES = (*(f'time/{phase}_ms' for phase in PHASES), 'time/other_ms')
STEP = 'time/step_ms'

_MODULE = re.compile(r'^HloModule (\S+?),', re.MULTILINE)
_OPERATION = re.compile(
  r'^\s*(?:ROOT )?%?(\S+) = .*?\s([a-z][a-z\-]*)\(', re.MULTILINE
)
_OPERAND = re.compile(r'%([\w.\-]+)')
_ORIGIN = re.compile(r'op_name="([^"]*)"')
# The library's scopes and those of the training step; inner ones come last.
_SCOPE = re.compile(rf'(?:gradsparse|train)\.({"|".join(PHASES)})\b')
_CONTAINERS = ('while', 'conditional', 'call', 'async-start', 'async-done')


def phases(hlo: str) -> dict[str, str | None]:
  """The phase of each operation of a compiled program, by its name.

  Args:
    hlo: `compiled.as_text()`.

  Returns:
    None where an operation belongs to none. One that the compiler has added
    without a name belongs with the first of its operands that has a phase.
    What only runs other operations (loops, branches) is left out: those have
    their own entries.
  """
  found: dict[str, str | None] = {}
  for line in hlo.splitlines():
    operation = _OPERATION.match(line)
    if operation is None or operation[2] in _CONTAINERS:
      continue
    origin = _ORIGIN.search(line)
    scopes = _SCOPE.findall(origin[1]) if origin else []
    if scopes:
      found[operation[1]] = scopes[-1]
    else:  # operands come first in the text
      operands = _OPERAND.findall(line[operation.end() :])
      known = [found[name] for name in operands if found.get(name)]
      found[operation[1]] = known[0] if known else None
  return found


def summed(
  events: Iterable[tuple[int, Any, float]], phase_of: Mapping[Any, str | None]
) -> dict[str, float]:
  """Milliseconds by phase, the mean over devices; without what has no phase.

  Args:
    events: operations as they ran: device, name, nanoseconds.
    phase_of: an operation's, by its name.
  """
  totals, devices = collections.Counter(), set()
  for device, name, nanoseconds in events:
    devices.add(device)
    totals[phase_of.get(name)] += nanoseconds / 1e6
  return {phase: totals[phase] / max(1, len(devices)) for phase in PHASES}


class Profiled:
  """A compiled training step that can tell where its time goes.

  Args:
    run: the step.
    programs: what it runs; of different names.
  """

  def __init__(
    self, run: Callable[..., Any], programs: Sequence[jax.stages.Compiled]
  ):
    self._run = run
    self._phase_of: dict[tuple[str, str], str | None] = {}
    for program in programs:
      text = program.as_text()
      module = _MODULE.search(text)[1]
      self._phase_of |= {(module, op): p for op, p in phases(text).items()}

  def __call__(self, *arguments: Any) -> Any:
    return self._run(*arguments)

  def timed(self, *arguments: Any) -> tuple[Any, dict[str, float]]:
    """Runs one step under the profiler, and waits for it.

    Returns:
      (what the step returns, milliseconds by `NAMES`, and `STEP` for all: the
      time on the clock). `time/other_ms` is what the phases leave of that.
    """
    jax.block_until_ready(arguments)

    def run() -> tuple[Any, float]:
      start = time.perf_counter()
      result = jax.block_until_ready(self._run(*arguments))
      return result, 1e3 * (time.perf_counter() - start)

    (result, whole), planes = profiled(run)
    parts = summed(_events(planes), self._phase_of)
    # Operations of one device may overlap; then nothing is left.
    rest = max(0.0, whole - sum(parts.values()))
    times = (*parts.values(), rest, whole)
    return result, dict(zip((*NAMES, STEP), times, strict=True))


def profiled(run: Callable[[], Any]) -> tuple[Any, list[Any]]:
  """Runs something under JAX's profiler; returns its result and the planes."""
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder, profiler_options=options):
      result = run()
    paths = pathlib.Path(folder).rglob('*.xplane.pb')
    read = [jax.profiler.ProfileData.from_file(str(path)) for path in paths]
  return result, [plane for data in read for plane in data.planes]


def _events(planes: Iterable[Any]) -> Iterable[tuple[int, Any, float]]:
  """The operations in a profile, by program and name, from all devices."""
  for plane in planes:
    number = re.search(r'^/device:\w+:(\d+)', plane.name)
    for line in plane.lines:
      for event in line.events:
        stats = dict(event.stats)
        if 'hlo_module' in stats and 'hlo_op' in stats:
          # Processors say it in the event, accelerators in the plane.
          device = stats.get('device_ordinal', number and int(number[1]))
          name = stats['hlo_module'], stats['hlo_op']
          yield device or 0, name, event.duration_ns
