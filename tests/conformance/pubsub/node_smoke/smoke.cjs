// What an application does with @google-cloud/pubsub, once each. Says one line of JSON: the names
// of the parts that went well; a part that does not ends it with an error. The server is where
// PUBSUB_EMULATOR_HOST says.
// usage: node smoke.cjs PROJECT [PART...]

const assert = require("node:assert/strict");
const { createServer } = require("node:http");
const { PubSub } = require("@google-cloud/pubsub");

const [projectId, ...chosen] = process.argv.slice(2);
const WAIT_MS = 20_000;
const numbers = (count) => [...Array(count).keys()];

function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not come`)), WAIT_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// Takes messages of a subscription until there are enough of them, and closes it.
async function take(subscription, count, on = (message) => message.ack()) {
  const taken = [];
  const all = new Promise((resolve, reject) => {
    subscription.on("error", reject);
    subscription.on("message", (message) => {
      taken.push(message);
      on(message, taken.length);
      if (taken.length === count) resolve();
    });
  });
  try {
    await within(all, `${count} messages`);
  } finally {
    subscription.removeAllListeners("message");
    await subscription.close();
  }
  return taken;
}

let made = 0;
async function both(client, options = {}) {
  made += 1;
  const [topic] = await client.createTopic(`topic-${made}`);
  const [subscription] = await topic.createSubscription(`subscription-${made}`, options);
  return [topic, subscription];
}

const parts = {
  async publishAndSubscribe(client) {
    const [topic, subscription] = await both(client);
    const ids = await Promise.all(
      numbers(100).map((at) =>
        topic.publishMessage({ data: Buffer.from(String(at)), attributes: { at: String(at) } })
      ),
    );
    assert.equal(new Set(ids).size, 100);
    const taken = await take(subscription, 100);
    const data = taken.map((one) => Number(one.data)).sort((a, b) => a - b);
    assert.deepEqual(data, numbers(100));
    assert.ok(taken.every((one) => one.attributes.at === one.data.toString()));
    assert.ok(taken.every((one) => ids.includes(one.id)));
    assert.ok(Math.abs(taken[0].publishTime.getTime() - Date.now()) < 60_000);
  },

  async nack(client) {
    const [topic, subscription] = await both(client);
    await topic.publishMessage({ json: { again: true } });
    const taken = await take(
      subscription,
      3,
      (message, count) => (count < 3 ? message.nack() : message.ack()),
    );
    assert.deepEqual(taken.map((one) => one.id), Array(3).fill(taken[0].id));
  },

  async ordering(client) {
    const [topic, subscription] = await both(client, { enableMessageOrdering: true });
    topic.setPublishOptions({ messageOrdering: true });
    await Promise.all(
      numbers(50).map((at) =>
        topic.publishMessage({ data: Buffer.from(String(at)), orderingKey: `key-${at % 2}` })
      ),
    );
    const taken = await take(subscription, 50);
    for (const key of ["key-0", "key-1"]) {
      const seen = taken.filter((one) => one.orderingKey === key).map((one) => Number(one.data));
      assert.deepEqual(seen, [...seen].sort((a, b) => a - b));
      assert.equal(seen.length, 25);
    }
  },

  async flowControl(client) {
    const [topic, subscription] = await both(client);
    const messages = numbers(50).map((at) => topic.publishMessage({ data: Buffer.from(`${at}`) }));
    await Promise.all(messages);
    const flowControl = { maxMessages: 3, allowExcessMessages: false };
    const lean = client.subscription(subscription.name, { flowControl });
    let [out, most] = [0, 0];
    const taken = await take(lean, 50, (message) => {
      out += 1;
      most = Math.max(most, out);
      setTimeout(() => {
        out -= 1;
        message.ack();
      }, 5);
    });
    assert.ok(most <= 3, `${most} were out`);
    assert.equal(new Set(taken.map((one) => one.id)).size, 50);
  },

  async metadata(client) {
    const [topic, subscription] = await both(client, { ackDeadlineSeconds: 33 });
    const [found] = await subscription.getMetadata();
    assert.equal(found.ackDeadlineSeconds, 33);
    assert.equal(found.topic, topic.name);
    await subscription.setMetadata({ ackDeadlineSeconds: 44 });
    assert.equal((await subscription.getMetadata())[0].ackDeadlineSeconds, 44);
    const [listed] = await topic.getSubscriptions();
    assert.deepEqual(listed.map((one) => one.name), [subscription.name]);
    assert.ok((await client.getTopics())[0].some((one) => one.name === topic.name));
    assert.deepEqual(await client.topic("nobody").exists(), [false]);
    await assert.rejects(client.createTopic(topic.name), (error) => error.code === 6);
    const lost = client.topic("nobody").publishMessage({ data: Buffer.from("x") });
    await assert.rejects(lost, (error) => error.code === 5);
  },

  async snapshots(client) {
    const [topic, subscription] = await both(client);
    await topic.publishMessage({ data: Buffer.from("again") });
    const [snapshot] = await subscription.createSnapshot(`snapshot-${made}`);
    await take(client.subscription(subscription.name), 1);
    await subscription.seek(snapshot.name);
    const [again] = await take(client.subscription(subscription.name), 1);
    assert.equal(again.data.toString(), "again");
    await snapshot.delete();
  },

  async push(client) {
    const requests = [];
    const server = createServer((request, response) => {
      const chunks = [];
      request.on("data", (chunk) => chunks.push(chunk));
      request.on("end", () => {
        requests.push(JSON.parse(Buffer.concat(chunks).toString()));
        response.statusCode = 204;
        response.end();
      });
    });
    await new Promise((done) => server.listen(0, "127.0.0.1", done));
    const pushEndpoint = `http://127.0.0.1:${server.address().port}/push`;
    const [topic] = await both(client, { pushConfig: { pushEndpoint } });
    await topic.publishMessage({ data: Buffer.from("pushed") });
    const until = Date.now() + WAIT_MS;
    while (!requests.length && Date.now() < until) {
      await new Promise((done) => setTimeout(done, 10));
    }
    server.close();
    assert.equal(Buffer.from(requests[0].message.data, "base64").toString(), "pushed");
  },

  async deletion(client) {
    const [topic, subscription] = await both(client);
    const ended = new Promise((resolve) => subscription.on("error", resolve));
    subscription.on("message", (message) => message.ack());
    await topic.publishMessage({ data: Buffer.from("x") });
    await client.subscription(subscription.name).delete();
    assert.equal((await within(ended, "the end of the subscription")).code, 5);
    await subscription.close().catch(() => {});
    await topic.delete();
    assert.deepEqual(await topic.exists(), [false]);
  },

  // The emulator does neither.
  async exactlyOnce(client) {
    const [topic, subscription] = await both(client, { enableExactlyOnceDelivery: true });
    await topic.publishMessage({ data: Buffer.from("once") });
    const answers = [];
    const answer = async (message, count) => {
      if (count === 1) {
        message.modAck(0);
        await new Promise((done) => setTimeout(done, 500));
      }
      return message.ackWithResponse().then(String, (error) => error.errorCode);
    };
    await take(subscription, 2, (message, count) => answers.push(answer(message, count)));
    assert.deepEqual(await Promise.all(answers), ["INVALID", "SUCCESS"]);
  },

  async deadLetters(client) {
    const [dead, letters] = await both(client);
    const [topic, subscription] = await both(client, {
      deadLetterPolicy: { deadLetterTopic: dead.name, maxDeliveryAttempts: 5 },
    });
    await topic.publishMessage({ data: Buffer.from("hopeless") });
    const taken = await take(subscription, 5, (message) => message.nack());
    assert.deepEqual(taken.map((one) => one.deliveryAttempt), [1, 2, 3, 4, 5]);
    const open = client.subscription(subscription.name);
    open.on("message", (message) => message.nack());
    const [letter] = await take(letters, 1);
    await open.close();
    assert.equal(letter.data.toString(), "hopeless");
  },
};

async function main() {
  const client = new PubSub({ projectId });
  const done = [];
  for (const [name, part] of Object.entries(parts)) {
    if (chosen.length && !chosen.includes(name)) continue;
    await part(client).catch((error) => {
      throw new Error(`${name}: ${error.message}`, { cause: error });
    });
    done.push(name);
  }
  await client.close();
  console.log(JSON.stringify(done));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
