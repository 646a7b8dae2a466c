"""The timeline of KIP-62 on a real broker: told from what was seen, and nothing of it stays."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from definitions.timeline.events import Recording, TimelineEvent, What
from definitions.timeline.picture import draw_svg
from definitions.timeline.verdict import judge_recording
from tests.timeouts import seconds

DOCS = Path(__file__).parents[2] / "docs"
RUNS = {
    protocol: json.loads((DOCS / "images" / f"liveness-timeline-{protocol}.json").read_text(encoding="utf-8"))
    for protocol in ("classic", "consumer")
}
CLI = [sys.executable, "-c", "from kafka_liveness_dagster.cli.main import main; main()", "timeline"]
SESSION, POLL_INTERVAL, STALL = seconds(1.5), seconds(3.0), seconds(6.0)
SHORT = [f"--session={SESSION}", f"--poll-interval={POLL_INTERVAL}", f"--stall={STALL}"]
FOR_LONG = 100.0  # seconds, of a session that an interrupted command does not wait for


@pytest.fixture(scope="module")
def admin(services):
    """The broker, asked by a client that shares no code with the command."""
    return AdminClient({"bootstrap.servers": services.bootstrap_servers, "log_level": 0})


@pytest.fixture(scope="module")
def timelines(services):
    """Play acts at once: ``timelines(name=act, …) -> {name: outcome}``.

    What they start must not outlive them.
    """
    where = f"--bootstrap-servers={services.bootstrap_servers}"

    def play(**acts):
        started = []

        def start(*arguments):
            command = subprocess.Popen(
                [*CLI, where, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
            )
            started.append(psutil.Process(command.pid))
            return command

        try:
            with ThreadPoolExecutor(len(acts)) as stages:
                played = {name: stages.submit(act, start) for name, act in acts.items()}
        finally:
            left = [
                found
                for command in started
                if command.is_running()
                for found in (command, *command.children())
            ]
            for process in left:
                process.kill()
        outcomes = {name: act.result() for name, act in played.items()}
        assert left == []
        return outcomes

    return play


def traces(admin):
    """Topics and groups that a timeline has made."""
    names = [
        *admin.list_topics(timeout=60).topics,
        *(g.group_id for g in admin.list_consumer_groups().result().valid),
    ]
    return [name for name in names if name.startswith("timeline-")]


def wait_for(line, command):
    """Read what the command shows until it shows this; that row, and its consumer's process then."""
    told = []
    for row in command.stdout:
        told.append(row)
        if line in row:
            (consumer,) = psutil.Process(command.pid).children()
            return row, consumer
    raise AssertionError(f"never showed {line!r}: {''.join(told)}")


def when(events, what, after=-1.0):
    """When it was first seen after a moment."""
    return next(event["seconds"] for event in events if event["event"] == what and event["seconds"] > after)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    output: str = ""
    seconds: float = 0.0  # since it was asked to
    consumer_lives: bool = False
    json_file: Path | None = None

    @property
    def events(self):
        assert self.code == 0, self.output
        return json.loads(self.json_file.read_text(encoding="utf-8"))["events"]


