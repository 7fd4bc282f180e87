// Pages that refresh in place (controlplane.admin.live), and times relative to now.

"use strict";

(() => {
  const REDRAW_MS = 1000;
  const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

  function relativeText(seconds) {
    const distance = Math.abs(seconds);
    if (distance < 5) return "now";
    const [unit, size] = UNITS.find(([, size]) => distance >= size);
    return relative.format(Math.trunc(seconds / size), unit);
  }

  function lengthText(seconds) {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < 60) return `${whole} s`;
    const pad = (number) => String(number).padStart(2, "0");
    if (whole < 3600) return `${Math.floor(whole / 60)} m ${pad(whole % 60)} s`;
    const hours = Math.floor(whole / 3600);
    if (hours < 24) return `${hours} h ${pad(Math.floor((whole % 3600) / 60))} m`;
    return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  }

  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function redrawTimes() {
    if (document.visibilityState !== "visible") return;
    const now = Date.now();
    for (const element of document.querySelectorAll("time[datetime]")) {
      const at = new Date(element.dateTime);
      if (!element.dataset.exact) {
        element.dataset.exact = element.title;
        element.title = `${exact.format(at)} (${element.title})`;
      }
      setText(element, relativeText((at - now) / 1000));
    }
    for (const element of document.querySelectorAll("[data-since]")) {
      setText(element, lengthText((now - new Date(element.dataset.since)) / 1000));
    }
  }

  function live() {
    return document.getElementById("live");
  }

  // A refresh would discard selected rows, an open menu, or text that is being selected.
  function isInUse(element) {
    const selection = document.getSelection();
    const isSelecting = selection && !selection.isCollapsed && element.contains(selection.anchorNode);
    const focused = document.activeElement;
    const isEditing = element.contains(focused) && focused.matches("input:not([type=checkbox]), select, textarea");
    return isSelecting || isEditing || element.querySelector("input.action-select:checked") !== null;
  }

  function keyOf(details) {
    const section = details.closest("section, li");
    const summary = details.querySelector("summary");
    return `${section && section.id} ${section && section.dataset.key} ${summary && summary.textContent}`;
  }

  function showState(text) {
    let note = document.getElementById("live-state");
    if (!note) {
      note = document.createElement("p");
      note.id = "live-state";
      note.setAttribute("role", "status");
      document.body.append(note);
    }
    setText(note, text);
    note.hidden = !text;
  }

  const opened = new Map();
  const scrolled = new Map();

  document.addEventListener("htmx:confirm", (event) => {
    if (event.detail.elt === live() && isInUse(live())) event.preventDefault();
  });

  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, target } = event.detail;
    if (target !== live()) return;
    if (xhr.status === 304) {
      event.detail.shouldSwap = false;
      showState("");
      return;
    }
    if (!xhr.responseText.includes('id="live"')) {
      event.detail.shouldSwap = false;
      showState(xhr.status < 400 ? "Signed out. Reload the page." : "Not refreshed. Reload the page.");
      return;
    }
    if (isInUse(target)) {
      event.detail.shouldSwap = false;
      return;
    }
    opened.clear();
    scrolled.clear();
    for (const details of target.querySelectorAll("details")) opened.set(keyOf(details), details.open);
    target.querySelectorAll(".cellrun-scroll, .cellrun-text").forEach((element, index) => {
      scrolled.set(index, [element.scrollLeft, element.scrollTop]);
    });
  });

  document.addEventListener("htmx:afterSwap", (event) => {
    if (!event.detail.xhr || !event.detail.xhr.responseText.includes('id="live"')) return;
    showState("");
    const element = live();
    for (const details of element.querySelectorAll("details")) {
      const key = keyOf(details);
      if (opened.has(key)) details.open = opened.get(key);
    }
    element.querySelectorAll(".cellrun-scroll, .cellrun-text").forEach((one, index) => {
      if (scrolled.has(index)) [one.scrollLeft, one.scrollTop] = scrolled.get(index);
    });
    const boxes = element.querySelectorAll("tr input.action-select");
    if (boxes.length) window.Actions(boxes, { parent: element.closest(".result-list-wrapper") });
    redrawTimes();
  });

  document.addEventListener("htmx:sendError", (event) => {
    if (event.detail.elt === live()) showState("No connection: this page is not up to date.");
  });

  document.addEventListener("htmx:responseError", (event) => {
    if (event.detail.elt !== live()) return;
    const { status } = event.detail.xhr;
    showState(status === 404 ? "This page does not exist any more." : `Not refreshed: the server responds ${status}.`);
  });

  document.addEventListener("DOMContentLoaded", redrawTimes);
  document.addEventListener("visibilitychange", redrawTimes);
  setInterval(redrawTimes, REDRAW_MS);
})();
