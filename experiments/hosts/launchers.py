"""What SLURM and Open MPI tell a process that they have started.

JAX finds the place of such a process by itself, from the same variables; here
is what it does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
import os
from typing import NamedTuple

from experiments.cluster import environment


class Launcher(NamedTuple):
  """Who has started this process, and how many beside it.

  Attributes:
    name: `'SLURM'`, `'Open MPI'` or `'experiments.cluster'`.
    processes: of the run.
    one_a_host: whether this process is the only one of its host, so that all
      devices of the host are its own.
  """

  name: str
  processes: int
  one_a_host: bool


def find(variables: Mapping[str, str] | None = None) -> Launcher | None:
  """Returns who has started this process, None where nobody says it.

  Open MPI before SLURM, as JAX has them: `mpirun` uses SLURM to reach hosts.

  Args:
    variables: of the environment; `os.environ` if None.
  """
  variables = os.environ if variables is None else variables

  def number(name: str) -> int:
    text = variables.get(name, '')
    return int(text) if text.isdigit() else 0

  processes = number(environment.NUM_PROCESSES)
  if processes:
    return Launcher('experiments.cluster', processes, one_a_host=False)
  processes = number('OMPI_COMM_WORLD_SIZE')
  if processes:
    alone = number('OMPI_COMM_WORLD_LOCAL_SIZE') == 1
    return Launcher('Open MPI', processes, alone)
  # The variables of a step: in an sbatch script, outside `srun`, there is one
  # process, however many tasks the job has.
  processes = number('SLURM_NTASKS')
  if processes and 'SLURM_STEP_NODELIST' in variables:
    alone = number('SLURM_STEP_NUM_NODES') == processes
    return Launcher('SLURM', processes, alone)
  return None