# --- to its end ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(timelines, tmp_path_factory):
    """Three timelines, at once since nearly all of their time is the consumer's stall."""
    folder = tmp_path_factory.mktemp("timelines")

    def whole(protocol):
        def act(start):
            json_file = folder / f"{protocol}.json"
            command = start(*SHORT, f"--protocol={protocol}", "--json-file", str(json_file))
            output = command.communicate(timeout=seconds(300))[0]
            return Ended(command.returncode, output, json_file=json_file)

        return act

    def frozen(start):
        command = start(f"--session={seconds(1)}", f"--poll-interval={seconds(6)}", f"--stall={seconds(7)}")
        _, consumer = wait_for("poll() gave a batch", command)
        consumer.suspend()
        time.sleep(seconds(3))  # three times its session timeout, half of its poll interval
        consumer.resume()
        output = command.communicate(timeout=seconds(300))[0]
        return Ended(command.returncode, output)

    return timelines(classic=whole("classic"), consumer=whole("consumer"), frozen=frozen)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_stalled_consumer_stays_until_its_poll_interval_and_comes_back(told, admin, protocol):
    """Heartbeats go on, LeaveGroup comes at the poll interval, the next poll rejoins with the same batch."""
    events = told[protocol].events
    assert [event["seconds"] for event in events] == sorted(event["seconds"] for event in events)

    polled = when(events, "batch-polled")
    left = when(events, "leave-sent", polled)
    polls_again = when(events, "poll-called", polled)
    beats = [event["seconds"] for event in events if event["event"] == "heartbeat-sent"]
    while_stalled = [polled, *(beat for beat in beats if polled < beat < left), left]
    assert len(while_stalled) > 4
    assert max(later - earlier for earlier, later in pairwise(while_stalled)) < SESSION
    early, late = POLL_INTERVAL - seconds(0.5), POLL_INTERVAL + seconds(1)
    assert early < left - polled < late
    assert early < when(events, "group-empty") - polled < late
    assert STALL - 0.1 <= polls_again - polled < STALL + seconds(1)
    assert not [
        event for event in events if left < event["seconds"] < polls_again and event["source"] == "librdkafka"
    ]
    assert polls_again <= when(events, "join-sent", left) < when(events, "batch-polled", polls_again)
    first, second = (event["detail"] for event in events if event["event"] == "batch-polled")
    assert first == second
    assert re.fullmatch(r"p0:[^:]+:0-500", first), "500 records are KIP-62's default; 1,000 were there"
    members = [event["detail"] for event in events if event["event"] == "member-seen"]
    assert len(set(members)) == 2, "who comes back is a new member"
    assert [
        event["event"] for event in events if event["event"] in {"commit-refused", "batch-committed"}
    ] == [
        "commit-refused",
        "batch-committed",
    ]
    assert traces(admin) == []


def test_a_group_setting_does_not_outlive_its_group(told, admin):
    """Under KIP-848 the session timeout was set on the group, where the broker would keep it for ever."""
    events = told["consumer"].events
    assert f"session timeout {SESSION:g} s" in events[0]["detail"]
    group = next(event["detail"] for event in events if event["event"] == "batch-polled").partition(":")[0]
    (found,) = admin.describe_configs([ConfigResource(ConfigResource.Type.GROUP, group)]).values()
    assert found.result()["consumer.session.timeout.ms"].value == "45000"


def test_a_consumer_that_breaks_the_law_is_seen_to(told, admin):
    """A process frozen for longer than its session timeout loses its place before its poll interval.

    Exit code 1.
    """
    command = told["frozen"]
    assert command.code == 1
    broken = [line for line in command.output.splitlines() if "FAIL" in line]
    assert any("heartbeats go on" in line for line in broken), command.output
    assert any("the broker sees it go then" in line for line in broken), command.output
    assert traces(admin) == []


# --- ended before its end -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(timelines):
    """Four timelines at once, each ended at its moment: three are interrupted, one is killed."""

    def interrupted(session, moment):
        def act(start):
            command = start(f"--session={session}", f"--poll-interval={session + 1}", "--stall=600")
            _, consumer = wait_for(moment, command)
            command.send_signal(signal.SIGINT)
            asked_at = time.monotonic()
            output = command.communicate(timeout=seconds(300))[0]
            return Ended(command.returncode, output, time.monotonic() - asked_at, consumer.is_running())

        return act

    def killed(start):
        command = start("--session=1", "--poll-interval=6", "--stall=600")
        row, consumer = wait_for("poll() gave a batch", command)
        command.kill()
        lives = bool(psutil.wait_procs([consumer], timeout=seconds(60))[1])
        if lives:
            consumer.kill()
        return Ended(command.wait(), row, consumer_lives=lives)

    return timelines(
        before=interrupted(FOR_LONG, "consumer created"),
        member=interrupted(FOR_LONG, "poll() gave a batch"),
        left=interrupted(1, "group is empty"),
        killed=killed,
    )


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("before", id="before it has joined"),
        pytest.param("member", id="as a member"),
        pytest.param("left", id="when it has left"),
    ],
)
def test_ctrl_c_leaves_nothing_behind(ended, admin, moment):
    """Whenever it is interrupted, topic, group and process are gone at once, not after a session timeout."""
    command = ended[moment]
    assert command.seconds < FOR_LONG / 2
    assert command.code == 1
    assert not command.consumer_lives
    left = [name.removesuffix(".catch-up") for name in traces(admin)]
    assert all(name in ended["killed"].output for name in left), "only who was killed left something"


def test_the_consumer_does_not_outlive_its_command(ended):
    """A command that is killed can clean up nothing; its consumer leaves the group and ends by itself."""
    assert ended["killed"].code == -signal.SIGKILL
    assert not ended["killed"].consumer_lives


