"""Whose process is that?

Only what was started in this state folder is found again, and nothing else is ever ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from kafka_liveness_dagster.embedded import processes, services, state
from kafka_liveness_dagster.embedded.state import StartedService
from tests.waiting import wait_for

MARK = "0123456789abcdef"
WAITS = [sys.executable, "-c", "input()"]
NOBODY = 65534


def service_of(home, pid, mark=MARK):
    """Let the state folder say that its Kafka is this process."""
    (home / "kafka").mkdir(parents=True, exist_ok=True)
    state.write_state(home, {"kafka": StartedService(port=9, pid=pid, process_marker=mark, ready=True)})


@contextmanager
def decoy(folder, *arguments, command=WAITS, **options):
    """A process that waits, with these arguments; gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [*command, *arguments]
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    ) as child:
        try:

            def is_executed():  # until then its command line is empty
                assert child.poll() is None
                return psutil.Process(child.pid).cmdline()[: len(command)] == command

            wait_for(is_executed)
            yield child
        finally:
            child.kill()


def test_a_service_is_known_by_its_mark_and_its_folder(home, tmp_path):
    """The mark, as an option or alone, in the folder where services run: `down` ends it.

    A linked path is the same.
    """
    link = tmp_path / "link"
    link.symlink_to(home)
    for argument, asked in ((f"-Dkafka_liveness.process_marker={MARK}", home), (MARK, link)):
        with decoy(home / "kafka", argument) as child:
            service_of(home, child.pid)
            assert services.stop_services(asked) == ["kafka"]
            assert not psutil.pid_exists(child.pid)


@pytest.mark.parametrize(
    "argument",
    [
        pytest.param(f"--log=/tmp/{MARK}/kafka.log", id="a path that contains it"),
        pytest.param(f"{processes.process_marker_option(MARK)}0", id="a longer mark"),
        pytest.param(f"/x/{processes.process_marker_option(MARK)}", id="the option inside of another"),
        pytest.param(f"--name={MARK}", id="an option of others"),
    ],
)
def test_what_only_looks_like_the_mark_is_not_ours(home, argument):
    """A program that looks at a service, a log or another folder has the mark in its arguments.

    It is left alone.
    """
    with decoy(home / "kafka", argument) as child:
        service_of(home, child.pid)
        assert services.running_services(home) is None
        assert services.stop_services(home) == []
        assert child.poll() is None


def test_a_short_mark_is_as_exact_as_a_long_one(home):
    """Whatever the state file says: a mark that is in every path ends no program that has such a path."""
    with decoy(home / "kafka", str(home)) as child:
        service_of(home, child.pid, mark="/")
        assert services.stop_services(home) == []
        assert child.poll() is None


@pytest.mark.parametrize("other", ["copy", "state2"])
def test_a_copy_of_the_state_folder_does_not_own_the_services(home, tmp_path, other):
    """A state file that was copied names the processes of the original: in the copy they are nobody's.

    ``state2``: one folder's path begins with the other's.
    """
    with decoy(home / "kafka", processes.process_marker_option(MARK)) as child:
        service_of(home, child.pid)
        shutil.copytree(home, tmp_path / other)
        assert services.stop_services(tmp_path / other) == []
        assert child.poll() is None
        assert services.stop_services(home) == ["kafka"]
        assert not psutil.pid_exists(child.pid)


def test_a_service_whose_folder_was_removed_is_still_ours(home):
    """Who empties the state folder under a running service can still end it."""
    with decoy(home / "kafka", processes.process_marker_option(MARK)) as child:
        service_of(home, child.pid)
        (home / "kafka").rmdir()
        assert services.stop_services(home) == ["kafka"]


def test_who_asks_is_never_ended_nor_who_started_it(home):
    """`down` inside of a process that the state file names.

    Neither it nor what it descends from is a service.
    """
    asks = (
        "import subprocess, sys; from kafka_liveness_dagster.embedded import services; down = 'from "
        "kafka_liveness_dagster.embedded import services; print(services.stop_services())'; input(); "
        "print(services.stop_services(), flush=True); print(subprocess.check_output([sys.executable, '-c', "
        "down], text=True), flush=True); input()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with decoy(
        home / "kafka",
        processes.process_marker_option(MARK),
        command=[sys.executable, "-c", asks],
        env=environment,
        text=True,
    ) as child:
        service_of(home, child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
        assert [child.stdout.readline().strip() for _ in range(2)] == ["[]", "[]"]
        assert child.poll() is None


def test_the_first_process_and_no_process_are_never_found():
    """Pid 1 is the system, or the container: not ours even when all else would fit."""
    first = psutil.Process(1)
    try:
        where, says = first.cwd(), first.cmdline()[0]
    except psutil.AccessDenied:
        where, says = "/", "init"
    assert processes.find_process(1, says, where) is None
    assert processes.find_process(0, MARK, "/") is None
    assert processes.find_process(-1, MARK, "/") is None
    assert processes.find_process(None, MARK, "/") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")
def test_another_users_process_is_not_ours(home):
    """Two users on one host: what the other one started is never ended, whatever the state file says."""
    for user, found in ((NOBODY, []), (None, ["kafka"])):
        # The shell may be started by every user
        waits = ["/bin/sh", "-c", "read line", processes.process_marker_option(MARK)]
        with decoy(home / "kafka", command=waits, user=user) as child:
            service_of(home, child.pid)
            assert services.stop_services(home) == found
            assert (child.poll() is None) == (found == [])


def test_the_end_of_a_service_is_not_the_end_of_who_asks(home, tmp_path):
    """A descendant of a service that asks for its end outlives its request: it is told what became of it."""
    asks = (
        "import psutil, os; from kafka_liveness_dagster.embedded import processes; "
        "processes.end_processes([psutil.Process(os.getppid()), psutil.Process()]); print('lives')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {asks!r}])"
    with decoy(tmp_path, command=[sys.executable, "-c", starts], env=environment, text=True) as child:
        assert child.stdout.readline().strip() == "lives"
