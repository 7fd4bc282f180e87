// Tools of pages: search, wrap and follow the output of an attempt; copy a command; name what the palette finds.

"use strict";

(() => {
  const FOLLOW_MS = 2000;
  const MAX_CHARS = 500000;
  const COPIED_MS = 2000;

  // What the user has chosen, which refreshes of the page keep.
  const options = { term: "", wraps: true, follows: true };
  // The whole text of each stream; a search shows a part of it.
  const texts = new WeakMap();
  let isFollowing = false;

  function streams() {
    return document.querySelectorAll("[data-output] pre[data-stream]");
  }

  function show(output) {
    const term = options.term.toLowerCase();
    let found = 0;
    for (const pre of output.querySelectorAll("pre[data-stream]")) {
      const text = texts.get(pre);
      const lines = term ? text.split("\n").filter((line) => line.toLowerCase().includes(term)) : [];
      const shown = term ? lines.join("\n") : text;
      found += lines.length;
      if (pre.textContent !== shown) pre.textContent = shown;
      pre.classList.toggle("cellrun-unwrapped", !options.wraps);
    }
    output.querySelector("[role=status]").textContent = term ? `${found} of the shown lines` : "";
  }

  function toEnd(pre) {
    pre.scrollTop = pre.scrollHeight;
  }

  function prepare() {
    for (const output of document.querySelectorAll("[data-output]")) {
      output.querySelector(".cellrun-tools").hidden = false;
      output.querySelector("input[type=search]").value = options.term;
      for (const box of output.querySelectorAll("[data-option]")) box.checked = options[box.dataset.option];
      for (const pre of output.querySelectorAll("pre[data-stream]")) {
        if (!texts.has(pre)) texts.set(pre, pre.textContent);
      }
      show(output);
    }
    if (options.follows) streams().forEach(toEnd);
  }

  async function followStream(pre) {
    const response = await fetch(`${pre.dataset.stream}?after=${pre.dataset.next}`, {
      credentials: "same-origin",
      redirect: "error",
    });
    if (!response.ok || !pre.isConnected) return;
    const piece = await response.text();
    pre.dataset.next = response.headers.get("X-Next-Cursor");
    if (!piece) return;
    texts.set(pre, (texts.get(pre) + piece).slice(-MAX_CHARS));
    const note = pre.nextElementSibling;
    if (note && note.classList.contains("cellrun-empty")) note.hidden = true;
    show(pre.closest("[data-output]"));
    toEnd(pre);
  }

  async function follow() {
    const followed = document.querySelectorAll("[data-output] pre[data-followed]");
    if (isFollowing || !options.follows || document.visibilityState !== "visible") return;
    isFollowing = true;
    try {
      for (const pre of followed) await followStream(pre);
    } catch {
      // The page shows that there is no connection; the next turn tries again.
    } finally {
      isFollowing = false;
    }
  }

  document.addEventListener("input", (event) => {
    const output = event.target.closest("[data-output]");
    if (!output) return;
    const { option } = event.target.dataset;
    if (option) options[option] = event.target.checked;
    else options.term = event.target.value;
    show(output);
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "copied";
    } catch {
      button.textContent = "not copied: select the text";
    }
    setTimeout(() => { button.textContent = text; }, COPIED_MS);
  });

  // The palette belongs to django-unfold. Its field names what it finds as its button does, and gets
  // the focus when it is shown: django-unfold focuses it after 20 ms, before a busy browser shows it.
  document.addEventListener("DOMContentLoaded", () => {
    const field = document.getElementById("search-input-command");
    const button = document.getElementById("open-palette");
    if (!field || !button) return;
    field.placeholder = button.title;
    field.ariaLabel = button.title;
    new IntersectionObserver((entries) => {
      if (entries.at(-1).isIntersecting) field.focus();
    }).observe(field);
  });
  document.addEventListener("DOMContentLoaded", prepare);
  document.addEventListener("htmx:afterSwap", prepare);
  setInterval(follow, FOLLOW_MS);
})();
