"""What the command line reads and writes, without a broker."""

import argparse
import io
import logging
import sysconfig
import time
import tomllib
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import asterism
from asterism import running
from asterism.cli import completion, context, doctor, main, output, publish, status, topics, up
from asterism.cli.arguments import parser
from asterism.cli.subscribe import payload_line, shown_payload
from asterism.config import KEYS, ConfigError, from_mapping
from asterism.doors import Client
from asterism.errors import ERRORS, PeerError
from asterism.running import StartError, all_doors, checked_doors, how_it_ended, programs_of
from asterism.testing import toml

# --- settings of topics ---------------------------------------------------------------------------


def test_settings_are_read_by_the_names_of_the_configuration() -> None:
    words = ["overflow.size=10", "overflow.policy=drop_old", "sent_timeout=0.5", "blocking=true"]
    assert topics.settings_from(words) == {
        "overflow": {"size": 10, "policy": "drop_old"},
        "sent_timeout": 0.5,
        "blocking": True,
    }


def test_what_may_be_none_is_set_to_none() -> None:
    words = ["dead_letter=none", "overflow=none", "concurrency="]
    assert topics.settings_from(words) == {
        "dead_letter": None,
        "overflow": None,
        "concurrency": None,
    }


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["bloking=true"], "did you mean blocking"),
        (["blocking"], "not NAME=VALUE"),
        (["blocking=maybe"], "blocking must be true or false"),
        (["overflow.policy=drop_old"], "overflow.size must be given"),
        (["overflow=10"], "no topic setting 'overflow'"),
        (["max_attempts=0"], "max_attempts must be from 1"),
        (["sent_timeout=none"], "sent_timeout must be a number"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(words: list[str], what: str) -> None:
    with pytest.raises(PeerError, match=what) as refused:
        topics.settings_from(words)
    assert refused.value.code == "bad_request"


def test_every_topic_setting_of_the_configuration_can_be_named() -> None:
    values = {
        "overflow.policy": "drop_old",
        "requeue": "front",
        "history": "full",
        "dead_letter": "x",
        "expect": "received",
    }
    flags = ("blocking", "unique", "dedicated")
    others = {"overflow.policy": ["overflow.size=1"]}
    others["retry_backoff.min"] = ["retry_backoff.max=5"]
    others["retry_backoff.max"] = ["retry_backoff.min=0"]
    for key in KEYS:
        name = key.removeprefix("topic.")
        if name != key:
            value = "true" if name in flags else values.get(name, "2")
            assert topics.settings_from([*others.get(name, []), f"{name}={value}"])


# --- commands -------------------------------------------------------------------------------------

LINES = [
    "up --data x --listen tcp://127.0.0.1:0 --workers 3 --http 8081",
    "up --no-http",
    "status --json",
    "topic create a overflow.size=1",
    "topic list --long",
    "topic show a",
    "topic set a blocking=true --inherit requeue",
    "topic clear a --yes",
    "topic delete a -y",
    "pub a text --expect received --max-receivers all",
    "pub a text -s b/c -s d --mode online --expect processed -a x=y --max-receivers 1 --wait",
    "sub a b/* c --name n --count 3 --for 2.5 --raw",
    "receiver list a",
    "receiver show a r --json",
    "receiver seek a r --sequence 5",
    "receiver seek a r --time 2026-01-31T12:00+01:00",
    "receiver delete a r --yes",
    "parked list a --payload",
    "parked renew a 1 2 3 --receiver r",
    "parked abandon a --all",
    "snapshot create --timeout 60",
    "doctor --accept-loss",
    "completion bash",
]


@pytest.mark.parametrize("line", LINES)
def test_a_command_is_read(line: str) -> None:
    options = parser().parse_args(line.split())
    module = __import__(f"asterism.cli.{options.module}", fromlist=["run"])
    assert callable(getattr(module, options.function))


@pytest.mark.parametrize("line", LINES)
def test_options_and_others_come_in_any_order(line: str) -> None:
    path, command = command_of(line)
    pieces = pieces_of(command, line.split()[len(path) :])
    options = [piece for piece in pieces if piece[0].startswith("-")]
    others = [piece for piece in pieces if piece not in options]
    by_turns = [piece for pair in zip_longest(others, options) for piece in pair if piece]
    expected = parser().parse_args(line.split())
    for order in ([*options, *others], [*others, *options], by_turns):
        words = [word for piece in order for word in piece]
        assert parser().parse_args([*path, *words]) == expected, words


def command_of(line: str) -> tuple[tuple[str, ...], argparse.ArgumentParser]:
    """The longest command that a line begins with."""
    found = [
        (path, inner)
        for path, inner, _ in completion.commands(parser())
        if path == tuple(line.split()[: len(path)])
    ]
    return max(found, key=lambda each: len(each[0]))


def pieces_of(command: argparse.ArgumentParser, words: list[str]) -> list[list[str]]:
    """The words of a command, each option together with its value."""
    values = completion.values_of(command)
    pieces: list[list[str]] = []
    for word in words:
        if pieces and len(pieces[-1]) == 1 and pieces[-1][0] in values:
            pieces[-1].append(word)
        else:
            pieces.append([word])
    return pieces


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pub orders --subject s hello", "hello"),
        ("pub --subject s orders hello", "hello"),
        ("pub orders -ss hello", "hello"),
        ("pub orders --subj=s hello", "hello"),
        ("pub orders -s s -- -hello", "-hello"),
        ("pub -s s -- orders --hello", "--hello"),
        ("pub orders -s s -5", "-5"),
        ("pub orders -s s -", "-"),
        ("pub orders -s s", None),
    ],
)
def test_an_option_may_stand_before_the_message(line: str, message: str | None) -> None:
    options = parser().parse_args(line.split())
    assert (options.topic, options.message, options.subject) == ("orders", message, ["s"])


