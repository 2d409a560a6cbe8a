"""Every bound of the core, with its unit and what happens at it.

A bound that a user may want to move is a setting (``settings.py``); what is here is fixed.
"""

from typing import Final

# --- what a peer may send; past any of these it is refused ------------------------------------
TOPIC_BYTES_MAX: Final = 255  # a topic's name, UTF-8; bad_request
NAME_BYTES_MAX: Final = 255  # a receiver's name, UTF-8; bad_request
NODE_BYTES_MAX: Final = 64  # a node's or producer's id; bad_request
MESSAGE_ID_BYTES: Final = 16
PRODUCER_ID_BYTES: Final = 16
SUBJECT_BYTES_MAX: Final = 1_024  # one subject or interest, UTF-8; bad_subject, bad_interest
SEGMENTS_MAX: Final = 32  # segments of one subject or interest; bad_subject, bad_interest
MANY_MAX: Final = (
    2_048  # ** in all interests of one endpoint, as each costs every match; bad_interest
)
SUBJECTS_MAX: Final = 64  # subjects of one message; bad_subject
INTERESTS_MAX: Final = 1_024  # interests of one endpoint; bad_interest
RECEIVER_INTERESTS_MAX: Final = 16_384  # of a group, whose members bring theirs; too_large
ATTRIBUTES_MAX: Final = 128  # attributes of one message; bad_request
ATTRIBUTE_BYTES_MAX: Final = 4_096  # one attribute's key or value; bad_request
HEADER_BYTES_MAX: Final = 60_000  # a message's encoded header; too_large
ORDERING_KEY_BYTES_MAX: Final = 1_024  # bad_request
REASON_BYTES_MAX: Final = 1_024  # why a delivery failed; cut, not refused
BATCH_MESSAGES_MAX: Final = 10_000  # messages in one Publish, or sequences in one Report; too_large
PRIORITY_MAX: Final = 2**31 - 1  # bad_request
HOLDING_MAX: Final = 20_000  # deliveries that one endpoint names when it comes back; too_large
HOLDING_SESSIONS_MAX: Final = 8  # sessions under which it was given them; bad_request
CREDIT_MAX: Final = 1_000_000  # credit of one endpoint; bad_request
RECEIVERS_WANTED_MAX: Final = 1_000_000  # max_receivers; bad_request
ENDPOINTS_MAX: Final = 100_000  # endpoints on one topic; busy
TOPIC_SEGMENTS_MAX: Final = 1_000_000  # of all interests on one topic; busy
LIST_MAX: Final = 1_000  # rows in one answer to a listing; the rest by asking on from the last
TIME_MS_MAX: Final = 2**53  # any time or duration; bad_request
SEQUENCE_MAX: Final = 2**63 - 1

# --- what a topic keeps in memory -------------------------------------------------------------
WINDOW_MAX: Final = 16_384  # waiting deliveries of one lane held in memory; the rest stay on disk
WINDOWS_MAX: Final = 65_536  # waiting deliveries of all lanes, and of all receivers, in memory
WINDOW_LOW: Final = 256  # a window that falls below this is filled again
WINDOW_RECORD_BYTES_MAX: Final = 8_192  # a larger payload, a large one: read from disk when sent
SCAN_ROWS_MAX: Final = 2_048  # rows one refill may read before the turn goes on
LANES_MAX: Final = 1_024  # distinct audiences remembered; empty ones are forgotten past it
WORK_HEADERS_CACHED_MAX: Final = 128  # those of drafts; past it, the one used longest ago goes
HEADERS_CACHED_MAX: Final = 4_096  # decoded headers remembered; all are forgotten past it
MEMORY_MESSAGES_MAX: Final = 100_000  # push and online messages held by one topic; busy
MEMORY_BYTES_MAX: Final = (
    256 << 20  # large payloads of those; copies that wait for credit are dropped, then busy
)
ONLINE_COPIES_MAX: Final = 65_536  # online copies waiting for one receiver; the oldest is dropped
PARKED_KEYS_MAX: Final = 4_096  # deliveries set aside behind their ordering key; then all wait, and
# one that is behind an earlier message that waits goes on as if it had no priority
KEYS_PASSED_MAX: Final = 4_096  # ordering keys of which is known how far they were looked at
MARKS_MAX: Final = (
    4_096  # messages done out of order by one receiver, counted; more: not one by one
)
PRODUCERS_CACHED_MAX: Final = 4_096  # producers of one topic remembered in memory; rest on disk
ANSWERS_MAX: Final = 1_024  # unsettled publish answers kept per producer; older ones: wrong_state
PULLS_MAX: Final = 100_000  # pulls and orders waiting on one topic; busy
COUNT_ROWS_MAX: Final = 512  # rows of the log counted in one part; the next part goes on
COUNT_ASKS_MAX: Final = 4_096  # receivers asked whether they owe those, a few ms; the same
OLDEST_ROWS_MAX: Final = 2_048  # rows read to find how old the oldest are; then: about so old
SUBJECTS_COUNTED_MAX: Final = 256  # subjects by which a topic counts its pool; the rest together
SUBJECTS_STORED_MAX: Final = 16  # those it still knows after a restart; more: all together
LAGS_MAX: Final = 100  # receivers whose lag a description of a topic tells: the largest
EXPIRE_ROWS_MAX: Final = 1_024  # due rows handled in one tick; the next tick goes on

# --- what is on its way to receivers; past either of these it waits, but for one message --------
ENDPOINT_BYTES_MAX: Final = 32 << 20  # large payloads that one endpoint has not given back
HANDED_BYTES_MAX: Final = 16 << 20  # payloads one command sends; the next turn goes on

FULL_RETRY_MS: Final = 10_000  # the hint of busy where somebody has to delete something first

# --- sequences: what a restart leaves out, so that none is given twice --------------------------
SEQUENCES_RESERVED: Final = 65_536  # given before the next reserve is synced; skipped by a restart
SEQUENCES_SKIPPED: Final = 100_000_000  # once, by a topic that had no reserve yet

# --- addresses ----------------------------------------------------------------------------------
PORT_MAX: Final = 65_535  # of TCP; an address with another is refused where it is set


def window_of(windows: int) -> int:
    """How many deliveries one of so many windows may hold: they share ``WINDOWS_MAX``."""
    return max(min(WINDOW_MAX, WINDOWS_MAX // max(windows, 1)), 1)
