// Numbers as text, and small SVG figures drawn by hand.
(function () {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";

  // Six significant digits without trailing zeros; a true minus sign.
  function format(value, digits = 6) {
    if (typeof value !== "number") return String(value);
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    const size = Math.abs(value);
    if (size === 0) return "0";
    const scientific = size < 1e-4 || size >= 1e6;
    const text = scientific ? value.toExponential(Math.min(digits, 4) - 1) : value.toPrecision(digits);
    const [mantissa, power] = text.split("e");
    const short = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
    const whole = power === undefined ? short : `${short}e${Number(power)}`;
    return whole.replace(/-/g, "−");
  }

  // [0.146, 0.108, …, 0.11]
  function formatList(values, digits = 4, ends = 3) {
    const shown = values.length <= 2 * ends + 2 ? values.map((v) => format(v, digits))
      : [...values.slice(0, ends).map((v) => format(v, digits)), "…", ...values.slice(-ends).map((v) => format(v, digits))];
    return `[${shown.join(", ")}]`;
  }

  function element(name, attributes = {}, children = []) {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...[children].flat());
    return node;
  }

  function html(name, attributes = {}, children = []) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === false || value === undefined || value === null) continue;
      if (key === "text") node.textContent = value;
      else if (key === "html") node.innerHTML = value;
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...[children].flat().filter((child) => child !== null && child !== undefined));
    return node;
  }

  const say = (x, y, text, attributes = {}) => element("text", { x, y, ...attributes }, [text]);

  function figure(width, height, label, children) {
    return element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "figure" }, children);
  }

  // As wide as there is room, so that the type keeps its size on a phone.
  const room = (most) => Math.max(300, Math.min(most, document.querySelector("main").clientWidth - 32));

  function ticks(low, high, most) {
    const raw = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
    const marks = [];
    for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) marks.push(i * step);
    return marks;
  }

  function spanOf(values) {
    const finite = values.filter(Number.isFinite);
    if (!finite.length) return [-1, 1];
    const [low, high] = [Math.min(...finite), Math.max(...finite)];
    const margin = high > low ? 0.08 * (high - low) : Math.max(Math.abs(high), 1) * 0.5;
    return [low - margin, high + margin];
  }

  function axis(x, y, [low, high], width, left) {
    const marks = ticks(low, high, Math.max(3, Math.floor(width / 55)));
    const lines = [element("line", { x1: left, x2: left + width, y1: y, y2: y, class: "axis" })];
    // Far from 0 the ticks differ only in late digits.
    const digits = Math.min(12, 4 + Math.max(0, Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low)))));
    for (const mark of marks) {
      lines.push(element("line", { x1: x(mark), x2: x(mark), y1: y, y2: y + 4, class: "axis" }));
      lines.push(say(x(mark), y + 18, format(Number(mark.toPrecision(12)), digits), { class: "tick", "text-anchor": "middle" }));
    }
    return lines;
  }

  // Mean and deviation; a mean that is only rounding noise is 0.
  function moments(values) {
    const finite = values.filter(Number.isFinite);
    const mean = finite.reduce((a, b) => a + b, 0) / finite.length;
    const deviation = Math.sqrt(finite.reduce((a, b) => a + (b - mean) ** 2, 0) / finite.length);
    return [Math.abs(mean) < 1e-12 * deviation ? 0 : mean, deviation];
  }

  // One row of bars around a common zero for each named list.
  function bars(rows, labels) {
    const width = room(720);
    const left = 12;
    const size = 62;
    const most = Math.max(1e-300, ...rows.flatMap((row) => row.values.filter(Number.isFinite).map(Math.abs)));
    const count = rows[0].values.length;
    const step = (width - 2 * left) / count;
    const parts = [];
    rows.forEach((row, r) => {
      const top = r * (size + 24) + 18;
      const zero = top + size / 2;
      parts.push(say(left, top - 6, row.name, { class: "label" }));
      parts.push(element("line", { x1: left, x2: width - left, y1: zero, y2: zero, class: "axis" }));
      row.values.forEach((value, i) => {
        if (!Number.isFinite(value)) return;
        const length = (Math.abs(value) / most) * (size / 2 - 8);
        const x = left + i * step + step * 0.2;
        parts.push(element("rect", { x, width: Math.max(1, step * 0.6), y: value > 0 ? zero - length : zero, height: Math.max(length, 0.5), fill: row.colour }, [
          element("title", {}, [`${labels[i]}: ${format(value)}`]),
        ]));
        if (step >= 44) parts.push(say(x + step * 0.3, value > 0 ? zero - length - 4 : zero + length + 13, format(value, 3), { class: "tick", "text-anchor": "middle" }));
      });
    });
    return figure(width, rows.length * (size + 24) + 4, rows.map((row) => `${row.name}: ${formatList(row.values)}`).join("; "), parts);
  }

  // From here on one of two rows would be a point on the other's scale.
  const APART = 60;

  // The same elements after each of several operations, joined by lines, on one axis or, where one scale cannot show
  // all rows, each on its own. `told` stands at the right of a row; the band reaches one deviation from the mean.
  function numberLine(rows, { spread = false, most = 1200 } = {}) {
    const [width, left, top] = [room(most), 16, 30];
    const spans = rows.map((row) => spanOf(row.values));
    const whole = spanOf(rows.flatMap((row) => row.values).concat([0]));
    const separate = spans.some(([low, high]) => whole[1] - whole[0] > APART * (high - low));
    const gap = separate ? 78 : 62;
    const inner = width - 2 * left;
    const scales = spans.map((own) => {
      const [low, high] = separate ? own : whole;
      return { range: [low, high], x: (value) => left + ((value - low) / (high - low)) * inner };
    });
    const y = (r) => top + gap * r;
    const parts = [];
    rows.forEach((row, r) => {
      const [mean, deviation] = moments(row.values);
      const { x, range } = scales[r];
      if (!spread || !Number.isFinite(deviation)) return;
      const [from, to] = [Math.max(range[0], mean - deviation), Math.min(range[1], mean + deviation)];
      parts.push(element("rect", { x: x(from), width: Math.max(0, x(to) - x(from)), y: y(r) - 9, height: 18, rx: 3, class: "band" }));
      parts.push(element("line", { x1: x(mean), x2: x(mean), y1: y(r) - 12, y2: y(r) + 12, class: "mean" }));
    });
    if (!separate) parts.push(element("line", { x1: scales[0].x(0), x2: scales[0].x(0), y1: top - 6, y2: y(rows.length - 1) + 16, class: "link" }));
    rows.forEach((row, r) => {
      if (r) row.values.forEach((value, i) => {
        const before = rows[r - 1].values[i];
        if (Number.isFinite(before) && Number.isFinite(value)) parts.push(element("line", { x1: scales[r - 1].x(before), x2: scales[r].x(value), y1: y(r - 1), y2: y(r), class: "link" }));
      });
      parts.push(...(separate ? axis(scales[r].x, y(r), scales[r].range, inner, left) : [element("line", { x1: left, x2: width - left, y1: y(r), y2: y(r), class: "axis" })]));
    });
    rows.forEach((row, r) => {
      parts.push(say(left, y(r) - 15, row.name, { class: "label halo" }));
      if (row.told) parts.push(say(width - left, y(r) - 15, row.told, { class: "tick halo", "text-anchor": "end" }));
      row.values.forEach((value, i) => {
        if (!Number.isFinite(value)) return;
        parts.push(element("circle", { cx: scales[r].x(value), cy: y(r), r: 6, fill: row.colour, class: "dot" }, [element("title", {}, [`element ${i}: ${format(value)}`])]));
      });
    });
    const bottom = y(rows.length - 1) + 16;
    if (!separate) parts.push(...axis(scales[0].x, bottom, whole, inner, left));
    return figure(width, bottom + (separate ? 10 : 24), rows.map((row) => `${row.name}: ${formatList(row.values)}`).join("; "), parts);
  }

  Object.assign(window.evenkeel, { draw: { format, formatList, element, html, say, figure, moments, bars, numberLine } });
})();
