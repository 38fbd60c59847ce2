"use strict";
// Charts: what charts.py says becomes SVG by Observable Plot (plot.js), each when it comes into view, all for printing.
//
// Plot, because its marks are shapes with classes, which the style sheet colours for light, dark and paper, with texts
// that are selected, read aloud and searched; a canvas (uPlot, a fifth of the size) would have to be redrawn for each
// of these, and has no waterfall, no strip and no shares. It makes nodes, never markup, so it runs under the
// page's policy; the one thing that would be refused is the <style> that it puts into each drawing: it is taken out
// before the drawing enters the page, and is in report.css.

const charts = (() => {
  const TALL = 190;
  const MARGINS = { marginTop: 8, marginRight: 8, marginBottom: 24 };
  const MOST_DOTS = 40; // with more runs than this the whiskers of neighbours touch, so a band replaces them
  const MOST_BARS = 40;
  const LETTER = 6.9; // as wide as a letter of the usual fonts is on average, at 12 px

  const zip = (columns) => columns[Object.keys(columns)[0]].map(
    (_, place) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[place]])),
  );
  const written = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0)} %`;
  const measure = (texts) => Math.max(...texts.map((text) => LETTER * text.length)) + 12;
  const leadTo = (data, place) => (data.link ? data.link + encodeURIComponent(data.runs[place]) : null);

  // The beginnings of runs below a chart: the first and the last at its ends, and others between where there is room.
  function labelRuns(data, places, width) {
    const last = data.runs.length - 1;
    const anchor = (place) => (place > 0 && place < last ? "middle" : last === 0 ? "middle" : place === 0 ? "start" : "end");
    return data.ticks.filter(([place], number) => width > 420 || place === 0 || place === last || (width > 260 && number === data.ticks.length >> 1)).map(([place, text]) => Plot.axisX([place], {
      x: () => places(place, anchor(place)), text: () => text, textAnchor: anchor(place), tickSize: 0, className: "axis", ariaHidden: true,
    }));
  }

  // Lines across at these values, with their texts to the left; without texts Plot writes its own.
  function labelValues(values, texts) {
    return [
      Plot.gridY(values, { className: "guide", strokeOpacity: 1 }),
      Plot.axisY(values, { text: texts || ((value) => `${+value.toPrecision(12)}`), tickSize: 0, className: "axis", ariaHidden: true }),
    ];
  }

  const KINDS = {
    trend(data, width) {
      const rows = zip({ run: data.runs, mean: data.mean, low: data.low, high: data.high, n: data.n, judge: data.judge.map((number) => data.judges[number]), line: data.lines, known: data.known, failed: data.failed });
      rows.forEach((row, place) => { row.place = place; });
      const [low, high] = data.y;
      const values = [low, (low + high) / 2, high];
      const last = rows.length - 1;
      const changes = new Map(data.marks.map((mark) => [mark.place, mark.text]));
      const marks = data.marks.map((mark) => ({ ...mark, at: Math.max(0, mark.place - 0.5), foot: low, head: low + (high - low) * 0.05 }));
      const scored = rows.filter((row) => row.mean !== null);
      const few = rows.length <= MOST_DOTS;
      const bounds = scored.filter((row) => row.low !== null);
      const whiskers = few
        ? [Plot.ruleX(bounds, { x: "place", y1: "low", y2: "high", className: "ci", marker: "tick" })]
        : [Plot.areaY(rows, { x: "place", y1: "low", y2: "high", z: "line", className: "band" })];
      return {
        x: { domain: last ? [0, last] : [-1, 1], insetLeft: 8, insetRight: 8 },
        y: { domain: [low, high] },
        marginLeft: measure(values.map((value) => `${+value.toPrecision(12)}`)),
        marks: [
          ...labelValues(values),
          ...labelRuns(data, (place) => place, width),
          ...whiskers,
          Plot.ruleX(marks.filter((mark) => mark.is_break), { x: "at", title: "text", className: "mark-break" }),
          Plot.ruleX(marks.filter((mark) => !mark.is_break), { x: "at", y1: "foot", y2: "head", title: "text", className: "mark-tick" }),
          Plot.lineY(rows, { x: "place", y: "mean", z: "line", className: "line", strokeLinecap: "round" }),
          ...(few ? [Plot.dot(scored, { x: "place", y: "mean", r: 3, className: "dot" })] : []),
          Plot.dot(scored.filter((row) => row.failed), { x: "place", y: "mean", r: 5, className: "dot-failed" }),
        ],
        points: scored.map((row) => ({
          x: row.place, y: row.mean, href: leadTo(data, row.place),
          text: [
            row.run, row.known, `${written(row.mean)}${row.low === null ? "" : ` (${written(row.low)} to ${written(row.high)})`}, n ${row.n}`,
            `judged by ${row.judge}`, ...(changes.has(row.place) ? [changes.get(row.place)] : []),
          ].join("\n"),
          cells: [row.run, written(row.mean), row.low === null ? "–" : `${written(row.low)} to ${written(row.high)}`, row.n, row.judge],
        })),
        columns: ["run", "mean", "95 % interval", "n", "judge"],
      };
    },

    distribution(data) {
      const size = (data.high - data.low) / data.counts.length;
      const most = Math.max(...data.counts);
      const bars = data.counts.map((n, place) => ({ n, low: data.low + place * size, high: data.low + (place + 1) * size })).filter((bar) => bar.n);
      const heights = [...new Set([0, Math.floor((most + 1) / 2), most])];
      const range = (bar) => `${written(bar.low, 2)} to ${written(bar.high, 2)}`;
      return {
        x: { domain: [data.low, data.high] },
        y: { domain: [0, most] },
        marginLeft: measure(heights.map(String)),
        marginRight: 10,
        marks: [
          ...labelValues(heights),
          Plot.axisX([data.low, (data.low + data.high) / 2, data.high], { tickSize: 0, className: "axis", ariaHidden: true, text: (value) => `${+value.toPrecision(6)}` }),
          Plot.rectY(bars, { x1: "low", x2: "high", y: "n", inset: 0, insetLeft: 0.5, insetRight: 0.5, className: "rect" }),
        ],
        points: bars.map((bar) => ({
          x: (bar.low + bar.high) / 2, y: bar.n, text: `${bar.n} ${data.unit}${bar.n === 1 ? "" : "s"} from ${range(bar)}`, cells: [range(bar), bar.n],
        })),
        columns: [data.of, `${data.unit}s`],
      };
    },

    interval(data) {
      return {
        height: 26, margin: 0, axis: null, x: { domain: [0, 1], insetLeft: 6, insetRight: 6 }, y: { domain: [0, 1] },
        marks: [
          ...(data.low === null ? [] : [Plot.ruleY([0.5], { x1: data.low, x2: data.high, className: "interval", title: () => data.label })]),
          Plot.dot([0], { x: data.mean, y: 0.5, r: 4, className: "dot", title: () => data.label }),
          ...(data.base === null ? [] : [Plot.dot([0], { x: data.base, y: 0.5, r: 4, className: "base", title: () => `base ${written(data.base)}` })]),
        ],
      };
    },

    amounts(data, width) {
      const bars = zip({ value: data.value, text: data.texts, run: data.runs })
        .map((bar, place) => ({ ...bar, place, left: place + 0.08, right: place + 0.92 })).filter((bar) => bar.value !== null);
      const [most, name] = data.most;
      return {
        height: 160, x: { domain: [0, data.runs.length] }, y: { domain: [0, most] },
        marginLeft: measure([name]),
        marks: [
          ...labelValues([0, most], (value) => (value ? name : "0")),
          ...labelRuns(data, (place, anchor) => place + { start: 0, middle: 0.5, end: 1 }[anchor], width),
          Plot.rectY(bars, { x1: "left", x2: "right", y: "value", className: "rect" }),
        ],
        points: bars.map((bar) => ({
          x: bar.place + 0.5, y: bar.value, href: leadTo(data, bar.place), text: `${bar.run}\n${data.known[bar.place]}\n${bar.text}`, cells: [bar.run, bar.text],
        })),
        columns: ["run", data.name],
        pointed: Plot.ruleX,
      };
    },

    shares(data, width) {
      const bottoms = data.runs.map(() => 0);
      const layers = data.shares.map((values) => values.map((value, place) => {
        const bottom = bottoms[place];
        bottoms[place] += value;
        return { value, bottom, top: bottoms[place], left: place + 0.08, right: place + 0.92 };
      }).filter((bar) => bar.value));
      const listShares = (place) => data.names.map((name, number) => [name, data.shares[number][place]]).filter(([, share]) => share)
        .sort(([, one], [, other]) => other - one);
      return {
        height: 220, x: { domain: [0, data.runs.length] }, y: { domain: [0, 1] }, marginLeft: measure(["100 %"]),
        marks: [
          ...labelValues([0, 0.5, 1], percent),
          ...labelRuns(data, (place, anchor) => place + { start: 0, middle: 0.5, end: 1 }[anchor], width),
          ...layers.map((bars, number) => Plot.rectY(bars, { x1: "left", x2: "right", y1: "bottom", y2: "top", className: `share color-${number}` })),
        ],
        points: data.runs.map((run, place) => ({
          x: place + 0.5, y: 0.5, href: leadTo(data, place),
          text: [run, data.known[place], ...listShares(place).map(([name, share]) => `${percent(share)} ${name}`)].join("\n"),
          cells: [run, ...data.shares.map((values) => percent(values[place]))],
        })),
        columns: ["run", ...data.names],
        pointed: Plot.ruleX,
      };
    },

    parts(data, width) {
      const bars = zip({ name: data.names, from: data.from, to: data.to, text: data.texts, way: data.ways }).map((bar, place) => ({ ...bar, place }));
      const [whole, most] = [measure(data.names), width * 0.45];
      const left = Math.min(whole, most);
      const nLines = whole > most ? Math.max(...data.names.map((name) => Math.ceil((LETTER * name.length) / (left - 14)))) : 1;
      const domain = data.x.map(([value]) => value);
      const places = bars.map((bar) => bar.place);
      const byWay = ["up", "down", "even", "all"].map((way) => [way, bars.filter((bar) => bar.way === way)]).filter(([, some]) => some.length);
      return {
        height: 34 + Math.max(27, 13 * nLines + 8) * bars.length, marginLeft: left, marginRight: measure(data.x.map(([, text]) => text)) / 2,
        x: { domain: [domain[0], domain[domain.length - 1]] }, y: { type: "band", domain: places, padding: 0.3 },
        marks: [
          Plot.axisY(places, { text: (place) => data.names[place], tickSize: 0, lineWidth: whole > most ? (left - 12) / 12.5 : Infinity, className: "axis", ariaHidden: true }),
          Plot.axisX(domain, { text: (value) => data.x.find(([one]) => one === value)[1], tickSize: 0, className: "axis", ariaHidden: true }),
          Plot.ruleX([0], { className: "zero" }),
          ...byWay.map(([way, some]) => Plot.barX(some, { x1: "from", x2: "to", y: "place", className: `part-${way}` })),
        ],
        points: bars.map((bar) => ({ x: (bar.from + bar.to) / 2, y: bar.place, text: `${bar.name}\n${bar.text}` })),
        pointer: Plot.pointerY,
      };
    },

    spark(data) {
      const rows = zip({ mean: data.mean, line: data.lines }).map((row, place) => ({ ...row, place }));
      const scored = rows.filter((row) => row.mean !== null);
      return {
        height: 32, margin: 3, axis: null, x: { domain: rows.length > 1 ? [0, rows.length - 1] : [-1, 1], insetRight: 2 }, y: { domain: data.y },
        marks: [
          Plot.lineY(rows, { x: "place", y: "mean", z: "line", className: "line", strokeLinecap: "round", title: () => data.label }),
          Plot.dot(scored.slice(-1), { x: "place", y: "mean", r: 3, className: "dot", title: () => data.label }),
        ],
      };
    },

    query(data, width) {
      const rows = zip(data.columns).map((row) => (data.over === "time" ? { ...row, [data.x]: row[data.x] === null ? null : new Date(`${row[data.x]}Z`) } : row))
        .filter((row) => row[data.x] !== null);
      if (data.over === "text") return drawBars(data, rows.slice(0, MOST_BARS), width);
      rows.sort((one, other) => one[data.x] - other[data.x]);
      return drawLines(data, rows);
    },
  };

  function drawLines(data, rows) {
    const parts = data.by === null ? data.ys : [...new Set(rows.map((row) => row[data.by]))];
    const lines = parts.map((part) => (data.by === null
      ? rows.map((row) => ({ x: row[data.x], y: row[part], part }))
      : rows.filter((row) => row[data.by] === part).map((row) => ({ x: row[data.x], y: row[data.ys[0]], part }))));
    const format = (x) => (data.over === "time" ? x.toISOString().slice(0, 16).replace("T", " ").replace(" 00:00", "") : String(x));
    return {
      legend: parts.length > 1 || data.ys.length > 1 ? parts.map((part) => String(part ?? "none")) : null,
      marginLeft: 56, marginRight: 16, marginBottom: 38, height: 240,
      x: { type: data.over === "time" ? "utc" : "linear", inset: 16 }, y: { nice: true },
      marks: [
        Plot.gridY({ className: "guide", strokeOpacity: 1, ticks: 5 }), Plot.axisY({ tickSize: 0, ticks: 5, className: "axis", ariaHidden: true }),
        Plot.axisX({ tickSize: 0, className: "axis", ariaHidden: true, ticks: 5 }),
        ...lines.map((points, number) => Plot.lineY(points, { x: "x", y: "y", className: `line color-${number + 1}`, strokeLinecap: "round" })),
        ...lines.filter((points) => points.length <= MOST_DOTS).map((points) => Plot.dot(points, { x: "x", y: "y", r: 3, className: `dot color-${parts.indexOf(points[0].part) + 1}` })),
      ],
      points: lines.flat().filter((point) => point.y !== null).map((point) => ({ ...point, text: `${format(point.x)}\n${point.part ?? "none"}: ${point.y}` })),
      pointer: Plot.pointer,
    };
  }

  function drawBars(data, rows, width) {
    const [name] = data.ys;
    const bars = rows.map((row, place) => ({ place, name: row[data.x], value: row[name] ?? 0 }));
    const left = Math.min(measure(bars.map((bar) => bar.name)), width * 0.45);
    return {
      legend: data.ys.length > 1 ? [name] : null,
      height: 34 + 22 * bars.length, marginLeft: left, marginRight: 18, y: { type: "band", domain: bars.map((bar) => bar.place), padding: 0.25 }, x: { nice: true },
      marks: [
        Plot.axisY(bars.map((bar) => bar.place), { text: (place) => bars[place].name, tickSize: 0, lineWidth: (left - 12) / 12.5, textOverflow: "ellipsis", className: "axis", ariaHidden: true }),
        Plot.axisX({ tickSize: 0, className: "axis", ariaHidden: true, ticks: 4 }),
        Plot.ruleX([0], { className: "zero" }),
        Plot.barX(bars, { x: "value", y: "place", className: "rect color-1" }),
      ],
      points: bars.map((bar) => ({ x: bar.value, y: bar.place, text: `${bar.name}\n${name}: ${bar.value}` })),
      pointer: Plot.pointerY,
    };
  }

  function makeDrawing(data, spec, width) {
    const { marks, points, pointer = Plot.pointerX, pointed = Plot.dot, columns, legend, x, y, ...options } = spec;
    const shown = points?.length ? [pointed(points, pointer({ x: "x", ...(pointed === Plot.dot ? { y: "y", r: 5 } : {}), className: "pointed", ariaLabel: null }))] : [];
    const drawing = Plot.plot({
      className: "plot", width, height: TALL, ...("margin" in spec ? {} : MARGINS), ariaLabel: data.label, ...options,
      x: { ...x, label: null }, y: { ...y, label: null }, marks: [...marks, ...shown],
    });
    drawing.querySelector("style").remove();
    // Plot labels its groups, which as parts of an image have no role that could have a label.
    for (const group of drawing.querySelectorAll("g[aria-label]")) group.removeAttribute("aria-label");
    drawing.setAttribute("role", "img");
    if (points?.length) listen(drawing, points);
    return drawing;
  }

  // By mouse and touch Plot finds the nearest point; keys go from point to point and have Plot find it the same way.
  function listen(drawing, points) {
    let place = points.length;
    const [x, y] = [drawing.scale("x"), drawing.scale("y")];
    const find = (scale, value) => scale.apply(value) + (scale.bandwidth || 0) / 2;
    const onScreen = (point) => new DOMPoint(find(x, point.x), find(y, point.y)).matrixTransform(drawing.getScreenCTM());
    const send = (kind, at) => drawing.dispatchEvent(new PointerEvent(kind, { ...at, pointerType: "mouse" }));
    drawing.setAttribute("tabindex", "0");
    drawing.classList.toggle("leads", points.some((point) => point.href));
    drawing.addEventListener("input", () => showTip(drawing, onScreen));
    // A finger cannot point without pressing: the first touch says what a point is, the second goes there.
    let touched = null;
    drawing.addEventListener("click", (event) => {
      const isNew = event.pointerType === "touch" && touched !== drawing.value;
      touched = drawing.value;
      if (!isNew) follow(drawing.value);
    });
    drawing.addEventListener("blur", () => send("pointerleave"));
    drawing.addEventListener("keydown", (event) => {
      const places = { ArrowLeft: place - 1, ArrowUp: place - 1, ArrowRight: place + 1, ArrowDown: place + 1, Home: 0, End: points.length - 1 };
      if (event.key === "Enter") follow(drawing.value);
      else if (event.key === "Escape") send("pointerleave");
      if (!(event.key in places) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      place = Math.max(0, Math.min(points.length - 1, places[event.key]));
      const at = onScreen(points[place]);
      send("pointermove", { clientX: at.x, clientY: at.y });
      status.textContent = points[place].text;
    });
  }

  // Plot's own tips leave the page where a chart is narrow.
  function showTip(drawing, onScreen) {
    tip.hidden = !drawing.value;
    if (tip.hidden) return;
    tip.textContent = drawing.value.text;
    const at = onScreen(drawing.value);
    const above = at.y - 12 - tip.offsetHeight;
    tip.style.top = `${above < 4 ? at.y + 12 : above}px`;
    tip.style.left = `${Math.max(4, Math.min(at.x - tip.offsetWidth / 2, document.documentElement.clientWidth - tip.offsetWidth - 4))}px`;
  }

  function follow(point) {
    if (point?.href) location.assign(point.href);
  }

  function makeTable(spec) {
    const fill = (cell, text, href) => cell.append(href ? Object.assign(document.createElement("a"), { href, textContent: text }) : text);
    const row = (tag, texts, href) => {
      const made = document.createElement("tr");
      texts.forEach((text, place) => fill(made.appendChild(document.createElement(tag)), text, place ? null : href));
      return made;
    };
    const [table, head, body] = ["table", "thead", "tbody"].map((tag) => document.createElement(tag));
    head.append(row("th", spec.columns));
    body.append(...spec.points.map((point) => row("td", point.cells, point.href)));
    table.append(head, body);
    return table;
  }

  function makeNumbers(data, spec) {
    const [details, summary, scroll] = ["details", "summary", "div"].map((tag) => document.createElement(tag));
    details.className = "numbers";
    summary.textContent = "Numbers";
    Object.assign(scroll, { className: "scroll tall", tabIndex: 0, role: "group", ariaLabel: data.label });
    details.append(summary, scroll);
    details.addEventListener("toggle", () => {
      if (!scroll.firstChild) scroll.append(makeTable(spec));
    });
    return details;
  }

  function makeLegend(names) {
    const legend = document.createElement("p");
    legend.className = "legend";
    legend.append(...names.map((name, number) => {
      const [entry, swatch] = [document.createElement("span"), document.createElement("span")];
      swatch.className = `swatch color-${number + 1}`;
      entry.append(swatch, name);
      return entry;
    }));
    return legend;
  }

  const drawn = new WeakMap(); // by place the width it was drawn for
  const status = Object.assign(document.createElement("p"), { className: "skip", role: "status" });
  const tip = Object.assign(document.createElement("div"), { className: "tip", role: "tooltip", hidden: true });

  // A chart that cannot be drawn says in words what it would show, and keeps no other from being drawn.
  function draw(place) {
    const width = Math.round(place.clientWidth) || 400;
    if (drawn.get(place) === width) return;
    drawn.set(place, width);
    try {
      fillPlace(place, width);
    } catch (error) {
      place.classList.add("failed");
      reportError(error);
    }
  }

  function fillPlace(place, width) {
    const data = JSON.parse(place.querySelector("script").textContent);
    const spec = KINDS[data.kind](data, width);
    const parts = [...(spec.legend ? [makeLegend(spec.legend)] : []), makeDrawing(data, spec, width)];
    const numbers = place.querySelector(".numbers") || (spec.columns ? makeNumbers(data, spec) : null);
    for (const old of place.querySelectorAll(".plot, .legend, .undrawn")) old.remove();
    place.append(...parts, ...(numbers ? [numbers] : []));
    tip.hidden = true;
  }

  const sized = new ResizeObserver((entries) => entries.forEach(({ target }) => drawn.has(target) && target.clientWidth && draw(target)));
  const seen = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
      seen.unobserve(target);
      draw(target);
      sized.observe(target);
    }
  }, { rootMargin: "300px" });

  function drawAll() {
    for (const place of document.querySelectorAll(".drawing")) if (!drawn.has(place)) draw(place);
  }

  // Charts of a page, or of a part of it that came later, are drawn when they come into view.
  function watch(root) {
    for (const place of root.querySelectorAll(".drawing")) seen.observe(place);
  }

  document.body.append(status, tip);
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true, capture: true });
  addEventListener("beforeprint", drawAll);
  matchMedia("print").addEventListener("change", (event) => event.matches && drawAll());
  if (matchMedia("print").matches) drawAll();
  watch(document);
  return { watch, drawAll };
})();
