/* The worker's routes that this page uses. */

/** A request that did not end as it should; `code` is the worker's word for why, if it has one. */
export class Failure extends Error {
  constructor(message, code = "") {
    super(message);
    this.code = code;
  }
}

/** Facts about each model of the worker. */
export async function models(key) {
  const reply = await request("/v1/models", key);
  return (await reply.json()).data;
}

/**
 * The parts of an answer: {thought} and {text} as they are written, then {end}, why it ended, and {usage}.
 * {model} comes first where another model answers than was asked.
 *
 * @throws {Failure} it was refused, failed, or broke off
 */
export async function* chat(body, key, signal) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true } };
  const reply = await request("/v1/chat/completions", key, { method: "POST", body: JSON.stringify(asked), signal });
  // A worker with a single model answers for any name, and then names the field.
  let isOther = (reply.headers.get("bitnet-ignored") ?? "").split(", ").includes("model");
  for await (const event of events(reply.body)) {
    if (isOther && event.model) {
      isOther = false;
      yield { model: event.model };
    }
    if (event.error) throw new Failure(event.error.message, event.error.code);
    if (event.usage) yield { usage: event.usage };
    const choice = event.choices?.[0];
    if (choice?.delta?.reasoning_content) yield { thought: choice.delta.reasoning_content };
    if (choice?.delta?.content) yield { text: choice.delta.content };
    if (choice?.finish_reason) yield { end: choice.finish_reason };
  }
}

async function request(path, key, options = {}) {
  const headers = options.body ? { "Content-Type": "application/json" } : {};
  if (key) headers.Authorization = `Bearer ${key}`;
  let reply;
  try {
    reply = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The worker cannot be reached: it has ended, or the network is down");
  }
  if (reply.ok) return reply;
  const facts = await reply.json().catch(() => null);
  throw new Failure(facts?.error?.message ?? `The worker answered with status ${reply.status}`, facts?.error?.code);
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (held + value).split("\n\n");
      held = parts.pop();
      for (const part of parts) {
        if (part === "data: [DONE]") return;
        if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
  } finally {
    reader.cancel().catch(() => {}); // nothing is left to cancel where it broke off
  }
  throw new Failure("The connection broke off");
}
