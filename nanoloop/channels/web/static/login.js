// Asks once for the token if the server requires one; the browser then has a cookie instead.

import { post } from "./api.js";
import { byId } from "./element.js";

const isHere = () => ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);

/** Asks until the server accepts the token. */
export function login() {
	const [form, dialog, token] = [byId("login-form"), byId("login"), byId("token")];
	if (dialog.open) return new Promise(() => {}); // asked already: that one goes on
	byId("login-where").hidden = !isHere();
	dialog.showModal();
	dialog.addEventListener("cancel", (event) => event.preventDefault());
	return new Promise((done) => {
		form.onsubmit = async (event) => {
			event.preventDefault();
			if (!(await taken(token))) return;
			dialog.close();
			done();
		};
	});
}

/**
 * Takes the token from the printed address, and removes it from the address and the history.
 * Only on the same machine, and never in place of a login: a link could otherwise choose the user.
 */
export async function loginByLink(isLoggedIn) {
	const token = new URLSearchParams(location.hash.slice(1)).get("token");
	if (token === null) return false;
	history.replaceState(null, "", location.pathname);
	if (isLoggedIn || !isHere()) return false;
	return post("login", { token }).then(() => true, () => false);
}

async function taken(input) {
	try {
		await post("login", { token: input.value.trim() });
		byId("login-trouble").textContent = "";
		input.value = "";
		return true;
	} catch (error) {
		byId("login-trouble").textContent = error.message;
		input.select();
		return false;
	}
}
