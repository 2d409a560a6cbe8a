"""The configuration: what a file and the environment may say, and how a mistake in them is told."""

import socket
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from asterism import Backoff, DropOld, PeerError, RejectNew
from asterism.config import (
    FILE_BYTES_MAX,
    KEYS,
    MAY_BE_NONE,
    TABLES,
    Config,
    ConfigError,
    from_mapping,
    load,
    parse,
    warning_of,
)
from asterism.options import TOPIC_NAMES, topic_overrides, topic_settings_as_user
from asterism.settings import TIMEOUT_MS_MAX, TTL_MS_MAX, BackoffMs, TopicSettings
from asterism.variables import variable_of

WHOLE_FILE = b"""
data_dir = "here"
stores = 16
workers = 4
sync = "20ms"
auto_create = false
max_topics = 5
max_dedicated = 8
max_receivers_per_topic = 6
max_producers_per_topic = 7
listen = "tcp://0.0.0.0:7701"
insecure = true
heartbeat = 0.5
restart_grace = 1.5
hello_timeout = 1.5
max_connections = 100
max_requests = 200
lanes = false
alert = false
log_level = "debug"
min_free = 0
max_snapshots = 5

[topic]
expect = "received"
max_receivers = 2
blocking = true
overflow = { size = 1000, policy = "drop_old" }
concurrency = 7
unique = true
draft_timeout = 1
sent_timeout = 2.5
received_timeout = 0.001
max_attempts = 5
max_deliveries = 9
retry_backoff = { min = 0.1, max = 60 }
dead_letter = "dead"
requeue = "front"
default_ttl = 0.001
max_payload = 0
history = "full"
history_ttl = 10
receipt_ttl = 0.5
dedicated = true
"""
WHOLE_CONFIG = Config(
    data_dir="here",
    stores=16,
    workers=4,
    sync="20ms",
    auto_create=False,
    max_topics=5,
    max_dedicated=8,
    max_receivers_per_topic=6,
    max_producers_per_topic=7,
    listen="tcp://0.0.0.0:7701",
    insecure=True,
    heartbeat=0.5,
    restart_grace=1.5,
    hello_timeout=1.5,
    max_connections=100,
    max_requests=200,
    lanes=False,
    alert=False,
    log_level="debug",
    min_free=0,
    max_snapshots=5,
    topic=TopicSettings(
        expect="received",
        max_receivers=2,
        blocking=True,
        overflow=DropOld(1_000),
        concurrency=7,
        unique=True,
        draft_timeout_ms=1_000,
        sent_timeout_ms=2_500,
        received_timeout_ms=1,
        max_attempts=5,
        max_deliveries=9,
        retry_backoff=BackoffMs(100, 60_000),
        dead_letter="dead",
        requeue="front",
        default_ttl_ms=1,
        max_payload=0,
        history="full",
        history_ttl_ms=10_000,
        receipt_ttl_ms=500,
        dedicated=True,
    ),
)