def test_what_up_was_told_by_an_option_is_named_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for line, told in (("up --listen 7711", "--listen: "), ("up", "ASTERISM_STORES: ")):
        monkeypatch.setenv("ASTERISM_STORES", "8" if "listen" in line else "many")
        with pytest.raises(ConfigError, match=f"^{told}"):
            up.run(parser().parse_args(line.split()))


@pytest.mark.parametrize(
    ("text", "door"),
    [
        ("0", ("", 0)),
        ("8081", ("", 8_081)),
        ("localhost:8081", ("localhost", 8_081)),
        ("[::1]:8081", ("::1", 8_081)),
    ],
)
def test_a_door_is_named_by_its_port_or_by_a_host_as_well(text: str, door: tuple[str, int]) -> None:
    assert parser().parse_args(["up", "--http", text]).http == door


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1700000000.5", 1_700_000_000.5),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000),
        ("2023-11-14 23:13:20+01:00", 1_700_000_000),
        ("2023-11-14T22:13:20", time.mktime((2023, 11, 14, 22, 13, 20, 0, 0, -1))),
    ],
)
def test_a_time_is_a_date_or_seconds(text: str, seconds: float) -> None:
    words = ["receiver", "seek", "a", "r", "--time", text]
    assert parser().parse_args(words).time == seconds


def test_help_is_that_of_the_whole_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["pub", "orders", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: asterism pub [-h]") and "topic [message]" in shown


@pytest.mark.parametrize(
    "line", ["", "nothing", "topic", "topic create", "up --workers 0", "pub a b --mode x"]
)
def test_wrong_use_ends_with_code_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(line.split())
    assert ended.value.code == output.WRONG_USE
    assert "usage: asterism" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["", "topic", "receiver", "parked"])
