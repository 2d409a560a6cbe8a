"""The toy door: ``python -m asterism_toy``. Each line is a topic, a space, and a payload."""

import asyncio
import signal

import asterism
from asterism.config import Config
from asterism.doors import listen_text
from asterism.gateways.process import CONNECT_S, find_broker, listener, open_door, run_door

from .door import DOOR


async def serve(config: Config, name: str) -> None:
    """Publishes what it is told, until the process is told to stop."""
    settings = config.door(DOOR)
    listening = listener(config, DOOR)
    async with asterism.connect(await find_broker(config), name, timeout=CONNECT_S) as node:

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(f"{settings.greeting}\n".encode())
            while line := await reader.readline():
                topic, _, payload = line.rstrip(b"\n").partition(b" ")
                receipt = await node.publish(topic.decode(), payload)
                writer.write(b"%d\n" % receipt.sequence * settings.echoes)
            writer.close()

        server = await asyncio.start_server(talk, sock=listening)
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        address = listen_text(*listening.getsockname()[:2])
        open_door(config, DOOR, name, listening, address=address)
        await stopped.wait()
        server.close()


def run(config: Config, name: str) -> None:
    asyncio.run(serve(config, name))


if __name__ == "__main__":
    run_door(DOOR, run)
