"""SLURM and Open MPI on this machine, installed and started where they may be.

One machine is the controller and the only node, with a configuration, a key and
ports of its own, so that it is no part of a cluster that the machine may be in.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import time

from experiments.cluster import environment
import pytest

_PATH = f'{os.environ.get("PATH", "")}:/usr/sbin'

# The key of munge keeps others from running programs here.
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SlurmdParameters=config_overrides
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""


def install(commands: Sequence[str], packages: Sequence[str]) -> None:
  """Makes sure that there are these commands, or skips the test.

  Args:
    commands: their names.
    packages: of Debian, which have them.
  """
  if all(shutil.which(command, path=_PATH) for command in commands):
    return
  names = ' '.join(packages)
  if not sys.platform.startswith('linux') or not shutil.which('apt-get'):
    pytest.skip(f'needs {", ".join(commands)}, and there is no apt-get')
  if os.geteuid() != 0:
    pytest.skip(f'needs root to install {names}')
  if pathlib.Path('/run/systemd/system').exists():
    # Elsewhere than in a container, packages start services.
    pytest.skip(f'needs a container to install in, or: apt-get install {names}')
  for action in (['update'], ['install', '-y', '--no-install-recommends']):
    done = subprocess.run(
      ['apt-get', *action, *(packages if action[0] == 'install' else ())],
      env={**os.environ, 'DEBIAN_FRONTEND': 'noninteractive'},
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
    )
    if done.returncode:
      pytest.skip(f'cannot install {names}: {done.stderr[-500:]}')


@contextlib.contextmanager
def cluster(folder: pathlib.Path) -> Iterator[Mapping[str, str]]:
  """Runs a cluster of one node for the time of a `with` block.

  Args:
    folder: for what it writes.

  Yields:
    The environment in which `sbatch`, `srun`, `scancel` and `squeue` know it.
  """
  configuration = folder / 'slurm.conf'
  configuration.write_text(
    _CONFIGURATION.format(
      folder=folder,
      host=socket.gethostname().partition('.')[0],
      controller=environment.free_port(),
      node=environment.free_port(),
    )
  )
  for name in ('state', 'spool'):
    (folder / name).mkdir()
  key = folder / 'key'
  key.touch(0o600)
  key.write_bytes(secrets.token_bytes(128))
  files = {'socket': 'munge', 'key-file': 'key', 'seed-file': 'seed'}
  files |= {'pid-file': 'munge.pid', 'log-file': 'munge.log'}
  variables = {
    **os.environ,
    'PATH': _PATH,
    'SLURM_CONF': str(configuration),
  }
  with contextlib.ExitStack() as stack:
    for command in (
      # By force: others need not reach its socket.
      ['munged', '--foreground', '--force', '--num-threads=10']
      + [f'--{option}={folder}/{name}' for option, name in files.items()],
      ['slurmctld', '-D', '-i'],
      ['slurmd', '-D', '-N', 'localhost'],
    ):
      stack.enter_context(_daemon(command, variables, folder))
      if command[0] == 'munged':
        _wait(lambda: (folder / 'munge').exists(), folder)
    _wait(lambda: ask(variables, 'sinfo', '-h', '-o', '%T') == 'idle', folder)
    try:
      yield variables
    finally:
      # Their processes are not the daemons', and would outlive these.
      ask(variables, 'scancel', '--user=root')
      _wait(lambda: not ask(variables, 'squeue', '-h'), folder)


def ask(variables: Mapping[str, str], *command: str) -> str:
  """Returns what a command of SLURM prints."""
  done = subprocess.run(
    command, env=variables, capture_output=True, text=True, timeout=60
  )
  return done.stdout.strip()


@contextlib.contextmanager
def _daemon(command, variables, folder):
  with (folder / f'{command[0]}.out').open('w') as output:
    daemon = subprocess.Popen(
      command, env=variables, stdout=output, stderr=subprocess.STDOUT
    )
  try:
    yield
  finally:
    daemon.terminate()
    try:
      daemon.wait(30)
    except subprocess.TimeoutExpired:
      daemon.kill()
      daemon.wait()


def _wait(ready, folder, seconds=120):
  """Waits until something is there; fails with what the daemons have said."""
  end = time.monotonic() + seconds
  while not ready():
    if time.monotonic() > end:
      said = [path.read_text()[-2000:] for path in sorted(folder.glob('*.out'))]
      pytest.fail('SLURM does not come up:\n' + '\n'.join(said))
    time.sleep(0.2)
