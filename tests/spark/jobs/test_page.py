"""The page of the report: whole, of itself alone, and well formed. No Spark is needed for it."""

import itertools
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from asterism.spark.jobs import plots
from asterism.spark.jobs.report_page import PLANS, page, shown_bytes, shown_ms, shown_s

TAKEN = datetime(2026, 1, 31, 12, tzinfo=UTC)
NASTY = "<script>alert('&')</script>"
VOID = {"meta", "rect", "line", "circle", "polyline", "br"}
TIMES: dict[str, Any] = {"p50_ms": 3.0, "p95_ms": 40.0, "p99_ms": 500.0, "max_ms": 9_000.0}


def made(topics: int = 3) -> dict[str, list[dict[str, Any]]]:
    """Tables as the report makes them; each name in them tries to be more than text."""
    names = [f"{NASTY} {number}" for number in range(topics)]
    return {
        "topics": [
            {"topic": name, "held": 5, "parked": 1, "drafting": 0, "completed": 7,
             "next_sequence": 9, "history": None, "snapshot_at": TAKEN}
            for name in names
        ],
        "backlog": [
            {"topic": name, "status": "waiting", "age_order": age, "age": f"age {age}",
             "deliveries": 10 + age, "payload_bytes": 10, "oldest_s": 17.0}
            for name in names for age in range(5)
        ],
        "rates": [
            {"minute": TAKEN + timedelta(minutes=minute), "topic": name, "accepted": minute,
             "ended_ok": 1, "ended_otherwise": 0, "whole": True}
            for minute in (0, 1, 7) for name in names
        ],
        "ladder": [
            {"topic": name, "step_order": 0, "step": "sent", "deliveries": 4, **TIMES}
            for name in names
        ],
        "failures": [
            {"topic": name, "reason": NASTY, "deliveries": 3, "receivers": 1, "first_at": TAKEN,
             "last_at": None} for name in names
        ],
        "endings": [
            {"topic": name, "verdict": verdict, "messages": 4, "last_at": TAKEN}
            for name in names for verdict in ("ok", "failed", "of a later version")
        ],
        "receivers": [
            {"topic": name, "receiver": NASTY, "deliveries": 1, "failed": 0, **TIMES, "waiting": 2,
             "oldest_s": None} for name in names
        ],
        "payloads": [
            {"topic": name, "sequence": 4, "payload_bytes": 1_234_567, "subjects": NASTY,
             "accepted_at": TAKEN, "held": True} for name in names
        ],
        "subjects": [
            {"subject": NASTY, "topic": name, "subjects": 2, "messages": 4, "payload_bytes": 12}
            for name in names
        ],
    }  # fmt: skip


