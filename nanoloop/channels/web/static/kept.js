// What the browser keeps for the page; where it may not or has no room, the page lives without.

function trying(act) {
	try {
		return act();
	} catch {
		return null;
	}
}

const store = (place) => ({
	get: (key) => trying(() => JSON.parse(window[place].getItem(`nanoloop.${key}`))),
	set: (key, value) => trying(() => window[place].setItem(`nanoloop.${key}`, JSON.stringify(value))),
});

/** As long as the browser has it. */
export const lasting = store("localStorage");
/** As long as the tab is open, over reloads too. */
export const inTab = store("sessionStorage");
