"""Oracles that follow a scheme's steps, and comparison with what it did.

A step has the form of `replay.Step`.
"""

from __future__ import annotations

import functools

from gradsparse import draws
import jax
import numpy as np
from tests import replay
from tests.oracles import checks
from tests.oracles import leaves
from tests.oracles import qsgd


class QSGDDescent(leaves.Oracle):
  """The oracle's function over all compressed leaves, joined."""

  def step(self, gradients):
    gradients = self._begin(gradients)
    for w, tree in enumerate(gradients):
      numbers = self._compressed_leaves(tree)
      joined = np.concatenate([tree[i].ravel() for i in numbers])
      _, sent = qsgd.gradient_descent(joined)
      for i in numbers:
        own, sent = np.split(sent, [tree[i].size])
        self.delivered[w][i] += own.reshape(tree[i].shape)
    return self._mean()


def plainly(oracle, step, numbers, t):
  del numbers, t
  return oracle.step(step.grads)


def with_moments(oracle, step, numbers, t):
  del numbers, t
  return oracle.step(step.grads, step.moments)


def with_same_draw(oracle, step, numbers, t):
  """Takes the coordinates from what the library delivered."""
  del t
  indices = [np.zeros(0, int)] * len(step.grads[0])
  for i in numbers:
    indices[i] = np.flatnonzero(step.delivered[0][i])
  return oracle.step(step.grads, indices)


def with_same_uniforms(oracle, step, numbers, t, *, seed=0):
  """Draws what the library documents: seed, step, 1 + worker, leaf."""
  uniforms = []
  for w, tree in enumerate(step.grads):
    own = [np.zeros_like(g) for g in tree]
    drawn = _uniforms(seed, t, 1 + w, tuple(tree[i].shape for i in numbers))
    for i, x in zip(numbers, drawn, strict=True):
      own[i] = np.asarray(x)
    uniforms.append(own)
  return oracle.step(step.grads, uniforms)


@functools.partial(jax.jit, static_argnums=3)
def _uniforms(seed, t, worker, shapes):
  """One program for all: one operation after the other takes far longer."""
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), t), worker)
  return [
    draws.uniform(jax.random.fold_in(key, number), shape)
    for number, shape in enumerate(shapes)
  ]


def check(step, mean, oracle, close=checks.close):
  """Compares mean, delivered, pending, and what else both keep."""
  kept = step.state.memory
  for leaf, expected in enumerate(mean):
    close(step.mean[leaf], expected)
  for w in range(len(step.grads)):
    for leaf in range(len(mean)):
      # Dense leaves have their momentum on the mean, where both have one.
      if not (hasattr(kept, 'momentum') and leaf in oracle.dense):
        close(step.delivered[w][leaf], oracle.delivered[w][leaf])
        close(step.pending[w][leaf], oracle.pending[w][leaf])
  if hasattr(kept, 'momentum'):
    momentum = replay.unstack(kept.momentum)
    for own, expected in zip(momentum, oracle.u, strict=True):
      for leaf in range(len(mean)):
        close(own[leaf], expected[leaf])
  if hasattr(kept, 'variance'):
    accumulated = replay.unstack(kept.variance)
    for own, expected in zip(accumulated, oracle.v, strict=True):
      for leaf in range(len(mean)):
        checks.close(own[leaf], expected[leaf])
