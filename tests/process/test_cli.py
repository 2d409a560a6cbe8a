"""Every command of the command line, against a broker that runs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import asterism
from asterism.cli import main
from asterism.storage.store import MARK_NAME, Store
from asterism.testing import Broker
from tests.support.children import bounded
from tests.support.doors import any_ports
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.process
WAIT_S = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"heartbeat": 0.5}) as running:
        yield running


class Line:
    """The command line, told where the broker is."""

    def __init__(self, address: str, capture: pytest.CaptureFixture[str]) -> None:
        self._address = address
        self._capture = capture
        self.error = ""

    def run(self, *arguments: object, code: int = 0, connected: bool = True) -> str:
        """What a command prints; it has to end with this code."""
        where = ["--address", self._address] if connected else []
        self._capture.readouterr()
        ended = main([*map(str, arguments), *where])
        out, self.error = self._capture.readouterr()
        assert ended == code, f"{arguments} ended with {ended}: {self.error}"
        return out

    def json(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))


@pytest.fixture
def line(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(broker.address, capsys)


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **any_ports()}


def command(
    broker: Broker, *arguments: str, before: Sequence[str] = (), **more: Any
) -> "AbstractContextManager[subprocess.Popen[bytes]]":
    """A command as a process of its own, with words before it such as ``nohup``."""
    words = [*before, sys.executable, "-m", "asterism", *arguments, "--address", broker.address]
    return bounded(
        subprocess.Popen(
            words, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more
        )
    )


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


# --- the broker -----------------------------------------------------------------------------------


def test_status_shows_every_process(line: Line, broker: Broker) -> None:
    shown = line.run("status", "--interval", 0.1)
    for name in ("frontend", "interests", "worker-0", "worker-1"):
        assert name in shown
    found = line.json("status", "--interval", 0.1)["processes"]
    pids = broker.pids()
    assert [found["worker-0"]["pid"], found["worker-1"]["pid"]] == pids["worker"]
    assert found["frontend"]["memory_bytes"] > 1_000_000
    assert found["frontend"]["rates"]["forwarded"] > 0


@pytest.fixture
def own() -> Iterator[Broker]:
    """A broker that a test may do to what it likes."""
    with Broker(workers=1, doors=("http",), config={"heartbeat": 0.5}) as running:
        yield running


def test_status_shows_doors_and_the_processes_of_dedicated_topics(line: Line, own: Broker) -> None:
    here = ("--data", own.data_dir)
    line.run("topic", "create", "a b", "dedicated=true", *here, connected=False)
    shown = line.run("status", *here, connected=False)
    found = json.loads(line.run("status", "--json", *here, connected=False))["processes"]
    (dedicated,) = (name for name in found if name.startswith("dedicated-"))
    assert found[dedicated]["topic"] == "a b"
    assert found["http"]["url"] == own.http_url
    assert [found["http"]["pid"]] == own.pids()["http"]
    for name in (dedicated, "http"):
        assert found[name]["memory_bytes"] > 1_000_000
        assert 0 <= found[name]["uptime_ms"] < 600_000
        assert f"\n{name} " in shown
    elsewhere = line.run("status", "--address", own.address, "--json", connected=False)
    assert "http" not in json.loads(elsewhere)["processes"]


def test_a_data_folder_without_a_broker_does_not_stand_for_another_broker(
    line: Line, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTERISM_LISTEN", broker.address)  # as if it listened at the default
    line.run("pub", "precious", "x")
    for words in (("topic", "delete", "precious", "--yes"), ("pub", "t", "x"), ("status",)):
        line.run(*words, "--data", tmp_path, code=3, connected=False)
        assert "no broker runs with the data folder" in line.error
    monkeypatch.chdir(tmp_path)
    line.run("topic", "show", "precious", connected=False)
    (tmp_path / "asterism-data/run").mkdir(parents=True)  # as a broker that was here left it
    line.run("topic", "delete", "precious", "--yes", code=3, connected=False)
    assert "start it with `asterism up`" in line.error
    assert line.json("topic", "show", "precious")["held"] == 1


def test_a_broker_that_does_not_answer_in_time_is_no_broker_that_is_missing(
    line: Line, own: Broker
) -> None:
    line.run("pub", "t", "x", "--data", own.data_dir, connected=False)
    own.kill("worker", number=signal.SIGSTOP)
    for words in (("topic", "show", "t"), ("pub", "t", "x"), ("sub", "t", "--count", 1)):
        began = time.monotonic()
        line.run(*words, "--timeout", 0.5, "--data", own.data_dir, code=3, connected=False)
        assert time.monotonic() - began < 10
        assert "within 0.5 s" in line.error and line.error.count("\n") == 1
        assert "asterism doctor" in line.error and "asterism up" not in line.error


def test_without_a_broker_a_command_says_what_to_do_and_ends_with_code_3(line: Line) -> None:
    line.run(
        *("status", "--address", "tcp://127.0.0.1:9", "--timeout", 0.2), code=3, connected=False
    )
    assert line.error.count("\n") == 1
    assert "asterism up" in line.error


def test_the_broker_is_found_by_its_data_folder(
    line: Line, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTERISM_DATA_DIR", str(broker.data_dir))
    assert broker.address in line.run("status", "--interval", 0.1, connected=False)


def test_the_broker_of_the_environment_is_found_by_commands_and_by_clients(
    line: Line, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTERISM_ADDRESS", broker.address)
    line.run("pub", "by-variable", "hello", connected=False)
    with asterism.connect_blocking() as node:
        assert node.describe("by-variable").held == 1


def test_a_wrong_configuration_ends_with_code_2(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTERISM_WORKERS", "many")
    line.run("status", code=2, connected=False)
    assert "ASTERISM_WORKERS" in line.error


def test_a_variable_that_is_not_known_is_warned_of_in_one_line(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTERISM_WROKERS", "3")
    monkeypatch.setenv("ASTERISM_SERVICE_HOST", "10.0.0.1")
    line.json("status", "--interval", 0.1)
    assert line.error == (
        "asterism: variables that asterism does not know are ignored: 'ASTERISM_SERVICE_HOST', "
        "'ASTERISM_WROKERS' (did you mean ASTERISM_WORKERS?)\n"
    )


# --- topics ---------------------------------------------------------------------------------------


def test_a_topic_is_created_shown_changed_and_deleted(line: Line) -> None:
    line.run("topic", "create", "t1", "max_attempts=3", "overflow.size=5")
    shown = line.json("topic", "show", "t1")["settings"]
    assert (shown["max_attempts"], shown["overflow"]["size"]) == (3, 5)
    line.run("topic", "set", "t1", "max_attempts=4", "--inherit", "overflow")
    shown = line.json("topic", "show", "t1")["settings"]
    assert (shown["max_attempts"], shown["overflow"]) == (4, None)
    assert "max_attempts" in line.run("topic", "show", "t1")
    assert "t1" in line.run("topic", "list").split()
    assert "t1" in [each["topic"] for each in line.json("topic", "list", "--long")["topics"]]
    line.run("topic", "delete", "t1", "--yes")
    assert "t1" not in line.json("topic", "list")["topics"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("topic", "show", "nowhere"), 1, "no_such_topic: "),
        (("topic", "create", "t2", "max_attempts=0"), 1, "bad_request: max_attempts"),
        (("topic", "delete", "t2"), 2, "this drops messages: say --yes"),
        (("topic", "set", "t2"), 2, "name a setting"),
        (("pub", "t2", "x", "--mode", "push"), 1, "no_receiver: "),
        (("parked", "renew", "t2"), 2, "name sequences"),
        (("topic", "set", "nowhere", "max_attempts=3"), 1, "no_such_topic: "),
        (("pub", "t2", "x", "--mode", "online", "--ttl", "9"), 2, "--ttl is for durable messages"),
        (("sub", "t2", "--raw", "--json"), 2, "give --raw or --json, not both"),
        (("status", "--address", "localhost"), 2, "--address must be like tcp://127.0.0.1:7700"),
    ],
)
def test_what_goes_wrong_is_one_line(
    line: Line, words: tuple[str, ...], code: int, said: str
) -> None:
    line.run(*words, code=code, connected="--address" not in words)
    assert line.error.startswith(f"asterism: {said}") and line.error.count("\n") == 1
    assert "nowhere" not in line.json("topic", "list")["topics"]


def test_a_topic_is_created_once(line: Line) -> None:
    line.run("topic", "create", "once")
    line.run("topic", "create", "once", code=1)
    assert line.error.startswith("asterism: topic_exists")


# --- receivers ------------------------------------------------------------------------------------


def test_the_lag_of_a_receiver_is_shown_with_it_and_with_its_topic(
    line: Line, broker: Broker
) -> None:
    with asterism.connect_blocking(broker.address) as node:
        inbox = node.subscribe("lagging", name="slow", credit=1)
        node.create_receiver("lagging", "away", "b")
        for subject in ("a", "a", "b"):
            node.publish("lagging", b"x", subject=subject, expect="processed")
        held = inbox.receive(timeout=WAIT_S)
        lags = {row["name"]: row for row in line.json("receiver", "list", "lagging")["receivers"]}
        assert (lags["slow"]["lag"], lags["slow"]["out"]) == (3, 1)
        assert (lags["away"]["lag"], lags["away"]["out"]) == (1, 0)
        assert lags["slow"]["counted"] and lags["slow"]["oldest_ms"] >= 0
        shown = line.run("receiver", "show", "lagging", "slow")
        assert re.search(r"^  lag +3$", shown, re.MULTILINE)
        assert re.search(r"^  oldest +[\d.]+ s$", shown, re.MULTILINE)
        topic = line.run("topic", "show", "lagging")
        assert re.search(r"^  slow +3 +1 +[\d.]+ s$", topic, re.MULTILINE)
        assert re.search(r"^  kept +0$", topic, re.MULTILINE)
        held.processed(confirm=True)
    assert line.json("topic", "show", "lagging")["kept"] == 1
    assert line.json("topic", "show", "lagging")["lags"]["slow"]["lag"] == 2


def test_a_receiver_is_listed_shown_moved_and_deleted(line: Line, broker: Broker) -> None:
    with asterism.connect_blocking(broker.address) as node:
        inbox = node.subscribe("heard", "a/*", "b", name="ear", credit=7)
        sequences = [line.json("pub", "heard", word, "-s", "a/b")["first"] for word in "xyz"]
        assert [inbox.receive(timeout=WAIT_S).payload for _ in range(3)] == [b"x", b"y", b"z"]
        (listed,) = line.json("receiver", "list", "heard")["receivers"]
        assert (listed["name"], listed["durable"], listed["online"]) == ("ear", True, True)
        head, row = line.run("receiver", "list", "heard").splitlines()
        assert head.split() == [
            *("name", "durable", "online", "endpoints", "interests", "credit", "lag", "out"),
            *("oldest", "parked"),
        ]
        assert row.split()[:6] == ["ear", "yes", "yes", "1", "a/*", "b"]
    shown = line.json("receiver", "show", "heard", "ear")
    assert (shown["topic"], shown["online"], shown["interests"]) == ("heard", False, ["a/*", "b"])
    assert "sent_timeout             60 s" in line.run("receiver", "show", "heard", "ear")

    words = ("receiver", "seek", "heard", "ear")
    assert line.json(*words, "--sequence", sequences[1])["sequence"] == sequences[1]
    assert taken(broker, "heard", "ear") == [b"y", b"z"]
    line.run(*words, "--time", "2026-01-31T12:00")
    assert taken(broker, "heard", "ear") == [b"x", b"y", b"z"]
    line.run(*words, "--sequence", 0)
    assert line.json(*words, "--now")["sequence"] > sequences[2]
    assert taken(broker, "heard", "ear") == []

    line.run("receiver", "delete", "heard", "ear", code=2)
    assert "say --yes" in line.error
    assert line.json("receiver", "delete", "heard", "ear", "--yes")["deleted"] == "ear"
    assert line.json("receiver", "list", "heard")["receivers"] == []


def taken(broker: Broker, topic: str, receiver: str) -> list[bytes]:
    """What waits for a receiver."""
    with asterism.connect_blocking(broker.address) as node:
        return [each.payload for each in node.pull(topic, receiver, 10, 0)]


@pytest.mark.parametrize(
    "words", [("show",), ("seek", "--now"), ("delete", "--yes")], ids=lambda words: words[0]
)
def test_a_receiver_that_is_not_there_is_told(line: Line, words: tuple[str, ...]) -> None:
    line.run("topic", "create", f"unheard-{words[0]}")
    line.run("receiver", words[0], f"unheard-{words[0]}", "ear", *words[1:], code=1)
    assert line.error.startswith("asterism: no_such_receiver: 'ear' is not a receiver of ")
    assert line.error.count("\n") == 1
    line.run("receiver", words[0], "nowhere", "ear", *words[1:], code=1)
    assert "nowhere" not in line.json("topic", "list")["topics"]


# --- messages -------------------------------------------------------------------------------------


def test_a_message_goes_in_and_comes_out(line: Line, broker: Broker) -> None:
    line.run("pub", "greetings", "hello", "-s", "to/world", "-a", "colour=red")
    with command(broker, "sub", "greetings", "to/*", "--count", "1", "--json") as sub:
        out, error = sub.communicate(timeout=WAIT_S)
    assert sub.returncode == 0, error
    told = json.loads(out)
    assert told["payload"] == "hello"
    assert told["subjects"] == ["to/world"]
    assert told["attributes"] == {"colour": "red"}


def test_many_lines_are_many_messages(line: Line, broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(f"line {number}\n" for number in range(2_500)))
    told = line.json("pub", "many", "--file", file)
    assert told["count"] == 2_500
    assert told["last"] - told["first"] == 2_499
    with command(broker, "sub", "many", "--count", "2500", "--raw") as sub:
        out, error = sub.communicate(timeout=WAIT_S)
    assert sub.returncode == 0, error
    assert out == file.read_bytes()


def test_standard_input_is_published(line: Line, broker: Broker) -> None:
    with command(broker, "pub", "piped", "--json", stdin=subprocess.PIPE) as pub:
        out, error = pub.communicate(b"one\ntwo\nthree", timeout=WAIT_S)
    assert pub.returncode == 0, error
    assert json.loads(out)["count"] == 3
    with command(broker, "pub", "piped", "--whole", stdin=subprocess.PIPE) as pub:
        pub.communicate(b"four\nfive", timeout=WAIT_S)
    with command(broker, "sub", "piped", "--count", "4", "--json") as sub:
        out, _ = sub.communicate(timeout=WAIT_S)
    payloads = [json.loads(told)["payload"] for told in out.splitlines()]
    assert payloads == ["one", "two", "three", "four\nfive"]


def test_pub_can_wait_for_the_verdict(line: Line, broker: Broker) -> None:
    with command(broker, "sub", "awaited", "--for", "10") as sub:
        wait_for(lambda: "awaited" in line.json("topic", "list")["topics"], "the subscription")
        words = ("pub", "awaited", "x", "--expect", "processed", "--max-receivers", "1", "--wait")
        assert line.json(*words)["verdicts"] == {"ok": 1}
        sub.send_signal(signal.SIGINT)
        out, _ = sub.communicate(timeout=WAIT_S)
    assert out == b"awaited\tx\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [(("--max-receivers", "1"), "--timeout waits longer"), ((), "unless --max-receivers says")],
)
def test_what_is_not_resolved_in_time_was_accepted_all_the_same(
    line: Line, words: tuple[str, ...], why: str
) -> None:
    line.run("pub", "unheard", "x", "--wait", "--timeout", 0.2, *words, code=1)
    assert line.error.startswith("asterism: accepted 1, and not all were resolved within 0.2 s")
    assert why in line.error and line.error.count("\n") == 1


def test_an_interrupted_pub_says_what_was_accepted(line: Line, broker: Broker) -> None:
    line.run("topic", "create", "begun")
    with command(broker, "pub", "begun", stdin=subprocess.PIPE) as pub:
        assert pub.stdin is not None and pub.stderr is not None
        pub.stdin.write(b"one\ntwo\n")
        pub.stdin.flush()
        wait_for(lambda: line.json("topic", "show", "begun")["held"] == 2, "two messages")
        pub.send_signal(signal.SIGINT)
        assert pub.wait(WAIT_S) == 130
        assert pub.stderr.read() == b"asterism: interrupted; 2 were accepted before\n"


def test_many_short_lines_are_published(line: Line, broker: Broker) -> None:
    with command(broker, "pub", "short", "--json", stdin=subprocess.PIPE) as pub:
        out, error = pub.communicate(b"y\n" * 40_000, timeout=WAIT_S)
    assert pub.returncode == 0, error
    assert json.loads(out)["count"] == line.json("topic", "show", "short")["held"] == 40_000


@pytest.mark.parametrize("expect", ["sent", "processed"])
@pytest.mark.parametrize("who", [(), ("--name", "me"), ("--group", "us")])
def test_sub_takes_no_more_than_it_shows(
    line: Line, broker: Broker, tmp_path: Path, who: tuple[str, ...], expect: str
) -> None:
    topic = f"counted-{expect}{''.join(who)}"
    (tmp_path / "lines").write_text("1\n2\n3\n4\n")
    words = ("--expect", expect, "--max-receivers", 1)
    line.run("pub", topic, "--file", tmp_path / "lines", *words)
    for count, shown in ((1, b"1\n"), (2, b"2\n3\n"), (1, b"4\n")):
        with command(broker, "sub", topic, "--raw", "--count", str(count), *who) as sub:
            assert sub.communicate(timeout=WAIT_S) == (shown, b"")


def test_fewer_messages_than_were_asked_for_are_told(line: Line, broker: Broker) -> None:
    line.run("pub", "few", "one")
    with command(broker, "sub", "few", "--count", "3", "--for", "0.5") as sub:
        out, error = sub.communicate(timeout=WAIT_S)
    assert (sub.returncode, out) == (1, b"few\tone\n")
    assert error == b"asterism: 1 of 3 messages came\n"


def test_what_cannot_be_shown_has_not_failed(line: Line, broker: Broker) -> None:
    line.run("topic", "create", "unshown")
    with command(broker, "sub", "unshown") as sub:
        wait_for(lambda: line.json("topic", "show", "unshown")["endpoints"] == 1, "an endpoint")
        assert sub.stdout is not None and sub.stderr is not None
        sub.stdout.close()  # whoever reads has seen enough
        line.run("pub", "unshown", "x", "--expect", "processed", "--max-receivers", 1)
        assert sub.wait(WAIT_S) == 0
        assert sub.stderr.read() == b""
    shown = line.json("topic", "show", "unshown")
    assert (shown["waiting"], shown["parked"]) == (1, 0)


@pytest.mark.parametrize("who", [("--name", "me"), ()])
def test_sub_goes_on_when_processes_of_the_broker_are_restarted(
    line: Line, own: Broker, who: tuple[str, ...]
) -> None:
    with command(own, "sub", "lasting", "--raw", *who) as sub:
        assert sub.stdout is not None and sub.stderr is not None
        for kind in ("frontend", "worker", "interests", None):
            line.run("pub", "lasting", f"before {kind}", "--data", own.data_dir, connected=False)
            # One without a name is another one after each restart: it sees what was before, too.
            while (shown := sub.stdout.readline()) != f"before {kind}\n".encode():
                assert shown, "sub has ended"
            if kind is not None:
                own.restart(kind)
        sub.send_signal(signal.SIGINT)
        assert sub.wait(WAIT_S) == 130
        assert b"connecting again" in sub.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_sub_leaves_nothing_behind(
    line: Line, broker: Broker, number: signal.Signals
) -> None:
    topic = f"watched{int(number)}"
    line.run("topic", "create", topic)
    with command(broker, "sub", topic) as sub:
        wait_for(lambda: line.json("topic", "show", topic)["endpoints"] == 1, "an endpoint")
        sub.send_signal(number)
        assert sub.wait(WAIT_S) == 130
        assert sub.stderr is not None and sub.stderr.read() == b""
    shown = line.json("topic", "show", topic)
    assert (shown["endpoints"], shown["receivers"]) == (0, 0)


def test_a_sub_under_nohup_outlives_its_terminal(line: Line, broker: Broker) -> None:
    line.run("topic", "create", "left-alone")
    words = ("sub", "left-alone", "--count", "1")
    with command(broker, *words, before=["nohup"], stdin=subprocess.DEVNULL) as sub:
        wait_for(lambda: line.json("topic", "show", "left-alone")["endpoints"] == 1, "an endpoint")
        sub.send_signal(signal.SIGHUP)
        line.run("pub", "left-alone", "one")
        assert sub.communicate(timeout=WAIT_S)[0] == b"left-alone\tone\n"


def test_a_named_sub_is_durable_until_it_is_forgotten(line: Line, broker: Broker) -> None:
    line.run("pub", "named", "one")
    with command(broker, "sub", "named", "--name", "me", "--count", "1") as sub:
        assert sub.communicate(timeout=WAIT_S)[0] == b"named\tone\n"
    assert line.json("topic", "show", "named")["receivers"] == 1
    line.run("pub", "named", "two")
    with command(broker, "sub", "named", "--name", "me", "--count", "1", "--forget") as sub:
        assert sub.communicate(timeout=WAIT_S)[0] == b"named\ttwo\n"
    assert line.json("topic", "show", "named")["receivers"] == 0


def test_a_slow_input_is_published_as_it_comes(line: Line, broker: Broker) -> None:
    line.run("topic", "create", "slow")
    with command(broker, "pub", "slow", stdin=subprocess.PIPE) as pub:
        assert pub.stdin is not None
        for number in range(3):
            pub.stdin.write(b"a line\n")
            pub.stdin.flush()
            wait_for(lambda n=number: line.json("topic", "show", "slow")["held"] == n + 1, "it")  # type: ignore[misc]
        pub.stdin.close()
        assert pub.wait(WAIT_S) == 0


def test_of_a_batch_that_is_refused_in_part_the_rest_is_told(line: Line, tmp_path: Path) -> None:
    line.run("topic", "create", "small", "overflow.size=3")
    (tmp_path / "lines").write_text("x\n" * 5)
    line.run("pub", "small", "--file", tmp_path / "lines", code=1)
    assert line.error.startswith("asterism: overflow: ")
    assert line.error.endswith("3 others were accepted.\n")


# --- parked ---------------------------------------------------------------------------------------


def park(broker: Broker, topic: str, payloads: list[bytes]) -> None:
    """Publishes messages, and fails each of them for good."""
    with asterism.connect_blocking(broker.address) as node:
        for payload in payloads:
            node.publish(topic, payload, expect="processed", max_receivers=1)
        inbox = node.subscribe(topic, name="careless")
        for _ in payloads:
            inbox.receive(timeout=WAIT_S).failed("dropped it", confirm=True)


def test_what_has_failed_is_listed_renewed_and_abandoned(line: Line, broker: Broker) -> None:
    park(broker, "fragile", [b"cup", b"plate", b"vase"])
    parked = line.json("parked", "list", "fragile", "--payload")["parked"]
    assert [each["payload"] for each in parked] == ["cup", "plate", "vase"]
    assert {each["reason"] for each in parked} == {"dropped it"}
    assert "plate" in line.run("parked", "list", "fragile", "--payload")
    assert line.json("parked", "renew", "fragile", parked[0]["sequence"])["renewed"] == 1
    assert line.json("parked", "abandon", "fragile", parked[1]["sequence"])["abandoned"] == 1
    left = line.json("parked", "list", "fragile")["parked"]
    assert [each["sequence"] for each in left] == [parked[2]["sequence"]]
    assert line.json("parked", "renew", "fragile", "--all")["renewed"] == 1
    assert line.json("topic", "show", "fragile")["waiting"] == 2


@pytest.mark.parametrize("verb", ["renew", "abandon"])
def test_what_is_not_parked_is_left_alone(line: Line, broker: Broker, verb: str) -> None:
    topic = f"half-{verb}"
    park(broker, topic, [b"cup"])
    told = line.json("pub", topic, "plate", "--max-receivers", 1, "--expect", "processed")
    (parked,) = line.json("parked", "list", topic)["parked"]
    for words in ((parked["sequence"], told["first"]), (parked["sequence"], "--receiver", "no")):
        line.run("parked", verb, topic, *words, code=1)
        assert "not parked" in line.error and "Nothing was changed" in line.error
    shown = line.json("topic", "show", topic)
    assert (shown["waiting"], shown["parked"]) == (1, 1)


def test_a_delivery_is_abandoned_where_it_is_parked_and_nowhere_else(
    line: Line, broker: Broker
) -> None:
    with asterism.connect_blocking(broker.address) as node:
        careless, careful = node.subscribe("shared", name="a"), node.subscribe("shared", name="b")
        node.publish("shared", b"x", expect="processed")
        careless.receive(timeout=WAIT_S).failed("dropped it", confirm=True)
        delivery = careful.receive(timeout=WAIT_S)
        assert line.json("parked", "abandon", "shared", delivery.sequence)["abandoned"] == 1
        delivery.processed(confirm=True)
        assert list(node.list_parked("shared")) == []


def test_what_one_without_a_name_has_parked_can_be_abandoned(line: Line, broker: Broker) -> None:
    with asterism.connect_blocking(broker.address) as node:
        inbox = node.subscribe("nameless")
        node.publish("nameless", b"x", expect="processed", max_receivers=1)
        inbox.receive(timeout=WAIT_S).failed("dropped it", confirm=True)
    (parked,) = line.json("parked", "list", "nameless")["parked"]
    assert line.json("parked", "abandon", "nameless", parked["sequence"])["abandoned"] == 1
    assert line.json("topic", "show", "nameless")["parked"] == 0


# --- snapshots ------------------------------------------------------------------------------------


def test_a_snapshot_says_what_is_in_it(line: Line, broker: Broker) -> None:
    line.run("pub", "kept", "one")
    line.run("pub", "kept", "two")
    taken = line.json("snapshot", "create", "--config", broker.data_dir.parent / "asterism.toml")
    folder = Path(taken["folder"])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest == taken["manifest"]
    by_itself = line.json("snapshot", "--config", broker.data_dir.parent / "asterism.toml")
    assert Path(by_itself["folder"]).parent == folder.parent
    assert manifest["version"] == 1
    assert [store["number"] for store in manifest["stores"]] == list(range(8))
    assert all((folder / store["folder"] / "CURRENT").exists() for store in manifest["stores"])
    topic = manifest["topics"]["kept"]
    assert (topic["next_sequence"], topic["held"]) == (3, 2)


def test_a_snapshot_that_cannot_be_made_leaves_nothing(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTERISM_DATA_DIR", str(tmp_path))
    line.run("snapshot", "create", code=1)  # this is not the folder of that broker
    assert line.error.startswith("asterism: bad_request: a snapshot is a folder in ")
    assert not list((tmp_path / "snapshots").iterdir())
    (tmp_path / "snapshots").rmdir()
    (tmp_path / "snapshots").write_text("")
    line.run("snapshot", "create", code=1)
    assert "cannot be made here" in line.error


# --- the doctor -----------------------------------------------------------------------------------


def findings(line: Line, *arguments: object, code: int = 0) -> dict[str, dict[str, str]]:
    told = json.loads(line.run("doctor", "--json", *arguments, code=code, connected=False))
    return {finding["about"]: finding for finding in told["findings"]}


@pytest.fixture
def free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor tries the addresses of a broker that does not run: those by default may be taken
    by another broker of this machine, which is none of this test's business."""
    for name, value in {"ASTERISM_LISTEN": "tcp://127.0.0.1:0", **any_ports()}.items():
        monkeypatch.setenv(name, value)