def test_who_names_no_command_is_shown_them(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(line.split())
    assert ended.value.code == output.WRONG_USE
    shown = capsys.readouterr().err
    expected = [
        path[-1]
        for path, _, _ in completion.commands(parser())
        if path[:-1] == tuple(line.split()) and path
    ]
    assert expected and all(f"\n    {name}" in shown for name in expected)
    assert shown.endswith("name one of these commands\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sub", "required: topic\n"),
        ("topic create", "required: topic\n"),
        ("parked renew", "required: topic\n"),
        ("up --workers many", "must be a whole number of at least 1, not 'many'\n"),
        ("sub a --for ever", "must be a number above 0, not 'ever'\n"),
        ("sub a --for nan", "must be a number above 0, not 'nan'\n"),
        ("parked renew a -1", "must be the number of a message, not '-1'\n"),
        (f"parked renew a {1 << 63}", f"must be the number of a message, not '{1 << 63}'\n"),
        ("sub a --name b --group c", "argument --group: not allowed with argument --name\n"),
        ("sub --name b a --group c", "argument --group: not allowed with argument --name\n"),
        ("up --http x", "must be a port, or a host and a port as 127.0.0.1:8080, not 'x'\n"),
        ("up --http 65536", "as 127.0.0.1:8080, not '65536'\n"),
        ("up --http ::1", "as 127.0.0.1:8080, not '::1'\n"),
        ("up --http 1 --no-http", "argument --no-http: not allowed with argument --http\n"),
        ("receiver show a", "required: receiver\n"),
        ("receiver seek a r", "one of the arguments --sequence --time --now is required\n"),
        ("receiver seek a r --time soon", "or seconds since 1970, not 'soon'\n"),
        ("receiver seek a r --time nan", "or seconds since 1970, not 'nan'\n"),
        ("receiver seek a r --time -5", "or seconds since 1970, not '-5'\n"),
        ("spark export", "required: --out\n"),
        ("pub a --nothing b", "unrecognized arguments: --nothing b\n"),
        ("pub a b --wait c", "unrecognized arguments: c\n"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_in_words(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(line.split())
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize(
    "address", ["", "localhost", "127.0.0.1:7700", "tcp://127.0.0.1", "http://a:1", "tcp://a:65536"]
)
def test_an_address_that_is_none_is_wrong_use(address: str) -> None:
    options = parser().parse_args(["status", "--address", address])
    with pytest.raises(output.CommandError, match="--address must be like tcp:") as refused:
        context.address(options)
    assert refused.value.code == output.WRONG_USE


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:7700", "tcp://[::1]:7700", "ipc:///x/y"])
def test_an_address_that_is_one_is_taken_as_it_is(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert context.address(parser().parse_args(["status", "--address", address])) == address
    monkeypatch.setenv("ASTERISM_ADDRESS", address)
    assert context.address(parser().parse_args(["status"])) == address


def test_what_a_command_is_told_of_its_broker_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asterism.toml").write_text('listen = "tcp://127.0.0.1:7703"')
    for line, address in (
        ("status --address tcp://127.0.0.1:7702", "tcp://127.0.0.1:7702"),
        ("status --config asterism.toml", "tcp://127.0.0.1:7703"),
        ("status", "tcp://127.0.0.1:7701"),
    ):
        monkeypatch.setenv("ASTERISM_ADDRESS", "tcp://127.0.0.1:7701")
        assert context.address(parser().parse_args(line.split())) == address
    with pytest.raises(output.CommandError, match="no broker runs with the data folder"):
        context.address(parser().parse_args(["status", "--data", "elsewhere"]))
    monkeypatch.setenv("ASTERISM_ADDRESS", "")
    assert context.address(parser().parse_args(["status"])) == "tcp://127.0.0.1:7700"


def test_a_variable_that_is_no_address_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTERISM_ADDRESS", "localhost")
    with pytest.raises(output.CommandError, match="ASTERISM_ADDRESS must be like tcp:") as refused:
        context.address(parser().parse_args(["status"]))
    assert refused.value.code == output.WRONG_USE


def test_who_connects_without_an_address_takes_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for text, address in (
        (None, "tcp://127.0.0.1:7700"),
        ("", "tcp://127.0.0.1:7700"),
        ("tcp://127.0.0.1:7701", "tcp://127.0.0.1:7701"),
    ):
        monkeypatch.delenv("ASTERISM_ADDRESS", raising=False)
        if text is not None:
            monkeypatch.setenv("ASTERISM_ADDRESS", text)
        assert asterism.connect().address == address
        assert asterism.connect("tcp://127.0.0.1:7702").address == "tcp://127.0.0.1:7702"
    monkeypatch.setenv("ASTERISM_ADDRESS", "localhost")
    for connect in (asterism.connect, asterism.connect_blocking):
        with pytest.raises(ValueError, match="ASTERISM_ADDRESS must be like tcp:"):
            connect()


def test_while_it_connects_the_client_says_nothing_besides_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def connect(*_: object, **__: object) -> asterism.BlockingNode:
        logging.getLogger("asterism").warning("lost the connection")
        raise ConnectionError("no broker answered")

    monkeypatch.setattr(asterism, "connect_blocking", connect)
    options = parser().parse_args(["status", "--address", "tcp://127.0.0.1:9"])
    before = logging.getLogger("asterism").level
    with pytest.raises(ConnectionError), context.connect(options):
        pass
    assert not caplog.records
    assert logging.getLogger("asterism").level == before


def test_every_command_that_asks_a_broker_finds_it_by_its_data_folder() -> None:
    for path, inner, _ in completion.commands(parser()):
        if "--address" in completion.words_of(inner):
            assert "--data" in completion.words_of(inner), path


def test_every_command_that_asks_a_broker_speaks_json() -> None:
    for path, inner, _ in completion.commands(parser()):
        if "--address" in completion.words_of(inner):
            assert "--json" in completion.words_of(inner), path


# --- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_option(shell: str) -> None:
    script = getattr(completion, shell)()
    for path, inner, _ in completion.commands(parser()):
        for word in [*path, *completion.words_of(inner)]:
            assert word.lstrip("-") in script, (path, word)


def test_a_script_knows_which_options_take_a_value_and_which() -> None:
    pub = next(inner for path, inner, _ in completion.commands(parser()) if path == ("pub",))
    values = completion.values_of(pub)
    assert values["--mode"] == ["push", "online", "durable"]
    assert values["--file"] == []
    assert "--whole" not in values


# --- input ----------------------------------------------------------------------------------------


def batches(text: bytes, *more: str) -> list[list[bytes]]:
    options = parser().parse_args(["pub", "t", *more])
    return list(publish._batches(options, io.BytesIO(text)))


def test_each_line_is_a_message_without_its_ending() -> None:
    assert batches(b"one\r\n\n two \nthree") == [[b"one", b"", b" two "], [b"three"]]
    assert batches(b"") == []


def test_the_whole_input_is_one_message_where_that_is_asked_for() -> None:
    assert batches(b"one\ntwo\n", "--whole") == [[b"one\ntwo\n"]]
    assert batches(b"", "--whole") == [[b""]]


def test_a_batch_has_no_more_lines_than_a_client_may_have_under_way() -> None:
    found = batches(b"\n" * 100_000)
    assert sum(map(len, found)) == 100_000
    assert max(map(len, found)) == publish.BATCH_MAX


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "LINE_BYTES_MAX", 100_000)
    assert batches(b"x" * 100_000) == [[b"x" * 100_000]]
    with pytest.raises(PeerError, match="a line has more than 100000 bytes"):
        batches(b"x" * 200_000)


# --- output ---------------------------------------------------------------------------------------


def test_a_table_has_columns() -> None:
    shown = output.table(["name", "count"], [["a", 5], ["long name", 1_000], ["b", None]])
    assert shown.splitlines() == [
        "name       count",
        "a              5",
        "long name   1000",
        "b              -",
    ]


def test_a_table_without_rows_is_its_head() -> None:
    assert output.table(["name", "count"], []) == "name  count"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1_500, "2 KB"), (129_400_000, "129.4 MB"), (2e12, "2.0 TB")],
)
def test_bytes_are_shown_short(count: float, shown: str) -> None:
    assert output.shown_bytes(count) == shown


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [(0, "0 s"), (61_000, "1 min 1 s"), (3_720_000, "1 h 2 min"), (90_000_000, "1 d 1 h")],
)
def test_durations_are_shown_short(milliseconds: int, shown: str) -> None:
    assert output.shown_duration(milliseconds) == shown


