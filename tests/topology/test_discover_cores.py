"""Processors: what the kernel shows of them is what is found, and what it does not show is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fake_machine as fake
from ringcomm.discover import cores
from ringcomm.ranges import parse_ranges, show_ranges
from ringcomm.topology.facts import Part


def test_two_sockets_of_two_numa_nodes_of_two_complexes_with_two_threads_a_core(tmp_path: Path) -> None:
    fake.processors(tmp_path)
    found = cores.cores(tmp_path)
    assert found.online == "0-31" and len(found.threads) == 16 and found.threads[3] == "3,19"
    assert found.sockets == (Part(0, "0-7,16-23"), Part(1, "8-15,24-31"))
    assert [part.cpus for part in found.numa] == ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]
    assert len(found.complexes) == 8 and found.complexes[7] == Part(7, "14-15,30-31")
    assert found.distances[1] == (12, 10, 32, 32)


def test_three_complexes_and_no_second_threads_are_counted_as_they_are(tmp_path: Path) -> None:
    fake.processors(tmp_path, sockets=1, numa_each=1, l3_each=3, cores_each=4)
    found = cores.cores(tmp_path)
    assert [part.cpus for part in found.complexes] == ["0-3,12-15", "4-7,16-19", "8-11,20-23"]
    assert len(found.sockets) == len(found.numa) == 1


def test_a_processor_that_is_offline_belongs_to_nothing(tmp_path: Path) -> None:
    fake.processors(tmp_path)
    fake.put(tmp_path, "sys/devices/system/cpu/online", "0-30")
    found = cores.cores(tmp_path)
    assert found.threads[15] == "15" and found.numa[3].cpus == "12-15,28-30" and found.complexes[7].cpus == "14-15,30"


def test_the_cores_a_process_may_use_are_those_its_cpuset_left_and_that_are_online(tmp_path: Path) -> None:
    fake.processors(tmp_path)
    fake.allowed(tmp_path, "8-11,24-27")
    assert cores.allowed(tmp_path) == (8, 9, 10, 11, 24, 25, 26, 27)
    fake.allowed(tmp_path, "30-239")
    assert cores.allowed(tmp_path) == (30, 31)
    assert cores.cores(tmp_path).online == "0-31"


def test_what_a_small_virtual_machine_or_container_hides_is_left_out(tmp_path: Path) -> None:
    base = "sys/devices/system/cpu"
    for cpu in range(2):
        fake.put(tmp_path, f"{base}/cpu{cpu}/topology/physical_package_id", -1)
        fake.put(tmp_path, f"{base}/cpu{cpu}/cache/index0/level", 1)
    (tmp_path / base / "cpufreq").mkdir()
    found = cores.cores(tmp_path)
    assert found.online == "0-1"
    assert (found.threads, found.complexes, found.numa, found.sockets, found.distances) == ((), (), (), (), ())
    assert cores.cores(tmp_path / "nothing").online == "" and cores.allowed(tmp_path / "nothing") == ()


def test_on_this_machine_the_kernel_and_python_agree() -> None:
    assert set(cores.allowed()) == os.sched_getaffinity(0)
    found = cores.cores()
    assert len(parse_ranges(found.online)) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert sorted(c for part in found.numa for c in parse_ranges(part.cpus)) in ([], list(parse_ranges(found.online)))


@pytest.mark.parametrize("text", ["0-3,8", "", "5", "0,2,4-6"])
def test_lists_of_numbers_are_read_and_written_as_the_kernel_does(text: str) -> None:
    assert show_ranges(parse_ranges(text)) == text


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "0-99999999"])
def test_other_texts_are_no_list_of_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_ranges(text)
