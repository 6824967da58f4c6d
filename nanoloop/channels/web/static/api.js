// Talks to the server in JSON; a failure is an error with a sentence for people.

/** The server refused a request; `status` is 0 if the server could not be reached. */
class Refused extends Error {
	constructor(message, status) {
		super(message);
		this.status = status;
	}
}

let onLoginNeeded = () => {};

/** Called when a token is required. */
export function whenLoginIsNeeded(listener) {
	onLoginNeeded = listener;
}

/** Returns the server's response; throws `Refused`. */
export async function call(method, path, { json, body, headers } = {}) {
	const response = await reached(path, {
		method,
		body: json === undefined ? body : JSON.stringify(json),
		// Other sites can't send this header, which keeps them from acting for the user.
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

/** Returns the path of a session. */
export const at = (id, part = "") => `api/sessions/${encodeURIComponent(id)}${part}`;

/** Uploads a file; returns the server's facts about it. */
export function upload(file) {
	const headers = {
		"Content-Type": file.type || "application/octet-stream",
		"X-Name": encodeURIComponent(file.name || "pasted"),
	};
	return call("POST", "api/attachments", { body: file, headers });
}