def test_the_doctor_finds_nothing_wrong_with_a_broker_that_runs(line: Line, broker: Broker) -> None:
    found = findings(line, "--data", broker.data_dir)
    assert {finding["state"] for finding in found.values()} <= {"good", "note"}
    assert broker.address in found["address"]["what"]
    assert "Nothing is wrong." in line.run("doctor", "--data", broker.data_dir, connected=False)


def test_the_doctor_misses_a_process(line: Line, broker: Broker) -> None:
    with_four = ("--data", broker.data_dir, "--config", broker.data_dir / "four.toml")
    (broker.data_dir / "four.toml").write_text("workers = 4\n")
    found = findings(line, *with_four, code=1)
    assert "worker-2, worker-3 do not run" in found["processes"]["what"]


@pytest.mark.usefixtures("free_ports")
def test_the_doctor_looks_into_stores_that_nobody_has_open(line: Line, tmp_path: Path) -> None:
    with Broker(keep=True) as short:
        data = short.data_dir
    try:
        assert findings(line, "--data", data)["stores"]["what"] == "all 8 are whole"
        lost = data / "stores" / "0003"
        with Store(lost, number=3, count=8) as store:
            store.put(b"\x01row", b"")
            store.commit()
        shutil.copy(lost / MARK_NAME, data)
        shutil.rmtree(lost)
        lost.mkdir()
        shutil.copy(data / MARK_NAME, lost)
        found = findings(line, "--data", data, code=1)
        assert "the store is missing" in found["store 3"]["what"]
        assert "--accept-loss" in found["store 3"]["to_do"]
        accepted = findings(line, "--data", data, "--accept-loss")
        assert accepted["store 3"]["state"] == "note"
        assert findings(line, "--data", data)["stores"]["what"] == "all 8 are whole"
    finally:
        shutil.rmtree(data.parent)


