"""The parts of a scheme's step, each a program by itself.

  accumulate   gradient and memory -> memory
  select       what is to be delivered -> what goes on the wire, rounded
  pack         that -> words
  unpack       words -> the dense mean
  apply        what was sent leaves the memory; the mean goes to the parameters

Their sum is more than the step: XLA joins what follows one another, and a step
judges whether everything is finite, which is in none of these.
"""

from __future__ import annotations

from typing import Any

from experiments.benchmarks.compress import programs
from experiments.run import machine
from gradsparse import extend
from gradsparse.backend import joining
from gradsparse.exchanges import common
import jax
import jax.numpy as jnp

NAMES = ('accumulate', 'select', 'pack', 'unpack', 'apply')
_LEARNING_RATE = 0.1


def of(tx: Any, bench: programs.Bench) -> dict[str, programs.Program]:
  """The stages of a scheme for one worker, by name.

  Args:
    tx: from a recipe.
    bench: on whose leaves.

  Returns:
    Empty where the leaves travel in several messages, or are added up in the
    middle of a step (PowerSGD).
  """
  memory, compressor, exchange = tx.scheme[:3]
  layout = tx.layout(bench.shapes)
  groups = layout.groups()
  if len(groups) > 1 or compressor.state is not None:
    return {}
  numbers, whole = groups[0].compressed, layout.is_dense()
  code = compressor.code
  params = bench.params()
  state = jax.jit(tx.init)(params)
  key = jax.random.key(0)
  leaves = extend.MessageLeaves(layout.shapes_of(numbers))
  plain = extend.Context(leaves, 1, jnp.int32(0), key, key, state.compressor)

  def signals_of(grads, kept):
    signals = layout.treedef.flatten_up_to(memory.signals(grads, kept, whole))
    return [signals[i] for i in numbers]

  def accumulate(kept, grads, moments):
    return memory.accumulate(grads, kept, {'second_moment': moments}, whole)

  def agree(signals):
    if compressor.pre_reduce is None:
      return None
    operands = compressor.pre_reduce.operands(signals, plain)
    return compressor.pre_reduce.finish(operands, plain)

  def look(signals, ctx):
    ladder = compressor.ladder
    if ladder is None or ladder.look is None:
      return ctx
    return ctx._replace(prepared=ladder.look(signals, ctx))

  def select(grads, kept):
    signals = signals_of(grads, kept)
    own = look(signals, ctx._replace(prepared=agree(signals)))
    selected = compressor.select(signals, own)
    return code.round(exchange.arrange(selected, code, 1), own)

  def unpack(words, rounded):
    own = code.decode(code.unpack(words, rounded, ctx), ctx, 1)
    total = common.total_of(own, ctx)
    if isinstance(total, list):
      return total
    return joining.split(total, ctx.shapes)

  def apply(params, kept, rounded, mean):
    sent = code.decode(rounded, ctx, 1).deliveries()
    delivered = dict(zip(numbers, sent, strict=True))
    means = dict(zip(numbers, mean, strict=True))
    for i in layout.dense:
      leaf = jnp.zeros(layout.shapes[i])
      delivered[i], means[i] = extend.Full(leaf, is_dense=True), leaf
    means = layout.tree(means)
    kept_now = memory.sent(kept, layout.tree(delivered))
    kept_now = memory.arrived(kept_now, means, whole, jnp.bool_(True))
    updates = memory.update(kept, means, whole)
    return (
      jax.tree.map(lambda p, u: p - _LEARNING_RATE * u, params, updates),
      kept_now,
    )

  kept = jax.jit(accumulate)(state.memory, bench.gradient(), bench.moments)
  grads = bench.gradient()
  signals = jax.jit(signals_of)(grads, kept)
  ctx = plain._replace(prepared=jax.jit(agree)(signals))
  if compressor.ladder is not None:
    rungs = compressor.ladder.rungs(ctx.shapes)
    number = jax.jit(lambda s: compressor.ladder.choose(look(s, ctx)))(signals)
    ctx = ctx._replace(rung=rungs[min(int(number), len(rungs) - 1)])
  del signals

  def program(function, arguments, carried=0):
    """Runs a function whose first arguments it gives back anew."""
    jitted = jax.jit(function, donate_argnums=tuple(range(carried)))
    held = [tuple(jax.tree.map(jnp.copy, x) for x in arguments[:carried])]
    rest = arguments[carried:]
    made, seconds = programs.compiled_for(jitted, *held[0], *rest)

    def run():
      new = made(*held[0], *rest)
      if carried:
        held[0] = new if carried > 1 else (new,)
      jax.block_until_ready(new)
      return new

    return programs.Program(run, seconds, machine.peak_bytes(made))

  made = {
    'accumulate': program(accumulate, (kept, grads, bench.moments), 1),
    'select': program(select, (grads, kept)),
  }
  rounded = made['select'].run()
  made['pack'] = program(lambda x: code.pack(x, ctx), (rounded,))
  words = made['pack'].run()
  made['unpack'] = program(unpack, (words, rounded))
  mean = made['unpack'].run()
  made['apply'] = program(apply, (params, kept, rounded, mean), 2)
  made['apply'].run()
  return made