def test_a_refusal_is_one_line_with_the_code_and_what_to_do() -> None:
    shown = output.refusal("no_such_topic", "there is no\ntopic 'x'")
    assert shown == "no_such_topic: there is no topic 'x'. Create it, or allow auto_create."
    assert output.refusal("no_such_topic", "") == f"no_such_topic: {ERRORS['no_such_topic']}"


def test_a_payload_that_is_no_text_is_shown_in_base64() -> None:
    assert shown_payload("naïve".encode()) == {"payload": "naïve"}
    assert shown_payload(b"\xff\x00") == {"payload_base64": "/wA="}


def test_a_payload_is_one_line_and_has_no_power_over_a_terminal() -> None:
    line = payload_line(shown_payload("naïve\n\x1b[2J\x9b\u2028\t.".encode()))
    assert line == "naïve\\n\\x1b[2J\\x9b\\u2028\\t."
    assert payload_line(shown_payload(b"\xff\x00")) == "base64:/wA="
    assert output.table(["a"], [["b\x1b[2J"]]).splitlines()[1] == "b\\x1b[2J"


def test_rates_are_how_fast_totals_grow() -> None:
    before = {"pid": 1, "totals": {"a": 10, "b": 0}}
    after = {"pid": 1, "totals": {"a": 20, "b": 0, "c": 5}}
    assert status.rates(before, after, 2.0) == {"a": 5.0, "b": 0.0}
    assert status.rates(before, {**after, "pid": 2}, 2.0) == {}


