"""Encode and decode the metadata of both commit logs (KIP-333).

The live commit log is the committed offset of group ``G``; its metadata has the owner state and the pending
ranges. The catch-up commit log is the committed offset of ``G.catch-up``. Every pending offset below this
watermark is done, and the metadata lists the done ranges above it. Both logs name the topic id and the
group's first offset. Talks to no broker, and decides nothing: ``core.resume`` does.

>>> metadata = LiveCommitMetadata.decode("kl1 running 0badcafe @0 70-120")
>>> metadata.pending, metadata.origin
((Span(start=70, end=120),), GroupOrigin(start=0, topic_id=''))
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import MAX_OFFSET, Span, difference, union

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition

MAX_METADATA_BYTES = 4_095  # one below the broker's offset.metadata.max.bytes
CATCH_UP_SUFFIX = ".catch-up"
_VERSION = "kl1"
_NEWER_VERSION = re.compile("kl(?:[2-9]|[1-9][0-9]+) ")
_NO_ORIGIN = "@-"
# The words after the ranges refer to a table, so they need an origin: `(?(start)…)`
_ORIGIN = f"(?:{_NO_ORIGIN}|(?P<topic_id>[A-Za-z0-9_-]*)@(?P<start>[0-9]{{1,19}}))"
_LIVE = re.compile(
    f"{_VERSION} (?P<mark>running|released|paused) (?P<run>[0-9a-f]{{8}}) {_ORIGIN}(?: (?P<owed>[0-9,-]+))?"
    "(?(start)(?: reprocess (?P<again>[0-9]+-[0-9]+))?)"
)
_DONE = re.compile(
    f"{_VERSION} done {_ORIGIN}(?: (?P<done>[0-9,-]+))?"
    "(?(start)(?: written-off (?P<told>[0-9,-]+))?(?: missing (?P<missing>[0-9,-]+))?(?: target "
    "(?P<target>[^ ]+))?)"
)


class ExternalCommitError(KafkaLivenessError):
    """The committed metadata is another program's, or a newer version's; it is not touched."""


@dataclass(frozen=True)
class ExternalCommit:
    """A commit in one of the two logs with metadata that this package does not write.

    Attributes:
        log: "first", the live commit log, or "second", the catch-up commit log; as ``status --json`` has it.
        offset: the committed offset.
        metadata: the committed text; empty for kcat and for ``kafka-consumer-groups --reset-offsets``.
    """

    log: str
    offset: int
    metadata: str

    @property
    def log_name(self) -> str:
        """Name of the log in messages."""
        return "live commit log" if self.log == "first" else "catch-up commit log"

    @property
    def is_from_newer_version(self) -> bool:
        """Whether a newer version of this package wrote it, which may know more than the ledger does."""
        return _NEWER_VERSION.match(self.metadata) is not None

    def __str__(self) -> str:
        return f"offset {self.offset}, metadata {_quote(self.metadata)}"


class OwnerState(Enum):
    """State of a partition's last owner, as its last commit records it."""

    RUNNING = "running"  # the owner was at work; without a live owner this state proves a crash
    RELEASED = "released"  # the owner gave the partition up in good order
    PAUSED = "paused"  # neither lane may process the partition until it is resumed


@dataclass(frozen=True)
class GroupOrigin:
    """The offset and the topic at which a group began to consume a log.

    Attributes:
        start: the first offset that the group answers for; it never had to process those below.
        topic_id: Kafka's id of the topic (KIP-516), which shows that a topic was recreated; empty if no
            broker returned one.
    """

    start: int
    topic_id: str = ""

    def __str__(self) -> str:
        return f"{self.topic_id}@{self.start}"


