"""The report as one page: a section for each question, a plot, and the table beneath it. Pure.

It refers to nothing outside of itself, runs no script, follows the reader's choice of light or
dark, and is read on a telephone as on a desk.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any, Final, NamedTuple

from asterism.spark.jobs import plots
from asterism.spark.jobs.plots import Bar, Line, Range, legend, number, swatch

Rows = Sequence[Mapping[str, Any]]
Made = Mapping[str, Rows]

ROWS_MAX: Final = 200  # of a table on the page; the files have all
BARS_MAX: Final = 20
LINES_MAX: Final = plots.COLOURS - 1  # topics with a line of their own; the last is for the others
PLACES_MAX: Final = 360  # of a line over time
OTHERS: Final = "all others"
NOTHING: Final = "-"


class Column(NamedTuple):
    """A column of a table: its key, its head, and how a value is written."""

    key: str
    head: str
    shown: Callable[[Any], str] = str


# --- values ---------------------------------------------------------------------------------------


def shown_bytes(value: Any) -> str:
    size = float(value or 0)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1_000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1_000
    return f"{size:.1f} TB"


def shown_ms(value: Any) -> str:
    if value is None:
        return NOTHING
    ms = float(value)
    if ms < 1_000:
        return f"{ms:.0f} ms"
    return shown_s(ms / 1_000)


def shown_s(value: Any) -> str:
    if value is None:
        return NOTHING
    seconds = float(value)
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3_600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 86_400 else f"{seconds / 86_400:.1f} d"


def shown_time(value: Any) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else NOTHING


def shown_count(value: Any) -> str:
    return NOTHING if value is None else f"{value:,}"


def shown_yes(value: Any) -> str:
    return "yes" if value else "no"


# --- plots of the tables --------------------------------------------------------------------------


def _backlog(rows: Rows) -> str:
    groups: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    names: dict[int, str] = {}
    for row in rows:
        groups[row["topic"], row["status"]][row["age_order"]] = row["deliveries"]
        names[row["age_order"]] = row["age"]
    most = sorted(groups.items(), key=lambda group: -sum(group[1].values()))[:BARS_MAX]
    drawn = [
        Bar(
            f"{topic} · {status}",
            [(count, f"a{age}") for age, count in sorted(ages.items())],
            number(sum(ages.values())),
        )
        for (topic, status), ages in most
    ]
    key = legend([(swatch(f"a{age}"), names[age]) for age in sorted(names)])
    return key + plots.bars("What is still to be done, by topic, status and age", drawn)


def _rates(rows: Rows) -> str:
    rows = [row for row in rows if row["whole"]]
    if not rows:
        return '<p class="none">No minute is whole yet: the table has what there is.</p>'
    minutes = [row["minute"] for row in rows]
    first, last = min(minutes), max(minutes)
    span = int((last - first) / timedelta(minutes=1)) + 1
    wide = -(-span // PLACES_MAX)  # minutes in one place
    places = -(-span // wide)

    def summed(column: str, wanted: Callable[[str], bool]) -> list[float]:
        values = [0.0] * places
        for row in rows:
            if wanted(row["topic"]):
                at = int((row["minute"] - first) / timedelta(minutes=1)) // wide
                values[at] += row[column] / min(wide, span - at * wide)  # the last may have fewer
        return values

    totals: dict[str, int] = defaultdict(int)
    for row in rows:
        totals[row["topic"]] += row["accepted"]
    ranked = sorted(totals, key=lambda topic: (-totals[topic], topic))
    named = ranked if len(ranked) <= plots.COLOURS else ranked[:LINES_MAX]
    accepted = [
        Line(topic, summed("accepted", lambda name, topic=topic: name == topic), f"c{at}")  # type: ignore[misc]
        for at, topic in enumerate(named)
    ]
    if len(named) < len(ranked):
        rest = frozenset(ranked[LINES_MAX:])
        accepted.append(Line(OTHERS, summed("accepted", rest.__contains__), f"c{LINES_MAX}"))
    ended = [
        Line("ended well", summed("ended_ok", lambda name: True), "c2"),
        Line("failed, expired or dropped", summed("ended_otherwise", lambda name: True), "c1"),
    ]
    middle = first + (last - first) / 2
    form = "%H:%M" if last - first < timedelta(days=1) else "%m-%d %H:%M"
    across = [moment.strftime(form) for moment in (first, middle, last)]
    parts = []
    for title, drawn in (("Accepted", accepted), ("Ended", ended)):
        key = legend([(swatch(line.colour), line.label) for line in drawn])
        plot = plots.lines(f"{title}, messages a minute", across, drawn, f"{title}, a minute")
        parts.append(f"<div>{plot}{key}</div>")  # beneath, so that the plots are level
    return f'<div class="pair">{"".join(parts)}</div>'


_MARKS: Final = (
    ('<circle class="c0" cx="7" cy="7" r="5"/>', "half are faster (p50)"),
    ('<circle class="ring" cx="7" cy="7" r="4.5"/>', "95 of 100 are (p95)"),
    ('<line class="end" x1="7" x2="7" y1="1" y2="13"/>', "99 of 100 are (p99)"),
)
_SCALE: Final = {
    1.0: "1 ms", 10.0: "10 ms", 100.0: "0.1 s", 1e3: "1 s", 1e4: "10 s",
    6e4: "1 min", 6e5: "10 min", 3.6e6: "1 h", 3.6e7: "10 h", 8.64e7: "1 d", 8.64e8: "10 d",
}  # fmt: skip


def _ranges(title: str, rows: Rows, label: Callable[[Mapping[str, Any]], str]) -> str:
    timed = [row for row in rows if row["p50_ms"] is not None][:BARS_MAX]
    if not timed:
        return ""
    least = min(max(row["p50_ms"], 1.0) for row in timed)
    most = max(max(row["p99_ms"], 1.0) for row in timed)
    places = list(_SCALE)
    begin = max((at for at, place in enumerate(places) if place <= least), default=0)
    end = next((at for at, place in enumerate(places) if place >= most), len(places) - 1)
    scale = {place: _SCALE[place] for place in places[begin : max(end, begin + 1) + 1]}
    drawn = [
        Range(
            label(row),
            row["p50_ms"],
            row["p95_ms"],
            row["p99_ms"],
            f"{shown_ms(row['p50_ms'])} · {shown_ms(row['p99_ms'])}",
        )
        for row in timed
    ]
    return legend(_MARKS) + plots.ranges(title, drawn, scale)


def _ladder(rows: Rows) -> str:
    title = "From accepted to sent, received and processed, by topic"
    return _ranges(title, rows, lambda row: f"{row['topic']} · {row['step']}")


def _receivers(rows: Rows) -> str:
    title = "From sent to the end of a delivery, by receiver"
    return _ranges(title, rows, lambda row: f"{row['receiver']} · {row['topic']}")


def _counted(
    title: str, label: Callable[[Mapping[str, Any]], str], value: str, shown: Callable[[Any], str]
) -> Callable[[Rows], str]:
    def plot(rows: Rows) -> str:
        drawn = [
            Bar(label(row), [(float(row[value]), "c0")], shown(row[value]))
            for row in rows[:BARS_MAX]
        ]
        return plots.bars(title, drawn)

    return plot


_VERDICTS: Final = {"ok": "c2", "failed": "c1", "expired": "c3", "dropped": "c4"}


def _endings(rows: Rows) -> str:
    groups: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows:
        groups[row["topic"]][row["verdict"]] = row["messages"]
    most = sorted(groups.items(), key=lambda group: -sum(group[1].values()))[:BARS_MAX]
    drawn = []
    for topic, counts in most:
        parts = [(counts[name], _VERDICTS.get(name, "c5")) for name in sorted(counts, key=_rank)]
        words = ", ".join(f"{number(counts[name])} {name}" for name in sorted(counts, key=_rank))
        drawn.append(Bar(topic, parts, words))
    names = sorted({row["verdict"] for row in rows}, key=_rank)
    key = legend([(swatch(_VERDICTS.get(name, "c5")), name) for name in names])
    return key + plots.bars("How messages ended, by topic", drawn)


def _rank(verdict: str) -> int:
    return list(_VERDICTS).index(verdict) if verdict in _VERDICTS else len(_VERDICTS)


# --- sections -------------------------------------------------------------------------------------

_COUNT: Final = shown_count
_TIMES: Final = tuple(
    Column(f"{name}_ms", head, shown_ms)
    for name, head in (("p50", "p50"), ("p95", "p95"), ("p99", "p99"), ("max", "longest"))
)


class _Plan(NamedTuple):
    anchor: str
    title: str
    what: str
    plot: Callable[[Rows], str]
    columns: Sequence[Column]
    empty: str


_HISTORY: Final = "No topic keeps history: set history = headers or full to see this."

PLANS: Final = (
    _Plan(
        "backlog", "Backlog",
        "What is still to be done: a message for each receiver that has not finished it. "
        "“failed” is parked, and waits for a person.",
        _backlog,
        (Column("topic", "Topic"), Column("status", "Status"), Column("age", "Age"),
         Column("deliveries", "Deliveries", _COUNT), Column("payload_bytes", "Size", shown_bytes),
         Column("oldest_s", "Oldest", shown_s)),
        "Nothing waits, is under way, or has failed.",
    ),
    _Plan(
        "rates", "Rates by minute",
        "Messages a minute, in UTC. Of topics that keep no history only what they still hold is "
        "known, so older minutes of those look emptier than they were. Drawn are whole minutes: "
        "the first that is known, and the one in which the snapshot was taken, are parts of one, "
        "and are in the table alone.",
        _rates,
        (Column("minute", "Minute", shown_time), Column("topic", "Topic"),
         Column("accepted", "Accepted", _COUNT), Column("ended_ok", "Ended well", _COUNT),
         Column("ended_otherwise", "Ended otherwise", _COUNT), Column("whole", "Whole", shown_yes)),
        "Nothing was accepted.",
    ),
    _Plan(
        "ladder", "Time on the ladder",
        "From accepted to each step, by topic; written are p50 and p99.",
        _ladder,
        (Column("topic", "Topic"), Column("step", "Step"),
         Column("deliveries", "Deliveries", _COUNT), *_TIMES),
        _HISTORY,
    ),
    _Plan(
        "failures", "Failures by reason",
        "What has failed for good and is parked, by the reason that its receiver gave.",
        _counted("Parked deliveries, by reason", lambda row: f"{row['reason']} · {row['topic']}",
                 "deliveries", shown_count),
        (Column("topic", "Topic"), Column("reason", "Reason"),
         Column("deliveries", "Deliveries", _COUNT), Column("receivers", "Receivers", _COUNT),
         Column("first_at", "First", shown_time), Column("last_at", "Last", shown_time)),
        "Nothing is parked.",
    ),
    _Plan(
        "endings", "How messages ended", "Verdicts, of topics that keep history.", _endings,
        (Column("topic", "Topic"), Column("verdict", "Verdict"),
         Column("messages", "Messages", _COUNT), Column("last_at", "Last", shown_time)),
        _HISTORY,
    ),
    _Plan(
        "receivers", "Slowest receivers",
        "From sent to the end of a delivery, slowest first by p95; written are p50 and p99.",
        _receivers,
        (Column("receiver", "Receiver"), Column("topic", "Topic"),
         Column("deliveries", "Deliveries", _COUNT), Column("failed", "Failed", _COUNT), *_TIMES,
         Column("waiting", "Waiting", _COUNT), Column("oldest_s", "Oldest", shown_s)),
        "No receiver has done anything that is in history, and none has a backlog.",
    ),
    _Plan(
        "payloads", "Largest payloads", "Messages that are held or in history, largest first.",
        _counted("Largest payloads", lambda row: f"{row['topic']} {row['sequence']:,}",
                 "payload_bytes", shown_bytes),
        (Column("topic", "Topic"), Column("sequence", "Sequence", _COUNT),
         Column("payload_bytes", "Size", shown_bytes), Column("subjects", "Subjects"),
         Column("accepted_at", "Accepted", shown_time), Column("held", "Held", shown_yes)),
        "There are no messages.",
    ),
    _Plan(
        "subjects", "Subjects by volume",
        "What messages are about; one with several subjects counts for each. Subjects that differ "
        "in numbers, or in names of which there are many, are counted together: * stands for what "
        "varies.",
        _counted("Messages, by subject", lambda row: f"{row['subject']} · {row['topic']}",
                 "messages", shown_count),
        (Column("subject", "Subject"), Column("topic", "Topic"),
         Column("subjects", "Different ones", _COUNT), Column("messages", "Messages", _COUNT),
         Column("payload_bytes", "Size", shown_bytes)),
        "There are no messages.",
    ),
    _Plan(
        "topics", "Topics", "Each topic as it was at the moment of the snapshot.",
        _counted("Messages held, by topic", lambda row: str(row["topic"]), "held", shown_count),
        (Column("topic", "Topic"), Column("held", "Held", _COUNT),
         Column("parked", "Parked", _COUNT), Column("drafting", "Drafting", _COUNT),
         Column("completed", "Completed", _COUNT), Column("history", "History", str)),
        "There are no topics.",
    ),
)  # fmt: skip


def page(made: Made, name: str, taken: datetime) -> str:
    """The whole page, from the tables of the report."""
    sections = "".join(_section(plan, made[plan.anchor]) for plan in PLANS)
    links = "".join(f'<li><a href="#{plan.anchor}">{plan.title}</a></li>' for plan in PLANS)
    moment = f"{taken:%Y-%m-%d %H:%M:%S} UTC"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="color-scheme" content="light dark">'
        f"<title>Asterism, {escape(name)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>Asterism report</h1><p>Snapshot {escape(name)}, taken {moment}.</p></header>"
        f'{_tiles(made)}<nav aria-label="Sections"><ul>{links}</ul></nav>'
        f"<main>{sections}</main>"
        "<footer><p>The tables are beside this page, whole, as Parquet and as JSON.</p></footer>"
        "</body></html>\n"
    )


def _tiles(made: Made) -> str:
    by_status: dict[str, int] = defaultdict(int)
    oldest = 0.0
    for row in made["backlog"]:
        by_status[row["status"]] += row["deliveries"]
        if row["status"] == "waiting":
            oldest = max(oldest, float(row["oldest_s"] or 0))
    under_way = by_status["sent"] + by_status["received"]
    accepted = sum(row["accepted"] for row in made["rates"])
    tiles = (
        ("Topics", number(len(made["topics"]))),
        ("Messages seen", number(accepted)),
        ("Waiting", number(by_status["waiting"])),
        ("Under way", number(under_way)),
        ("Parked", number(by_status["failed"])),
        ("Oldest waiting", shown_s(oldest) if by_status["waiting"] else NOTHING),
    )
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">{items}</dl>'


def _section(plan: _Plan, rows: Rows) -> str:
    head = f'<section id="{plan.anchor}"><h2>{plan.title}</h2><p>{plan.what}</p>'
    plot = plan.plot(rows) if rows else ""
    if not rows:
        return f'{head}<p class="none">{plan.empty}</p></section>'
    return f"{head}<figure>{plot}{_table(plan, rows)}</figure></section>"


def _table(plan: _Plan, rows: Rows) -> str:
    shown = rows[-ROWS_MAX:] if plan.anchor == "rates" else rows[:ROWS_MAX]
    left_out = len(rows) - len(shown)
    note = f" ({left_out:,} more in {plan.anchor}.json)" if left_out else ""
    kinds = ["" if column.shown is str else ' class="number"' for column in plan.columns]
    columns = list(zip(plan.columns, kinds, strict=True))
    head = "".join(f'<th scope="col"{kind}>{escape(column.head)}</th>' for column, kind in columns)
    lines = [
        "".join(f"<td{kind}>{escape(_cell(column, row))}</td>" for column, kind in columns)
        for row in shown
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    count = f"{len(shown):,} row{'' if len(shown) == 1 else 's'}"
    return (
        f"<details><summary>As a table, {count}{note}</summary>"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{plan.title}">'
        f"<table><caption>{plan.title}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _cell(column: Column, row: Mapping[str, Any]) -> str:
    value = row[column.key]
    return NOTHING if value is None else column.shown(value)


STYLE: Final = """
:root{--page:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#5b6675;--grid:#e3e7ec;--track:#eef1f4;
--c0:#2f6fb3;--c1:#c2482f;--c2:#2e8b67;--c3:#b07a12;--c4:#7a55b5;--c5:#6c7786;
--a0:#b5d8f2;--a1:#5fa3d6;--a2:#2a5f9a;--a3:#e0a030;--a4:#c2482f}
@media(prefers-color-scheme:dark){:root{--page:#12161c;--card:#1b2129;--ink:#e8ecf1;--soft:#9fabba;
--grid:#303946;--track:#262e39;--c0:#6aaeea;--c1:#f08065;--c2:#5cc49a;--c3:#e0b04a;--c4:#b396ea;
--c5:#9aa6b5;--a0:#3c6488;--a1:#5b9fd8;--a2:#a9d3f5;--a3:#e0a030;--a4:#f08065}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:1.25rem 1rem 3rem;background:var(--page);
color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:0}
p{margin:.25rem 0 .9rem;color:var(--soft);max-width:46rem}
a{color:var(--c0)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:.6rem;
margin:0 0 1rem}
.tiles div,section{background:var(--card);border:1px solid var(--grid);border-radius:10px}
.tiles div{padding:.6rem .8rem}
dt{color:var(--soft);font-size:.82rem}dd{margin:0;font-size:1.45rem;font-weight:600;
font-variant-numeric:tabular-nums}
nav ul,.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.3rem 1rem;padding:0;margin:0 0 1rem}
main{display:grid;gap:1rem}
section{padding:1rem 1.1rem;min-width:0;scroll-margin-top:1rem}
figure{margin:0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:1.2rem}
.legend{font-size:.85rem;color:var(--soft);margin-bottom:.7rem}
.legend li{display:flex;align-items:center;gap:.4rem}
svg{display:block;overflow:visible}
svg text{font-size:13px;fill:var(--ink)}
svg text.value{font-variant-numeric:tabular-nums;fill:var(--soft)}
svg text.axis{font-size:12px;fill:var(--soft)}
.track{fill:var(--track)}
.grid{stroke:var(--grid);stroke-width:1}
.span{stroke:var(--c0);stroke-width:3;opacity:.45}
.ring{fill:var(--card);stroke:var(--c0);stroke-width:2}
.end{stroke:var(--c0);stroke-width:3}
.line{fill:none;stroke-width:2;stroke-linejoin:round;vector-effect:non-scaling-stroke}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}.c4{fill:var(--c4)}
.c5{fill:var(--c5)}
.l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}
.l4{stroke:var(--c4)}.l5{stroke:var(--c5)}
.a0{fill:var(--a0)}.a1{fill:var(--a1)}.a2{fill:var(--a2)}.a3{fill:var(--a3)}.a4{fill:var(--a4)}
details{margin-top:.7rem;border-top:1px solid var(--grid);padding-top:.5rem}
summary{cursor:pointer;color:var(--soft);font-size:.9rem}
.scroll{overflow-x:auto;max-height:26rem;overflow-y:auto;margin-top:.5rem}
.scroll:focus-visible,summary:focus-visible,a:focus-visible{outline:2px solid var(--c0)}
table{border-collapse:collapse;width:100%;font-size:.88rem}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
th,td{padding:.3rem .6rem;text-align:left;border-bottom:1px solid var(--grid);white-space:nowrap}
th{position:sticky;top:0;background:var(--card);font-weight:600}
.number{text-align:right;font-variant-numeric:tabular-nums}
.none{font-style:italic;margin:0}
footer{margin-top:1.2rem;font-size:.9rem}
@media print{details{display:none}section{break-inside:avoid}}
""".strip().replace("\n", "")
