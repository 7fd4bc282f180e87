// Line charts (controlplane.admin.sections.charts), by Chart.js: values are attributes of a canvas, colours are those of
// the legend below it. They are drawn again when the page refreshes or its theme changes.

"use strict";

(() => {
  const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const DASHES = [[], [6, 3], [2, 2]];
  let drawn = [];

  function lengthText(seconds) {
    if (seconds < 60) return `${Math.round(seconds * 100) / 100} s`;
    return seconds < 3600 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 360) / 10} h`;
  }

  function memoryText(mebibytes) {
    return mebibytes < 1024 ? `${Math.round(mebibytes)} MiB` : `${Math.round(mebibytes / 102.4) / 10} GiB`;
  }

  // Formats of values by unit; cores are counted in thousandths.
  const FORMATS = {
    seconds: lengthText,
    tasks: (value) => String(Math.round(value)),
    cpu_millis: (value) => String(Math.round(value / 10) / 100),
    memory_mib: memoryText,
    gpu: (value) => String(Math.round(value * 10) / 10),
  };

  // Whether a value has no neighbour to which a line leads.
  function isAlone(data, place) {
    return (data[place - 1] ?? null) === null && (data[place + 1] ?? null) === null;
  }

  function draw(canvas) {
    const { unit, times, values } = canvas.dataset;
    const figure = canvas.closest("figure");
    const keys = [...figure.querySelectorAll(".cellrun-legend li")];
    const soft = getComputedStyle(figure.querySelector("figcaption span")).color;
    const grid = getComputedStyle(figure).borderTopColor;
    const shown = FORMATS[unit];
    const datasets = JSON.parse(values).map((data, place) => {
      const colour = getComputedStyle(keys[place]).color;
      return {
        label: keys[place].textContent,
        data,
        borderColor: colour,
        backgroundColor: colour,
        borderDash: DASHES[place],
        borderWidth: 2,
        // A line of one point would draw nothing. A minute without a start has no latency.
        pointRadius: ({ dataIndex }) => (isAlone(data, dataIndex) ? 3 : unit === "seconds" ? 1.5 : 0),
        spanGaps: unit === "seconds",
      };
    });
    const ticks = { color: soft, maxRotation: 0, autoSkipPadding: 24 };
    return new Chart(canvas, {
      type: "line",
      data: { labels: JSON.parse(times).map((at) => time.format(at)), datasets },
      options: {
        animation: false,
        maintainAspectRatio: false,
        interaction: { mode: "index", intersect: false },
        plugins: {
          legend: { display: false },
          tooltip: {
            callbacks: { label: (item) => `${item.dataset.label}: ${shown(item.parsed.y)}` },
          },
        },
        scales: {
          x: { ticks, grid: { display: false }, border: { color: grid } },
          y: {
            beginAtZero: true,
            suggestedMax: 1,
            grid: { color: grid },
            border: { display: false },
            ticks: { ...ticks, maxTicksLimit: 5, precision: unit === "seconds" ? undefined : 0, callback: shown },
          },
        },
      },
    });
  }

  function redraw() {
    for (const chart of drawn) chart.destroy();
    drawn = [...document.querySelectorAll("canvas[data-values]")].map(draw);
  }

  document.addEventListener("DOMContentLoaded", redraw);
  document.addEventListener("htmx:afterSwap", redraw);
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["class"] });
})();
