"""What users see of the types: mypy and pyright find their mistakes, and no others."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import asterism
from asterism.options import TOPIC_NAMES, TopicOptions
from tests.tidy.tree import ROOT

# Each line with a mistake says so; every other line is right.
ASYNCIO: Final = """
import asterism


async def main() -> None:
    async with asterism.connect("tcp://127.0.0.1:7700", name="shop") as node:
        await node.create_topic("orders", max_attempts=3, retry_backoff={"min": 0.5, "max": 8})
        await node.create_topic("orders", max_atempts=3)  # wrong
        await node.configure("orders", requeue="middle")  # wrong
        receipt = await node.publish("orders", b"x", expect="processed", max_receivers=1)
        await node.publish("orders", b"x", expct="processed")  # wrong
        await node.publish("orders", "text")  # wrong
        node.publish("orders", b"x")  # wrong
        print(receipt.sequence + 1, (await receipt.resolved()).verdict.upper())
        receipt.resolved().verdict  # wrong
        many = await node.publish_many("orders", [b"x", asterism.Message(b"y", priority=1)])
        print(many.sequences[0] + 1)
        inbox = await node.subscribe("orders", "order/*", name="shop", credit=10)
        await node.subscribe("orders", nmae="shop")  # wrong
        await node.subscribe("orders", credit="many")  # wrong
        async for delivery in inbox:
            print(delivery.payload.decode(), delivery.attempt + 1, delivery.subject.upper())
            await delivery.processed()
            await delivery.proccessed()  # wrong
            delivery.failed("no")  # wrong
        async with await inbox.receive(timeout=1) as delivery:
            print(delivery.attributes["colour"].upper())
        await inbox.close()
        async for name in node.list_topics():
            print(name.upper())
        print((await node.list_receivers("orders"))[0].lag, (await node.stats("orders")).failed + 1)

        async def handle(delivery: asterism.Delivery) -> None:
            await delivery.nack("no")

        await node.consume("orders", handle, nmae="shop")  # wrong
        await node.create_topic("orders", retry_backoff=asterism.Backoff(min=0.5, max=8))
        await node.consume("orders", handle, "order/*", name="shop", credit=10)
"""
BLOCKING: Final = """
import asterism

with asterism.connect_blocking("tcp://127.0.0.1:7700", name="shop") as node:
    node.create_topic("orders", overflow=asterism.DropOld(10), dead_letter="dead")
    node.create_topic("orders", dead_leter="dead")  # wrong
    print(node.describe("orders").waiting + 1, node.describe("orders").oldest_waiting)
    print(node.describe("orders")["waiting"])  # wrong
    for parked in node.list_parked("orders"):
        print(parked.failed_at.year, parked.reason.upper(), parked.failed_ms)  # wrong
    node.consume("orders", print, "order/*", concurrency=2, on_error="give_back", name="shop")
    node.consume("orders", print, on_error="ignore")  # wrong
    receipt = node.publish("orders", b"x", expect="processed")
    print(receipt.accepted().sequence + 1, receipt.resolved().verdict.upper())
    print(receipt.sequenze)  # wrong
    inbox = node.subscribe("orders", name="shop")
    node.subscribe("orders", nmae="shop")  # wrong
    node.subscribe("orders", credit="many")  # wrong
    for delivery in inbox:
        with delivery:
            print(delivery.payload.decode())
        delivery.proccessed()  # wrong
    for delivery in node.pull("orders", "shop", max=10, wait=1):
        delivery.failed("no", confirm=True)
    try:
        node.delete_topic("orders")
    except asterism.BrokerError as error:
        print(error.code.upper())
"""
CHECKERS: Final = {
    "mypy": ("mypy", "--strict", "--no-incremental", "--cache-dir=/dev/null"),
    "pyright": ("pyright", "--pythonpath", sys.executable),
}


def found_by(checker: str, path: Path) -> dict[int, str]:
    """What a type checker says of a user's file, by line."""
    done = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker], str(path)],
        cwd=path.parent,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = re.findall(rf"{path.name}:(\d+)(?::\d+)?(?: -|:) error: (.*)", done.stdout)
    if checker == "pyright" and not lines and "error" not in done.stdout:
        pytest.skip(f"pyright does not run here: {done.stderr.strip()[-200:]}")
    return {int(line): what for line, what in lines}


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("text", [ASYNCIO, BLOCKING], ids=["asyncio", "blocking"])
def test_a_type_checker_finds_a_users_mistakes(checker: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "users_program.py"
    path.write_text(text)
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT}"]}}')
    found = found_by(checker, path)
    wrong = {at for at, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")}
    assert set(found) == wrong, found


@pytest.mark.parametrize("name", asterism.__all__)
def test_what_is_public_is_documented_and_says_what_it_is(name: str) -> None:
    value = getattr(asterism, name)
    if name == "__version__":
        return
    assert value.__doc__, f"{name} has no docstring"
    if isinstance(value, type):
        own: object = value.__repr__
        assert own is not object.__repr__, f"{name} has no repr"
    if not (isinstance(value, type) and issubclass(value, asterism.BrokerError)):
        document = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")
        assert re.search(rf"\b{name}\b", document), f"docs/sdk.md does not have {name}"


def test_the_command_line_and_the_doors_use_no_private_part_of_the_sdk() -> None:
    private = re.compile(r"\b(?:node|inbox|delivery|receipt)\._\w+|\bself\._node\._\w+")
    for folder in ("asterism/cli", "gateways"):
        for path in (ROOT / folder).rglob("*.py"):
            found = private.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{path.name} uses {found[0] if found else ''}"


def test_what_is_said_to_be_public_is_there() -> None:
    assert all(hasattr(asterism, name) for name in asterism.__all__)
    assert set(asterism._CLIENTS) <= set(asterism.__all__)


def test_every_setting_of_a_topic_has_a_type_for_users() -> None:
    assert tuple(TopicOptions.__annotations__) == TOPIC_NAMES
