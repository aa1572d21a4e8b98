"use strict";
// Vega-Lite's descriptions of the plots, without their data: https://vega.github.io/vega-lite/docs/
// "$fail" is a colour of the page, which puts in what light and dark need; "row" is a row's label,
// which the page may write above its marks where the screen is narrow.
const PLOTS = (() => {
  const quantity = (field, more = {}) => ({ field, type: "quantitative", ...more });
  const tips = (fields) => Object.entries(fields).map(([field, title]) => ({ field, title }));
  const where = (filter) => [{ filter }];
  const top = { legend: { orient: "top" }, title: null };
  const TONES = ["fail", "open", "good", "note"];
  const tone = (range) => ({ field: "tone", type: "nominal", scale: { domain: TONES, range }, legend: null });
  const toneColour = tone(["$fail", "$open", "$good", "$note"]);
  const toneShape = tone(["diamond", "triangle-up", "circle", "square"]);
  const when = (range) => ({ field: "when", scale: { domain: ["baseline", "now"], range }, ...top });

  // --- one line for each row of data ---------------------------------------------------------

  const row = {
    field: "row", type: "nominal", sort: null,
    axis: { title: null, labelLimit: 380, labelPadding: 8, domain: false, ticks: false },
  };
  const byRow = (title, layer, { zero = true, scale } = {}) => {
    for (const { encoding } of layer) Object.assign(encoding.x, { title, axis: { tickCount: 8 }, scale: scale ?? { zero } });
    return { width: "container", encoding: { y: row }, layer, usermeta: { rows: true } };
  };
  const middle = (datum) => ({ mark: { type: "rule", color: "$grey" }, encoding: { x: { datum }, y: null } });
  const limit = (field, band) => ({
    mark: { type: "tick", color: "$limit", thickness: 2, height: { band } }, encoding: { x: quantity(field) },
  });
  // A value with its interval, from "low" to "high".
  const interval = (value, fields) => [
    { mark: { type: "rule", size: 2.5 }, encoding: { x: quantity("low"), x2: { field: "high" }, color: toneColour } },
    {
      mark: { type: "point", filled: true, size: 90, opacity: 1 },
      encoding: { x: quantity(value), color: toneColour, shape: toneShape, tooltip: tips(fields) },
    },
  ];
  const dot = (field, fields, mark, more = {}) => ({
    ...more, mark: { type: "point", ...mark }, encoding: { x: quantity(field), tooltip: tips(fields) },
  });
  const run = { row: "case", when: "run of", text: "value", date: "started" };
  const PARTS = {
    before: "$note", load: "$limit", "warm-up": "$open", measured: "$now", "accuracy pass": "$good", interleaved: "$base",
  };
  const parts = (present) => {
    const domain = Object.keys(PARTS).filter((part) => present.includes(part));
    return { domain, range: domain.map((part) => PARTS[part]) };
  };

  const EDGE = 4; // limits; larger changes are drawn at the edge: MAX_DRAWN_LIMITS of _figures.py
  const byRows = {
    forest: () => byRow("worse  \u2190  change \u00f7 limit  \u2192  better", [
      { mark: { type: "bar", color: "$band", height: { band: 0.86 } }, encoding: { x: { datum: -1 }, x2: { datum: 0 } } },
      middle(0),
      { mark: { type: "tick", color: "$limit", thickness: 2, height: { band: 0.86 } }, encoding: { x: { datum: -1 } } },
      ...interval("used", { row: "case", outcome: "verdict", effect: "effect", change: "change", interval: "interval", allowed: "limit" }),
      ...[["<", "left", 10], [">", "right", -10]].map(([sign, align, dx]) => ({
        transform: where(`abs(datum.used) > ${EDGE} && datum.used ${sign} 0`),
        mark: { type: "text", align, dx, color: "$ink" },
        encoding: { x: quantity("used"), text: { field: "effect" } },
      })),
    ], { scale: { domain: [-EDGE, EDGE], clamp: true, nice: false } }),
    accuracy: () => byRow("score in % of its reference", [
      middle(100),
      limit("gate", 0.7),
      ...interval("share", { row: "case", outcome: "verdict", now: "score", reference: "reference", needed: "needed" }),
    ], { zero: false }),
    spread: () => byRow("% of the mean", [
      limit("limit", 0.7),
      dot("detectable", { row: "case", detectable: "provable" }, { shape: "square", size: 70, color: "$base" }),
      dot("before", { row: "case", before: "baseline, %" }, { size: 80, color: "$base" }),
      dot("now", { row: "case", now: "now, %" }, { filled: true, size: 80, color: "$now", opacity: 1 }),
    ]),
    strip: () => byRow("worse  \u2190  times the mean  \u2192  better", [
      middle(1),
      dot("off", run, { size: 60, color: "$base", opacity: 0.9 }, { transform: where("datum.when == 'baseline'") }),
      dot("off", run, { size: 60, filled: true, color: "$now", opacity: 1 }, { transform: where("datum.when == 'now'") }),
    ], { scale: { type: "log", nice: false, padding: 12 } }),
    cost: () => byRow("USD per million", [{
      mark: { type: "bar", color: "$now", height: { band: 0.6 } },
      encoding: { x: quantity("usd"), tooltip: tips({ row: "case", text: "USD per million", of: "of", price: "price" }) },
    }]),
    spent: (values) => byRow("seconds", [{
      mark: { type: "bar", height: { band: 0.66 } },
      encoding: {
        x: quantity("seconds", { stack: "zero" }), order: { field: "order" },
        color: { field: "part", scale: parts(values("part")), ...top },
        tooltip: tips({ row: "case", part: "part", text: "time" }),
      },
    }]),
  };

  // --- workload x accelerator ----------------------------------------------------------------

  const heat = (value, scale, fields) => ({
    width: { step: 206 }, height: { step: 34 },
    encoding: {
      x: { field: "accelerator", type: "nominal", axis: { title: null, orient: "top", labelAngle: 0, labelLimit: 200 } },
      y: { ...row, field: "workload" },
    },
    layer: [
      { mark: { type: "rect", stroke: "$line", strokeWidth: 1, color: "$paper" }, encoding: {} },
      {
        transform: where(`isValid(datum.${value})`),
        mark: { type: "rect", stroke: "$line", strokeWidth: 1 },
        encoding: { color: { field: value, type: "quantitative", scale: { ...scale, interpolate: "rgb" }, legend: null } },
      },
      {
        mark: { type: "text", color: "$ink", limit: 202 },
        encoding: { text: { field: "text" }, tooltip: tips({ workload: "workload", accelerator: "accelerator", ...fields, case: "case" }) },
      },
    ],
  });
  const heats = {
    heat: () => heat("used", { domain: [-1, 0, 1], range: ["$worse", "$paper", "$better"], clamp: true },
      { outcome: "verdict", worst: "worst change", allowed: "limit" }),
    relative: () => heat("share", { domain: [0, 100], range: ["$paper", "$better"] },
      { value: "throughput", text: "of the fastest" }),
  };

  // --- one thing over another ----------------------------------------------------------------

  // By M. Okabe and K. Ito: told apart with every kind of colour vision.
  const PRECISIONS = {
    fp32: "$ink", bf16: "#0072B2", fp16: "#56B4E9", fp8: "#009E73", int8: "#D55E00", int4: "#CC79A7", fp4: "#E69F00",
  };
  const over = {
    energy(values) {
      const units = values("unit").sort().reverse();
      const singular = units.map((unit) => unit.replace(/s$/, ""));
      const points = {
        mark: { type: "point", filled: true, size: 110, opacity: 1 },
        encoding: {
          color: when(["$base", "$now"]),
          ...(units.length > 1 && { shape: { field: "unit", ...top } }),
          tooltip: tips({ row: "case", when: "run of", rate_text: "per second", joules_text: "J each" }),
        },
      };
      return {
        width: "container", height: 320,
        encoding: {
          x: quantity("joules", { scale: { zero: false }, axis: { tickCount: 8 }, title: `J per ${singular.join(" or ")}, less is better` }),
          y: quantity("rate", { scale: { zero: false }, title: `${units.join(" or ")} per second` }),
        },
        layer: [
          { mark: { type: "line", color: "$base", strokeDash: [4, 3] }, encoding: { detail: { field: "row" } } },
          points,
          {
            transform: where("datum.when == 'now'"),
            mark: { type: "text", align: "left", dx: 9, dy: -7, color: "$ink", limit: 240 },
            encoding: { text: { field: "row" } },
          },
        ],
      };
    },
    precisions(values) {
      const domain = values("precision");
      const range = domain.map((name) => PRECISIONS[name] ?? "$grey");
      const shapes = { domain: ["kept or not judged", "failed"], range: ["circle", "cross"] };
      return {
        width: "container", height: 320,
        encoding: {
          x: quantity("speed", {
            title: "speed, times the reference's", axis: { tickCount: 6 },
            scale: { type: "log", base: 2, nice: false, padding: 70 },
          }),
          y: { type: "quantitative", scale: { zero: false, nice: false, padding: 24 } },
        },
        layer: [
          {
            mark: { type: "tick", orient: "horizontal", color: "$limit", thickness: 2, size: 26 },
            encoding: { y: { field: "gate", title: "score, % of the reference's" } },
          },
          { mark: { type: "rule", color: "$base", size: 2 }, encoding: { y: { field: "low" }, y2: { field: "high" } } },
          {
            mark: { type: "point", filled: true, size: 100, opacity: 1 },
            encoding: {
              y: { field: "score" },
              color: { field: "precision", ...top, scale: { domain, range } },
              shape: { field: "accuracy", scale: shapes, legend: null },
              tooltip: tips({
                row: "case", against: "against", of: "score of", score_text: "score", interval: "interval",
                gate_text: "gate", speed_text: "speed", accuracy: "accuracy",
              }),
            },
          },
          { // All references lie at 1 and 100 %, where their names would hide each other.
            transform: where("datum.speed != 1 || datum.score != 100"),
            mark: { type: "text", dy: -13, color: "$ink", limit: 200 },
            encoding: { y: { field: "score" }, text: { field: "row" } },
          },
        ],
      };
    },
  };

  // --- of one case ---------------------------------------------------------------------------

  const LEVELS = [0, 1, 2]; // names of versions that are near each other stand in several lines
  const version = (side, level) => ({
    transform: where(`datum.what == 'version' && datum.side == '${side}' && datum.level == ${level}`),
    mark: { type: "text", align: side, baseline: "bottom", dx: side === "left" ? 4 : -4, color: "$grey", limit: 300 },
    encoding: { y: { value: -3 - 14 * level }, text: { field: "text" } },
  });
  const p50p99 = (range) => ({ field: "what", scale: { domain: ["p50", "p99"], range }, ...top });
  const share = `datum.value == 0 ? 'fastest' : datum.value < 1 ? '50 %' : datum.value == 1 ? '90 %' : `
    + `datum.value < 1.5 ? '95 %' : datum.value == 2 ? '99 %' : '99.9 %'`;
  // Points of now and of the baseline; `step` marks those that the line goes through.
  const curve = (interpolate, over, words) => ({
    width: "container", height: 260,
    encoding: {
      x: quantity("user", { title: over, scale: { type: "log", nice: false, padding: 24 } }),
      y: quantity("rate", { title: "of all users", scale: { type: "log", nice: false, padding: 24 } }),
    },
    layer: [
      {
        transform: where("datum.step"),
        mark: { type: "line", strokeWidth: 1.8, interpolate },
        encoding: { color: when(["$base", "$now"]), order: { field: "user" } },
      },
      {
        transform: where("isValid(datum.low)"),
        mark: { type: "rule", size: 2.5 },
        encoding: { y: quantity("low"), y2: { field: "high" }, color: toneColour },
      },
      {
        transform: where("datum.when == 'baseline'"),
        mark: { type: "point", size: 70, color: "$base" },
        encoding: { tooltip: tips({ ...words, when: "of" }) },
      },
      {
        transform: where("datum.when == 'now'"),
        mark: { type: "point", filled: true, size: 90, opacity: 1 },
        encoding: {
          color: toneColour, shape: toneShape,
          tooltip: tips({ ...words, text: "verdict" }),
        },
      },
      {
        transform: where("datum.when == 'baseline' && datum.label"),
        mark: { type: "text", align: "left", dx: 8, dy: 13, color: "$grey" },
        encoding: { text: { field: "label" } },
      },
      {
        transform: where("datum.when == 'now' && datum.label"),
        mark: { type: "text", dy: -8, color: "$ink" },
        encoding: { y: quantity("above"), text: { field: "label" } },
      },
    ],
    resolve: { scale: { color: "independent" } },
  });
  const ofCase = {
    history: () => ({
      width: "container", height: 220,
      encoding: {
        x: { field: "at", type: "temporal", title: null, scale: { type: "utc" }, axis: { tickCount: 7 } },
        y: quantity("value", { title: null, scale: { zero: false } }),
      },
      layer: [
        {
          transform: where("datum.what == 'accepted'"),
          mark: { type: "line", interpolate: "step-after", color: "$base", strokeWidth: 2 },
        },
        {
          transform: where("datum.what == 'accepted' && datum.mark"),
          mark: { type: "point", filled: true, color: "$base", size: 42, opacity: 1 },
          encoding: { tooltip: tips({ date: "accepted", text: "value", runs: "runs", why: "why" }) },
        },
        {
          transform: where("datum.what == 'version'"),
          mark: { type: "rule", strokeDash: [3, 3], color: "$grey" },
          encoding: { y: null, tooltip: tips({ date: "since", text: "version" }) },
        },
        ...["left", "right"].flatMap((side) => LEVELS.map((level) => version(side, level))),
        {
          transform: where("datum.what == 'baseline run'"),
          mark: { type: "point", color: "$base", size: 40 },
          encoding: { tooltip: tips({ date: "baseline run", text: "value" }) },
        },
        {
          transform: where("datum.what == 'run now'"),
          mark: { type: "point", filled: true, color: "$now", size: 60, opacity: 1 },
          encoding: { tooltip: tips({ date: "run now", text: "value" }) },
        },
      ],
    }),
    pairs: () => ({
      width: "container", height: 220,
      encoding: {
        x: { field: "pair", type: "ordinal", title: "pair of neighbouring runs: circles the other build, filled this one", axis: { labelAngle: 0 } },
        y: quantity("value", { title: null, scale: { zero: false } }),
      },
      layer: [
        { mark: { type: "line", color: "$base", strokeWidth: 1 }, encoding: { detail: { field: "pair" } } },
        {
          transform: where("datum.what == 'other build'"),
          mark: { type: "point", color: "$base", size: 60, fill: "$paper", opacity: 1 },
          encoding: { tooltip: tips({ pair: "pair", what: "run of", text: "value", date: "started" }) },
        },
        {
          transform: where("datum.what == 'this build'"),
          mark: { type: "point", filled: true, color: "$now", size: 60, opacity: 1 },
          encoding: { tooltip: tips({ pair: "pair", what: "run of", text: "value", date: "started" }) },
        },
      ],
    }),
    sessions: () => ({
      width: "container", height: 220,
      encoding: {
        x: { field: "at", type: "temporal", title: null, scale: { type: "utc" }, axis: { tickCount: 7 } },
        y: quantity("value", { title: null, scale: { zero: false } }),
      },
      layer: [
        {
          transform: where("isValid(datum.base)"),
          mark: { type: "line", interpolate: "step-after", color: "$base", strokeWidth: 2 },
          encoding: { y: quantity("base") },
        },
        {
          transform: where("datum.changed"),
          mark: { type: "rule", strokeDash: [4, 3], color: "$fail" },
          encoding: { y: null, tooltip: tips({ date: "since", why: "mark" }) },
        },
        {
          transform: where("datum.accepted && isValid(datum.base)"),
          mark: { type: "point", shape: "triangle-up", filled: true, color: "$ink", size: 80, opacity: 1 },
          encoding: { y: quantity("base"), tooltip: tips({ date: "date", why: "mark" }) },
        },
        {
          mark: { type: "point", filled: true, opacity: 1 },
          encoding: {
            color: { field: "what", type: "nominal", scale: { domain: ["session", "failed"], range: ["$now", "$fail"] }, ...top },
            shape: { field: "what", type: "nominal", scale: { domain: ["session", "failed"], range: ["circle", "diamond"] }, ...top },
            size: { value: 50 },
            tooltip: tips({ date: "session", text: "value", what: "test", commit: "commit", why: "mark" }),
          },
        },
      ],
    }),
    curve: () => curve("step-before", "of one user", {
      point: "concurrent requests", rate_text: "of all", user_text: "of one user",
    }),
    rates: () => curve("linear", "requests/s, or times a trace's speed", { point: "at", rate_text: "ms" }),
    latency: () => ({
      width: "container", height: 220,
      encoding: {
        x: quantity("ms", { title: "milliseconds", scale: { type: "log", nice: false } }),
        y: quantity("rank", {
          title: "share of queries", scale: { zero: false },
          axis: { values: [0, 0.301, 1, 1.301, 2, 3], labelExpr: share },
        }),
      },
      layer: [
        {
          transform: where("datum.when != 'limit'"),
          mark: { type: "line", strokeWidth: 2 },
          encoding: { color: when(["$base", "$now"]) },
        },
        {
          transform: where("datum.when != 'limit'"),
          mark: { type: "point", filled: true, size: 50, opacity: 1 },
          encoding: {
            color: when(["$base", "$now"]), shape: when(["circle", "diamond"]),
            tooltip: tips({ when: "run of", share: "share of queries", text: "within" }),
          },
        },
        {
          transform: where("datum.when == 'limit'"),
          mark: { type: "point", shape: "triangle-left", size: 110, filled: true, color: "$limit", opacity: 1 },
          encoding: { tooltip: tips({ why: "limit", share: "of the queries", text: "within" }) },
        },
      ],
    }),
    moments: () => ({
      vconcat: [
        {
          width: "container", height: 150, transform: where("datum.what != 'outstanding'"),
          encoding: {
            x: quantity("seconds", { title: null, axis: { tickCount: 8, labels: false } }),
            y: quantity("value", { title: "latency, ms" }),
            color: p50p99(["$now", "$fail"]), strokeDash: p50p99([[1, 0], [5, 2]]),
          },
          mark: { type: "line", strokeWidth: 1.8 },
        },
        {
          width: "container", height: 80, transform: where("datum.what == 'outstanding'"),
          encoding: {
            x: quantity("seconds", { title: "seconds after the run began", axis: { tickCount: 8 } }),
            y: quantity("value", { title: "waiting" }),
          },
          mark: { type: "area", color: "$base", opacity: 0.6 },
        },
      ],
    }),
    power: () => ({
      vconcat: [
        lanes,
        panel("power", "power, W"),
        panel("clock", "SM clock, MHz"),
        panel("temperature", "\u00b0C", true),
      ],
      spacing: 8,
      resolve: { scale: { x: "shared" } },
    }),
  };

  // --- GPUs over a run -----------------------------------------------------------------------

  // Of GPUs after the first; by M. Okabe and K. Ito as well.
  const LINES = ["#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F"];
  const heldBack = where("datum.what == 'held back'");
  const reason = {
    color: { field: "tone", scale: { domain: ["fail", "open", "note"], range: ["$fail", "$open", "$note"] }, legend: null },
    tooltip: tips({ name: "held back by", seconds: "from, s", until: "to, s" }),
  };
  const lanes = { // a line of bars for each reason
    width: "container", height: { step: 26 }, transform: heldBack,
    encoding: { y: { field: "name", type: "nominal", axis: null, sort: null } },
    layer: [
      {
        mark: { type: "bar", height: { band: 0.34 }, yOffset: 6 },
        encoding: { x: quantity("seconds", { title: null, axis: null, scale: { zero: false } }), x2: { field: "until" }, ...reason },
      },
      {
        transform: [{ aggregate: [{ op: "count", as: "n" }], groupby: ["name"] }],
        mark: { type: "text", align: "left", dy: -5, color: "$ink" },
        encoding: { x: { value: 0 }, text: { field: "name" } },
      },
    ],
  };
  const shaded = [
    {
      transform: where("datum.what == 'window'"),
      mark: { type: "rect", color: "$band", opacity: 0.55 },
      encoding: { x2: { field: "until" } },
    },
    { transform: heldBack, mark: { type: "rect", opacity: 0.24 }, encoding: { x2: { field: "until" }, ...reason } },
  ];
  const powerLimit = {
    transform: [{ filter: "datum.what == 'power limit'" }, { calculate: "'limit ' + datum.value + ' W'", as: "text" }],
    encoding: { x: null, y: quantity("value") },
    layer: [
      {
        mark: { type: "rule", color: "$limit", strokeDash: [5, 3] },
        encoding: { tooltip: tips({ name: "GPU", value: "power limit, W" }) },
      },
      {
        mark: { type: "text", align: "left", dx: 4, dy: 8, color: "$ink" },
        encoding: { x: { value: 0 }, text: { field: "text" } },
      },
    ],
  };
  const panel = (series, title, last = false) => {
    const power = series === "power";
    const line = {
      transform: where(`datum.what == '${series}'`),
      mark: { type: "line", strokeWidth: 1.4, interpolate: power ? "linear" : "step-after" },
      encoding: {
        y: quantity("value", { title, scale: { zero: power }, axis: { tickCount: 4 } }),
        color: { field: "name", title: null, scale: { range: ["$now", ...LINES] }, legend: power ? { orient: "top" } : null },
      },
    };
    return {
      width: "container", height: power ? 120 : 80,
      encoding: { x: quantity("seconds", { title: last ? "seconds after LoadGen's window began" : null, axis: { tickCount: 8, labels: last } }) },
      resolve: { scale: { color: "independent" } },
      layer: [...shaded, line, ...(power ? [powerLimit] : [])],
    };
  };

  return { ...byRows, ...heats, ...over, ...ofCase };
})();