def refusal(values: Any, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        from_mapping(values, environ, "here.toml")
    return str(caught.value)


def test_an_empty_file_and_an_empty_environment_give_the_defaults() -> None:
    assert parse(b"") == Config()
    assert load(None, {}) == Config()
    assert Config().topic == TopicSettings()


def test_a_file_may_set_every_key() -> None:
    assert parse(WHOLE_FILE) == WHOLE_CONFIG


def test_the_environment_may_set_every_key() -> None:
    given: dict[str, str] = {
        "ASTERISM_DATA_DIR": "here",
        "ASTERISM_STORES": "16",
        "ASTERISM_WORKERS": "4",
        "ASTERISM_SYNC": "20ms",
        "ASTERISM_AUTO_CREATE": "false",
        "ASTERISM_MAX_TOPICS": "5",
        "ASTERISM_MAX_DEDICATED": "8",
        "ASTERISM_MAX_RECEIVERS_PER_TOPIC": "6",
        "ASTERISM_MAX_PRODUCERS_PER_TOPIC": "7",
        "ASTERISM_LISTEN": "tcp://0.0.0.0:7701",
        "ASTERISM_INSECURE": "true",
        "ASTERISM_HEARTBEAT": "0.5",
        "ASTERISM_RESTART_GRACE": "1.5",
        "ASTERISM_HELLO_TIMEOUT": "1.5",
        "ASTERISM_MAX_CONNECTIONS": "100",
        "ASTERISM_MAX_REQUESTS": "200",
        "ASTERISM_LANES": "false",
        "ASTERISM_ALERT": "false",
        "ASTERISM_LOG_LEVEL": "debug",
        "ASTERISM_MIN_FREE": "0",
        "ASTERISM_MAX_SNAPSHOTS": "5",
        "ASTERISM_TOPIC__EXPECT": "received",
        "ASTERISM_TOPIC__MAX_RECEIVERS": "2",
        "ASTERISM_TOPIC__BLOCKING": "true",
        "ASTERISM_TOPIC__OVERFLOW__SIZE": "1000",
        "ASTERISM_TOPIC__OVERFLOW__POLICY": "drop_old",
        "ASTERISM_TOPIC__CONCURRENCY": "7",
        "ASTERISM_TOPIC__UNIQUE": "true",
        "ASTERISM_TOPIC__DRAFT_TIMEOUT": "1",
        "ASTERISM_TOPIC__SENT_TIMEOUT": "2.5",
        "ASTERISM_TOPIC__RECEIVED_TIMEOUT": "0.001",
        "ASTERISM_TOPIC__MAX_ATTEMPTS": "5",
        "ASTERISM_TOPIC__MAX_DELIVERIES": "9",
        "ASTERISM_TOPIC__RETRY_BACKOFF__MIN": "0.1",
        "ASTERISM_TOPIC__RETRY_BACKOFF__MAX": "60",
        "ASTERISM_TOPIC__DEAD_LETTER": "dead",
        "ASTERISM_TOPIC__REQUEUE": "front",
        "ASTERISM_TOPIC__DEFAULT_TTL": "0.001",
        "ASTERISM_TOPIC__MAX_PAYLOAD": "0",
        "ASTERISM_TOPIC__HISTORY": "full",
        "ASTERISM_TOPIC__HISTORY_TTL": "10",
        "ASTERISM_TOPIC__RECEIPT_TTL": "0.5",
        "ASTERISM_TOPIC__DEDICATED": "true",
    }
    assert set(given) == {variable_of(key) for key in KEYS}
    assert parse(b"", given) == WHOLE_CONFIG


def test_every_setting_of_a_topic_has_a_key() -> None:
    in_tables = {key.removeprefix("topic.").split(".")[0] for key in KEYS if "topic." in key}
    assert in_tables == set(TOPIC_NAMES)
    assert len(TOPIC_NAMES) == len(fields(TopicSettings))


def test_what_may_be_none_is_none_unless_it_is_set() -> None:
    defaults = topic_settings_as_user(TopicSettings())
    none = {f"topic.{name}" for name, value in defaults.items() if value is None}
    assert none == MAY_BE_NONE


def test_the_environment_wins_over_the_file() -> None:
    config = parse(b"workers = 4\nstores = 4\n", {"ASTERISM_WORKERS": "3"})
    assert (config.workers, config.stores) == (3, 4)


def test_the_environment_may_change_one_part_of_a_table() -> None:
    file = b'[topic]\noverflow = { size = 10, policy = "drop_old" }\n'
    config = parse(file, {"ASTERISM_TOPIC__OVERFLOW__SIZE": "20"})
    assert config.topic.overflow == DropOld(20)


@pytest.mark.parametrize("key", sorted(MAY_BE_NONE))
def test_an_empty_variable_sets_to_none_what_may_be_none(key: str) -> None:
    config = parse(WHOLE_FILE, {variable_of(key): ""})
    assert getattr(config.topic, key.removeprefix("topic.")) is None


@pytest.mark.parametrize("key", sorted(set(KEYS) - MAY_BE_NONE))
def test_an_empty_variable_is_refused_by_its_name_elsewhere(key: str) -> None:
    # A part of a table may be refused for the part that is not there.
    named = key if key.count(".") < 2 else key.rpartition(".")[0]
    assert refusal({}, {variable_of(key): ""}).startswith(f"{variable_of(key)}: {named}")


def test_the_address_for_clients_is_no_setting_of_the_broker() -> None:
    assert load(None, {"ASTERISM_ADDRESS": "tcp://127.0.0.1:7701"}) == Config()


def test_a_variable_that_is_not_ours_is_not_looked_at() -> None:
    environ = {"PATH": "", "ASTERISMS": "", "ASTERISM_VENV": "x", "asterism_workers": "x"}
    assert parse(b"", environ) == Config()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wrokers": 1}, "here.toml: there is no setting 'wrokers'; did you mean workers?"),
        ({"topic": {"colour": 1}}, "here.toml: there is no setting in topic 'colour'"),
        (
            {"topic": {"sent_timeout_ms": 1}},
            "here.toml: there is no setting in topic 'sent_timeout_ms'; did you mean sent_timeout?",
        ),
        ({"topic.unique": True}, "here.toml: there is no setting 'topic.unique'"),
        ({"topic": {"overflow": {"sise": 1}}}, "here.toml: there is no setting in topic.overflow"),
        (
            {"http": {"insecure": True}},
            "here.toml: there is no setting in http 'insecure'; insecure stands above the tables",
        ),
        ({1: 1}, "here.toml: there is no setting 1"),
        ({"topic": 5}, "here.toml: topic must be a table, not 5"),
        ({"topic": None}, "here.toml: topic must be a table, not None"),
        ({"topic": {"overflow": 5}}, "here.toml: topic.overflow must be a table, not 5"),
        ([], "here.toml: a configuration must be a table, not a value of type list"),
        ({"workers": "2"}, "here.toml: workers must be an integer, not '2'"),
        ({"workers": 0}, "here.toml: workers must be from 1 to 1024, not 0"),
        ({"workers": 1025}, "here.toml: workers must be from 1 to 1024, not 1025"),
        ({"stores": True}, "here.toml: stores must be an integer, not True"),
        ({"stores": 1025}, "here.toml: stores must be from 1 to 1024, not 1025"),
        ({"stores": None}, "here.toml: stores must be an integer, not None"),
        ({"auto_create": "yes"}, "here.toml: auto_create must be true or false, not 'yes'"),
        ({"data_dir": ""}, "here.toml: data_dir must have 1 to 4096 bytes, not 0"),
        ({"data_dir": "a\0b"}, "here.toml: data_dir must have no zero byte"),
        ({"data_dir": 5}, "here.toml: data_dir must be text, not int"),
        (
            {"sync": "never"},
            'here.toml: sync must be "always", or "1ms" to "60000ms", not \'never\'',
        ),
        ({"sync": "0ms"}, "here.toml: sync must be "),
        ({"sync": "60001ms"}, "here.toml: sync must be "),
        ({"sync": "5 ms"}, "here.toml: sync must be "),
        ({"sync": "5ms\n"}, "here.toml: sync must be "),
        ({"sync": 5}, "here.toml: sync must be text"),
        (
            {"topic": {"sent_timeout": "30"}},
            "here.toml: topic.sent_timeout must be a number of seconds, not '30'",
        ),
        (
            {"topic": {"sent_timeout": -1}},
            "here.toml: topic.sent_timeout must be from 0.001 to 31622400 seconds, not -1",
        ),
        (
            {"topic": {"default_ttl": 0}},
            "here.toml: topic.default_ttl must be from 0.001 to 3155760000 seconds, not 0",
        ),
        ({"topic": {"sent_timeout": float("nan")}}, "here.toml: topic.sent_timeout must be from"),
        ({"topic": {"sent_timeout": float("inf")}}, "here.toml: topic.sent_timeout must be from"),
        ({"topic": {"sent_timeout": 10**5_000}}, "here.toml: topic.sent_timeout must be from"),
        ({"topic": {"sent_timeout": True}}, "here.toml: topic.sent_timeout must be a number"),
        ({"topic": {"concurrency": 0}}, "here.toml: topic.concurrency must be from 1 to"),
        ({"topic": {"dead_letter": ""}}, "here.toml: topic.dead_letter must have 1 to 255 bytes"),
        ({"topic": {"requeue": "side"}}, "here.toml: topic.requeue must be one of back, front"),
        ({"topic": {"overflow": {}}}, "here.toml: topic.overflow is empty; set what is in it"),
        ({"topic": {"overflow": {"policy": "drop_old"}}}, "here.toml: topic.overflow.size must be"),
        ({"topic": {"overflow": {"size": 0}}}, "here.toml: topic.overflow.size must be from 1 to"),
        (
            {"topic": {"overflow": {"size": 1, "policy": "drop_new"}}},
            "here.toml: topic.overflow.policy must be one of reject_new, drop_old; not 'drop_new'",
        ),
        (
            {"topic": {"retry_backoff": {"min": 1}}},
            "here.toml: topic.retry_backoff.max must be given",
        ),
        (
            {"topic": {"retry_backoff": {"min": 2, "max": 1}}},
            "here.toml: topic.retry_backoff.max must not be under retry_backoff.min",
        ),
    ],
)
def test_a_mistake_in_a_file_is_told_with_the_file_and_the_key(values: Any, message: str) -> None:
    assert refusal(values).startswith(message)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("ASTERISM_WORKERS", "two", "ASTERISM_WORKERS: workers must be an integer, not 'two'"),
        ("ASTERISM_WORKERS", "2.0", "ASTERISM_WORKERS: workers must be an integer, not '2.0'"),
        ("ASTERISM_WORKERS", "9" * 5_000, "ASTERISM_WORKERS: workers must be an integer, not '999"),
        ("ASTERISM_WORKERS", "-1", "ASTERISM_WORKERS: workers must be from 1 to 1024, not -1"),
        ("ASTERISM_AUTO_CREATE", "1", "ASTERISM_AUTO_CREATE: auto_create must be true or false"),
        (
            "ASTERISM_TOPIC__SENT_TIMEOUT",
            "1e3",
            "ASTERISM_TOPIC__SENT_TIMEOUT: topic.sent_timeout must be a number of seconds, not",
        ),
        (
            "ASTERISM_TOPIC__OVERFLOW",
            "5",
            "ASTERISM_TOPIC__OVERFLOW: topic.overflow is a table; set "
            "ASTERISM_TOPIC__OVERFLOW__SIZE, ASTERISM_TOPIC__OVERFLOW__POLICY, or leave this empty",
        ),
    ],
)
def test_a_mistake_in_a_variable_is_told_with_its_name(
    variable: str, text: str, message: str
) -> None:
    assert refusal({}, {variable: text}).startswith(message)


