// Both sides get the same messages under the same keys. What differs is the server.

const BURST = ["A table for two tonight, please", "sorry, three of us", "at 8, on the terrace if you can"];
const FIGURES = [
  ["messages", "messages"], ["replies", "replies"], ["bookings", "tables booked"],
  ["overlapping", "overlapping turns"], ["forgotten", "lines forgotten"],
];
const thread = location.hash.slice(1) || crypto.randomUUID().slice(0, 8);
history.replaceState(null, "", `#${thread}`);
let last = null;

class Side {
  constructor(name, remembers) {
    this.name = name;
    this.remembers = remembers; // whether a stream can be followed on, and a key is known again
    this.root = document.getElementById(name);
    this.talk = this.root.querySelector(".talk");
    this.bubbles = new Map(); // a turn's reply is shown once, whoever asked for it
    this.seen = new Set();
    this.open = new Map();
  }

  line(kind, text) {
    const item = document.createElement("li");
    item.className = kind;
    item.append(text);
    this.talk.append(item);
    this.talk.scrollTop = this.talk.scrollHeight;
    return item;
  }

  bubble(turn) {
    if (!this.bubbles.has(turn)) this.bubbles.set(turn, this.line("theirs writing", ""));
    return this.bubbles.get(turn);
  }

  finish(turn, reply) {
    const bubble = this.bubble(turn);
    const count = reply.answers.length;
    bubble.className = "theirs";
    bubble.textContent = reply.text;
    bubble.append(Object.assign(document.createElement("small"), {
      textContent: `reply ${reply.number} to ${count === 1 ? "one message" : `${count} messages`}`,
    }));
  }

  say(message, again = false) {
    if (!again) this.line("mine", message.text);
    return this.stream(message, `/${this.name}/threads/${thread}/messages`, {
      method: "POST",
      again,
      headers: { "Content-Type": "application/json", "Idempotency-Key": message.id, Accept: "text/event-stream" },
      body: JSON.stringify({ text: message.text }),
    });
  }

  follow(message, lastId) {
    return this.stream(message, `/${this.name}/threads/${thread}/messages/${message.id}/events`, {
      headers: { "Last-Event-ID": lastId },
    });
  }

  async stream(message, url, request) {
    const state = { control: new AbortController(), turn: null, lastId: "", again: request.again };
    this.open.set(message, state);
    try {
      const answer = await fetch(url, { ...request, signal: state.control.signal });
      if (!answer.ok) return this.line("note bad", (await answer.json()).title ?? "refused");
      for await (const event of eventsOf(answer.body)) this.take(event, state);
    } catch (error) {
      if (error.name !== "AbortError") this.line("note bad", "the connection broke");
    } finally {
      if (this.open.get(message) === state) this.open.delete(message);
      refresh();
    }
  }

  take({ id, kind, data }, state) {
    state.lastId = id ?? state.lastId;
    if (kind === "chunk" && !this.seen.has(id)) {
      this.seen.add(id);
      state.turn = id.slice(0, id.lastIndexOf("-"));
      this.bubble(state.turn).append(data);
    } else if (kind === "outcome" && data.reply) {
      const turn = data.turn ? `${data.incarnation}-${data.turn}` : state.turn;
      if (this.bubbles.get(turn)?.className !== "theirs") this.finish(turn, data.reply);
      else if (state.again) this.line("note", "its stored reply came back");
    } else if (kind === "error") {
      this.line("note bad", data.title);
    }
    this.talk.scrollTop = this.talk.scrollHeight;
  }

  async drop() {
    const dropped = [...this.open];
    for (const [, { control }] of dropped) control.abort();
    if (!dropped.length) return;
    this.line("note", "connection lost");
    await new Promise((done) => setTimeout(done, 1200));
    if (this.remembers) {
      this.line("note", "reconnected: the turn went on");
      for (const [message, { lastId }] of dropped) this.follow(message, lastId);
    } else {
      for (const [, { turn }] of dropped) this.bubbles.get(turn)?.classList.remove("writing");
      this.line("note bad", "reconnected: the turn died with the request");
    }
  }

  draw({ said, replies, figures }) {
    for (const { id, text } of restored ? said : []) this.line("mine", text).dataset.id = id;
    for (const reply of restored ? replies : []) this.finish(`restored-${reply.number}`, reply);
    drawTurns(this.root.querySelector(".turns"), replies);
    this.root.querySelector(".figures").replaceChildren(...FIGURES.map(([key, title]) => figure(key, title, figures)));
    const running = this.root.querySelector(".running");
    running.hidden = !this.open.size;
    running.textContent = "working";
  }
}

function figure(key, title, figures) {
  const box = document.createElement("div");
  const harm = (key === "bookings" && figures.bookings > 1) || ["overlapping", "forgotten"].includes(key) && figures[key];
  box.className = harm ? "harm" : "";
  box.append(Object.assign(document.createElement("dd"), { textContent: figures[key] }));
  box.append(Object.assign(document.createElement("dt"), { textContent: title }));
  return box;
}

function drawTurns(root, replies) {
  const from = Math.min(...replies.map((reply) => reply.began_ms));
  const span = Math.max(6000, ...replies.map((reply) => reply.ended_ms - from));
  const lanes = [];
  root.replaceChildren(...replies.toSorted((a, b) => a.began_ms - b.began_ms).map((reply) => {
    let lane = lanes.findIndex((until) => until <= reply.began_ms);
    if (lane < 0) lane = lanes.push(0) - 1;
    lanes[lane] = reply.ended_ms;
    const bar = document.createElement("div");
    bar.className = lane ? "turn beside" : "turn";
    bar.style.left = `${((reply.began_ms - from) / span) * 100}%`;
    bar.style.width = `${((reply.ended_ms - reply.began_ms) / span) * 100}%`;
    bar.style.top = `${14 + (lane % 3) * 13}px`;
    return bar;
  }));
}

async function* eventsOf(body) {
  let buffer = "";
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    const parts = (buffer + text).split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const field = (name) => part.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      if (field("data")) yield { id: field("id"), kind: field("event"), data: JSON.parse(field("data")) };
    }
  }
}

const sides = [new Side("without", false), new Side("with", true)];
let restored = Boolean(location.hash);

async function refresh() {
  const views = await (await fetch(`/history/${thread}`)).json();
  for (const side of sides) side.draw(views[side.name]);
  restored = false;
}

function send(text) {
  last = { id: crypto.randomUUID(), text };
  for (const side of sides) side.say(last);
  refresh();
}

document.getElementById("say").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("text");
  if (field.value.trim()) send(field.value.trim());
  field.value = "";
});
document.getElementById("burst").addEventListener("click", () => {
  BURST.forEach((text, number) => setTimeout(send, number * 900, text));
});
document.getElementById("drop").addEventListener("click", () => sides.forEach((side) => side.drop()));
document.getElementById("retry").addEventListener("click", () => {
  if (!last) return;
  for (const side of sides) {
    side.line("note", "the same message is sent again");
    side.say(last, true);
  }
});
setInterval(() => sides.some((side) => side.open.size) && refresh(), 1000);
document.getElementById("fresh").addEventListener("click", () => {
  location.hash = "";
  location.reload();
});
refresh();
