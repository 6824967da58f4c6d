// Server-sent events over one connection, which reconnects soon at first, then less often.

const NAMES = "hello accepted text answer turn tool memory session sessions undone approval reset".split(" ");
const QUICK_TRIES = 4;
const SLOWEST_MS = 30_000;
const HIDDEN_MS = 30_000;

export class Stream {
	#source = null;
	#tries = 0;
	#timer = 0;
	#hiding = 0;
	#path;
	#heard;
	#stateChanged;
	#off = new AbortController();

	/** `heard(name, data)` is called for each event, `stateChanged("open" | "lost")` for the connection. */
	constructor(path, heard, stateChanged) {
		this.#path = path;
		this.#heard = heard;
		this.#stateChanged = stateChanged;
		const { signal } = this.#off;
		window.addEventListener("online", () => this.again(), { signal });
		document.addEventListener("visibilitychange", () => this.#look(), { signal });
		this.#open();
		if (document.hidden) this.#look();
	}

	close() {
		this.#off.abort();
		clearTimeout(this.#hiding);
		this.#drop();
	}

	/** Reconnects now if the connection is lost. */
	retry() {
		if (this.#source?.readyState !== EventSource.OPEN) this.again();
	}

	/** Starts over and gets the whole state again. */
	again() {
		this.#drop();
		this.#open();
	}

	#open() {
		const source = new EventSource(this.#path);
		this.#source = source;
		for (const name of NAMES) {
			source.addEventListener(name, (event) => this.#heard(name, JSON.parse(event.data || "{}")));
		}
		source.addEventListener("open", () => {
			this.#tries = 0;
			this.#stateChanged("open");
		});
		source.addEventListener("error", () => this.#failed(source));
	}

	#failed(source) {
		if (source !== this.#source) return;
		this.#tries += 1;
		this.#stateChanged("lost");
		// The browser handles short breaks itself and sends the id of the last event.
		if (source.readyState === EventSource.CONNECTING && this.#tries <= QUICK_TRIES) return;
		this.#drop();
		const wait = Math.min(500 * 2 ** Math.min(this.#tries, 8), SLOWEST_MS);
		this.#timer = setTimeout(() => this.#open(), wait * (0.5 + Math.random() / 2));
	}

	/** A hidden tab closes its connection, because a browser has only six per server. */
	#look() {
		clearTimeout(this.#hiding);
		if (document.hidden) this.#hiding = setTimeout(() => this.#drop(), HIDDEN_MS);
		else this.retry();
	}

	#drop() {
		clearTimeout(this.#timer);
		this.#source?.close();
		this.#source = null;
	}
}