@dataclass(frozen=True)
class LiveCommitMetadata:
    """Metadata of the live commit log: the owner state, its run (8 hex digits), and the pending ranges.

    Attributes:
        reprocess: offsets to process again although their rows are in the table: the group was reset to an
            earlier offset.
        origin: the group's origin if the owner could read the table; then the commit proves the rows below
            it.
    """

    owner_state: OwnerState
    run_id: str
    pending: tuple[Span, ...] = ()
    _: KW_ONLY
    reprocess: Span | None = None
    origin: GroupOrigin | None = field(default=None, compare=False)

    def encode(self) -> str:
        """Encode as ``kl1 running 0badcafe <topic id>@0 70-120,140-190``.

        Without an origin it is ``kl1 running 0badcafe @- 70-120``. If the pending ranges leave no space for
        the origin, it is left out; such a commit proves nothing.
        """
        if self.fits_commit_metadata() or self.origin is None:
            return self._format()
        return replace(self, reprocess=None, origin=None).encode()

    def fits_commit_metadata(self) -> bool:
        """Return whether the full text is within the metadata limit."""
        return len(self._format()) <= MAX_METADATA_BYTES

    def _format(self) -> str:
        words = f"{_VERSION} {self.owner_state.value} {self.run_id} {_encode_origin(self.origin)}"
        words += f" {_encode_spans(self.pending)}" if self.pending else ""
        # Without an origin there is no table, so it has no rows to process again
        return (
            words if self.origin is None or self.reprocess is None else f"{words} reprocess {self.reprocess}"
        )

    @classmethod
    def decode(cls, metadata: str) -> LiveCommitMetadata | None:
        """Decode the metadata of a commit of the live commit log; None if a plain consumer left none.

        Raises:
            ExternalCommitError: this package did not write the text.
        """
        if not metadata:
            return None
        found = _parse(_LIVE, metadata)
        again, pending = (_decode_spans(found.get(name), metadata) for name in ("again", "owed"))
        return cls(
            OwnerState(found["mark"]),
            found["run"],
            pending,
            reprocess=next(iter(again), None),
            origin=_decode_origin(found, metadata),
        )


