"""nats-py, unchanged, as applications use it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any

import nats
import pytest
from nats import micro
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import MaxPayloadError, NoRespondersError, TimeoutError
from nats.js.errors import ServiceUnavailableError
from nats.micro.request import Request

from tests.conformance.nats import certificates
from tests.conformance.nats.conftest import NatsServer, Started
from tests.conformance.nats.raw_client import assert_spread

pytestmark = pytest.mark.process

LIMIT_S = 30.0
Play = Callable[[Client, Client], Awaitable[None]]


def play(server: NatsServer, scene: Play, **options: Any) -> None:
    """Runs a scene with two clients; it may take no longer than the limit."""

    async def both() -> None:
        async with asyncio.timeout(LIMIT_S):
            one = await nats.connect(server.url, allow_reconnect=False, **options)
            two = await nats.connect(server.url, allow_reconnect=False, **options)
            try:
                await scene(one, two)
            finally:
                for client in (one, two):
                    if not client.is_closed:
                        await client.close()

    asyncio.run(both())


async def settled(client: Client) -> None:
    """Its flush is no barrier for what it has buffered; a second one is for what the first sent."""
    await client.flush()
    await client.flush()


async def messages(subscription: Subscription, count: int) -> list[Msg]:
    return [await subscription.next_msg(LIMIT_S) for _ in range(count)]


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("pedantic", [False, True])
def test_it_publishes_and_subscribes(
    server: NatsServer, subject: str, verbose: bool, pedantic: bool
) -> None:
    async def scene(one: Client, two: Client) -> None:
        got = await one.subscribe(f"{subject}.*")
        await settled(one)
        for number in range(100):
            await two.publish(f"{subject}.{number}", b"%d" % number)
        found = await messages(got, 100)
        assert [message.subject for message in found] == [f"{subject}.{at}" for at in range(100)]
        assert [int(message.data) for message in found] == list(range(100))

    play(server, scene, verbose=verbose, pedantic=pedantic)


def test_it_takes_callbacks(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def take(message: Msg) -> None:
            await got.put(message.data)

        await one.subscribe(subject, cb=take)
        await settled(one)
        await two.publish(subject, b"x")
        assert await got.get() == b"x"

    play(server, scene)


@pytest.mark.parametrize("old_style", [False, True])
def test_it_requests(server: NatsServer, subject: str, old_style: bool) -> None:
    async def scene(one: Client, two: Client) -> None:
        async def answer(message: Msg) -> None:
            await message.respond(message.data[::-1])

        await one.subscribe(subject, "q", cb=answer)
        await settled(one)
        for _ in range(20):
            reply = await two.request(subject, b"abc", timeout=LIMIT_S, old_style=old_style)
            assert reply.data == b"cba"

    play(server, scene)


def test_it_makes_many_requests_at_once(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        async def answer(message: Msg) -> None:
            await message.respond(message.data)

        await one.subscribe(subject, cb=answer)
        await settled(one)
        asked = [two.request(subject, b"%d" % at, timeout=LIMIT_S) for at in range(500)]
        assert [int(reply.data) for reply in await asyncio.gather(*asked)] == list(range(500))

    play(server, scene)


@pytest.mark.parametrize("old_style", [False, True])
def test_its_request_is_told_that_nobody_hears_it(
    server: NatsServer, subject: str, old_style: bool
) -> None:
    async def scene(one: Client, two: Client) -> None:
        for name in (subject, "$JS.API.INFO"):
            with pytest.raises(NoRespondersError):
                await one.request(name, b"x", timeout=LIMIT_S, old_style=old_style)

    play(server, scene)


def test_its_request_waits_for_who_hears_and_is_silent(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        await one.subscribe(subject)
        await settled(one)
        with pytest.raises(TimeoutError):
            await two.request(subject, b"x", timeout=0.2)

    play(server, scene)


def test_it_knows_that_there_are_no_streams(server: NatsServer) -> None:
    async def scene(one: Client, two: Client) -> None:
        with pytest.raises((ServiceUnavailableError, NoRespondersError)):
            await one.jetstream().account_info()

    play(server, scene)


def test_it_sends_headers(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        got = await one.subscribe(subject)
        await settled(one)
        said = {"Trace-Id": "1-2", "Empty": "", "Text": "très: bien", "lower": "x"}
        await two.publish(subject, b"body", headers=said)
        await two.publish(subject, b"", headers={"A": "b"})
        await two.publish(subject, b"none")
        first, second, third = await messages(got, 3)
        assert dict(first.headers or {}) == said
        assert (first.data, second.data, third.data) == (b"body", b"", b"none")
        assert dict(second.headers or {}) == {"A": "b"}
        assert not third.headers

    play(server, scene)


def test_it_requests_with_headers(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        async def answer(message: Msg) -> None:
            assert message.headers
            await one.publish(message.reply, b"x", headers={"Echo": message.headers["Ask"]})

        await one.subscribe(subject, cb=answer)
        await settled(one)
        reply = await two.request(subject, b"", timeout=LIMIT_S, headers={"Ask": "me"})
        assert reply.headers and reply.headers["Echo"] == "me"

    play(server, scene)


def test_its_queues_share(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        got: list[list[int]] = [[], [], []]
        every = asyncio.Event()

        def taking(at: int) -> Callable[[Msg], Awaitable[None]]:
            async def take(message: Msg) -> None:
                got[at].append(int(message.data))
                if sum(map(len, got)) == 600:
                    every.set()

            return take

        await one.subscribe(subject, "q", cb=taking(0))
        await one.subscribe(subject, "q", cb=taking(1))
        await two.subscribe(subject, "q", cb=taking(2))
        await settled(one)
        await settled(two)
        for number in range(600):
            await two.publish(subject, b"%d" % number)
        await every.wait()
        assert sorted(chain.from_iterable(got)) == list(range(600))
        assert_spread([len(part) for part in got])

    play(server, scene)


def test_it_unsubscribes_at_once_and_after_a_count(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        few = await one.subscribe(subject, max_msgs=3)
        await few.unsubscribe(3)
        witness = await one.subscribe(subject)
        gone = await one.subscribe(subject)
        await settled(one)
        await gone.unsubscribe()
        await settled(one)
        for number in range(10):
            await two.publish(subject, b"%d" % number)
        assert [int(message.data) for message in await messages(witness, 10)] == list(range(10))
        assert [int(message.data) for message in await messages(few, 3)] == [0, 1, 2]
        assert gone.pending_msgs == 0

    play(server, scene)


def test_it_drains_a_subscription(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        got: list[int] = []
        begun = asyncio.Event()

        async def take(message: Msg) -> None:
            begun.set()
            await asyncio.sleep(0)
            got.append(int(message.data))

        subscription = await one.subscribe(subject, cb=take)
        await settled(one)
        for number in range(200):
            await two.publish(subject, b"%d" % number)
        await settled(two)
        await begun.wait()
        await subscription.drain()  # type: ignore[no-untyped-call]
        assert got == list(range(200))
        await two.publish(subject, b"late")
        await settled(two)
        await settled(one)
        assert len(got) == 200

    play(server, scene)


def test_it_drains_a_connection(server: NatsServer, subject: str) -> None:
    """What was published in handlers while it drains goes out too."""

    async def scene(one: Client, two: Client) -> None:
        begun = asyncio.Event()

        async def answer(message: Msg) -> None:
            begun.set()
            await message.respond(message.data)

        await one.subscribe(subject, cb=answer)
        await settled(one)
        replies = await two.subscribe("_INBOX.drained")
        await settled(two)
        for number in range(100):
            await two.publish(subject, b"%d" % number, reply="_INBOX.drained")
        await settled(two)
        await begun.wait()
        await one.drain()
        assert one.is_closed
        assert [int(one.data) for one in await messages(replies, 100)] == list(range(100))

    play(server, scene)


def test_it_refuses_what_info_says_is_too_large(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        assert one.max_payload == 1 << 20
        with pytest.raises(MaxPayloadError):
            await one.publish(subject, b"x" * (one.max_payload + 1))
        got = await one.subscribe(subject)
        await one.publish(subject, b"x" * one.max_payload)
        assert len((await got.next_msg(LIMIT_S)).data) == one.max_payload

    play(server, scene)


def test_it_wants_no_echo(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        got = await one.subscribe(subject)
        await settled(one)
        await one.publish(subject, b"mine")
        await settled(one)
        await two.publish(subject, b"theirs")
        assert (await got.next_msg(LIMIT_S)).data == b"theirs"

    play(server, scene, no_echo=True)


def test_its_flush_has_an_answer(server: NatsServer) -> None:
    async def scene(one: Client, two: Client) -> None:
        for _ in range(100):
            await one.flush(timeout=int(LIMIT_S))
        assert one.client_id != two.client_id
        assert one.connected_server_version.major >= 2

    play(server, scene)


@pytest.mark.parametrize(
    ("table", "good", "wrong"),
    [
        ({"user": "u", "password": "p"}, {"user": "u", "password": "p"}, {"user": "u"}),
        ({"token": "t"}, {"token": "t"}, {"token": "x"}),
    ],
    ids=["user", "token"],
)
def test_it_says_who_it_is(
    start: Started, subject: str, table: dict[str, str], good: dict[str, str], wrong: dict[str, str]
) -> None:
    guarded = start(**table)

    async def scene(one: Client, two: Client) -> None:
        got = await one.subscribe(subject)
        await settled(one)
        await two.publish(subject, b"x")
        await got.next_msg(LIMIT_S)

    play(guarded, scene, **good)
    for options in (wrong, {}):
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            play(guarded, scene, **options)


def test_it_speaks_tls(
    start: Started, subject: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = certificates.make(tmp_path_factory.mktemp("certificates"))
    encrypted = start(**made.table(), tls_ca=str(made.authority), tls_verify=True)

    async def scene(one: Client, two: Client) -> None:
        got = await one.subscribe(subject)
        await settled(one)
        await two.publish(subject, b"x" * 100_000)
        assert len((await got.next_msg(LIMIT_S)).data) == 100_000

    play(encrypted, scene, tls=made.trusting(made.client))


def test_it_connects_again_after_a_silence_that_it_was_cut_for(
    start: Started, subject: str
) -> None:
    """A stale connection is the one error that it comes back from by itself."""
    asking = start(is_own=True, ping_interval=0.3, max_pings=1)

    async def scene() -> None:
        async with asyncio.timeout(LIMIT_S):
            again = asyncio.Event()

            async def reconnected() -> None:
                again.set()

            client = await nats.connect(
                asking.url, reconnected_cb=reconnected, reconnect_time_wait=0
            )
            got = await client.subscribe(subject)
            await settled(client)
            client._process_ping = _nothing  # type: ignore[method-assign]
            await again.wait()
            await settled(client)
            await client.publish(subject, b"x")
            assert (await got.next_msg(LIMIT_S)).data == b"x"
            await client.close()

    asyncio.run(scene())


async def _nothing() -> None:
    """Answers no PING."""


def test_it_leaves_a_lame_duck_in_peace(start: Started, subject: str) -> None:
    """It hears of it, and of the end, and has no error to report."""
    lame = start(is_own=True, lame_duck=0.5)

    async def scene() -> None:
        async with asyncio.timeout(LIMIT_S):
            gone = asyncio.Event()
            said: list[Exception] = []

            async def disconnected() -> None:
                gone.set()

            async def failed(error: Exception) -> None:
                said.append(error)

            client = await nats.connect(
                lame.url,
                allow_reconnect=False,
                disconnected_cb=disconnected,
                error_cb=failed,
            )
            await settled(client)
            lame.lame_duck()
            await gone.wait()
            assert all("-ERR" not in str(one) for one in said)
            await client.close()

    asyncio.run(scene())


def test_it_leaves_a_lame_duck_for_another_server(start: Started, subject: str) -> None:
    """It is told in time, goes of its own accord, and says there who it is and what it wants."""
    lame = start(is_own=True, user="one", password="first", lame_duck=1.0)
    other = start(user="two", password="second")

    async def scene() -> None:
        async with asyncio.timeout(LIMIT_S):
            there = asyncio.Event()

            async def told() -> None:
                await client.force_reconnect()

            async def reconnected() -> None:
                there.set()

            client = await nats.connect(
                [
                    lame.url.replace("//", "//one:first@"),
                    other.url.replace("//", "//two:second@"),
                ],
                dont_randomize=True,
                reconnect_time_wait=0,
                lame_duck_mode_cb=told,
                reconnected_cb=reconnected,
            )
            got = await client.subscribe(subject)
            await settled(client)
            lame.lame_duck()
            await there.wait()
            assert client.connected_url and str(client.connected_url.port) in other.url
            await settled(client)
            await client.publish(subject, b"x")
            assert (await got.next_msg(LIMIT_S)).data == b"x"
            await client.close()

    asyncio.run(scene())


def test_micro_services_are_found_and_answer(server: NatsServer, subject: str) -> None:
    async def scene(one: Client, two: Client) -> None:
        async def answer(request: Request) -> None:
            await request.respond(request.data[::-1])

        name = f"svc-{subject.replace('.', '-')}"
        service = await micro.add_service(one, name=name, version="1.0.0")
        await service.add_endpoint(name="reverse", subject=f"{subject}.reverse", handler=answer)
        await settled(one)
        reply = await two.request(f"{subject}.reverse", b"abc", timeout=LIMIT_S)
        assert reply.data == b"cba"
        ping = await two.request(f"$SRV.PING.{name}", b"", timeout=LIMIT_S)
        assert json.loads(ping.data)["name"] == name
        stats = await two.request(f"$SRV.STATS.{name}", b"", timeout=LIMIT_S)
        assert json.loads(stats.data)["endpoints"][0]["num_requests"] == 1
        await service.stop()

    play(server, scene)


def test_instances_of_a_micro_service_share_its_requests_and_each_is_found(
    server: NatsServer, subject: str
) -> None:
    async def scene(one: Client, two: Client) -> None:
        async def answer(request: Request) -> None:
            if request.data == b"0":
                await request.respond_error("400", "nothing to divide by")
            else:
                await request.respond(request.data, headers={"unit": "m"})

        name = f"svc-{subject.replace('.', '-')}"
        for connection in (one, one, two, two):
            service = await micro.add_service(connection, name=name, version="1.0.0")
            group = service.add_group(name=subject)
            await group.add_endpoint(name="length", handler=answer)
        await settled(one)
        await settled(two)
        replies = [
            await two.request(f"{subject}.length", b"%d" % at, timeout=LIMIT_S) for at in range(50)
        ]
        refused, *answered = (reply.headers or {} for reply in replies)
        assert refused["Nats-Service-Error-Code"] == "400"
        assert answered == [{"unit": "m"}] * 49
        asked = two.new_inbox()
        got = await two.subscribe(asked)
        for verb in ("PING", "INFO", "STATS"):
            await two.publish(f"$SRV.{verb}.{name}", reply=asked)
        said = [json.loads(message.data) for message in await messages(got, 12)]
        assert len({each["id"] for each in said}) == 4
        stats = [each["endpoints"][0] for each in said if each["type"].endswith("stats_response")]
        assert sum(each["num_requests"] for each in stats) == 50

    play(server, scene)
