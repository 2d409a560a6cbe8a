"""The monitoring port: what nats-top, health checks and clients' tests read of it."""

import re
from typing import Any

import pytest

from tests.conformance.nats.conftest import Connect, NatsServer
from tests.conformance.nats.raw_client import FULL, hpub, pub, sub

pytestmark = pytest.mark.process

VARZ: dict[str, type | tuple[type, ...]] = {
    "server_id": str,
    "server_name": str,
    "version": str,
    "proto": int,
    "host": str,
    "port": int,
    "max_connections": int,
    "ping_interval": int,
    "ping_max": int,
    "http_port": int,
    "auth_timeout": (int, float),
    "max_control_line": int,
    "max_payload": int,
    "max_pending": int,
    "write_deadline": int,
    "start": str,
    "now": str,
    "uptime": str,
    "mem": int,
    "cores": int,
    "cpu": (int, float),
    "connections": int,
    "total_connections": int,
    "in_msgs": int,
    "in_bytes": int,
    "out_msgs": int,
    "out_bytes": int,
    "slow_consumers": int,
    "stale_connections": int,
    "subscriptions": int,
}
CONNECTION: dict[str, type] = {
    "cid": int,
    "ip": str,
    "port": int,
    "start": str,
    "last_activity": str,
    "uptime": str,
    "idle": str,
    "pending_bytes": int,
    "in_msgs": int,
    "out_msgs": int,
    "in_bytes": int,
    "out_bytes": int,
    "subscriptions": int,
}
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"


