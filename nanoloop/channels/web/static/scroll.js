// Follows the end of the conversation until the reader scrolls up.

import { byId, on } from "./element.js";

const NEAR_END = 8;
const NEAR_TOP = 600;

export class Follower {
	#last = 0;

	/** `nearTop` is called when the reader gets close to the top and older messages are needed. */
	constructor(box, nearTop) {
		this.box = box;
		this.isFollowing = true;
		box.addEventListener("scroll", () => {
			this.#look();
			if (box.scrollTop < NEAR_TOP) nearTop();
		}, { passive: true });
		new ResizeObserver(() => this.keepUp()).observe(box.firstElementChild);
		new ResizeObserver(() => this.keepUp()).observe(box);
		on("latest", "click", () => this.toEnd());
	}

	#look() {
		const { scrollTop, scrollHeight, clientHeight } = this.box;
		const isAtEnd = scrollHeight - scrollTop - clientHeight <= NEAR_END;
		this.#setFollowing(isAtEnd || (this.isFollowing && scrollTop >= this.#last));
		this.#last = scrollTop;
	}

	#setFollowing(isFollowing) {
		this.isFollowing = isFollowing;
		byId("latest").hidden = isFollowing;
	}

	/** Scrolls to the end, unless the reader has scrolled up. */
	keepUp() {
		if (!this.isFollowing) return;
		this.box.scrollTop = this.box.scrollHeight;
		this.#last = this.box.scrollTop;
	}

	toEnd() {
		this.#setFollowing(true);
		this.keepUp();
	}

	/** Lets something above grow without moving the text being read. */
	holding(act) {
		const { scrollHeight, scrollTop } = this.box;
		act();
		this.box.scrollTop = scrollTop + this.box.scrollHeight - scrollHeight;
		this.#last = this.box.scrollTop;
	}
}
