"""A child process in its own group: its start, its end, its output."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL
from pathlib import Path

import pytest

from bot.sandbox.process import OutputTail, start, start_speaking
from tests.support.patience import until_true
from tests.support.sleeping_processes import new_sleep, runs

ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.mark.parametrize("turns_of_the_loop", range(6))
async def test_a_cancelled_start_leaves_no_process(tmp_path: Path, turns_of_the_loop: int) -> None:
    sleep = new_sleep()
    task = asyncio.create_task(start(sleep.split(), ENVIRONMENT, tmp_path))
    for _ in range(turns_of_the_loop):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        await task.result().end()
    assert not runs(sleep)


async def test_the_end_also_ends_child_processes(tmp_path: Path) -> None:
    sleep = new_sleep()
    process = await start(("sh", "-c", f"{sleep} & echo started"), ENVIRONMENT, tmp_path, stderr=DEVNULL)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"started\n"
    await process.wait()
    assert process.status == 0
    await process.end()
    # The kernel ends a killed process a moment later, and nobody here is its parent.
    await until_true(lambda: not runs(sleep))


async def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = await start(("sh", "-c", "trap '' TERM; echo deaf; sleep 1000"), ENVIRONMENT, tmp_path)
    assert process.stdout is not None
    await process.stdout.readline()
    await process.end()
    assert process.status == -signal.SIGKILL


async def test_the_last_bytes_of_an_output_are_kept(tmp_path: Path) -> None:
    process = await start(("sh", "-c", "head -c 100000 /dev/zero; printf end"), ENVIRONMENT, tmp_path)
    tail = OutputTail(process.stdout, 5)
    await tail.finish(60)
    assert tail.data == b"\0\0end"
    await process.end()


async def test_no_process_can_speak_in_the_place_of_one_that_is_spoken_with(tmp_path: Path) -> None:
    tries = "for n in 0 1; do (echo forged > /proc/$$/fd/$n) 2>/dev/null && echo open; done; cat; echo last"
    process = await start_speaking(("sh", "-c", tries), ENVIRONMENT, tmp_path, line_bytes=1 << 16)
    assert process.stdin is not None
    assert process.stdout is not None
    # More than the sockets hold, in both directions: who writes waits for who reads.
    process.stdin.write(b"x" * 60_000 + b"\n")
    writing = asyncio.create_task(_write(process.stdin, [b"y" * 60_000 + b"\n"] * 50))
    assert await process.stdout.readline() == b"x" * 60_000 + b"\n"
    transport = process.stdin.transport
    await until_true(lambda: transport.get_write_buffer_size() > 0)
    assert not writing.done()
    assert [len(await process.stdout.readline()) for _ in range(50)] == [60_001] * 50
    await writing
    process.stdin.close()
    assert await process.stdout.read() == b"last\n"
    await process.wait()
    assert process.status == 0
    await process.end()


async def _write(stdin: asyncio.StreamWriter, lines: list[bytes]) -> None:
    for line in lines:
        stdin.write(line)
        await stdin.drain()
