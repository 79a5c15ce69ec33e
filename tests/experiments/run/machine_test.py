"""What records say of the machine."""

import os

from experiments.run import machine
import pytest


@pytest.mark.parametrize('count, words', [(1, '1 core,'), (3, '3 cores,')])
def test_cores_are_those_that_the_process_may_use(monkeypatch, count, words):
  monkeypatch.setattr(
    os, 'sched_getaffinity', lambda pid: set(range(count)), raising=False
  )
  found = machine.describe()
  assert found['cpu_cores'] == count
  assert words in machine.place(found)


def test_the_processor_is_on_record_where_the_system_names_it(
  tmp_path, monkeypatch
):
  listed = tmp_path / 'cpuinfo'
  monkeypatch.setattr(machine, '_CPUINFO', listed)
  assert machine.describe()['cpu_model'] is None
  listed.write_text('processor : 0\nmodel name\t: Abacus: 9000 \nmodel name: 2')
  assert machine.describe()['cpu_model'] == 'Abacus: 9000'


def test_the_allocator_is_on_record_where_it_was_told_something(monkeypatch):
  monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
  assert 'glibc_tunables' not in machine.describe()
  monkeypatch.setenv('GLIBC_TUNABLES', 'glibc.malloc.hugetlb=1')
  assert machine.describe()['glibc_tunables'] == 'glibc.malloc.hugetlb=1'
