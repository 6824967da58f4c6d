// Puts the page together: the caller, the open conversation, and the keys.

import { at, get, patch, post, whenLoginIsNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { tell, trying } from "./dialog.js";
import { Drawer } from "./drawer.js";
import { byId, el, on, soft } from "./element.js";
import { icon } from "./icons.js";
import { login, loginByLink } from "./login.js";
import { Memory } from "./memory.js";
import { Sidebar, titleOf } from "./sidebar.js";

let me = { agents: [] };
let session = null; // what is known of the open one

const chat = new Chat({
	session: showSession,
	sessions: () => sidebar.soon(),
	memory: () => memory.load(),
	shown: markPlaces,
	moved: (id) => go(id),
	gone: () => (tell("This conversation is gone."), go(null)),
	state: showState,
	busy: (isBusy) => composer.setBusy(isBusy),
	edit: (entry) => composer.edit(entry),
});
const composer = new Composer({ send, edit: (text) => chat.retry(text), stop: () => chat.stop(), editLast });
const sidebar = new Sidebar((id) => id === chat.id && go(null));
const memory = new Memory(markPlaces);
const side = new Drawer("side", true);
side.rival = new Drawer("memory", false);
side.rival.rival = side;

const here = () => new URLSearchParams(`id=${location.hash.slice(1)}`).get("id") || null;

function go(id) {
	history.pushState(null, "", id ? `#${encodeURIComponent(id)}` : location.pathname);
	open();
}

/** Shows the session in the address. */
function open() {
	const id = here();
	session = null;
	memory.open(id);
	chat.open(id);
	composer.open(id);
	sidebar.select(id);
	if (side.isCovering) side.set(false);
	showSession({ id, title: "", agent: null });
	byId("welcome").hidden = id !== null;
	if (matchMedia("(hover: hover)").matches) composer.text.focus(); // else a keyboard would come up
}

function showSession(news) {
	session = { ...session, ...news };
	const title = session.id ? titleOf(session) : "New conversation";
	byId("title").textContent = title;
	document.title = session.title ? `${session.title} · nanoloop` : "nanoloop";
	byId("session-menu").hidden = byId("open-memory").hidden = !session.id;
	byId("agent-choice").hidden = !session.id || me.agents.length < 2;
	const named = (name) => me.agents.find((agent) => agent.name === name);
	const agent = named(session.agent) ?? named(me.agent); // it may be gone from the settings
	byId("agent").value = agent?.name ?? "";
	byId("model").textContent = agent?.model ?? "";
}

function markPlaces() {
	chat.log.mark((seq) => memory.placeOf(seq));
}

function showState(state) {
	byId("lost").hidden = state === "open";
	byId("lost-text").textContent = navigator.onLine ? "The connection is lost. Trying again …" : "You are offline.";
}

/** Sends to the open conversation, or to a new one. */
async function send(text, attachments) {
	if (!chat.id) {
		const agent = document.querySelector("#agents input:checked")?.value;
		const begun = await trying(() => post("api/sessions", agent ? { agent } : {}));
		if (!begun) return false;
		go(begun.id);
		showSession(begun);
	}
	chat.send(text, attachments);
	return true;
}

function editLast() {
	const asked = !chat.isBusy && chat.log.last("user");
	if (asked) composer.edit(asked);
}

function showAgents() {
	const choices = me.agents.map(({ name, model }) => el("label", {},
		el("input", { type: "radio", name: "agent", value: name, checked: name === me.agent }),
		el("span", {}, el("b", {}, name), soft(model))));
	byId("agents").hidden = me.agents.length < 2;
	byId("agents").append(...choices);
	byId("agent").replaceChildren(...me.agents.map(({ name }) => el("option", { value: name }, name)));
	byId("logout").hidden = !me.login;
	byId("about").textContent = `v${me.version}`;
}

function listen() {
	window.addEventListener("hashchange", () => here() !== chat.id && open());
	on("new", "click", () => go(null));
	on("lost-retry", "click", () => chat.reconnect());
	on("session-menu", "click", ({ currentTarget }) => sidebar.menu(session, currentTarget));
	on("agent", "change", ({ target }) => trying(() => patch(at(chat.id), { agent: target.value })));
	on("logout", "click", () => post("logout").finally(() => location.reload()));
	document.addEventListener("keydown", onKey);
}

function onKey(event) {
	const isCommand = event.ctrlKey || event.metaKey;
	if (event.key === "Escape" && chat.isBusy && !document.querySelector("dialog[open], :popover-open")) {
		chat.stop();
	} else if (isCommand && event.key.toLowerCase() === "k") {
		event.preventDefault();
		side.set(true);
		byId("search").focus();
	} else if (event.altKey && event.key.toLowerCase() === "n") {
		event.preventDefault();
		byId("new").click();
	}
}

function drawIcons() {
	for (const node of document.querySelectorAll("[data-icon]")) {
		node.prepend(icon(node.dataset.icon));
		node.title ||= node.ariaLabel ?? "";
	}
}

async function start() {
	me = await get("api/me");
	if (await loginByLink(Boolean(me.agents))) me = await get("api/me");
	if (me.login && !me.agents) {
		await login();
		me = await get("api/me");
	}
	whenLoginIsNeeded(() => login().then(open));
	showAgents();
	listen();
	composer.text.disabled = false;
	open();
	sidebar.load();
}

async function startWhenPossible() {
	try {
		await start();
	} catch (error) {
		showState("lost");
		byId("lost-text").textContent = error.message;
		on("lost-retry", "click", startWhenPossible, { once: true });
	}
}

drawIcons();
startWhenPossible();
