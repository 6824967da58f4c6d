// The page put together: who is asked, which conversation is open, what the keys do.

import { at, get, patch, post, whenLoginIsNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { tell, trying } from "./dialog.js";
import { Drawer } from "./drawer.js";
import { byId, el } from "./element.js";
import { icon } from "./icons.js";
import { login } from "./login.js";
import { Memory } from "./memory.js";
import { Sidebar, titleOf } from "./sidebar.js";

let me = { agents: [] };
let session = null; // what is known of the open one

const chat = new Chat({
  session: showSession,
  sessions: () => sidebar.soon(),
  memory: () => memory.load(),
  shown: () => (memory.known && chat.log.mark((seq) => memory.placeOf(seq)), showWelcome()),
  moved: (id) => go(id),
  gone: () => (tell("This conversation is gone."), go(null)),
  state: showState,
  busy: (isBusy) => composer.setBusy(isBusy),
  edit: (entry) => composer.edit(entry),
});
const composer = new Composer({ send, edit: (text) => chat.retry(text), stop: () => chat.stop(), editLast });
const sidebar = new Sidebar((id) => id === chat.id && go(null));
const memory = new Memory((placeOf) => chat.log.mark(placeOf));
const side = new Drawer("side", "(max-width: 860px)", { isOpenAtFirst: true });
const panel = new Drawer("memory", "(max-width: 1180px)", { isOpenAtFirst: false });

const here = () => decodeURIComponent(location.hash.slice(1)) || null;

function go(id) {
  history.pushState(null, "", id ? `#${encodeURIComponent(id)}` : location.pathname);
  open();
}

/** Show what the address names. */
function open() {
  const id = here();
  session = null;
  memory.open(id);
  chat.open(id);
  composer.open(id);
  sidebar.select(id);
  side.giveWay();
  showSession({ id, title: "", agent: null });
  showWelcome();
  if (!side.isCovering) composer.text.focus();
}

function showSession(news) {
  session = { ...session, ...news };
  const title = session.id ? titleOf(session) : "New conversation";
  byId("title").textContent = title;
  document.title = session.title ? `${session.title} · nanoloop` : "nanoloop";
  byId("session-menu").hidden = byId("open-memory").hidden = !session.id;
  byId("agent-choice").hidden = !session.id || me.agents.length < 2;
  if (session.agent) byId("agent").value = session.agent;
  byId("archived-note").hidden = !session.archived;
}

function showState(state) {
  byId("lost").hidden = state === "open";
  byId("lost-text").textContent = navigator.onLine ? "The connection is lost. Trying again …" : "You are offline.";
}

function showWelcome() {
  const isEmpty = chat.log.isEmpty && !chat.tail.hasChildNodes() && !chat.id;
  byId("welcome").hidden = !isEmpty;
}

/** Into the open conversation, or into a new one that it begins. */
async function send(text, attachments) {
  if (!chat.id) {
    const agent = document.querySelector("#agents input:checked")?.value;
    const begun = await trying(() => post("api/sessions", agent ? { agent } : {}));
    if (!begun) return false;
    go(begun.id);
    showSession(begun);
  }
  byId("welcome").hidden = true;
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
    el("span", {}, el("b", {}, name), el("span", { class: "soft" }, model))));
  byId("agents").hidden = me.agents.length < 2;
  byId("agents").append(...choices);
  byId("agent").replaceChildren(...me.agents.map(({ name }) => el("option", { value: name }, name)));
  byId("about").textContent = `nanoloop ${me.version}`;
  byId("model").textContent = me.model;
}

function listen() {
  window.addEventListener("hashchange", () => here() !== chat.id && open());
  byId("new").addEventListener("click", () => go(null));
  byId("lost-retry").addEventListener("click", () => chat.reconnect());
  byId("session-menu").addEventListener("click", ({ currentTarget }) => sidebar.menu(session, currentTarget));
  byId("agent").addEventListener("change", ({ target }) => trying(() => patch(at(chat.id), { agent: target.value })));
  byId("title").addEventListener("dblclick", () => session.id && sidebar.rename(session));
  document.addEventListener("keydown", onKey);
}

function onKey(event) {
  const isCommand = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && chat.isBusy && !document.querySelector("dialog[open], :popover-open")) {
    chat.stop();
  } else if (isCommand && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (!side.isOpen) side.toggle();
    byId("search").focus();
  } else if (event.altKey && event.key.toLowerCase() === "n") {
    event.preventDefault();
    byId("new").click();
  }
}

function drawIcons() {
  for (const node of document.querySelectorAll("[data-icon]")) node.prepend(icon(node.dataset.icon));
}

async function start() {
  me = await get("api/me");
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

/** Until the server is there. */
async function startWhenPossible() {
  try {
    await start();
  } catch (error) {
    showState("lost");
    byId("lost-text").textContent = error.message;
    byId("lost-retry").addEventListener("click", startWhenPossible, { once: true });
  }
}

drawIcons();
startWhenPossible();
