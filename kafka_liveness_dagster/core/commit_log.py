"""What is done and what is owed? The two commit logs of KIP-333.

First log: the committed offset of group ``G``, its metadata carrying the mark of the last owner and the owed
ranges. Second log: the committed offset of ``G.catch-up``, a watermark below which every owed offset is done,
its metadata carrying the ranges done above it. This module reads and writes the metadata;
``core.resume`` decides what they mean, and neither talks to a broker.

>>> LiveMark.decode("kl1 running 0badcafe 70-120").owed
(Span(start=70, end=120),)
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum

from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError
from kafka_liveness_dagster.core.offsets import Span, difference, union

MAX_METADATA_BYTES = 4_095  # one below the broker's offset.metadata.max.bytes
CATCH_UP_SUFFIX = ".catch-up"
_LIVE = re.compile(r"kl1 (?P<mark>running|released|paused) (?P<run>[0-9a-f]{8}) ?(?P<owed>[0-9,-]*)")
_RUN = re.compile("[0-9a-f]{8}")
_DONE = re.compile(r"kl1 done ?(?P<done>[0-9,-]*)")


class ForeignCommitError(KafkaLivenessError):
    """The committed metadata is another program's, or a newer version's; it is not touched."""


class Mark(Enum):
    """What the last owner of a partition wrote when it committed."""

    RUNNING = "running"  # it was at work: found without its owner, it is the trace of a crash
    RELEASED = "released"  # it gave the partition up in good order
    PAUSED = "paused"  # nobody may process it, in either lane, until it is resumed


@dataclass(frozen=True)
class LiveMark:
    """Metadata of the first log: the owner's mark, its run (8 hex digits), and what the live lane owes."""

    mark: Mark
    run: str
    owed: tuple[Span, ...] = ()

    def encode(self) -> str:
        """``kl1 running 0badcafe 70-120,140-190``."""
        return f"kl1 {self.mark.value} {self.run} {_encode_spans(self.owed)}".rstrip()

    @classmethod
    def decode(cls, metadata: str) -> LiveMark | None:
        """Read the metadata of a first-log commit; None when a plain consumer left none.

        Raises:
            ForeignCommitError: the text is not ours.
        """
        if not metadata:
            return None
        found = _LIVE.fullmatch(metadata)
        if found is None:
            raise _foreign(metadata)
        return cls(Mark(found["mark"]), found["run"], _decode_spans(found["owed"], metadata))


@dataclass(frozen=True)
class DoneLog:
    """The second log: every owed offset below ``watermark`` is done, and so are ``done`` above it."""

    watermark: int = 0
    done: tuple[Span, ...] = ()

    def outstanding(self, owed: tuple[Span, ...]) -> tuple[Span, ...]:
        """What of ``owed`` is still to be done."""
        return difference(owed, (Span(0, self.watermark), *self.done))

    @property
    def end(self) -> int:
        """The first offset above everything that counts as done."""
        return max(self.watermark, self.done[-1].end if self.done else 0)

    def record(self, owed: tuple[Span, ...], newly: tuple[Span, ...]) -> DoneLog:
        """The log after ``newly`` was done. The watermark passes only what is done or was never owed.

        It never passes the end of ``owed``, so a range that comes to be owed meanwhile is above it.
        """
        done = union((*self.done, *newly))
        rest = DoneLog(self.watermark, done).outstanding(owed)
        reached = rest[0].start if rest else max((span.end for span in owed), default=self.watermark)
        watermark = max(self.watermark, reached)
        return DoneLog(watermark, difference(done, (Span(0, watermark),)))

    def encode(self) -> str:
        """``kl1 done 150-160``. What does not fit is left out, highest first: it costs rework, not data."""
        spans = list(self.done)
        while len(text := f"kl1 done {_encode_spans(tuple(spans))}".rstrip()) > MAX_METADATA_BYTES:
            spans.pop()
        return text

    @classmethod
    def decode(cls, offset: int | None, metadata: str) -> DoneLog:
        """Read a second-log commit; nothing committed means nothing done.

        Raises:
            ForeignCommitError: the text is not ours.
        """
        if offset is None:
            return cls()
        found = _DONE.fullmatch(metadata)
        if found is None:
            raise _foreign(metadata)
        return cls(offset, _decode_spans(found["done"], metadata))


def committed(first: int | None, owed: tuple[Span, ...]) -> int | None:
    """KIP-333's ``committed()``: every offset before it is processed, in whichever lane."""
    return owed[0].start if owed else first


def owed_before(offset: int, outstanding: tuple[Span, ...]) -> Span | None:
    """The owed offsets that a commit of ``offset`` says are done; None when it is the live lane's (KIP-333)."""
    owing = next((span for span in outstanding if span.start < offset <= span.end), None)
    return None if owing is None else Span(owing.start, offset)


def fits(owed: tuple[Span, ...]) -> bool:
    """Whether the first log's metadata can hold these owed ranges under the longest mark."""
    return len(LiveMark(Mark.RELEASED, "0" * 8, owed).encode()) <= MAX_METADATA_BYTES


def run_mark(run_id: str) -> str:
    """The 8 hex digits by which commit metadata names a run: a Dagster run id's first, else some made of the id."""
    digits = run_id.replace("-", "")[:8]
    return digits if _RUN.fullmatch(digits) else hashlib.sha256(run_id.encode()).hexdigest()[:8]


def run_of_client(client_id: str) -> str | None:
    """The run's digits out of ``dagster/<job>/<run id>/<step>`` or a script's id; None of a foreign client.

    >>> run_of_client("dagster/orders_job/0badcafe-1111-2222-3333-444444444444/orders"), run_of_client("rdkafka")
    ('0badcafe', None)
    """
    owner, _, rest = client_id.partition("/")
    run_id = rest.partition("/")[2].partition("/")[0]
    return run_mark(run_id) if run_id and owner in ("dagster", "kafka-liveness") else None


def _encode_spans(spans: tuple[Span, ...]) -> str:
    return ",".join(map(str, spans))


def _decode_spans(text: str, metadata: str) -> tuple[Span, ...]:
    try:
        pairs = (part.split("-") for part in text.split(",")) if text else ()
        spans = tuple(Span(int(start), int(end)) for start, end in pairs)
    except ValueError as error:
        raise _foreign(metadata) from error
    if union(spans) != spans:
        raise _foreign(metadata)
    return spans


def _foreign(metadata: str) -> ForeignCommitError:
    shown = metadata if len(metadata) <= 80 else f"{metadata[:80]}…"  # noqa: PLR2004 - a line of a terminal
    return ForeignCommitError(
        f"the commit metadata {shown!r} is not this package's (kl1 …): another program, or a newer version, commits "
        "to this group. Give each its own group_id; nothing was joined or committed"
    )


def check_group_id(group_id: str) -> None:
    """Refuse a group id that could not be told from a second log.

    Raises:
        InvalidSettingError: the id is empty or ends in ``.catch-up``.
    """
    if not group_id or group_id.endswith(CATCH_UP_SUFFIX):
        raise InvalidSettingError(
            f"group_id {group_id!r} must not be empty nor end in {CATCH_UP_SUFFIX!r}, which names the second commit log"
        )