def test_a_process_that_does_not_answer_is_shown_with_its_problem() -> None:
    shown = status.as_table({"worker-0": {"problem": "busy: the worker is away"}})
    assert "busy: the worker is away" in shown


# --- processes ------------------------------------------------------------------------------------


def test_a_broker_has_a_front_end_an_interest_router_and_its_workers() -> None:
    names = [program.name for program in programs_of(3)]
    assert names == ["frontend", "interests", "worker-0", "worker-1", "worker-2"]


def test_a_door_that_does_not_exist_is_refused() -> None:
    with pytest.raises(StartError, match="there is no door 'front'"):
        checked_doors(("front",))


@pytest.mark.parametrize("door", all_doors())
def test_a_door_that_is_not_installed_is_refused(
    door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asterism.running.is_installed", lambda name: False)
    with pytest.raises(StartError, match=f"the door '{door}' is not installed"):
        checked_doors((door,))


def test_what_is_missing_of_a_door_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "is_installed", lambda name: False)
    with pytest.raises(StartError, match=r"pip install 'asterism\[http\]'"):
        checked_doors(("http",))


def test_a_broker_that_is_not_installed_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "find_spec", lambda name: None)
    with pytest.raises(StartError, match=r"pip install 'asterism\[broker\]'"):
        running.Processes({})


@pytest.mark.parametrize(
    "line",
    [
        "bench",
        "bench --cases start",
        "bench --cases durable",
        "bench --cases start,durable --address tcp://127.0.0.1:9",
    ],
)
def test_bench_says_in_one_line_what_to_install(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "find_spec", lambda name: None)
    assert main(line.split()) == output.WRONG_USE
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == (
        "asterism: a broker needs RocksDB: python -m pip install 'asterism[broker]'. A broker that "
        "runs can be measured without it: --address.\n"
    )


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", "frontend: ended; {log} is empty, as on a disk that is full"),
        ("Traceback\n  odd\n", "frontend: ended; the last lines of {log}:\nTraceback\n  odd"),
        (
            "2026-01-31T12:00:00.000Z info frontend begins\n"
            "2026-01-31T12:00:00.000Z error frontend ends by an error: it broke\n"
            'Traceback\n  File "x.py"\n',
            "frontend: ended; the last lines of {log}:\n"
            "2026-01-31T12:00:00.000Z error frontend ends by an error: it broke",
        ),
    ],
)
def test_of_a_log_what_went_wrong_is_shown(tmp_path: Path, log: str, said: str) -> None:
    path = tmp_path / "frontend.log"
    path.write_text(log)
    child = running._Child(programs_of(1)[0], tmp_path, path)
    assert running._with_lines("ended", child) == said.format(log=path)


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "ended with code 0"), (2, "ended with code 2"), (-9, "was ended by SIGKILL")],
)
def test_it_is_said_how_a_process_ended(code: int, said: str) -> None:
    assert how_it_ended(code) == said