def without(*what, between=(1, 180)):
    """A change: these were not seen in that stretch of the documented run."""
    return lambda events: [e for e in events if not (e.kind in what and between[0] < e.at < between[1])]


def moved(what, seconds):
    """A change: the first of these after the batch was seen so much later."""

    def change(events):
        first = next(e for e in events if e.kind is what and e.at > 1)
        return [replace(e, at=e.at + seconds) if e is first else e for e in events]

    return change


def also(what, at):
    """A change: this was seen, too."""
    return lambda events: [*events, TimelineEvent(at, what)]


def other(what, number, instead):
    """A change: the nth of these was something else."""

    def change(events):
        nth = [e for e in events if e.kind is what][number]
        return [replace(e, **instead) if e is nth else e for e in events]

    return change


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        pytest.param(without(), [], id="the documented run"),
        pytest.param(without(What.HEARTBEAT_SENT), ["heartbeats go on while the op is stalled"], id="none"),
        pytest.param(
            without(What.HEARTBEAT_SENT, between=(20, 31)),
            ["heartbeats go on while the op is stalled"],
            id="a pause",
        ),
        pytest.param(moved(What.LEAVE_SENT, 1.2), ["it leaves at the poll interval"], id="left late"),
        pytest.param(
            moved(What.LEAVE_SENT, -2),
            ["it leaves at the poll interval", "outside the group no heartbeat is sent"],
            id="left early",
        ),
        pytest.param(
            moved(What.GROUP_EMPTY, 10), ["the broker sees it go then"], id="LeaveGroup did not work"
        ),
        pytest.param(
            moved(What.GROUP_EMPTY, -10), ["the broker sees it go then"], id="the broker dropped it"
        ),
        pytest.param(
            also(What.HEARTBEAT_SENT, 100), ["outside the group no heartbeat is sent"], id="beats outside"
        ),
        pytest.param(
            other(What.COMMIT_REFUSED, 0, {"kind": What.BATCH_COMMITTED}),
            ["the late commit is refused", "committed in time, it counts"],
            id="the late commit was accepted",
        ),
        pytest.param(
            also(What.JOIN_SENT, 100), ["the next poll, and nothing else, joins again"], id="joins by itself"
        ),
        pytest.param(
            other(What.BATCH_POLLED, 1, {"detail": "p0:orders:500-1000"}),
            ["the uncommitted batch comes again"],
            id="lost",
        ),
        pytest.param(
            without(What.BATCH_COMMITTED, between=(0, 999)),
            ["committed in time, it counts"],
            id="never committed",
        ),
        pytest.param(
            lambda events: [e for e in events if e.at < 180],
            [
                "the late commit is refused",
                "the next poll, and nothing else, joins again",
                "the uncommitted batch comes again",
                "committed in time, it counts",
            ],
            id="it never came back",
        ),
    ],
)
def test_every_law_can_be_broken(change, broken):
    """What was seen decides, law by law: a verdict that cannot fail would prove nothing."""
    seen = Recording.from_json(RUNS["classic"])
    told = replace(seen, events=tuple(sorted(change(list(seen.events)), key=lambda event: event.at)))
    verdict = judge_recording(told)
    assert [law.statement for law in verdict.expectations if not law.is_met] == broken
    assert verdict.all_met is not bool(broken)
    json.dumps(verdict.as_json(), allow_nan=False)


def test_the_page_shows_the_recorded_runs():
    """Picture and figures are those of the recorded runs; `picture` draws it again after a change."""
    page = (DOCS / "liveness-timeline.md").read_text(encoding="utf-8")
    drawn = (DOCS / "images" / "liveness-timeline.svg").read_text(encoding="utf-8")
    assert drawn == draw_svg(Recording.from_json(RUNS["classic"]))
    classic, consumer = (
        judge_recording(Recording.from_json(RUNS[protocol])).measurements
        for protocol in ("classic", "consumer")
    )
    for row in (
        lambda found: f"{found.heartbeats_while_stalled}, at most {found.longest_silence:.2f} s apart",
        lambda found: f"{found.left_after:.2f} s after the batch",
        lambda found: f"{found.gone_after:.2f} s after the batch",
        lambda found: f"{found.rejoined_after:.2f} s after the call",
        lambda found: f"offsets {found.replayed.rpartition(':')[2]} of 1,000",
    ):
        assert f"| {row(classic)} | {row(consumer)} |" in page
