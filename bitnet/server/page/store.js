/*
 * Where conversations are kept: IndexedDB of this browser, or, where it has none (private windows of
 * some), the memory of this page. Other tabs are told what changes.
 */

const NAME = "bitnet";
const CONVERSATIONS = "conversations";

/** The store; it says by `lasting` whether it outlives the page. */
export async function open() {
  try {
    const kept = new Kept();
    await kept.database();
    return kept;
  } catch {
    return new Forgotten();
  }
}

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => reject(request.error);
  });
}

class Kept {
  lasting = true;

  constructor() {
    this.opening = null; // a promise of the database
    this.channel = new BroadcastChannel(NAME);
  }

  /** The database; it is opened again where the browser, or another page that deletes it, has closed it. */
  database() {
    const forget = () => { this.opening = null; };
    this.opening ??= opened().then((database) => {
      database.onclose = forget;
      database.onversionchange = () => {
        database.close();
        forget();
      };
      return database;
    }, (error) => {
      forget();
      throw error;
    });
    return this.opening;
  }

  /** Have *told* called with the id of what another tab changed. */
  watch(told) {
    this.channel.onmessage = (event) => told(event.data);
  }

  /** Keep *conversation*; resolves once it is on disk. */
  put(conversation) {
    return this.change(conversation.id, (all) => all.put(conversation));
  }

  remove(id) {
    return this.change(id, (all) => all.delete(id));
  }

  clear() {
    return this.change("", (all) => all.clear());
  }

  get(id) {
    return this.run("readonly", (all) => all.get(id));
  }

  /** All conversations, the last one that was changed first. */
  async all() {
    return newest(await this.run("readonly", (all) => all.getAll()));
  }

  async change(id, work) {
    await this.run("readwrite", work);
    this.channel.postMessage(id);
  }

  async run(mode, work) {
    const database = await this.database();
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(CONVERSATIONS, mode);
      const request = work(transaction.objectStore(CONVERSATIONS));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(transaction.error);
    });
  }
}

class Forgotten {
  lasting = false;
  known = new Map();

  watch() {}

  async put(conversation) {
    this.known.set(conversation.id, structuredClone(conversation));
  }

  async remove(id) {
    this.known.delete(id);
  }

  async clear() {
    this.known.clear();
  }

  async get(id) {
    return structuredClone(this.known.get(id));
  }

  async all() {
    return newest([...this.known.values()]);
  }
}

function newest(conversations) {
  return conversations.sort((one, other) => other.updated - one.updated);
}
