// The page's own icons: one path each, on a field of 24 by 24.

const SVG = "http://www.w3.org/2000/svg";
const PATHS = {
	attach: "m19.5 11.5-7.3 7.300a4.6 4.6 0 0 1-6.5-6.5l7.8-7.800a3 3 0 0 1 4.3 4.300l-7.7 7.700a1.5 1.5 0 0 1-2.1-2.100l6.9-6.9",
	below: "M12 5v14m-6-6 6 6 6-6",
	box: "M4 8.5v11h16v-11M3 4.5h18v4H3zM10 12.5h4",
	close: "m6.5 6.5 11 11m0-11-11 11",
	copy: "M9 9h10.5v10.5H9zM5.5 15h-2V3.5H15v2",
	down: "M12 4.5v11m-4.5-4.5 4.5 4.5 4.5-4.5M5 19.5h14",
	edit: "m5 19 .8-3.800L16 5l3 3L8.8 18.200zM14 7l3 3",
	file: "M13.5 3.5H6v17h12V8zm0 0V8H18",
	loop: "M18.2 8.100c-2.6 0-4.4 2-6.2 3.900s-3.6 3.9-6.2 3.900a3.9 3.9 0 0 1 0-7.800c2.6 0 4.4 2 6.2 3.900s3.6 3.9 6.2 3.900a3.9 3.9 0 0 0 0-7.800z",
	memory: "M4 7h16M4 12h11M4 17h6",
	more: "M5 12h.100M12 12h.100M19 12h.1",
	plus: "M12 5.5v13M5.5 12h13",
	retry: "M19 12a7 7 0 1 1-2.2-5.100L19 9m0-4.5V9h-4.5",
	search: "M17 11a6 6 0 1 1-12 0 6 6 0 0 1 12 0zm-1.5 4.5L20 20",
	send: "M12 19V5m-6 6 6-6 6 6",
	side: "M4 5h16v14H4zM9.5 5v14",
	stop: "M8 8h8v8H8z",
	theme: "M19 14.5A7.5 7.5 0 1 1 9.5 5a6 6 0 0 0 9.5 9.5z",
	thought: "M12 4a6 6 0 0 0-3.5 10.900V17h7v-2.100A6 6 0 0 0 12 4zM9.5 20h5",
	tool: "M8.5 6.5 3 12l5.5 5.5m7-11L21 12l-5.5 5.5",
};

/** Hidden from screen readers, because its parent element has a label. */
export function icon(name) {
	const svg = document.createElementNS(SVG, "svg");
	svg.setAttribute("class", `icon i-${name}`);
	svg.setAttribute("viewBox", "0 0 24 24");
	svg.setAttribute("aria-hidden", "true");
	const path = document.createElementNS(SVG, "path");
	path.setAttribute("d", PATHS[name]);
	svg.append(path);
	return svg;
}
