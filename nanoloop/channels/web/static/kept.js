// Data that the browser stores for the page; without storage or space, the page works too.

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

/** Kept until the browser deletes it. */
export const lasting = store("localStorage");
/** Kept as long as the tab is open, including reloads. */
export const inTab = store("sessionStorage");
