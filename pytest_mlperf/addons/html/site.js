"use strict";
(() => {
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  // --- theme ---------------------------------------------------------------------------------

  const button = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const remember = (theme) => {
    try { sessionStorage.setItem("theme", theme); } catch { /* pages opened from a disk may have none */ }
  };
  try { root.dataset.theme = sessionStorage.getItem("theme") ?? ""; } catch { /* as above */ }
  const nameTheme = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Change to ${isDark() ? "light" : "dark"} colours`);
  };
  let redraw = () => {};
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    nameTheme();
    redraw();
  });
  nameTheme();

  // --- search and order ----------------------------------------------------------------------

  const form = document.querySelector(".search");
  if (form) {
    const [text, model, accelerator] = ["text", "model", "accelerator"].map((id) => document.getElementById(id));
    const body = document.querySelector(".cases tbody");
    const rows = [...body.querySelectorAll("tr")];
    const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const filter = () => {
      const asked = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const row of rows) {
        row.hidden = !asked.every((word) => words.get(row).includes(word))
          || (model.value && row.dataset.model !== model.value)
          || (accelerator.value && row.dataset.accelerator !== accelerator.value);
        count += !row.hidden;
      }
      document.getElementById("count").textContent = `${count} of ${rows.length} cases`;
    };
    const key = (row, column) => {
      const cell = row.cells[column];
      const value = cell.dataset.sort ?? cell.textContent.trim();
      const number = parseFloat(value.replace(/(\d) (?=\d)/g, "$1"));
      return /^-?[\d.]+(?!-\d)/.test(value) && !/^\d{4}-/.test(value) ? number : value;
    };
    const order = (head) => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keys = new Map(rows.map((row) => [row, key(row, head.cellIndex)]));
      const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
      // Rows without a value stay last, whichever way.
      rows.sort((a, b) => (keys.get(a) === "") - (keys.get(b) === "") || (up ? 1 : -1) * compare(keys.get(a), keys.get(b)));
      body.append(...rows);
    };
    for (const head of document.querySelectorAll(".cases th")) {
      if (head.textContent === "sessions") continue;
      const sort = document.createElement("button");
      sort.type = "button";
      sort.textContent = head.textContent;
      sort.addEventListener("click", () => order(head));
      head.replaceChildren(sort);
    }
    form.hidden = rows.length < 2;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", filter);
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
  redraw = () => document.querySelectorAll(".plot").forEach(draw);
  prefersDark.addEventListener("change", () => {
    nameTheme();
    redraw();
  });
  let chosenTheme = "";
  addEventListener("beforeprint", () => {
    chosenTheme = root.dataset.theme ?? "";
    root.dataset.theme = "light";
    redraw();
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = chosenTheme;
    redraw();
  });
  redraw();
})();
