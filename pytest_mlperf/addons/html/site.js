"use strict";
(() => {
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  // --- search --------------------------------------------------------------------------------

  const form = document.querySelector(".search");
  if (form) {
    const text = document.getElementById("text");
    const rows = [...document.querySelectorAll(".cases tbody tr")];
    const words = rows.map((row) => row.textContent.toLowerCase());
    const filter = () => {
      const asked = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      rows.forEach((row, number) => {
        row.hidden = !asked.every((word) => words[number].includes(word));
        count += !row.hidden;
      });
      document.getElementById("count").textContent = `${count} of ${rows.length} cases`;
    };
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    text.addEventListener("input", filter);
    filter();
  }

  // --- plots ---------------------------------------------------------------------------------

  const held = document.getElementById("data");
  if (!held) return;
  const data = JSON.parse(held.textContent);
  const y = (title) => ({ field: "value", type: "quantitative", title, scale: { zero: false } });
  const specOf = (one) => {
    const marked = (places) => new Set(places);
    const [accepted, changed, failed] = [one.accepted, one.changed, one.failed].map(marked);
    const rows = one.at.map((at, n) => ({
      at, value: one.value[n], base: one.base[n],
      what: failed.has(n) ? "failed" : "session", accepted: accepted.has(n), changed: changed.has(n),
    }));
    const point = (what, shape, name, size) => ({
      transform: [{ filter: `datum.what == '${what}'` }],
      mark: { type: "point", filled: true, opacity: 1, shape, size, color: colour(name) },
      encoding: { y: y(one.unit) },
    });
    return {
      data: { values: rows }, width: "container", height: 240,
      autosize: { type: "fit-x", contains: "padding" },
      encoding: { x: { field: "at", type: "temporal", title: null, scale: { type: "utc" }, axis: { tickCount: 7 } } },
      layer: [
        {
          mark: { type: "line", interpolate: "step-after", color: colour("base"), strokeWidth: 1.5 },
          encoding: { y: { ...y(one.unit), field: "base" } },
        },
        {
          transform: [{ filter: "datum.changed" }],
          mark: { type: "rule", color: colour("fail"), strokeDash: [4, 3] },
        },
        point("session", "circle", "now", 34),
        point("failed", "diamond", "fail", 70),
        {
          transform: [{ filter: "datum.accepted && datum.base != null" }],
          mark: { type: "point", shape: "triangle-up", filled: true, opacity: 1, size: 90, color: colour("ink") },
          encoding: { y: { ...y(one.unit), field: "base" } },
        },
      ],
    };
  };
  const config = () => {
    const [ink, grey, line] = ["ink", "grey", "line"].map(colour);
    return {
      background: null, aria: false, view: { stroke: null }, font: getComputedStyle(document.body).fontFamily,
      axis: { labelColor: grey, titleColor: ink, gridColor: line, domainColor: line, tickColor: line },
    };
  };
  const draw = (holder) => {
    const place = document.createElement("div");
    place.setAttribute("aria-hidden", "true");
    holder.replaceChildren(place);
    return vegaEmbed(place, specOf(data[Number(holder.dataset.history)]), {
      ast: true, renderer: "svg", actions: false, defaultStyle: false, tooltip: false, config: config(), logLevel: 1,
    }).then(() => { holder.dataset.drawn = "yes"; }, (error) => {
      holder.textContent = `This browser cannot draw it (${error.message}); the table has its figures.`;
      holder.dataset.drawn = "no";
    });
  };
  const all = () => document.querySelectorAll(".plot").forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  all();
})();