class Checker(HTMLParser):
    """Follows the tags: what is opened is closed, in order; what refers elsewhere is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def test_the_page_has_a_section_a_plot_and_a_table_for_each_question() -> None:
    found = parsed(page(made(), "snapshot", TAKEN))
    sections = [attrs["id"] for tag, attrs in found.seen if tag == "section"]
    assert sections == [plan.anchor for plan in PLANS]
    tags = [tag for tag, _ in found.seen]
    assert tags.count("table") == tags.count("caption") == len(PLANS)
    drawn = [attrs for tag, attrs in found.seen if tag == "svg" and attrs.get("role") == "img"]
    assert len(drawn) == len(PLANS) + 1, "rates are two plots"
    ids = {attrs["id"] for _, attrs in found.seen if "id" in attrs}
    for attrs in drawn:
        named = (attrs["aria-labelledby"] or "").split()
        assert len(named) == 2 and set(named) <= ids, "a plot has a title and a description"
    heads = [attrs for tag, attrs in found.seen if tag == "th"]
    assert heads and all(attrs.get("scope") == "col" for attrs in heads)


def test_the_page_refers_to_nothing_outside_of_itself_and_runs_nothing() -> None:
    text = page(made(), "snapshot", TAKEN)
    found = parsed(text)
    for tag, attrs in found.seen:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "image", "use")
        assert not any(name.startswith("on") or name == "src" for name in attrs)
        assert (attrs.get("href") or "#").startswith("#")
    assert not re.search(r"https?:|//[a-z]|url\(|@import", text)
    assert "default-src 'none'" in text


def test_what_comes_from_messages_is_text_and_nothing_else() -> None:
    found = parsed(page(made(), NASTY, TAKEN))
    assert not any(tag == "script" for tag, _ in found.seen)
    assert any(NASTY in data for data in found.text)


def test_the_page_is_for_light_and_dark_and_for_a_small_screen() -> None:
    text = page(made(), "snapshot", TAKEN)
    assert "prefers-color-scheme:dark" in text and "width=device-width" in text
    stretched = re.findall(r"<svg[^>]*viewBox[^>]*>(.*?)</svg>", text)
    assert stretched and not any("<text" in inner for inner in stretched), "letters are not scaled"


def test_a_broker_with_nothing_in_it_has_a_page_that_says_so() -> None:
    found = parsed(page({plan.anchor: [] for plan in PLANS}, "snapshot", TAKEN))
    said = "".join(found.text)
    for plan in PLANS:
        assert plan.empty in said
    assert "table" not in [tag for tag, _ in found.seen]


def test_many_topics_share_a_line_and_a_long_table_says_what_it_leaves_out() -> None:
    text = page(made(topics=100), "snapshot", TAKEN)
    assert "all others" in text
    assert "more in backlog.json" in text
    parsed(text)


def test_a_gap_in_time_is_drawn_as_nothing_published() -> None:
    rows = made(topics=1)
    text = page(rows, "snapshot", TAKEN)
    line = re.search(r'<polyline class="line l0" points="([^"]+)"', text)
    assert line is not None
    places = line[1].split()
    assert len(places) == 8, "a place for each minute from the first to the last"
    assert [place.endswith(",100.00") for place in places] == [True, False, *[True] * 5, False]


def rate(minute: int, accepted: int, whole: bool) -> dict[str, Any]:
    at = TAKEN + timedelta(minutes=minute)
    return {"minute": at, "topic": "orders", "accepted": accepted, "ended_ok": accepted,
            "ended_otherwise": 0, "whole": whole}  # fmt: skip


def heights(text: str) -> list[float]:
    """Where the first line runs, from 0 at the bottom to 100."""
    line = re.search(r'<polyline class="line l0" points="([^"]+)"', text)
    assert line is not None
    return [100 - float(place.partition(",")[2]) for place in line[1].split()]


def test_a_part_of_a_minute_is_not_drawn() -> None:
    rows = [rate(0, 7, False), *[rate(minute, 100, True) for minute in (1, 2, 3)],
            rate(4, 9, False)]  # fmt: skip
    text = page({**made(), "rates": rows}, "snapshot", TAKEN)
    assert heights(text) == [100, 100, 100], "a steady rate neither grows nor falls"
    assert "Drawn are whole minutes" in text
    shown = text[text.index('id="rates"') : text.index('id="ladder"')]
    assert shown.count("<tr>") == 1 + len(rows), "the table has all minutes"


def test_without_a_whole_minute_there_is_a_table_and_no_plot() -> None:
    text = page({**made(), "rates": [rate(0, 7, False)]}, "snapshot", TAKEN)
    shown = text[text.index('id="rates"') : text.index('id="ladder"')]
    assert "No minute is whole" in shown and "polyline" not in shown and "<table" in shown
    parsed(text)


@pytest.mark.parametrize("minutes", [360, 361, 1_000])
def test_a_steady_rate_is_level_over_a_long_time(minutes: int) -> None:
    """Minutes share a place then, and the last place may have fewer of them."""
    rows = [rate(minute, 100, True) for minute in range(minutes)]
    drawn = heights(page({**made(), "rates": rows}, "snapshot", TAKEN))
    assert len(drawn) <= 360 and set(drawn) == {100}


def edges(drawn: str) -> list[tuple[float, float]]:
    """From where to where each part of the bars goes, in hundredths of a percent."""
    found = re.findall(r'<rect class="c\d" x="([\d.]+)%" y="\d+" width="([\d.]+)%"', drawn)
    return [(round(100 * float(x)), round(100 * (float(x) + float(width)))) for x, width in found]


@pytest.mark.parametrize(
    "values",
    [(10_000, 1), (1, 10_000), (10_000, 1, 1, 1, 1), (1, 1, 1), (1, 10_000, 1, 0, 9_999), (1, 2)],
)
def test_no_bar_is_wider_than_its_track_and_no_part_hides_another(values: tuple[int, ...]) -> None:
    bar = plots.Bar("a", [(value, f"c{at}") for at, value in enumerate(values)], "all")
    parts = edges(plots.bars("t", [bar]))
    assert len(parts) == sum(value > 0 for value in values)
    assert parts[0][0] == 0 and parts[-1][1] in (9_999, 10_000), "rounded"
    assert all(end - begin >= 40 for begin, end in parts), "what is there is seen"
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(parts))


def test_bars_are_as_long_as_their_values() -> None:
    drawn = plots.bars("t", [plots.Bar("a", [(50, "c0"), (50, "c1")], "100"),
                             plots.Bar("b", [(25, "c0")], "25")])  # fmt: skip
    widths = re.findall(r'<rect class="c\d" x="([\d.]+)%" y="\d+" width="([\d.]+)%"', drawn)
    assert widths == [("0.00", "50.00"), ("50.00", "50.00"), ("0.00", "25.00")]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (shown_ms(0), "0 ms"), (shown_ms(999), "999 ms"), (shown_ms(1_500), "1.5 s"),
        (shown_s(59), "59 s"), (shown_s(90), "1.5 min"), (shown_s(7_200), "2.0 h"),
        (shown_s(200_000), "2.3 d"), (shown_bytes(999), "999 B"), (shown_bytes(1_500), "1.5 KB"),
        (plots.number(9_999), "9,999"), (plots.number(12_345), "12.3 k"),
        (plots.number(2_000_000), "2 M"), (str(plots.nice(37)), "40.0"), (str(plots.nice(0)), "1"),
    ],
)  # fmt: skip
def test_numbers_are_short(shown: str, text: str) -> None:
    assert shown == text
