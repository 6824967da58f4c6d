// Talking to the server: JSON both ways; a failure is an error with a sentence for people.

/** The server refused; `status` is 0 where it could not be reached at all. */
class Refused extends Error {
	constructor(message, status) {
		super(message);
		this.status = status;
	}
}

let onLoginNeeded = () => {};

/** Whoever is told when a token is asked for. */
export function whenLoginIsNeeded(listener) {
	onLoginNeeded = listener;
}

/** What the server answers; raises `Refused`. */
export async function call(method, path, { json, body, headers } = {}) {
	const response = await reached(path, {
		method,
		body: json === undefined ? body : JSON.stringify(json),
		// The header is what a foreign page can't send along: it keeps others from acting for us.
		headers: { "X-Nanoloop": "1", ...(json !== undefined && { "Content-Type": "application/json" }), ...headers },
	});
	if (response.status === 204) return null;
	const answer = await response.json().catch(() => null);
	if (response.ok) return answer;
	if (response.status === 401 && path !== "login") onLoginNeeded();
	throw new Refused(answer?.error?.message ?? `The server answered ${response.status}.`, response.status);
}

async function reached(path, request) {
	try {
		return await fetch(path, request);
	} catch {
		throw new Refused("The server can't be reached.", 0);
	}
}

export const get = (path) => call("GET", path);
export const post = (path, json = {}) => call("POST", path, { json });
export const patch = (path, json) => call("PATCH", path, { json });

/** Where a session is found. */
export const at = (id, part = "") => `api/sessions/${encodeURIComponent(id)}${part}`;

/** A file given to the server: what is known of it. */
export function upload(file) {
	const headers = {
		"Content-Type": file.type || "application/octet-stream",
		"X-Name": encodeURIComponent(file.name || "pasted"),
	};
	return call("POST", "api/attachments", { body: file, headers });
}
