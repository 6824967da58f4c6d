// Dark, light, or the system's theme; runs before the page is drawn, so that nothing flashes.
(() => {
	const KEY = "nanoloop.theme";
	const NEXT = { auto: "light", light: "dark", dark: "auto" };
	const root = document.documentElement;
	const show = (theme) => {
		root.dataset.theme = theme in NEXT ? theme : "auto";
		const button = document.getElementById("theme");
		button?.setAttribute("aria-label", `Colours: ${root.dataset.theme}. Change`);
	};
	const change = () => {
		show(NEXT[root.dataset.theme]);
		localStorage.setItem(KEY, root.dataset.theme);
	};
	show("auto");
	document.addEventListener("DOMContentLoaded", () => {
		document.getElementById("theme").addEventListener("click", change);
		show(root.dataset.theme);
	});
	show(localStorage.getItem(KEY));
})();
