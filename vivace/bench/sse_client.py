"""The reader of `sse_bench`: opens the streams, reads them to the end, prints what it counted."""

from __future__ import annotations

import asyncio
import json
import sys

MARK = b"data: "


async def read_stream(port: int, path: str, body: bytes) -> tuple[int, int]:
    """(events, bytes) of one stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    chunks = size = 0
    tail = b""
    while data := await reader.read(1 << 16):
        size += len(data)
        data = tail + data
        chunks += data.count(MARK)
        cut = max(data.rfind(MARK) + len(MARK), len(data) - len(MARK) + 1)
        tail = data[max(cut, 0) :]
    writer.close()
    return chunks, size


async def main(port: int, streams: int, path: str, body: str) -> None:
    found = await asyncio.gather(*(read_stream(port, path, body.encode()) for _ in range(streams)))
    totals = {"chunks": sum(c for c, _ in found), "bytes": sum(b for _, b in found)}
    sys.stdout.write(json.dumps(totals))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