# What Kubernetes tells every pod of a Service named asterism.
OF_A_SERVICE = {
    "ASTERISM_SERVICE_HOST": "10.0.0.1",
    "ASTERISM_SERVICE_PORT": "7700",
    "ASTERISM_SERVICE_PORT_CLIENTS": "7700",
    "ASTERISM_PORT": "tcp://10.0.0.1:7700",
    "ASTERISM_PORT_7700_TCP": "tcp://10.0.0.1:7700",
    "ASTERISM_PORT_7700_TCP_PROTO": "tcp",
    "ASTERISM_PORT_7700_TCP_PORT": "7700",
    "ASTERISM_PORT_7700_TCP_ADDR": "10.0.0.1",
}


def test_variables_that_are_not_known_are_named_in_one_line_and_change_nothing() -> None:
    environ = {**OF_A_SERVICE, "ASTERISM_WORKERS": "3", "ASTERISM_ADDRESS": "", "HOME": "x"}
    assert load(None, environ) == Config(workers=3)
    names = ", ".join(f"'{name}'" for name in sorted(OF_A_SERVICE))
    assert warning_of(environ) == f"variables that asterism does not know are ignored: {names}"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("ASTERISM_WROKERS", "ASTERISM_WORKERS"),
        ("ASTERISM_ADRESS", "ASTERISM_ADDRESS"),
        ("ASTERISM_CONFIGURATION", "ASTERISM_CONFIG"),
        ("ASTERISM_TOPIC_SENT_TIMEOUT", "ASTERISM_TOPIC__SENT_TIMEOUT"),
    ],
)
def test_of_a_variable_that_is_misspelt_it_is_said_which_was_meant(
    variable: str, meant: str
) -> None:
    assert load(None, {variable: "2"}) == Config()
    assert warning_of({variable: "2"}).endswith(f": '{variable}' (did you mean {meant}?)")


