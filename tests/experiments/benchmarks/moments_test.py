"""The benchmark of second moments: all of its ways give the same."""

from experiments.benchmarks.moments import ways as moments
import jax
import numpy as np


def test_all_ways_of_a_perceptron_agree():
  task = moments.TASKS['perceptron 784-1024-10'](4)
  task = task._replace(model=task.model.clone(widths=(8,)))
  params, ways = moments.ways(task, copies=True)
  arguments = params, (task.inputs, task.labels)
  found = {name: jax.jit(way)(*arguments) for name, way in ways.items()}
  loss, grads, squares = found['exact']
  expected = {
    'plain gradient': (loss, grads),
    # Of as many parts as examples.
    'estimate from 4 parts': (loss, grads, squares),
    'a copy for each example': (loss, grads, squares),
  }
  for name, values in expected.items():
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6),
      found[name],
      values,
    )


def test_rows(monkeypatch):
  task = moments.TASKS['perceptron 784-1024-10']
  monkeypatch.setattr(moments, 'TASKS', {'small': task})
  rows = moments.measure('small', 2, 1, copies=False)
  assert [row['way'] for row in rows] == ['plain gradient', 'exact']
  assert rows[0]['plain_ratio'] == 1
  assert all(row['step_ms'] > 0 and row['compile_s'] > 0 for row in rows)
