"""QSVRG: an epoch of variance-reduced SGD with quantised updates. float64.

References: arXiv 1610.02132, §3.3 and theorem 3.6.
"""

import numpy as np


def full_gradient(y, gradient, num_functions, num_workers):
  """∇f(y) = Σ_w ∇h_w(y), h_w = 1/m of the sum over the worker's own functions.

  Worker w holds functions floor(w·m/P) to floor((w + 1)·m/P) - 1.
  """
  total = np.zeros_like(np.asarray(y, np.float64))
  for w in range(num_workers):
    first = w * num_functions // num_workers
    last = (w + 1) * num_functions // num_workers
    share = np.zeros_like(total)
    for j in range(first, last):
      share += gradient(j, y)
    total += share / num_functions
  return total


def epoch(y, gradient, num_functions, draws, learning_rate, quantise=None):
  """One epoch: full gradient at y, then T inner steps from x_1 = y.

  u_w = Q(∇f_j(x) - ∇f_j(y) + ∇f(y)), with j = draws[t][w]; x <- x - η·mean_w
  u_w.

  Args:
    y: where the epoch starts, a vector.
    gradient: (j, x) -> ∇f_j(x), for j in range(num_functions).
    num_functions: m; f is the *mean* of the f_j.
    draws: draws[t][w], uniform over all m, T steps by P workers.
    learning_rate: η.
    quantise: (vector, t, w) -> vector; None sends vectors as they are (SVRG).

  Returns:
    The next y: 1/T · Σ_{t=1..T} x_t, which holds the start x_1 = y and not the
    point after the last step; and the list x_1 … x_{T+1}.
  """
  y = np.asarray(y, np.float64)
  num_workers = len(draws[0])
  at_y = full_gradient(y, gradient, num_functions, num_workers)
  iterates = [y.copy()]
  for t, indices in enumerate(draws):
    x = iterates[-1]
    total = np.zeros_like(y)
    for w, j in enumerate(indices):
      update = gradient(j, x) - gradient(j, y) + at_y
      if quantise is not None:
        update = np.asarray(quantise(update, t, w), np.float64)
      total += update
    iterates.append(x - learning_rate * total / num_workers)
  steps = len(draws)
  return sum(iterates[:steps]) / steps, iterates
