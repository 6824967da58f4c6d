// The token, asked for once where the server wants one; the browser then has a cookie instead.

import { post } from "./api.js";
import { byId } from "./element.js";

/** Ask until the server takes it. */
export function login() {
	const [form, dialog, token] = [byId("login-form"), byId("login"), byId("token")];
	if (dialog.open) return new Promise(() => {}); // asked already: that one goes on
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
