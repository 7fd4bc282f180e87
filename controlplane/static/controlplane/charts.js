// The grid of a job's tasks (controlplane.admin.sections.grid): a canvas for each group.

"use strict";

(() => {
  // Widths of a square with its gap; the largest is used with which all groups are this high.
  const PITCHES = [20, 14, 11, 8, 6, 5];
  const MAX_HEIGHT = 420;
  const MARKED_PITCH = 8;
  const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };

  // The square that the keyboard has selected; a refresh of the page draws new canvases.
  let cursor = null;

  function keepCursor() {
    const active = document.activeElement;
    const isSquare = active && active.matches("[data-task-grid] canvas");
    cursor = isSquare ? { number: active.dataset.number, place: Number(active.dataset.place) } : null;
  }

  function tasksOf(group) {
    const tasks = [];
    for (const [firstId, firstIndex, states] of group.runs) {
      for (let place = 0; place < states.length; place += 1) {
        tasks.push([firstId + place, firstIndex + place, states[place]]);
      }
    }
    return tasks;
  }

  function choosePitch(counts, width) {
    const heightAt = (pitch) => counts.reduce(
      (sum, count) => sum + Math.ceil(count / Math.max(1, Math.floor(width / pitch))) * pitch, 0);
    return PITCHES.find((pitch) => heightAt(pitch) <= MAX_HEIGHT) || PITCHES.at(-1);
  }

  function countsText(tasks, states) {
    const counts = new Map();
    for (const [, , state] of tasks) counts.set(state, (counts.get(state) || 0) + 1);
    return Object.keys(states).filter((state) => counts.has(state))
      .map((state) => `${counts.get(state)} ${states[state][0]}`).join(", ");
  }

  function drawSquares(canvas, tasks, states, pitch, chosen) {
    const columns = Math.max(1, Math.floor(canvas.parentElement.clientWidth / pitch));
    const height = Math.ceil(tasks.length / columns) * pitch;
    const scale = window.devicePixelRatio || 1;
    canvas.width = columns * pitch * scale;
    canvas.height = height * scale;
    canvas.style.width = `${columns * pitch}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const size = pitch > 6 ? pitch - 2 : pitch - 1;
    tasks.forEach(([, , state], place) => {
      const left = (place % columns) * pitch;
      const top = Math.floor(place / columns) * pitch;
      const [name, colour, isUnsuccessful] = states[state];
      context.globalAlpha = name === "succeeded" ? 0.55 : 1;
      context.fillStyle = colour;
      context.fillRect(left, top, size, size);
      context.globalAlpha = 1;
      if (isUnsuccessful && pitch >= MARKED_PITCH) {
        // A cross, so that failures differ not only in colour.
        context.strokeStyle = "#ffffff";
        context.lineWidth = 1.2;
        context.beginPath();
        context.moveTo(left + 2, top + 2);
        context.lineTo(left + size - 2, top + size - 2);
        context.moveTo(left + size - 2, top + 2);
        context.lineTo(left + 2, top + size - 2);
        context.stroke();
      }
    });
    if (chosen !== null && chosen < tasks.length) {
      const left = (chosen % columns) * pitch;
      const top = Math.floor(chosen / columns) * pitch;
      context.strokeStyle = getComputedStyle(canvas).color;
      context.lineWidth = 2;
      context.strokeRect(left, top, size, size);
    }
    return columns;
  }

  function drawGroup(frame, note, document_, group, number, pitch) {
    const { states, address } = document_;
    const tasks = tasksOf(group);
    const canvas = document.createElement("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", `${group.name}: ${countsText(tasks, states)}. Arrow keys select a task, Enter opens it.`);
    frame.append(canvas);
    canvas.dataset.number = number;
    let chosen = null;
    let columns = 1;
    const redraw = () => { columns = drawSquares(canvas, tasks, states, pitch, chosen); };
    const addressOf = (place) => address.replace("/0/", `/${tasks[place][0]}/`);
    const choose = (place) => {
      chosen = place;
      canvas.dataset.place = place === null ? 0 : place;
      if (place !== null) {
        const [, index, state] = tasks[place];
        note.textContent = `${group.name}.${index}: ${states[state][0]}`;
        canvas.title = note.textContent;
      }
      redraw();
    };
    const placeAt = (event) => {
      const column = Math.floor(event.offsetX / pitch);
      const place = Math.floor(event.offsetY / pitch) * columns + column;
      return column < columns && place >= 0 && place < tasks.length ? place : null;
    };
    canvas.addEventListener("mousemove", (event) => {
      const place = placeAt(event);
      canvas.style.cursor = place === null ? "default" : "pointer";
      if (place !== chosen) choose(place);
    });
    canvas.addEventListener("click", (event) => {
      const place = placeAt(event);
      if (place === null) return;
      if (event.ctrlKey || event.metaKey) window.open(addressOf(place));
      else window.location.assign(addressOf(place));
    });
    canvas.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && chosen !== null) {
        window.location.assign(addressOf(chosen));
        return;
      }
      const step = event.key === "ArrowUp" ? -columns : event.key === "ArrowDown" ? columns : STEPS[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const place = chosen === null ? 0 : Math.min(tasks.length - 1, Math.max(0, chosen + step));
      choose(place);
    });
    canvas.addEventListener("focus", () => {
      if (chosen === null) choose(0);
    });
    canvas.addEventListener("blur", () => choose(null));
    redraw();
    if (cursor && cursor.number === String(number)) {
      choose(Math.min(cursor.place, tasks.length - 1));
      canvas.focus({ preventScroll: true });
    }
  }

  function drawGrid(grid) {
    const drawn = JSON.parse(grid.dataset.taskGrid);
    const note = grid.querySelector("[role=status]");
    grid.querySelectorAll("figure").forEach((one) => one.remove());
    const style = getComputedStyle(grid);
    const width = grid.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const counts = drawn.groups.map(({ runs }) => runs.reduce((sum, run) => sum + run[2].length, 0));
    const pitch = choosePitch(counts, width);
    drawn.groups.forEach((group, number) => {
      const figure = document.createElement("figure");
      const caption = document.createElement("figcaption");
      caption.textContent = group.name;
      if (drawn.groups.length > 1) figure.append(caption);
      const frame = document.createElement("div");
      figure.append(frame);
      grid.insertBefore(figure, note);
      drawGroup(frame, note, drawn, group, number, pitch);
    });
    grid.dataset.width = grid.clientWidth;
  }

  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (!target.isConnected || Number(target.dataset.width) === target.clientWidth) continue;
      keepCursor();
      drawGrid(target);
    }
  });

  function drawAll() {
    resized.disconnect();
    for (const grid of document.querySelectorAll("[data-task-grid]")) {
      drawGrid(grid);
      resized.observe(grid);
    }
  }

  document.addEventListener("DOMContentLoaded", drawAll);
  document.addEventListener("htmx:beforeSwap", keepCursor);
  document.addEventListener("htmx:afterSwap", drawAll);
})();