def get(server: NatsServer, path: str) -> dict[str, Any]:
    answer = server.monitor(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/json")
    return dict(answer.json())


def test_health(server: NatsServer) -> None:
    assert get(server, "/healthz")["status"] == "ok"


def test_what_is_not_there_is_not_found(server: NatsServer) -> None:
    assert server.monitor("/nope").status_code == 404


def test_varz_has_the_fields_that_programs_read(server: NatsServer) -> None:
    said = get(server, "/varz")
    for name, kind in VARZ.items():
        assert isinstance(said.get(name), kind), name
    assert re.fullmatch(TIME, said["start"]) and re.fullmatch(TIME, said["now"])
    assert re.fullmatch(r"(\d+[ydhms])+", said["uptime"])
    assert (said["max_payload"], said["max_control_line"]) == (1 << 20, 4_096)
    assert said["ping_interval"] >= 1_000_000_000, "in nanoseconds"
    assert said["mem"] > 1_000_000


def test_varz_is_of_the_one_that_info_speaks_of(server: NatsServer, connect: Connect) -> None:
    info, said = connect().info, get(server, "/varz")
    for name in ("server_id", "server_name", "version", "port", "max_payload"):
        assert said[name] == info[name], name


def test_varz_counts_what_goes_in_and_out(
    server: NatsServer, connect: Connect, subject: str
) -> None:
    clients = [connect() for _ in range(3)]
    for client in clients:
        client.until_pong(sub(subject))
    before = get(server, "/varz")
    clients[0].until_pong(pub(subject, b"12345") * 10)
    for client in clients[1:]:
        assert len(client.messages_until_pong()) == 10
    said = get(server, "/varz")
    grown = {
        name: said[name] - before[name]
        for name in ("in_msgs", "in_bytes", "out_msgs", "out_bytes", "slow_consumers")
    }
    assert grown == {
        "in_msgs": 10,
        "in_bytes": 50,
        "out_msgs": 30,
        "out_bytes": 150,
        "slow_consumers": 0,
    }
    assert said["connections"] >= 3
    assert said["total_connections"] >= said["connections"]


def test_varz_counts_subscriptions(server: NatsServer, connect: Connect, subject: str) -> None:
    client = connect()
    before = get(server, "/varz")["subscriptions"]
    client.until_pong(b"".join(sub(f"{subject}.{at}", at) for at in range(50)))
    assert get(server, "/varz")["subscriptions"] == before + 50


def _connection(server: NatsServer, cid: int, query: str = "") -> dict[str, Any]:
    said = get(server, f"/connz?{query}")
    (found,) = [one for one in said["connections"] if one["cid"] == cid]
    return dict(found)


def test_connz_has_the_fields_that_programs_read(
    server: NatsServer, connect: Connect, subject: str
) -> None:
    client = connect({**FULL, "name": "somebody", "lang": "python3", "version": "2.16.0"})
    client.until_pong(sub(subject, 1) + sub(f"{subject}.x", 2, "q") + pub(subject, b"123") * 4)
    client.until_pong(hpub(f"{subject}.y", b"NATS/1.0\r\n\r\n", b"45"))
    said = get(server, "/connz")
    assert said["server_id"] == client.info["server_id"]
    assert said["num_connections"] == len(said["connections"]) <= said["total"]
    assert (said["offset"], said["limit"]) == (0, 1024)
    found = _connection(server, client.info["client_id"])
    for name, kind in CONNECTION.items():
        assert isinstance(found.get(name), kind), name
    assert (found["name"], found["lang"], found["version"]) == ("somebody", "python3", "2.16.0")
    assert (found["ip"], found["port"]) == client.socket.getsockname()
    assert (found["in_msgs"], found["out_msgs"], found["subscriptions"]) == (5, 4, 2)
    assert (found["in_bytes"], found["out_bytes"]) == (26, 12)
    assert re.fullmatch(TIME, found["start"]) and re.fullmatch(TIME, found["last_activity"])


def test_connz_names_subscriptions_when_it_is_asked(
    server: NatsServer, connect: Connect, subject: str
) -> None:
    client = connect()
    client.until_pong(sub(f"{subject}.a", 1) + sub(f"{subject}.>", 2, "q"))
    cid = client.info["client_id"]
    assert "subscriptions_list" not in _connection(server, cid)
    found = _connection(server, cid, "subs=1")
    assert sorted(found["subscriptions_list"]) == [f"{subject}.>", f"{subject}.a"]
    detail = _connection(server, cid, "subs=detail")["subscriptions_list_detail"]
    assert sorted((one["sid"], one["subject"], one.get("qgroup")) for one in detail) == [
        ("1", f"{subject}.a", None),
        ("2", f"{subject}.>", "q"),
    ]


def test_connz_gives_pages(server: NatsServer, connect: Connect) -> None:
    clients = [connect() for _ in range(5)]
    for client in clients:
        client.until_pong()
    said = get(server, "/connz?limit=2")
    assert (len(said["connections"]), said["limit"], said["num_connections"]) == (2, 2, 2)
    assert said["total"] >= 5
    behind = get(server, "/connz?limit=2&offset=2")
    assert behind["offset"] == 2
    cids = [one["cid"] for one in said["connections"] + behind["connections"]]
    assert len(set(cids)) == 4


@pytest.mark.parametrize(
    "by",
    [
        *("cid", "start", "subs", "pending", "msgs_to", "msgs_from", "bytes_to", "bytes_from"),
        *("last", "idle", "uptime", "rtt"),
    ],
)
def test_connz_sorts_by_what_nats_top_asks(server: NatsServer, connect: Connect, by: str) -> None:
    client = connect()
    client.until_pong()
    assert get(server, f"/connz?limit=1024&sort={by}")["connections"]


def test_connz_sorts_the_busiest_first(server: NatsServer, connect: Connect, subject: str) -> None:
    quiet, busy = connect(), connect()
    quiet.until_pong()
    busy.until_pong(sub(subject) + pub(subject, b"x" * 1_000_000) * 30)
    first = get(server, "/connz?sort=bytes_to")["connections"][0]
    assert first["cid"] == busy.info["client_id"]


def test_connz_refuses_an_order_that_nobody_knows(server: NatsServer) -> None:
    assert server.monitor("/connz?sort=nonsense").status_code == 400


def test_subsz_counts_subscriptions(server: NatsServer, connect: Connect, subject: str) -> None:
    client = connect()
    before = get(server, "/subsz")["num_subscriptions"]
    client.until_pong(b"".join(sub(f"{subject}.{at}", at) for at in range(20)))
    said = get(server, "/subsz")
    assert said["num_subscriptions"] == before + 20
    assert {"num_cache", "num_inserts", "num_removes", "num_matches"} <= set(said)
    listed = get(server, "/subsz?subs=1&limit=1000")["subscriptions_list"]
    mine = [one for one in listed if one["cid"] == client.info["client_id"]]
    assert {one["subject"] for one in mine} == {f"{subject}.{at}" for at in range(20)}


@pytest.mark.parametrize("path", ["/varz", "/connz", "/subsz", "/healthz"])
def test_asking_leaves_no_trace_among_the_connections(
    server: NatsServer, connect: Connect, path: str
) -> None:
    client = connect()
    client.until_pong()
    before = get(server, "/varz")["total_connections"]
    for _ in range(5):
        get(server, path)
    assert get(server, "/varz")["total_connections"] == before
