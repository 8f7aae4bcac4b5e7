"""The programs of test_exit.py: each stands somewhere until it is interrupted, or ends by itself."""

from __future__ import annotations

PROGRAM = """
from chatlock import AsyncChatlock, Chatlock, Closed, Limits
url = sys.argv[1]
limits = Limits(lease_ms=600_000, sweep_ms=20)

def say(text):
    print(text, flush=True)

def stop_at(chat, point):
    def passing(name):
        if name == point:
            say("standing")
            until = time.monotonic() + 20
            while time.monotonic() < until:  # as a slow statement: the signal comes in the middle
                time.sleep(0.01)  # bounded poll
    chat._executor.points = passing
"""
PLAYS = {
    "sync_handler": """
chat = Chatlock(url, tenant="t", limits=limits)
@chat.handler()
def hold(turn):
    say("standing")
    time.sleep(20)  # interrupted
chat.submit("thread", "hello")
""",
    "sync_turn": """
chat = Chatlock(url, tenant="t", limits=limits)
with chat.turn("thread", "hello") as turn:
    say("standing")
    time.sleep(20)  # interrupted
""",
    "sync_begin": """
chat = Chatlock(url, tenant="t", limits=limits)
turn = chat.begin("thread", "hello")
say("standing")
time.sleep(20)  # interrupted
""",
    "sync_submit": """
chat = Chatlock(url, tenant="t", limits=limits)
chat.handler()(lambda turn: "done")
stop_at(chat, "submit_hot.commit")
chat.submit("thread", "hello")
""",
    "sync_wait": """
chat = Chatlock(url, tenant="t", limits=limits)
import contextvars
held = contextvars.copy_context().run(chat.begin, "thread", "hello")  # else it would not wait
chat.handler()(lambda turn: "done")
def watch():
    while not any(w.waited for ws in chat._flows.waiters._by_key.values() for w in ws):
        time.sleep(0.001)  # bounded poll
    say("standing")
threading.Thread(target=watch, daemon=True).start()
chat.submit("thread", "second", wait_ms=None)
""",
    "async_handler": """
async def main():
    async with AsyncChatlock(url, tenant="t", limits=limits) as chat:
        @chat.handler()
        async def hold(turn):
            say("standing")
            await asyncio.sleep(20)  # interrupted
        await chat.submit("thread", "hello")
asyncio.run(main())
""",
    "async_sync_handler": """
async def main():
    chat = AsyncChatlock(url, tenant="t", limits=limits)
    @chat.handler()
    def hold(turn):
        say("standing")
        time.sleep(20)  # interrupted
    await chat.submit("thread", "hello")
asyncio.run(main())
""",
    "async_poller": """
async def main():
    chat = AsyncChatlock(url, tenant="t", limits=limits)
    await chat.submit("thread", "hello", wait_ms=0)
    @chat.handler()
    async def hold(turn):
        say("standing")
        await asyncio.sleep(20)  # interrupted
    await asyncio.sleep(20)  # interrupted
asyncio.run(main())
""",
    "sync_poller": """
chat = Chatlock(url, tenant="t", limits=limits)
chat.submit("thread", "hello", wait_ms=0)
@chat.handler()
def hold(turn):
    say("standing")
    time.sleep(20)  # interrupted
time.sleep(20)  # interrupted
""",
    "sync_stream": """
chat = Chatlock(url, tenant="t", limits=limits)
@chat.handler()
async def chunks(turn):
    yield "one"
    await asyncio.sleep(20)  # interrupted
for event in chat.stream("thread", "hello"):
    say("standing")
""",
}
UNSENT = {"sync_submit"}
EXITS = {
    "live_turn": """
chat = Chatlock(url, tenant="t", limits=limits)
turn = chat.begin("thread", "hello")
""",
    "live_turn_of_the_poller": """
chat = Chatlock(url, tenant="t", limits=limits)
chat.submit("thread", "hello", wait_ms=0)
entered = threading.Event()
@chat.handler()
def hold(turn):
    entered.set()
    time.sleep(20)  # interrupted
entered.wait(20)
""",
    "daemon_in_submit": """
chat = Chatlock(url, tenant="t", limits=limits)
entered = threading.Event()
@chat.handler()
def hold(turn):
    entered.set()
    time.sleep(20)  # interrupted
threading.Thread(target=chat.submit, args=("thread", "hello"), daemon=True).start()
entered.wait(20)
""",
    "waiters": """
chat = Chatlock(url, tenant="t", limits=limits)
turn = chat.begin("thread", "hello")
def wait():
    try:
        chat.submit("thread", "more", wait_ms=None)
    except Closed:
        pass
for number in range(5):
    threading.Thread(target=wait, daemon=True).start()
while sum(w.waited is not None for ws in list(chat._flows.waiters._by_key.values()) for w in list(ws)) < 5:
    time.sleep(0.001)  # bounded poll
""",
    "loop_closed_already": """
chat = AsyncChatlock(url, tenant="t", limits=limits)
kept = []
async def main():
    kept.append(await chat.begin("thread", "hello"))
asyncio.run(main())
""",
    "loop_closed_under_a_turn": """
chat = AsyncChatlock(url, tenant="t", limits=limits)
async def hold():
    async with chat.turn("thread", "hello"):
        await asyncio.sleep(20)  # interrupted
async def main():
    task = asyncio.ensure_future(hold())
    while not chat._flows.live.turns:
        await asyncio.sleep(0)
asyncio.run(main())
""",
    "loop_still_running": """
chat = AsyncChatlock(url, tenant="t", limits=limits)
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
async def hold():
    async with chat.turn("thread", "hello"):
        await asyncio.sleep(20)  # interrupted
asyncio.run_coroutine_threadsafe(hold(), loop)
while not chat._flows.live.turns:
    time.sleep(0.001)  # bounded poll
""",
    "sys_exit_in_a_turn": """
chat = Chatlock(url, tenant="t", limits=limits)
with chat.turn("thread", "hello"):
    sys.exit(3)
""",
    "error_in_a_turn_of_another_thread": """
chat = Chatlock(url, tenant="t", limits=limits)
turn = chat.begin("thread", "hello")
sys.exit(3)
""",
}
