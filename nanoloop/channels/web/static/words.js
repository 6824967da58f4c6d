// Formats times, numbers and sizes for people.

const DAY_MS = 86_400_000;

const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "short" });

const midnight = () => new Date().setHours(0, 0, 0, 0);

/** The time for today's messages, the date for older ones. */
export function shortTime(iso) {
	const when = new Date(iso);
	return (when >= midnight() ? time : day).format(when);
}

export const fullTime = (iso) => full.format(new Date(iso));

/** The heading under which a time is listed. */
export function period(iso) {
	const age = midnight() - new Date(iso);
	if (age <= 0) return "Today";
	if (age <= DAY_MS) return "Yesterday";
	return age <= 7 * DAY_MS ? "Last seven days" : "Older";
}

export const number = (value) => Number(value ?? 0).toLocaleString();

export const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

const size = new Intl.NumberFormat(undefined, { style: "unit", unit: "byte", notation: "compact", unitDisplay: "narrow" });
export const bytes = (count) => size.format(count);
