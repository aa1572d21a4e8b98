(() => {
  const MOST = 40; // rows of a plot; a table has all
  const NARROW = 560; // pixels: below it a row's label stands above its marks
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const root = document.documentElement;
  const cases = [...document.querySelectorAll("details.case")];
  let fitting = new Set(cases.keys());
  const figures = [];

  const make = (name, fields = {}, ...inside) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(fields)) {
      if (key === "text") made.textContent = value;
      else made.setAttribute(key, value);
    }
    made.append(...inside);
    return made;
  };
  const number = (value) => {
    if (typeof value !== "number") return value === null || value === undefined ? "" : String(value);
    if (Math.abs(value) < 1000) return String(value).replace("-", "\u2212");
    return String(value).replace("-", "\u2212").replace(/\B(?=(\d{3})+(?!\d))/g, " ");
  };
  const day = (days) => new Date(Math.round(days * 86400000)).toISOString();
  const moment = (days) => day(days).slice(0, Number.isInteger(days) ? 10 : 16).replace("T", " ");

  // --- theme ---------------------------------------------------------------------------------

  const theme = byId("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const sayTheme = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Change to ${isDark() ? "light" : "dark"} colours`);
  };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    sayTheme();
    redraw();
  });
  prefersDark.addEventListener("change", () => {
    sayTheme();
    redraw();
  });
  sayTheme();

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const coloured = (part) => {
    if (typeof part === "string") return part.startsWith("$") ? colour(part.slice(1)) : part;
    if (Array.isArray(part)) return part.map(coloured);
    if (part && typeof part === "object")
      return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, coloured(value)]));
    return part;
  };
  const config = () => ({
    background: null,
    font: getComputedStyle(document.body).fontFamily,
    aria: false, // the table beside it says the same in words
    view: { stroke: null },
    text: { fontSize: 12 },
    axis: {
      labelColor: colour("ink"), titleColor: colour("grey"), gridColor: colour("line"),
      domainColor: colour("base"), tickColor: colour("base"), labelFontSize: 12,
      titleFontSize: 12, titleFontWeight: "normal", gridOpacity: 0.6,
    },
    legend: { labelColor: colour("ink"), titleColor: colour("grey"), labelFontSize: 12 },
  });

  // --- rows ----------------------------------------------------------------------------------

  const own = {
    history(packed) {
      const unit = packed.unit ? ` ${packed.unit}` : "";
      const rows = [];
      const untold = packed.value.length - packed.told.length;
      let days = 0;
      packed.value.forEach((value, place) => {
        days = Math.floor(days) + packed.step[place];
        const [runs, why] = packed.told[place - untold] ?? [null, ""];
        rows.push({ what: "accepted", days, value, runs, why, mark: place >= untold });
      });
      for (const [days, value] of packed.base) rows.push({ what: "baseline run", days, value });
      for (const [days, value] of packed.now) rows.push({ what: "run now", days, value });
      for (const [days, why] of packed.marks) rows.push({ what: "version", days, why });
      const objects = rows.map((row) => ({
        ...row, why: row.why ?? "", at: Math.round(row.days * 86400000), date: moment(row.days),
        text: row.value === undefined ? row.why : number(row.value) + unit,
      }));
      const times = objects.map((row) => row.at);
      const [first, latest] = [Math.min(...times), Math.max(...times)];
      for (const row of objects) row.side = row.at - first < (latest - first) / 2 ? "left" : "right";
      const marked = objects.filter((row) => row.what === "version").reverse();
      marked.forEach((row, place) => { row.level = place; });
      const last = objects.filter((row) => row.what === "accepted").pop();
      if (last) objects.push({ ...last, at: latest, mark: false, drawnOnly: true });
      return objects;
    },
    pairs(packed) {
      const unit = packed.unit ? ` ${packed.unit}` : "";
      const side = (what, runs) => runs.map(([days, value], place) => ({
        what, pair: place + 1, value, date: moment(days), text: number(value) + unit,
      }));
      return [...side("other build", packed.base), ...side("this build", packed.now)]
        .sort((one, other) => one.pair - other.pair);
    },
    sessions(packed) {
      const unit = packed.unit ? ` ${packed.unit}` : "";
      return packed.rows.map(([days, value, base, what, commit, why]) => ({
        at: Math.round(days * 86400000), date: moment(days), value, base, what, commit, why,
        text: number(value) + unit, changed: why.includes("from here on"), accepted: why.includes("accepted"),
      }));
    },
    curve(packed) {
      const objects = packed.rows.map(([when, point, user, rate, low, high, tone, text, step]) => ({
        when, point, user, rate, low, high, tone, text, step, rate_text: number(rate), user_text: number(user),
      }));
      // Points of a side that nearly coincide share a label.
      const width = (field) => {
        const logs = objects.map((one) => Math.log(one[field]));
        return Math.max(...logs) - Math.min(...logs) || 1;
      };
      const [users, rates] = [width("user"), width("rate")];
      const isNear = (a, b) => Math.abs(Math.log(a.user / b.user)) < 0.03 * users
        && Math.abs(Math.log(a.rate / b.rate)) < 0.1 * rates;
      for (const one of objects) {
        if (one.label !== undefined) continue;
        const near = objects.filter((other) => other.when === one.when && other.label === undefined && isNear(one, other));
        for (const other of near) other.label = "";
        one.label = near.map(({ point }) => point).join(", ");
        one.above = Math.max(...near.map(({ rate, high }) => Math.max(rate, high ?? rate)));
      }
      return objects;
    },
    rates(packed) {
      return own.curve(packed);
    },
    latency(packed) {
      const objects = packed.rows.map(([when, share, rank, ms, text, why]) => ({ when, share, rank, ms, text, why }));
      return objects;
    },
    moments(packed) {
      const objects = packed.rows.flatMap(([seconds, p50, p99, outstanding]) => [
        { seconds, what: "p50", value: p50 }, { seconds, what: "p99", value: p99 },
        { seconds, what: "outstanding", value: outstanding },
      ]);
      return objects;
    },
    power(packed) {
      const objects = [{ what: "window", name: "LoadGen's window", seconds: 0, until: packed.window }];
      for (const [name, tone, spans] of packed.held)
        for (const [seconds, until] of spans) objects.push({ what: "held back", name, tone, seconds, until });
      for (const gpu of packed.gpus) {
        if (gpu.limit) objects.push({ what: "power limit", name: gpu.name, value: gpu.limit });
        for (const what of ["power", "clock", "temperature"])
          gpu[what][0].forEach((seconds, place) =>
            objects.push({ what, name: gpu.name, seconds, value: gpu[what][1][place] }));
      }
      return objects;
    },
  };

  const overview = (found) => {
    const place = found.fields.indexOf("case");
    const rows = found.rows.filter((row) => fitting.has(row[place]));
    const objects = rows.map((row) => {
      const made = Object.fromEntries(found.fields.map((field, i) => [field, row[i]]));
      const [label, id] = data.cases[row[place]];
      const name = [label, made.row].filter(Boolean).join(" \u00b7 ");
      return { ...made, place: row[place], case: id, metric: made.row, row: name };
    });
    return found.runs ? objects.flatMap(runsOf) : objects;
  };

  // The runs of a metric are those of its history; each as a multiple of the baseline's mean, above 1 better.
  const runsOf = (one) => {
    const found = data.drawn[one.place].find(({ plot, title }) => ["history", "pairs"].includes(plot) && title === one.metric);
    if (!found) return [];
    const mean = found.mean || found.now.reduce((sum, [, value]) => sum + value, 0) / found.now.length;
    const dots = (when, runs) => runs.map(([days, value]) => ({
      ...one, when, date: moment(days), off: Math.round(10000 * (one.falls ? mean / value : value / mean)) / 10000,
      text: number(value) + (found.unit ? ` ${found.unit}` : ""),
    }));
    return [...dots("now", found.now), ...dots("baseline", found.base)];
  };

  // --- drawing -------------------------------------------------------------------------------

  // The library is only unpacked when the first plot comes into view: verdicts are painted before.
  let unpacked;
  const library = () => {
    unpacked ??= (async () => {
      const bytes = Uint8Array.from(atob(byId("library").textContent), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      document.head.append(make("script", { text: await new Response(stream).text() }));
      return window.vegaEmbed;
    })();
    return unpacked;
  };

  const tip = byId("tip");
  const tell = (handler, event, item, value) => {
    tip.hidden = !value;
    if (!value) return;
    const said = Object.entries(value).filter(([, text]) => text !== "" && text !== null && text !== "null" && text !== "undefined");
    tip.replaceChildren(...said.map(([name, text]) => make("div", {}, make("span", { text: name }), make("b", { text }))));
    const { clientX, clientY } = event;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${clientY + 16 + box.height > innerHeight ? clientY - box.height - 10 : clientY + 16}px`;
  };

  const rowsOf = (spec, objects, figure, narrow) => {
    const names = [...new Set(objects.map((one) => one.row))];
    const kept = new Set(names.slice(0, MOST));
    figure.cut.textContent = names.length > MOST
      ? `${MOST} of ${number(names.length)} rows are drawn, what matters most first; the filters choose others, the table has all.` : "";
    spec.height = Math.max(1, kept.size) * (narrow ? 42 : 24);
    if (narrow) {
      spec.encoding.y.axis = null;
      for (const { mark } of spec.layer) if (mark.height) mark.height = { band: 0.36 };
      const halo = { stroke: colour("bg"), strokeWidth: 4, strokeJoin: "round" };
      for (const more of [halo, {}]) spec.layer.push({
        transform: [{ aggregate: [{ op: "count", as: "n" }], groupby: ["row"] }],
        mark: { ...more, type: "text", align: "left", dy: -15, color: colour("ink"), limit: figure.holder.clientWidth - 10 },
        encoding: { x: { value: 0 }, text: { field: "row" } },
      });
    }
    return objects.filter((one) => kept.has(one.row));
  };

  const draw = async (figure) => {
    const wide = figure.holder.clientWidth;
    if (!wide) return;
    figure.stale = false;
    const spec = coloured(structuredClone(figure.spec));
    let objects = figure.rows();
    if (spec.usermeta && spec.usermeta.rows) objects = rowsOf(spec, objects, figure, wide < NARROW);
    for (const part of spec.vconcat ?? []) part.width = Math.max(160, wide - 90);
    if (spec.width === "container") {
      spec.width = wide;
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    spec.data = { name: "rows", values: objects };
    const embed = await library();
    if (figure.view) figure.view.finalize();
    const place = make("div", { "aria-hidden": "true" }); // the holder speaks for it
    figure.holder.replaceChildren(place);
    const drawn = await embed(place, spec, {
      ast: true, renderer: "svg", actions: false, defaultStyle: false, tooltip: tell, config: config(), logLevel: 1,
    });
    figure.view = drawn.view;
    // What must be scrolled must be reached by keyboard.
    if (figure.holder.scrollWidth > figure.holder.clientWidth) figure.holder.tabIndex = 0;
    else figure.holder.removeAttribute("tabindex");
    figure.holder.dataset.drawn = objects.length;
  };

  const tryToDraw = (figure) => draw(figure).catch((error) => {
    figure.holder.textContent = `This browser cannot draw it (${error.message}); the table has its figures.`;
    figure.holder.dataset.drawn = "no";
  });

  const tabulate = (figure) => {
    const objects = figure.rows();
    const columns = Object.entries(figure.columns);
    const head = make("tr", {}, ...columns.map(([, title]) => make("th", { scope: "col", text: title })));
    const body = objects.filter((one) => !one.drawnOnly).map((one) =>
      make("tr", {}, ...columns.map(([field]) => {
        const text = number(field === "row" ? one.metric : one[field]);
        return make("td", { text, ...(isNumber(text) && { class: "num" }) });
      })));
    figure.table.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  };

  const isNumber = (text) => /^[+\u2212-]?\d[\d ,.]*( ?(%|x|s|ms|\u00b5s|GiB|MiB|J|W))?$/.test(text);

  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const figure = figures.find((one) => one.holder === target);
      figure.visible = isIntersecting;
      if (isIntersecting && figure.stale) setTimeout(() => tryToDraw(figure));
    }
  }, { rootMargin: "200px" });

  const add = (inside, title, spec, columns, rows) => {
    const figure = { title, spec, columns, rows, stale: true, visible: false };
    figure.holder = make("div", { class: "plot", role: "img", "aria-label": `${title}: plot; the same figures are in the table below` });
    figure.cut = make("p", { class: "cut" });
    figure.table = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `${title}: table` });
    figure.folded = make("details", { class: "table" }, make("summary", { text: "As a table" }), figure.table);
    figure.folded.addEventListener("toggle", () => figure.folded.open && tabulate(figure));
    inside.append(figure.holder, figure.cut, figure.folded);
    figures.push(figure);
    seen.observe(figure.holder);
  };

  function redraw() {
    for (const figure of figures) {
      figure.stale = true;
      if (figure.visible) tryToDraw(figure);
      if (figure.folded.open) tabulate(figure);
    }
  }

  for (const inside of document.querySelectorAll("details.figure")) {
    const name = inside.dataset.figure;
    const found = data.figures[name];
    const values = (field) => [...new Set(found.rows.map((row) => row[found.fields.indexOf(field)]))];
    add(inside, inside.querySelector("h3").textContent, PLOTS[name](values), TABLES[name], () => overview(found));
  }
  const addCopyButtons = (inside) => {
    for (const command of inside.querySelectorAll("pre.command")) {
      const button = make("button", { type: "button", class: "copy", text: "Copy" });
      const text = command.textContent.trim();
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(text);
          button.textContent = "Copied";
        } catch { // the page may not write to the clipboard: select the text for the user
          getSelection().selectAllChildren(command);
          button.textContent = "Selected";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 2000);
      });
      command.before(button);
    }
  };
  addCopyButtons(byId("failed"));

  // One run alone, without a baseline, is no history.
  const isDrawn = ({ plot, value, now, rows }) =>
    plot === "history" ? value.length + now.length > 1 : plot !== "sessions" || rows.length > 2;
  const openCase = (one) => {
    const inside = one.querySelector(".drawn");
    if (!one.open || inside.dataset.made) return;
    inside.dataset.made = "yes";
    addCopyButtons(one);
    for (const packed of data.drawn[Number(inside.dataset.case)].filter(isDrawn)) {
      const figure = make("figure", {}, make("figcaption", { text: packed.title + ({ history: ": history", pairs: ": pairs of runs", sessions: ": sessions" }[packed.plot] ?? "") }));
      if (packed.says) figure.append(make("p", { class: "says", text: packed.says }));
      inside.append(figure);
      const spec = PLOTS[packed.plot]();
      if (packed.unit) spec.encoding.y.title = packed.unit;
      if (packed.over) spec.encoding.x.title = packed.over;
      add(figure, packed.title, spec, TABLES[packed.plot], () => own[packed.plot](packed));
    }
  };
  for (const one of cases) one.addEventListener("toggle", () => openCase(one));

  // --- filters -------------------------------------------------------------------------------

  const filters = byId("filters");
  const words = cases.map((one) => `${one.querySelector("summary").textContent} ${data.cases[Number(one.id.slice(5))][1]} ${one.querySelector(".id").textContent}`.toLowerCase());
  const choose = () => {
    const text = byId("text").value.trim().toLowerCase().split(/\s+/);
    const [verdict, workload, accelerator] = ["verdict", "workload", "accelerator"].map((id) => byId(id).value);
    fitting = new Set();
    cases.forEach((one, place) => {
      const fits = text.every((word) => words[place].includes(word))
        && (!verdict || one.dataset.words.split("|").includes(verdict))
        && (!workload || one.dataset.workload === workload)
        && (!accelerator || one.dataset.accelerator === accelerator);
      one.hidden = !fits;
      if (fits) fitting.add(place);
    });
    const all = fitting.size === cases.length;
    byId("count").textContent = `${all ? "" : `${number(fitting.size)} of `}${number(cases.length)} cases`;
    byId("none").hidden = fitting.size > 0 || cases.length === 0;
    redraw();
  };
  let waiting;
  filters.hidden = cases.length < 2;
  filters.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(choose, 120);
  });
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(choose));
  byId("again").addEventListener("click", () => filters.reset());
  byId("count").textContent = `${number(cases.length)} cases`;

  const reveal = () => {
    const target = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") {
      if (target.hidden) filters.reset();
      target.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", reveal);
  let wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === wide) return;
    wide = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 200);
  });
  reveal();

  // --- print ---------------------------------------------------------------------------------

  // A print shows what is unfolded, on white. The library must be there before: unpacking it takes
  // longer than the browser waits, drawing does not. Without it tables stand in for the plots.
  const idle = window.requestIdleCallback ?? setTimeout;
  addEventListener("load", () => idle(() => figures.length && library()));
  let chosenTheme;
  addEventListener("beforeprint", () => {
    chosenTheme = root.dataset.theme;
    root.dataset.theme = "light";
    for (const figure of figures) {
      if (window.vegaEmbed) tryToDraw(figure);
      else {
        tabulate(figure);
        figure.folded.classList.add("printed");
        figure.folded.open = true;
      }
    }
  });
  addEventListener("afterprint", () => {
    if (chosenTheme) root.dataset.theme = chosenTheme;
    else delete root.dataset.theme;
    for (const { folded } of figures) {
      if (folded.classList.contains("printed")) folded.open = false;
      folded.classList.remove("printed");
    }
    redraw();
  });
  window.report = { figures, drawn: data.drawn }; // what tests look at
})();
