// Messages that the server has not confirmed: kept over a reload, sent again, never twice.

import { inTab } from "./kept.js";

const KEY = "outbox";
const all = () => inTab.get(KEY) ?? [];

export const waitingIn = (session) => all().filter((message) => message.session === session);

export const keep = (message) => inTab.set(KEY, [...all(), message]);

export const forget = (ids) => inTab.set(KEY, all().filter(({ id }) => !ids.includes(id)));

/** The id by which the server knows a message again. */
export function newId() {
	if (crypto.randomUUID) return crypto.randomUUID();
	const bytes = crypto.getRandomValues(new Uint8Array(16)); // over plain HTTP there is only this
	return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
