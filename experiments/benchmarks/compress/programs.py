"""Compiled steps, and how long they take beside each other."""

from collections.abc import Callable, Mapping
import dataclasses
import math
import time
from typing import Any

from experiments.benchmarks import rows as measured
from experiments.benchmarks.compress import trees
from experiments.run import machine
from experiments.run import time_breakdown
import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

_GRADIENTS = 2  # different ones, in turns
_SCALE = 0.01
_LEAST_SECONDS = 0.02  # that a measurement takes
_MOST_TIMES = 50
_PROFILED = 5  # steps


@dataclasses.dataclass
class Program:
  """Something to run again and again.

  Attributes:
    run: so many times, one after the other; returns when all have ended.
    compile_seconds: tracing and lowering included.
    peak_bytes: of device memory that it holds while it runs: arguments,
      results and what lies between; None where XLA does not tell.
  """

  run: Callable[[int], None]
  compile_seconds: float
  peak_bytes: int | None


class Bench:
  """Parameters, gradients and second moments that all schemes share.

  Args:
    shapes: of the leaves.
  """

  def __init__(self, shapes: trees.Shapes):
    rng = np.random.default_rng(0)

    def draw():
      return {
        name: jnp.asarray(rng.normal(size=shape) * _SCALE, jnp.float32)
        for name, shape in shapes.items()
      }

    self._gradients = [draw() for _ in range(_GRADIENTS)]
    # Of 32 examples whose gradients agree a little.
    self._moments = jax.tree.map(
      lambda g: jnp.square(g) / 8, self._gradients[0]
    )
    self._turn = 0

  def gradient(self) -> Any:
    """Returns the next gradient."""
    self._turn += 1
    return self._gradients[self._turn % _GRADIENTS]

  def step(self, tx: optax.GradientTransformation) -> Program:
    """A step from gradients to new parameters, its state donated."""

    def step(params, state, grads, moments):
      if isinstance(tx, gs.Outer):
        return tx.sync(optax.apply_updates(params, grads), state)
      update = optax.with_extra_args_support(tx).update
      updates, state = update(grads, state, params, second_moment=moments)
      return optax.apply_updates(params, updates), state

    params = jax.tree.map(jnp.zeros_like, self._moments)
    held = [(params, jax.jit(tx.init)(params))]
    compiled, seconds = _compiled(
      jax.jit(step, donate_argnums=(0, 1)),
      *(*held[0], self.gradient(), self._moments),
    )

    def run(times):
      for _ in range(times):
        held.append(compiled(*held.pop(), self.gradient(), self._moments))
      jax.block_until_ready(held[0])

    run(1)  # touches all memory
    return Program(run, seconds, machine.peak_bytes(compiled))


def _compiled(jitted: Any, *arguments: Any) -> tuple[Any, float]:
  """The compiled program for some arguments, and the seconds it took."""
  begin = time.perf_counter()
  compiled = jitted.lower(*arguments).compile()
  return compiled, time.perf_counter() - begin


def program(function: Callable[..., Any], *arguments: Any) -> Program:
  """A program that runs a function of some arguments."""
  made, seconds = _compiled(jax.jit(function), *arguments)

  def run(times):
    jax.block_until_ready([made(*arguments) for _ in range(times)])

  run(1)  # touches all memory
  return Program(run, seconds, machine.peak_bytes(made))


def milliseconds(
  programs: Mapping[str, Program], rounds: int
) -> dict[str, list[float]]:
  """Times of each program in each round; a round runs all of them, in turns.

  A program runs for 20 ms in a row: an accelerator is given the next steps
  while it does one, as in training.
  """
  found: dict[str, list[float]] = {name: [] for name in programs}
  names = list(programs)
  times = {name: _repeats(made) for name, made in programs.items()}
  for number in range(rounds):
    shift = number % len(names)
    for name in names[shift:] + names[:shift]:
      seconds = _seconds(programs[name], times[name]) / times[name]
      found[name].append(1e3 * seconds)
  return found


def _repeats(program: Program) -> int:
  """How often a program runs in a measurement."""
  seconds = max(_seconds(program, 1), _LEAST_SECONDS / _MOST_TIMES)
  return math.ceil(_LEAST_SECONDS / seconds)


def _seconds(program: Program, times: int) -> float:
  begin = time.perf_counter()
  program.run(times)
  return time.perf_counter() - begin


def compared(
  programs: Mapping[str, Program], rounds: int, reference: str
) -> dict[str, dict[str, Any]]:
  """What is recorded of each program, run in turns with a reference.

  Args:
    programs: by name.
    rounds: of all of them.
    reference: one of the names.
  """
  ms = pd.DataFrame(milliseconds(programs, rounds))
  ratios = ms.div(ms[reference], axis=0)  # a slow round is so for all
  found = {name: on_accelerator(made) for name, made in programs.items()}
  for own in filter(None, found.values()):
    own['device_ratio'] = own['device_ms'] / found[reference]['device_ms']
  return {
    name: {
      'step_ms': float(ms[name].median()),
      'step_ms_spread': measured.quartile_distance(ms[name]),
      'sgd_ratio': float(ratios[name].median()),
      'compile_s': made.compile_seconds,
      'peak_bytes': made.peak_bytes,
      **found[name],
    }
    for name, made in programs.items()
  }


def on_accelerator(program: Program) -> dict[str, float]:
  """What an accelerator says of a step; nothing where there is none.

  Returns:
    `device_ms`, the sum of all its operations, without gaps between them; and
    `launches`, how many these are.
  """
  if jax.default_backend() == 'cpu':
    return {}
  _, planes = time_breakdown.profiled(lambda: program.run(_PROFILED))
  ran = [
    event.duration_ns
    for plane in planes
    if plane.name.startswith('/device:')
    for line in plane.lines
    if line.name.startswith(('Stream', 'XLA Ops'))
    for event in line.events
  ]
  return {
    'device_ms': sum(ran) / 1e6 / _PROFILED,
    'launches': len(ran) / _PROFILED,
  }
