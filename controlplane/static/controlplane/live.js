// Everything in the admin that lives: the refreshed fleet page, followed output, ages and countdowns.
// Numbers come from the server with its own clock; here they are only counted on, and never shown as fresh when they are not.
"use strict";

(() => {
  const clock = () => performance.now() / 1000;

  // --- lengths of time, as render.span draws them ------------------------------------------------------------------
  const two = (n) => String(n).padStart(2, "0");
  function span(seconds) {
    const s = Math.max(Math.floor(seconds), 0);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  }

  function since(element) {
    if (element.wfSeen === undefined) element.wfSeen = clock();
    return clock() - element.wfSeen;
  }

  function tick() {
    for (const element of document.querySelectorAll("[data-age]")) {
      element.textContent = span(Number(element.dataset.age) + since(element));
    }
    for (const element of document.querySelectorAll("[data-left]")) {
      const left = Number(element.dataset.left) - since(element);
      // Counted down to nothing here: whether it was renewed meanwhile only the server knows.
      const counted = left <= 0 && Number(element.dataset.left) > 0;
      element.textContent = left > 0 ? span(left) : counted ? "0 s" : "lapsed";
      if (counted) element.title = "Counted down since the page was loaded; load it again to see what became of it.";
      element.classList.toggle("wf-tone-bad", left <= 0);
      element.classList.toggle("wf-tone-warn", left > 0 && left < Number(element.dataset.warn));
      element.classList.toggle("wf-tone-mute", left >= Number(element.dataset.warn));
    }
  }

  // --- asking the server again and again, not while nobody looks -----------------------------------------------------
  class Poller {
    constructor(seconds, ask) {
      this.seconds = seconds;
      this.ask = ask;
      this.paused = false;
      this.timer = 0;
      document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.now()));
    }

    stop() {
      clearTimeout(this.timer);
      this.timer = 0;
    }

    later() {
      this.stop();
      if (!this.paused && !document.hidden) this.timer = setTimeout(() => this.now(), this.seconds * 1000);
    }

    async now() {
      this.stop();
      if (this.paused || document.hidden || this.asking) return;
      this.asking = true;
      try {
        await this.ask();
      } finally {
        this.asking = false;
        this.later();
      }
    }
  }

  async function get(url) {
    const response = await fetch(url, {
      cache: "no-store",
      redirect: "manual",
      credentials: "same-origin",
      signal: AbortSignal.timeout(10000),
    });
    // A redirect is the way to the sign-in page.
    if (response.type === "opaqueredirect") throw new Error("You are signed out.");
    if (!response.ok) throw new Error(`The server answered ${response.status}.`);
    return response;
  }

  function reason(error) {
    return error.name === "TypeError" || error.name === "TimeoutError" ? "The server does not answer." : error.message;
  }

  // --- the fleet page ----------------------------------------------------------------------------------------------
  function live(root) {
    const body = root.querySelector("[data-live-body]");
    const lost = root.querySelector("[data-live-lost]");
    const toggle = root.querySelector("[data-live-toggle]");

    const asOf = () => root.querySelector("[data-live-asof]")?.textContent ?? "";

    async function refresh() {
      try {
        const html = await (await get(root.dataset.liveUrl)).text();
        const focused = document.activeElement?.dataset?.key;
        body.innerHTML = html;
        if (focused) body.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
        lost.hidden = true;
        root.classList.remove("wf-stale");
      } catch (error) {
        lost.textContent = `Connection lost: ${reason(error)} What you see is from ${asOf()} UTC.`;
        lost.hidden = false;
        root.classList.add("wf-stale");
      }
    }

    const poller = new Poller(Number(root.dataset.liveSeconds), refresh);
    toggle.hidden = false;
    toggle.addEventListener("click", () => {
      poller.paused = !poller.paused;
      toggle.setAttribute("aria-pressed", String(poller.paused));
      toggle.querySelector("[data-live-toggle-text]").textContent = poller.paused ? "Resume refresh" : "Pause refresh";
      toggle.querySelector(".material-symbols-outlined").textContent = poller.paused ? "play_arrow" : "pause";
      root.classList.toggle("wf-paused", poller.paused);
      if (!poller.paused) poller.now();
    });
    poller.later();
  }

  // --- the output of a run -------------------------------------------------------------------------------------------
  const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\))/g;
  const KEPT_CHARACTERS = 512 * 1024;
  const kib = (bytes) => (bytes < 1024 ? `${bytes} bytes` : `${(bytes / 1024).toFixed(bytes < 10240 ? 1 : 0)} KiB`);

  function log(root) {
    const text = root.querySelector("[data-log-text]");
    if (!text) return;
    const note = root.querySelector("[data-log-note]");
    const lost = root.querySelector("[data-log-lost]");
    const follow = root.querySelector("[data-log-follow]");
    const select = root.querySelector("[data-log-attempt]");
    const link = root.querySelector("[data-log-link]");
    let after = null;
    let first = 0;

    function query(extra) {
      const parameters = new URLSearchParams(extra);
      if (select) parameters.set("attempt", select.value);
      return parameters.toString();
    }

    function draw(piece) {
      const clean = piece.text.replace(ANSI, "");
      if (after === null) {
        first = piece.start;
        text.textContent = clean;
      } else if (clean) {
        const whole = text.textContent + clean;
        text.textContent = whole.length > KEPT_CHARACTERS ? whole.slice(-KEPT_CHARACTERS) : whole;
      }
      if (!piece.size) text.textContent = piece.ended ? "(no output)" : "";
      const parts = [piece.size ? `${kib(piece.size)} stored` : "nothing yet"];
      if (first > 0) parts.push(`shown from byte ${first.toLocaleString("en")} on`);
      if (piece.truncated) parts.push("cut: it was longer than what is kept");
      if (piece.missing) parts.push(`${piece.missing.toLocaleString("en")} bytes at the end were not delivered`);
      else if (piece.ended) parts.push("complete");
      note.textContent = parts.join(" · ");
      after = piece.next;
      return clean;
    }

    async function read() {
      try {
        const asked = after === null ? {} : { after: String(after) };
        const piece = await (await get(`${root.dataset.logUrl}?${query(asked)}`)).json();
        const atFirst = after === null;
        const fresh = draw(piece);
        if (atFirst || (fresh && follow.checked)) text.scrollTop = text.scrollHeight;
        lost.hidden = true;
        poller.paused = !follow.checked || (piece.ended && piece.next >= piece.size);
      } catch (error) {
        lost.textContent = `Connection lost: ${reason(error)} The output may have gone on.`;
        lost.hidden = false;
      }
    }

    const poller = new Poller(2, read);
    follow.addEventListener("change", () => {
      poller.paused = false;
      poller.now();
    });
    select?.addEventListener("change", () => {
      after = null;
      link.href = `${root.dataset.logDownload}?${query({})}`;
      poller.paused = false;
      poller.now();
    });
    poller.now();
  }

  // --- small things --------------------------------------------------------------------------------------------------
  async function fetchOnce(element) {
    try {
      element.textContent = (await (await get(element.dataset.fetchUrl)).json()).text;
    } catch (error) {
      element.textContent = "?";
      element.title = reason(error);
    }
  }

  function copy(button) {
    button.addEventListener("click", async () => {
      const source = document.querySelector(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent.trim());
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected: press Ctrl+C";
      }
    });
  }

  // The skin has links without an address that only a mouse can press (filters, theme): give them to the keyboard too.
  function pressable(element) {
    element.tabIndex = 0;
    element.setAttribute("role", "button");
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      element.click();
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("a:not([href])").forEach(pressable);
    document.querySelectorAll("[data-live-url]").forEach(live);
    document.querySelectorAll("[data-log-url]").forEach(log);
    document.querySelectorAll("[data-fetch-url]").forEach(fetchOnce);
    document.querySelectorAll("[data-copy]").forEach(copy);
    tick();
    setInterval(tick, 1000);
  });
})();