def test_there_is_no_warning_where_every_variable_is_known() -> None:
    environ = dict.fromkeys(map(variable_of, KEYS), "")
    assert warning_of({**environ, "ASTERISM_CONFIG": "x", "ASTERISM_VENV": "y", "MQ_X": ""}) == ""


def test_a_warning_is_one_line_whatever_the_name() -> None:
    assert "\n" not in warning_of({"ASTERISM_\n": "", "ASTERISM_" + "X" * 5_000: ""})


def test_a_mistake_made_together_names_both() -> None:
    values = {"topic": {"retry_backoff": {"min": 5, "max": 9}}}
    message = refusal(values, {"ASTERISM_TOPIC__RETRY_BACKOFF__MAX": "1"})
    assert message.startswith(
        "here.toml and ASTERISM_TOPIC__RETRY_BACKOFF__MAX: topic.retry_backoff"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"workers = ",
        b"workers = 1\nworkers = 2",
        b"\xff",
        b"workers = " + b"9" * 5_000,
        b"workers = " + b"[" * 100_000,
    ],
    ids=["no value", "twice", "not utf-8", "huge", "deep"],
)
def test_what_is_not_toml_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^here\.toml: is not TOML: "):
        parse(data, source="here.toml")


def test_a_configuration_made_in_a_program_is_checked_as_well() -> None:
    with pytest.raises(ConfigError, match="workers must be from 1 to 1024, not 0"):
        Config(workers=0)
    with pytest.raises(ConfigError, match="sync must be"):
        Config(sync="sometimes")


