"""What the command line reads and writes, without a broker."""

import sysconfig
import tomllib

import pytest

from asterism.cli import completion, doctor, output, status, topics
from asterism.cli.arguments import parser
from asterism.cli.subscribe import shown_payload
from asterism.config import KEYS, from_mapping
from asterism.errors import ERRORS, PeerError
from asterism.running import DOORS, StartError, check_doors, how_it_ended, programs_of
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
    "up --data x --listen tcp://127.0.0.1:0 --workers 3",
    "status --json",
    "topic create a overflow.size=1",
    "topic list --long",
    "topic show a",
    "topic set a blocking=true --inherit requeue",
    "topic clear a --yes",
    "topic delete a -y",
    "pub a text -s b/c -s d --mode online --expect processed -a x=y --max-receivers 1 --wait",
    "sub a b/* c --name n --count 3 --for 2.5 --raw",
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


@pytest.mark.parametrize(
    "line", ["", "nothing", "topic", "topic create", "up --workers 0", "pub a b --mode x"]
)
def test_wrong_use_ends_with_code_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(line.split())
    assert ended.value.code == output.WRONG_USE
    assert "usage: asterism" in capsys.readouterr().err


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
    assert shown == f"no_such_topic: there is no topic 'x'. {ERRORS['no_such_topic']}"


def test_a_payload_that_is_no_text_is_shown_in_base64() -> None:
    assert shown_payload("naïve".encode()) == {"payload": "naïve"}
    assert shown_payload(b"\xff\x00") == {"payload_base64": "/wA="}


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
        check_doors(("front",))


@pytest.mark.parametrize("door", DOORS)
def test_a_door_that_is_not_installed_is_refused(
    door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asterism.running.is_installed", lambda name: False)
    with pytest.raises(StartError, match=f"the door '{door}' is not installed"):
        check_doors((door,))


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