@dataclass(frozen=True)
class CatchUpCommitMetadata:
    """The catch-up commit log: every pending offset below ``watermark``, and ``done`` above it, is done.

    Attributes:
        written_off: offsets that are closed without rows: written off by hand, or lost and reported.
        origin: the group's origin; None if no table gave a response.
        target: the table or sink of the group's rows; None if it has no ledger.
        missing: committed offsets whose rows a run found missing. The snapshots that proved it may be expired
            by now.
        external: the commit of another client that replaced this log. The log counts as empty then.
    """

    watermark: int = 0
    done: tuple[Span, ...] = ()
    written_off: tuple[Span, ...] = ()
    _: KW_ONLY
    origin: GroupOrigin | None = field(default=None, compare=False)
    target: str | None = field(default=None, compare=False)
    missing: tuple[Span, ...] = ()
    external: ExternalCommit | None = field(default=None, compare=False)

    def outstanding(self, pending: tuple[Span, ...]) -> tuple[Span, ...]:
        """Return the offsets of ``pending`` that are not done."""
        return difference(pending, (Span(0, self.watermark), *self.done))

    @property
    def end(self) -> int:
        """First offset above everything that counts as done."""
        return max(self.watermark, self.done[-1].end if self.done else 0)

    def mark_done(self, pending: tuple[Span, ...], newly: tuple[Span, ...]) -> CatchUpCommitMetadata:
        """Return the log with ``newly`` done. The watermark passes only offsets that are done or not pending.

        It never passes the end of ``pending``, so a range that becomes pending meanwhile is above it.
        """
        done = union((*self.done, *newly))
        rest = CatchUpCommitMetadata(self.watermark, done).outstanding(pending)
        reached = rest[0].start if rest else max((span.end for span in pending), default=self.watermark)
        watermark = max(self.watermark, reached)
        missing = difference(self.missing, newly)
        done = difference(done, (Span(0, watermark),))
        return replace(self, watermark=watermark, done=done, missing=missing)

    def reopen(self, spans: tuple[Span, ...]) -> CatchUpCommitMetadata:
        """Return the log with these offsets pending again, though they were done or reported as lost before.

        >>> CatchUpCommitMetadata(watermark=120).reopen((Span(70, 100),)).encode()
        'kl1 done @- 100-120'
        """
        done = difference((Span(0, self.watermark), *self.done), spans)
        watermark = done[0].end if done and done[0].start == 0 else 0
        done = difference(done, (Span(0, watermark),))
        reported = difference(self.written_off, spans)
        missing = difference(self.missing, spans)
        return replace(self, watermark=watermark, done=done, written_off=reported, missing=missing)

    def encode(self) -> str:
        """Encode as ``kl1 done <topic id>@0 150-160 written-off 30-40 target lake.shop.orders``.

        The shortest form is ``kl1 done @- 150-160``. Ranges above the metadata limit are left out: first the
        highest done ranges, then the lowest written-off ranges. That costs rework, not data; the table's
        ledger has the written-off ranges by then. Missing ranges that do not fit are written as one.
        """
        done = list(self.done)
        reported = list(self.written_off)
        missing = list(self.missing)
        while len(text := self._format(done, reported, missing)) > MAX_METADATA_BYTES and (
            done or reported or missing[1:]
        ):
            if done:
                done.pop()
            elif reported:
                reported.pop(0)
            else:
                missing = [Span(missing[0].start, missing[-1].end)]
        return text

    def _format(self, done: list[Span], reported: list[Span], missing: list[Span]) -> str:
        words = f"{_VERSION} done {_encode_origin(self.origin)}"
        words += f" {_encode_spans(done)}" if done else ""
        if self.origin is None:
            return words
        words += f" written-off {_encode_spans(reported)}" if reported else ""
        words += f" missing {_encode_spans(missing)}" if missing else ""
        return words + (f" target {self.target}" if self.target else "")

    @classmethod
    def decode(cls, offset: int | None, metadata: str) -> CatchUpCommitMetadata:
        """Decode a commit of the catch-up commit log; without a commit nothing is done.

        Raises:
            ExternalCommitError: this package did not write the text.
        """
        if offset is None:
            return cls()
        found = _parse(_DONE, metadata)
        done, reported, missing = (
            _decode_spans(found.get(name), metadata) for name in ("done", "told", "missing")
        )
        return cls(
            offset,
            done,
            reported,
            origin=_decode_origin(found, metadata),
            target=found.get("target"),
            missing=missing,
        )

    @classmethod
    def read(cls, offset: int | None, metadata: str) -> CatchUpCommitMetadata:
        """Read a commit of any client in the catch-up commit log; an external commit marks no offset as done.

        >>> CatchUpCommitMetadata.read(120, "").external
        ExternalCommit(log='second', offset=120, metadata='')
        """
        try:
            return cls.decode(offset, metadata)
        except ExternalCommitError:
            return cls(external=ExternalCommit("second", offset or 0, metadata))


def committed_offset(first: int | None, pending: tuple[Span, ...]) -> int | None:
    """Return KIP-333's ``committed()``: every offset below it is processed, in either lane."""
    return pending[0].start if pending else first


def pending_before(
    offset: int, pending: tuple[Span, ...], start_offsets: Collection[int] = ()
) -> Span | None:
    """Return the pending offsets that a commit of ``offset`` records as done (KIP-333).

    None unless ``offset`` lies inside a range. The live lane continues at the end of a pending range, so a
    commit of that end proves nothing. Pending ranges of two crashes may touch and become one range. A live
    lane that began inside of such a range has read only the offsets from there.

    Args:
        offset: the committed offset.
        pending: the pending ranges.
        start_offsets: offsets at which the live lane of this process began.
    """
    owing = next((span for span in pending if span.start < offset < span.end), None)
    if owing is None or offset in start_offsets:
        return None
    return Span(max(owing.start, *(start for start in start_offsets if start < offset), 0), offset)


