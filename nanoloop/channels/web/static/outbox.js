// Messages that the server has not confirmed: kept over a reload, sent again, never twice.

const KEY = "nanoloop.outbox";

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) ?? [];
  } catch {
    return [];
  }
}

function write(messages) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(messages));
  } catch {
    // Full or forbidden: it is still sent, it only would not survive a reload.
  }
}

export const waitingIn = (session) => read().filter((message) => message.session === session);

export function keep(message) {
  write([...read().filter(({ id }) => id !== message.id), message]);
}

export function forget(id) {
  write(read().filter((message) => message.id !== id));
}

/** The id by which the server knows a message again. */
export function newId() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // over plain HTTP there is only this
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
