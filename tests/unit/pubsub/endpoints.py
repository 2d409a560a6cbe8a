"""A push endpoint on a loopback socket, that answers as a test says."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

Answer = Callable[["EndpointServer", bytes], Awaitable[bytes | None]]


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    """A response."""
    lines = [f"HTTP/1.1 {code} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class EndpointServer:
    """Takes requests and answers each by ``answer``, given its body; None: it hangs up."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connections = 0
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}/push?token=x"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Closes every connection that there is."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                sizes = [
                    line.split(b": ")[1] for line in lines if line.startswith(b"content-length")
                ]
                body = await reader.readexactly(int(sizes[0]))
                self.heads.append(head)
                self.bodies.append(body)
                answer = await self._answer(self, body)
                if answer is None:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