// The columns of their tables: field and heading.
const TABLES = {
  forest: {
    case: "case", row: "metric", outcome: "verdict", effect: "effect", change: "change", interval: "interval",
    allowed: "limit",
  },
  heat: {
    workload: "workload", accelerator: "accelerator", outcome: "verdict", worst: "worst change", allowed: "limit",
    case: "case",
  },
  relative: {
    workload: "workload", accelerator: "accelerator", value: "throughput", text: "of the fastest", case: "case",
  },
  accuracy: {
    case: "case", row: "metric", outcome: "verdict", now: "score", reference: "reference", needed: "needed",
    points: "against the accuracy baseline",
  },
  precisions: {
    case: "case", against: "against", of: "score of", score_text: "score", interval: "interval",
    gate_text: "gate", speed_text: "speed", accuracy: "accuracy",
  },
  strip: { case: "case", row: "metric", when: "run of", date: "started (UTC)", text: "value", off: "times the mean" },
  spread: {
    case: "case", row: "metric", now_text: "now", before_text: "baseline", detectable_text: "can prove",
    limit_text: "limit",
  },
  energy: { case: "case", when: "run of", unit: "unit", rate_text: "per second", joules_text: "J each" },
  cost: { case: "case", text: "USD per million", of: "of", price: "price" },
  spent: { case: "case", part: "part", seconds: "seconds", text: "time" },
  history: { date: "date", what: "what", text: "value", runs: "runs", why: "why" },
  pairs: { pair: "pair", what: "run of", date: "started (UTC)", text: "value" },
  sessions: { date: "date", what: "what", text: "value", commit: "commit", why: "mark" },
  curve: { point: "concurrent requests", when: "run of", rate_text: "of all", user_text: "of one user", text: "verdict" },
  rates: { point: "at", when: "run of", rate_text: "milliseconds", text: "verdict" },
  latency: { when: "run of", share: "share of queries", text: "within", why: "limit" },
  moments: { seconds: "seconds", what: "what", value: "ms, or queries" },
  power: { what: "what", name: "of", seconds: "seconds", until: "until", value: "W, MHz or °C" },
};