@pytest.mark.parametrize(
    ("sync", "interval_ms"), [("always", None), ("1ms", 1), ("60000ms", 60_000)]
)
def test_sync_says_how_long_an_accepted_message_may_be_unsynced(
    sync: str, interval_ms: int | None
) -> None:
    assert Config(sync=sync).sync_interval_ms == interval_ms


def test_a_file_is_read_from_its_path_or_from_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "asterism.toml"
    path.write_bytes(WHOLE_FILE)
    assert load(str(path), {}) == WHOLE_CONFIG
    assert load(None, {"ASTERISM_CONFIG": str(path)}) == WHOLE_CONFIG


def test_a_file_that_cannot_be_read_is_told_with_its_path(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    absent = str(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="No such file") as caught:
        load(absent, {})
    assert str(caught.value).startswith(f"{absent}: cannot be read: ")
    for path in (str(tmp_path), str(large), "\0"):
        with pytest.raises(ConfigError) as caught:
            load(path, {})
        assert str(caught.value).startswith(f"{path}: ")


# --- a topic's settings between users and the broker --------------------------------------------


def test_overrides_name_only_what_was_set() -> None:
    assert topic_overrides({}) == {}
    assert topic_overrides({"sent_timeout": 1.5, "unique": True}) == {
        "sent_timeout_ms": 1_500,
        "unique": True,
    }


def test_overrides_may_set_to_none() -> None:
    given = {"overflow": None, "concurrency": None, "retry_backoff": None, "dead_letter": None}
    assert topic_overrides(given) == given
    with pytest.raises(PeerError, match="sent_timeout must be a number of seconds"):
        topic_overrides({"sent_timeout": None})


def test_overrides_take_the_values_that_the_package_exports() -> None:
    given = {"overflow": RejectNew(5), "retry_backoff": Backoff(min=0.5, max=2)}
    held = {"overflow": RejectNew(5), "retry_backoff": BackoffMs(500, 2_000)}
    assert topic_overrides(given) == held
    with pytest.raises(PeerError, match=r"overflow\.size"):
        topic_overrides({"overflow": RejectNew(0)})


def test_overflow_rejects_the_new_unless_told_otherwise() -> None:
    assert topic_overrides({"overflow": {"size": 5}}) == {"overflow": RejectNew(5)}
    given = {"overflow": {"size": 5, "policy": "drop_old"}}
    assert topic_overrides(given) == {"overflow": DropOld(5)}


@pytest.mark.parametrize(
    ("seconds", "milliseconds"), [(0, 0), (0.0, 0), (1e-9, 1), (0.0015, 2), (1, 1_000)]
)
def test_seconds_become_the_nearest_millisecond_and_never_nothing(
    seconds: float, milliseconds: int
) -> None:
    assert topic_overrides({"draft_timeout": seconds}) == {"draft_timeout_ms": milliseconds}


@pytest.mark.parametrize("mapping", [None, 5, [], {"sent_timeout_ms": 5}, {1: 1}, {"topic": {}}])
def test_overrides_that_are_none_of_ours_are_refused(mapping: Any) -> None:
    with pytest.raises(PeerError) as caught:
        topic_overrides(mapping)
    assert caught.value.code == "bad_request"


def test_settings_are_shown_in_the_users_words() -> None:
    assert topic_settings_as_user(WHOLE_CONFIG.topic) == {
        "expect": "received",
        "max_receivers": 2,
        "blocking": True,
        "overflow": {"size": 1_000, "policy": "drop_old"},
        "concurrency": 7,
        "unique": True,
        "draft_timeout": 1,
        "sent_timeout": 2.5,
        "received_timeout": 0.001,
        "max_attempts": 5,
        "max_deliveries": 9,
        "retry_backoff": {"min": 0.1, "max": 60},
        "dead_letter": "dead",
        "requeue": "front",
        "default_ttl": 0.001,
        "max_payload": 0,
        "history": "full",
        "history_ttl": 10,
        "receipt_ttl": 0.5,
        "dedicated": True,
    }


@pytest.mark.parametrize(
    "settings",
    [
        TopicSettings(),
        WHOLE_CONFIG.topic,
        TopicSettings(default_ttl_ms=TTL_MS_MAX - 1, sent_timeout_ms=TIMEOUT_MS_MAX - 1),
    ],
)
def test_what_is_shown_can_be_set_again(settings: TopicSettings) -> None:
    assert TopicSettings().changed(topic_overrides(topic_settings_as_user(settings))) == settings


def test_every_table_holds_a_key() -> None:
    for table in TABLES:
        assert any(key.startswith(f"{table}.") for key in KEYS)


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:7700", "tcp://*:7700", "tcp://example.org:1"])
def test_only_this_machine_may_connect_unless_it_is_said_otherwise(listen: str) -> None:
    with pytest.raises(ConfigError, match="insecure = true"):
        Config(listen=listen)
    assert Config(listen=listen, insecure=True).listen == listen


def test_a_broker_may_listen_on_paths_and_on_several_addresses() -> None:
    config = Config(listen="ipc:///run/a.sock, tcp://127.0.0.1:7700,tcp://[::1]:0")
    assert [address.text for address in config.addresses] == [
        *("ipc:///run/a.sock", "tcp://127.0.0.1:7700", "tcp://[::1]:0")
    ]
    assert [(address.path, address.port) for address in config.addresses] == [
        *(("/run/a.sock", 0), ("", 7_700), ("", 0))
    ]
    with pytest.raises(ConfigError, match=r"listen is tcp://\*:1: others"):
        Config(listen="ipc:///run/a.sock,tcp://*:1")


@pytest.mark.parametrize(
    "listen",
    [
        *("127.0.0.1:7700", "tcp://127.0.0.1", "tcp://127.0.0.1:65536", "ipc://", "ipc://a.sock"),
        *("ipc:///run/" + "a" * 100, "/run/a.sock", "tcp://127.0.0.1:1,", "ipc:///a\0b"),
    ],
)
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="tcp://"):
        Config(listen=listen)


