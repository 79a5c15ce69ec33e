"""Communication with other devices; only this folder knows the runner.

The same scheme runs in four modes, whose collectives differ:

  single      `axis_name=None`: one worker, nothing is sent
  simulated   `jax.vmap(axis_name=...)`: P workers on one device
  manual      `jax.pmap` or `jax.shard_map(check_vma=False)`
  checked     `jax.shard_map` with `check_vma=True`: each value is typed
              varying (differs between devices of an axis) or not

In a fifth mode, `recorded`, `plan()` counts bytes; no collective runs. `Comm`
(the workers) and `Shards` (the devices that share one worker's leaves) hide the
differences. Nothing else in the library calls `jax.lax` collectives or casts.
"""

from gradsparse.collectives.comm import Comm
from gradsparse.collectives.comm import ReplicationError
from gradsparse.collectives.comm import VerifiedComm
from gradsparse.collectives.devices import NO_SHARDS
from gradsparse.collectives.devices import AxisName
from gradsparse.collectives.devices import Shards
from gradsparse.collectives.mesh_axes import surroundings

__all__ = (
  'NO_SHARDS',
  'AxisName',
  'Comm',
  'ReplicationError',
  'Shards',
  'VerifiedComm',
  'surroundings',
)