# --- a configuration as text ----------------------------------------------------------------------


def test_a_configuration_survives_being_written_as_toml() -> None:
    values = {
        "workers": 3,
        "sync": "5ms",
        "heartbeat": 0.5,
        "topic": {
            "blocking": True,
            "dead_letter": 'a "quoted" \\ naïve \x7f name',
            "overflow": {"size": 10, "policy": "drop_old"},
            "concurrency": None,
        },
    }
    read = tomllib.loads(toml(values))
    del values["topic"]["concurrency"]  # type: ignore[attr-defined]
    assert read == values


def test_what_is_none_is_left_out_of_the_text() -> None:
    assert from_mapping(tomllib.loads(toml({"topic": {"overflow": None}}))) == from_mapping({})


def test_a_value_that_no_configuration_can_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        toml({"workers": object()})


@pytest.mark.parametrize(
    ("built_with", "optimised"),
    [
        ("'--enable-shared' '--enable-optimizations' '--with-lto'", True),
        ("'--enable-shared' '--libdir=/lib'", False),
        ("", False),
        (None, True),
    ],
)
def test_the_doctor_notes_a_python_that_was_built_without_optimisation(
    monkeypatch: pytest.MonkeyPatch, built_with: str | None, optimised: bool
) -> None:
    assert doctor.is_optimised(built_with) is optimised
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: built_with)
    python = next(each for each in doctor.examine(None, None) if each.about == "Python")
    assert python.state == (doctor.GOOD if optimised else doctor.NOTE)
    assert bool(python.to_do) is not optimised


def test_status_names_the_stores_that_are_away() -> None:
    processes: dict[str, dict[str, Any]] = {
        "frontend": {"pid": 1},
        "worker-0": {"stores": {"0": "open", "2": "store 2 cannot be used now: it is damaged"}},
    }
    assert status.stores_away(processes) == ["worker-0: store 2 cannot be used now: it is damaged"]


def client_of_a_door(number: int) -> dict[str, Any]:
    name = "" if number == 1 else f"client-{number}"
    return Client(name, f"10.0.0.1:{number}", 2, 3_000, number)._asdict()


def test_status_shows_a_hundred_clients_of_a_door_and_how_many_more_there_are() -> None:
    clients = [client_of_a_door(number) for number in range(1, 101)]
    (title, table, more) = status.clients_as_lines(
        "bell", {"clients_total": 1_234, "clients": clients}
    )
    assert (title, more) == ("\nclients of bell: 1,234", "and 1,134 more")
    head, first, second, *others = table.splitlines()
    assert head.split() == ["name", "address", "subscriptions", "messages", "in", "messages", "out"]
    assert first.split() == ["-", "10.0.0.1:1", "2", "3,000", "1"]
    assert second.split() == ["client-2", "10.0.0.1:2", "2", "3,000", "2"]
    assert len(others) == 98


def test_status_says_when_nobody_is_connected_and_nothing_of_a_door_that_never_tells() -> None:
    nobody = {"clients_total": 0, "clients": []}
    assert list(status.clients_as_lines("bell", nobody)) == ["\nclients of bell: none"]
    assert list(status.clients_as_lines("bell", {"pid": 1})) == []


def test_status_says_why_the_clients_of_a_door_are_not_known() -> None:
    silent = {"clients_problem": "it does not answer in time"}
    assert list(status.clients_as_lines("bell", silent)) == [
        "\nclients of bell: not known: it does not answer in time"
    ]


def test_a_name_that_a_client_chose_has_no_power_over_the_terminal() -> None:
    bad = Client("\x1b[2J\nroot", "10.0.0.1:1", 0, 0, 0)._asdict()
    shown = "\n".join(status.clients_as_lines("bell", {"clients_total": 1, "clients": [bad]}))
    assert "\x1b" not in shown and "\\x1b[2J\\nroot" in shown