# --- who can connect ------------------------------------------------------------------------------


def resolving(monkeypatch: pytest.MonkeyPatch, **names: list[str]) -> None:
    """Has these names resolve to these addresses; others to none, as without a network."""
    resolve = socket.getaddrinfo

    def found(host: str, *args: Any, **kwargs: Any) -> Any:
        known = names.get(host.replace(".", "_").replace("-", "_"))
        if known is None:
            return resolve(host, *args, **{**kwargs, "flags": socket.AI_NUMERICHOST})
        return [each for address in known for each in resolve(address, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    "listen",
    [
        *("tcp://127.0.0.1:0", "tcp://127.1.2.3:0", "tcp://[::1]:0", "tcp://localhost:0"),
        *("tcp://127.1:0", "tcp://2130706433:0", "tcp://[::ffff:127.0.0.1]:0", "tcp://here:0"),
    ],
)
def test_an_address_of_this_machine_alone_is_one(
    listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, here=["127.0.0.1", "::1"])
    assert Config(listen=listen).listen == listen


@pytest.mark.parametrize(
    "listen",
    [
        *("tcp://127.attacker.example:0", "tcp://localhost.attacker.example:0", "tcp://*:0"),
        *("tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://0:0", "tcp://eth0:0", "tcp://lo:0"),
        *("tcp://both:0", "tcp://10.0.0.1:0", "tcp://unknown:0", "tcp://[::ffff:10.0.0.1]:0"),
    ],
)
def test_an_address_that_only_looks_like_one_of_this_machine_is_refused(
    listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(
        monkeypatch,
        both=["127.0.0.1", "192.0.2.1"],
        **{"127_attacker_example": ["192.0.2.1"], "localhost_attacker_example": ["192.0.2.1"]},
    )
    with pytest.raises(ConfigError, match="insecure = true"):
        Config(listen=listen)


def test_a_path_never_leaves_the_machine() -> None:
    (address,) = Config(listen="ipc:///run/x.sock").endpoints()
    assert address.path == "/run/x.sock"


def test_what_is_bound_is_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, here=["127.0.0.2"], six=["::1"])
    config = Config(listen="tcp://here:7700, tcp://six:7700")
    assert [address.text for address in config.endpoints()] == [
        "tcp://127.0.0.2:7700",
        "tcp://[::1]:7700",
    ]
    config = Config(listen="tcp://here:7700")
    resolving(monkeypatch, here=["192.0.2.1"])
    with pytest.raises(ConfigError, match="insecure = true"):  # it is another's by now
        config.endpoints()