def fits_commit_metadata(
    pending: tuple[Span, ...], origin: GroupOrigin | None = None, again: Span | None = None
) -> bool:
    """Return whether the live commit log's metadata can hold these pending ranges with the longest state."""
    return LiveCommitMetadata(
        OwnerState.RELEASED, "0" * 8, pending, reprocess=again, origin=origin
    ).fits_commit_metadata()


def _encode_origin(origin: GroupOrigin | None) -> str:
    return _NO_ORIGIN if origin is None else str(origin)


def _encode_spans(spans: Sequence[Span]) -> str:
    return ",".join(map(str, spans))


def _parse(form: re.Pattern[str], metadata: str) -> dict[str, str]:
    """Return the named parts that a text has."""
    found = form.fullmatch(metadata)
    if found is None:
        raise _foreign_commit_error(metadata)
    return {name: part for name, part in found.groupdict().items() if part is not None}


def _decode_origin(found: Mapping[str, str], metadata: str) -> GroupOrigin | None:
    if "start" not in found:
        return None
    start = int(found["start"])
    if start > MAX_OFFSET:
        raise _foreign_commit_error(metadata)
    return GroupOrigin(start, found["topic_id"])


def _decode_spans(text: str | None, metadata: str) -> tuple[Span, ...]:
    try:
        pairs = (part.split("-") for part in text.split(",")) if text else ()
        spans = tuple(Span(int(start), int(end)) for start, end in pairs)
    except ValueError as error:
        raise _foreign_commit_error(metadata) from error
    if union(spans) != spans or (spans and spans[-1].end > MAX_OFFSET):
        raise _foreign_commit_error(metadata)
    return spans


def external_commit_error(
    group_id: str, tp: TopicPartition, found: ExternalCommit, servers: str
) -> ExternalCommitError:
    """Return the error for an external commit that stops both lanes, with the command that removes it."""
    if found.is_from_newer_version:
        return ExternalCommitError(
            f"the {found.log_name} of group {group_id} has a commit of a newer version: {tp}, "
            f"{found}. Nothing was joined, written or committed. Fix: upgrade kafka-liveness-dagster"
        )
    command = f"kafka-consumer-groups --bootstrap-server {servers} --topic {tp}"
    if found.log == "first":
        return ExternalCommitError(
            f"the live commit log of group {group_id} has an external commit: {tp}, {found}. It replaced "
            "the list of pending offsets. Nothing was joined, written or committed. Fix: give the other "
            f"program its own group_id; then keep the offset and remove the metadata: `{command} --group "
            f"{group_id} --reset-offsets --to-current --execute`. With a table, the next live run finds the "
            "pending offsets again"
        )
    return ExternalCommitError(
        f"the catch-up commit log of group {group_id} has an external commit: {tp}, {found}. It "
        "replaced the list of pending offsets that are done, and no ledger is available here to rebuild "
        "it. Nothing was joined, written or committed. Fix: give the other program its own group_id. "
        f"With a table, start a live run: it rewrites the commit. Without one, delete it: `{command} "
        f"--group {group_id}{CATCH_UP_SUFFIX} --delete-offsets`; both lanes then continue, and all "
        f"pending offsets of {tp} are processed again"
    )


def _quote(metadata: str) -> str:
    return repr(metadata if len(metadata) <= 80 else f"{metadata[:80]}…")  # noqa: PLR2004 - a line of a terminal


def _foreign_commit_error(metadata: str) -> ExternalCommitError:
    return ExternalCommitError(
        f"the commit metadata {_quote(metadata)} is not this package's (kl1 …): another program, or a "
        "newer version, committed to this group. Nothing was joined or committed. Fix: give each "
        "program its own group_id, or upgrade kafka-liveness-dagster"
    )
