// What an application does with @nats-io/transport-node, once each. Says one line of JSON: the
// names of the parts that went well; a part that does not ends it with an error.
// usage: node smoke.cjs URL [TOKEN]

const assert = require("node:assert/strict");
const { connect, errors, headers } = require("@nats-io/transport-node");

const [url, token] = process.argv.slice(2);
const options = { servers: url.replace("nats://", ""), token, reconnect: false };
const text = (value) => new TextEncoder().encode(value);
const subject = `node.${process.pid}.${Date.now()}`;

async function take(subscription, count) {
  const taken = [];
  for await (const message of subscription) {
    taken.push(message);
    if (taken.length === count) break;
  }
  return taken;
}

const parts = {
  async publishAndSubscribe(one, two) {
    const subscription = one.subscribe(`${subject}.*.x`);
    await one.flush();
    for (let at = 0; at < 100; at++) two.publish(`${subject}.${at}.x`, text(String(at)));
    const taken = await take(subscription, 100);
    assert.deepEqual(taken.map((one) => one.string()), [...Array(100).keys()].map(String));
    assert.equal(taken[7].subject, `${subject}.7.x`);
  },

  async requestAndReply(one, two) {
    one.subscribe(`${subject}.ask`, {
      callback: (_, message) => message.respond(text(message.string().toUpperCase())),
    });
    await one.flush();
    for (const noMux of [false, true]) {
      const reply = await two.request(`${subject}.ask`, "abc", { timeout: 20_000, noMux });
      assert.equal(reply.string(), "ABC");
    }
    const many = [...Array(200).keys()].map((at) =>
      two.request(`${subject}.ask`, `n${at}`, { timeout: 20_000 })
    );
    assert.deepEqual(
      (await Promise.all(many)).map((one) => one.string()),
      [...Array(200).keys()].map((at) => `N${at}`),
    );
  },

  async noResponders(one) {
    for (const noMux of [false, true]) {
      await assert.rejects(
        one.request(`${subject}.nobody`, "x", { timeout: 20_000, noMux }),
        (error) =>
          error instanceof errors.NoRespondersError ||
          error.cause instanceof errors.NoRespondersError,
      );
    }
  },

  async requestMany(one, two) {
    for (const name of ["a", "b", "c"]) {
      one.subscribe(`${subject}.many`, { callback: (_, message) => message.respond(text(name)) });
    }
    await one.flush();
    const replies = [];
    for await (
      const reply of await two.requestMany(`${subject}.many`, "?", {
        strategy: "count",
        maxMessages: 3,
        maxWait: 20_000,
      })
    ) {
      replies.push(reply.string());
    }
    assert.deepEqual(replies.sort(), ["a", "b", "c"]);
  },

  async queueGroups(one, two) {
    const counts = [0, 0, 0];
    const all = new Promise((done) => {
      [one, one, two].forEach((client, at) =>
        client.subscribe(`${subject}.queue`, {
          queue: "workers",
          callback: () => {
            counts[at]++;
            if (counts.reduce((a, b) => a + b) === 600) done();
          },
        })
      );
    });
    await one.flush();
    await two.flush();
    for (let at = 0; at < 600; at++) two.publish(`${subject}.queue`);
    await all;
    await two.flush();
    await one.flush();
    assert.equal(counts.reduce((a, b) => a + b), 600);
    for (const count of counts) assert.ok(Math.abs(count - 200) < 4 * Math.sqrt(600 * 2 / 9), counts);
  },

  async headers(one, two) {
    const subscription = one.subscribe(`${subject}.headers`);
    await one.flush();
    const said = headers();
    said.append("Many", "one");
    said.append("Many", "two");
    said.set("Text", "très bien");
    two.publish(`${subject}.headers`, text("body"), { headers: said });
    two.publish(`${subject}.headers`, text("none"));
    const [first, second] = await take(subscription, 2);
    assert.deepEqual(first.headers.values("Many"), ["one", "two"]);
    assert.equal(first.headers.get("Text"), "très bien");
    assert.equal(first.string(), "body");
    assert.equal(second.headers, undefined);
  },

  async maximum(one, two) {
    const few = one.subscribe(`${subject}.few`, { max: 3 });
    await one.flush();
    for (let at = 0; at < 10; at++) two.publish(`${subject}.few`, text(String(at)));
    await two.flush();
    const taken = [];
    for await (const message of few) taken.push(message.string());
    assert.deepEqual(taken, ["0", "1", "2"]);
  },

  async largePayload(one) {
    const most = one.info.max_payload;
    const subscription = one.subscribe(`${subject}.large`);
    one.publish(`${subject}.large`, new Uint8Array(most));
    const [message] = await take(subscription, 1);
    assert.equal(message.data.length, most);
    assert.throws(() => one.publish(`${subject}.large`, new Uint8Array(most + 1)));
  },

  async drainSubscription(one, two) {
    const taken = [];
    const subscription = one.subscribe(`${subject}.drain`, {
      callback: (_, message) => taken.push(message.string()),
    });
    await one.flush();
    for (let at = 0; at < 100; at++) two.publish(`${subject}.drain`, text(String(at)));
    await two.flush();
    await subscription.drain();
    assert.equal(taken.length, 100);
    two.publish(`${subject}.drain`, text("late"));
    await two.flush();
    await one.flush();
    assert.equal(taken.length, 100);
  },

  async roundTripAndStats(one) {
    assert.ok((await one.rtt()) >= 0);
    assert.ok(one.stats().inMsgs > 0);
    assert.ok(one.getServer().length > 0);
  },

  async drainConnection(one, two) {
    const subscription = two.subscribe(`${subject}.last`);
    await two.flush();
    for (let at = 0; at < 100; at++) one.publish(`${subject}.last`, text(String(at)));
    await one.drain();
    assert.ok(one.isClosed());
    assert.equal((await take(subscription, 100)).length, 100);
  },
};

async function main() {
  const [one, two] = [await connect(options), await connect(options)];
  const done = [];
  for (const [name, part] of Object.entries(parts)) {
    await part(one, two).catch((error) => {
      throw new Error(`${name}: ${error.message}`, { cause: error });
    });
    done.push(name);
  }
  await two.close();
  if (token) {
    await assert.rejects(connect({ ...options, token: "wrong" }), errors.AuthorizationError);
    done.push("wrongToken");
  }
  console.log(JSON.stringify(done));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