@pytest.mark.usefixtures("free_ports")
def test_the_doctor_looks_into_the_stores_of_dedicated_topics(line: Line) -> None:
    with Broker(workers=1, keep=True) as short:
        data = short.data_dir
        with asterism.connect_blocking(short.address) as node:
            node.create_topic("own", dedicated=True)
            node.publish("own", b"x")
    try:
        assert findings(line, "--data", data)["stores"]["what"] == "all 9 are whole"
        (store,) = (data / "dedicated").glob("*/store")
        named = (store.parent / "topic.json").read_text()
        (store.parent / "topic.json").unlink()
        found = findings(line, "--data", data)["stores"]
        assert found["state"] == "note" and "'own'" in found["what"]
        (store.parent / "topic.json").write_text(named)
        shutil.copy(store / MARK_NAME, data)
        shutil.rmtree(store)
        store.mkdir()
        shutil.copy(data / MARK_NAME, store)
        found = findings(line, "--data", data, code=1)["store of own"]
        assert "synced writes are missing" in found["what"] and "--accept-loss" in found["to_do"]
        findings(line, "--data", data, "--accept-loss")
        assert findings(line, "--data", data)["stores"]["what"] == "all 9 are whole"
        (store.parent / "topic.json").unlink()
        (store / "CURRENT").unlink()
        assert "topic.json" in findings(line, "--data", data, code=1)["stores"]["to_do"]
    finally:
        shutil.rmtree(data.parent)


