"""Two processes of Open MPI, and of SLURM, which are one run."""

import os
import shlex
import subprocess
import time

import pytest
from tests.experiments.hosts import slurm
from tests.experiments.training import processes

pytestmark = pytest.mark.slow

_FLAGS = ('--config.train.steps=400', '--config.train.checkpoint_every=20')
_JOINED = ('--multihost', *_FLAGS)


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
  """The run of one process with two devices."""
  folder = tmp_path_factory.mktemp('alone')
  processes.run_alone(folder, folder / 'run', *_FLAGS)
  return folder / 'run'


@pytest.fixture(scope='module')
def mpirun():
  """Returns a function that runs a command in two processes of this host."""
  slurm.install(['mpirun'], ['openmpi-bin'])
  # No other host to reach, and no more cores than there are.
  options = ('--oversubscribe', '--mca', 'plm', 'isolated')
  root = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}

  def run(command):
    return subprocess.run(
      ['mpirun', '-n', '2', *options, *command],
      env={**os.environ, **root},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=250,
    )

  return run


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
  """The environment of a SLURM cluster that is this host."""
  if os.name != 'posix' or os.geteuid() != 0:
    pytest.skip('needs root to start the daemons of SLURM')
  slurm.install(
    ['munged', 'slurmctld', 'slurmd', 'srun', 'sbatch'],
    ['munge', 'slurmctld', 'slurmd', 'slurm-client'],
  )
  with slurm.cluster(tmp_path_factory.mktemp('slurm')) as variables:
    yield variables


def test_processes_of_open_mpi_are_one_run(tmp_path, mpirun, alone):
  workdir = tmp_path / 'run'
  done = mpirun(processes.command(tmp_path, workdir, *_JOINED))
  assert done.returncode == 0, done.stdout
  processes.assert_same_run(workdir, alone)


@pytest.mark.parametrize(
  'flags, says',
  [
    ((*_JOINED, '--config.parallel.num_workers=4'), 'JAX_NUM_CPU_DEVICES'),
    (_FLAGS, 'with --multihost they are one run'),
  ],
  ids=['too_few_workers', 'not_joined'],
)
def test_processes_of_open_mpi_are_told_what_is_missing(
  tmp_path, mpirun, flags, says
):
  done = mpirun(processes.command(tmp_path, tmp_path / 'run', *flags))
  assert done.returncode != 0
  assert says in done.stdout and 'Traceback' not in done.stdout, done.stdout


def test_a_job_of_slurm_goes_on_after_scancel(tmp_path, cluster, alone):
  workdir = tmp_path / 'run'
  command = shlex.join(processes.command(tmp_path, workdir, *_JOINED))

  def submit(name):
    return slurm.ask(
      cluster,
      *('sbatch', '--parsable', '--ntasks=2', '--overcommit'),
      f'--output={tmp_path / name}',
      f'--wrap=srun --ntasks=2 --overcommit {command}',
    )

  def end(job, name):
    """Waits for a job; returns what it has printed."""
    _wait(lambda: not slurm.ask(cluster, 'squeue', '-h', f'--jobs={job}'))
    return (tmp_path / name).read_text()

  job = submit('first')
  _wait(lambda: any(workdir.glob('checkpoints/[1-9]*')))
  slurm.ask(cluster, 'scancel', job)
  text = end(job, 'first')
  assert text.count('stopped by SIGTERM after step') == 2, text
  assert not (workdir / 'summary.json').exists()

  text = end(submit('second'), 'second')
  assert 'resuming after step' in text, text
  processes.assert_same_run(workdir, alone)


def _wait(ready, seconds=240):
  end = time.monotonic() + seconds
  while not ready():
    assert time.monotonic() < end
    time.sleep(0.1)