@pytest.mark.usefixtures("free_ports")
def test_the_doctor_opens_no_store_of_another_user(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stores.json").write_text('{"stores": 1}')
    (tmp_path / "stores" / "0000").mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    found = findings(line, "--data", tmp_path)["stores"]
    assert found["state"] == "note" and "Run this as the user" in found["to_do"]
    assert not list((tmp_path / "stores" / "0000").iterdir())


def test_the_doctor_knows_the_doors(
    line: Line, own: Broker, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = findings(line, "--config", own.data_dir.parent / "asterism.toml")
    assert here["door http"]["what"].startswith(own.http_url)
    assert findings(line, "--data", broker.data_dir)["door http"]["what"] == "does not run"
    monkeypatch.setenv("ASTERISM_LISTEN", "tcp://127.0.0.1:0")
    monkeypatch.setenv("MQ_PORT", own.http_url.rpartition(":")[2])
    found = findings(line, "--data", tmp_path / "new", code=1)["door http"]
    assert "Address already in use" in found["what"] and "MQ_PORT" in found["to_do"]


def test_the_doctor_reads_the_configuration_first(line: Line, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("workers = 0\n")
    found = findings(line, "--config", tmp_path / "wrong.toml", code=1)
    assert "workers must be from 1" in found["configuration"]["what"]


def test_the_doctor_sees_a_port_that_is_taken(
    line: Line, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTERISM_LISTEN", broker.address)
    found = findings(line, "--data", tmp_path / "new", code=1)
    assert found["address"]["state"] == "wrong"
    assert "the first start makes it" in found["data folder"]["what"]


# --- shells ---------------------------------------------------------------------------------------


def completed(words: list[str]) -> set[str]:
    """What bash offers for the last of these words."""
    script = (
        'source <("$0" -m asterism completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_asterism; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return shell("bash", "-c", script, sys.executable, *words)


def shell(*arguments: str) -> set[str]:
    """The words that a shell prints; a test of one that is not here is skipped."""
    if shutil.which(arguments[0]) is None:
        pytest.skip(f"there is no {arguments[0]} here")
    done = subprocess.run(arguments, env=environ(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_their_values() -> None:
    assert {"up", "status", "topic", "pub", "sub"} <= completed(["asterism", ""])
    assert completed(["asterism", "topic", "cl"]) == {"clear"}
    assert {"list", "show", "seek", "delete"} <= completed(["asterism", "receiver", ""])
    assert completed(["asterism", "receiver", "seek", "t", "r", "--n"]) == {"--now"}
    assert completed(["asterism", "topic", "create", "x", "--addr"]) == {"--address"}
    assert completed(["asterism", "completion", "z"]) == {"zsh"}
    assert completed(["asterism", "pub", "t", "--mode", ""]) == {"push", "online", "durable"}
    assert completed(["asterism", "pub", "t", "--file", ""]) == set()  # then bash offers files


def test_bash_takes_no_command_for_a_folder_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "spark").mkdir()
    script = 'source <("$0" -m asterism completion bash); complete -p asterism'
    assert "filenames" not in shell("bash", "-c", script, sys.executable)


def test_zsh_completes_too() -> None:
    # As bashcompinit calls it, which has it emulate sh; to filter what is offered is left to zsh.
    script = (
        'source <("$0" -m asterism completion zsh); emulate sh; COMP_WORDS=("$@"); '
        'COMP_CWORD=$(($# - 1)); _asterism; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    offered = shell("zsh", "-f", "-c", script, sys.executable, "asterism", "topic", "cl")
    assert "clear" in offered and "--address" not in offered
    offered = shell("zsh", "-f", "-c", script, sys.executable, "asterism", "pub", "--mode", "o")
    assert offered == {"push", "online", "durable"}


def test_fish_completes_too() -> None:
    script = f"{sys.executable} -m asterism completion fish | source; complete -C "
    assert "clear" in shell("fish", "-N", "-c", f"{script} 'asterism topic cl'")
    assert shell("fish", "-N", "-c", f"{script} 'asterism pub t --mode o'") == {"online"}


# --- streams --------------------------------------------------------------------------------------


def in_bash(script: str, *arguments: object, **more: str) -> "subprocess.CompletedProcess[str]":
    """Runs a line of bash, in which ``asterism`` is the command line."""
    whole = f'asterism() {{ "$python" -m asterism "$@"; }}; {script}'
    return subprocess.run(
        ["bash", "-c", whole, "bash", *map(str, arguments)],
        env={**environ(), "python": sys.executable, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def test_a_reader_that_has_seen_enough_is_no_error(broker: Broker) -> None:
    script = 'asterism status --interval 0.1 --address "$1" | head -n 1; exit "${PIPESTATUS[0]}"'
    done = in_bash(script, broker.address)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_an_output_that_cannot_be_written_is_told(broker: Broker) -> None:
    for words in ("topic list --long", "topic list --json"):
        done = in_bash(f'asterism {words} --address "$1" > /dev/full', broker.address)
        assert done.returncode == 1
        assert done.stderr == "asterism: the output cannot be written: No space left on device\n"


def test_streams_may_be_closed(line: Line, broker: Broker) -> None:
    assert in_bash('asterism pub closed <&- --address "$1"', broker.address).returncode == 0
    assert in_bash('asterism topic list >&- --address "$1"', broker.address).returncode == 0
    done = in_bash('asterism topic show nowhere 2>&- --address "$1"', broker.address)
    assert (done.returncode, done.stdout) == (1, "")


def test_letters_that_the_output_has_not_are_escaped(line: Line, broker: Broker) -> None:
    line.run("topic", "create", "naïve")
    few = {"PYTHONIOENCODING": "ascii"}
    assert (
        "na\\xefve" in in_bash('asterism topic list --address "$1"', broker.address, **few).stdout
    )
    told = in_bash('asterism topic list --json --address "$1"', broker.address, **few)
    assert told.stdout.isascii() and "naïve" in json.loads(told.stdout)["topics"]


CLIENT_ALONE = """
import sys
sys.modules["rocksdict"] = None
from asterism.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_what_needs_the_broker_installed_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT_ALONE, "snapshot", "list"],
        env=environ(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("asterism: ") and done.stderr.count("\n") == 1
    assert "pip install 'asterism[broker]'" in done.stderr
