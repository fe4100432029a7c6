// Fields and sliders for the numbers. A field that cannot be read keeps the last good number and says so.
(function () {
  "use strict";
  const { html, format } = window.evenkeel.draw;
  const { coordinates, product } = window.evenkeel.arithmetic;
  const { has, parameterShape, layout } = window.evenkeel.state;
  const SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉";
  const SLIDERS = 16;

  function read(text) {
    const plain = text.trim().replace(/−/g, "-");
    if (/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain)) return Number(plain);
    if (/^nan$/i.test(plain)) return NaN;
    const infinite = /^([+-]?)(inf|infinity|∞)$/i.exec(plain);
    return infinite ? (infinite[1] === "-" ? -Infinity : Infinity) : null;
  }
  const write = (value) => (Number.isNaN(value) ? "nan" : Number.isFinite(value) ? String(value) : value > 0 ? "inf" : "-inf");
  const indexed = (letter, i) => letter + String(i).replace(/\d/g, (digit) => SUBSCRIPTS[digit]);

  // Five digits until the field is focused: the whole of 0.12573022109339 would be cut off without a sign.
  const brief = (value) => (write(value).length > 8 && Number.isFinite(value) ? window.evenkeel.general(value, 5).replace(/e([+-])0/, "e$1") : write(value));

  // A text field for one number. `check` gives a complaint, or nothing.
  function field({ id, label, get, set, error, check, attributes = {} }) {
    const input = html("input", { type: "text", inputmode: "text", spellcheck: "false", autocapitalize: "off", id, "aria-label": label, ...attributes });
    const rest = () => {
      input.value = brief(get());
      input.title = input.value === write(get()) ? "" : write(get());
    };
    rest();
    input.addEventListener("focus", () => {
      if (input.getAttribute("aria-invalid") !== "true") input.value = write(get());
    });
    input.addEventListener("input", () => {
      const value = read(input.value);
      const complaint = value === null ? `${label}: “${input.value.trim().slice(0, 20)}” is not a number` : check ? check(value) : "";
      mark(input, error, complaint);
      if (!complaint) set(value);
    });
    input.addEventListener("blur", () => {
      if (input.getAttribute("aria-invalid") !== "true") rest();
    });
    input.refresh = () => {
      if (document.activeElement !== input) { rest(); mark(input, error, ""); }
    };
    return input;
  }

  function mark(input, error, complaint) {
    if (complaint) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
    error.complaints = error.complaints || new Map();
    if (complaint) error.complaints.set(input, complaint);
    else error.complaints.delete(input);
    for (const old of error.complaints.keys()) if (!old.isConnected) error.complaints.delete(old);
    const first = error.complaints.values().next().value;
    error.hidden = !first;
    error.textContent = first ? `${first}; the last good number stays.` : "";
  }

  // A range that holds the values with room to either side.
  function reach(values) {
    const finite = values.filter(Number.isFinite);
    if (!finite.length) return [-1, 1];
    const [low, high] = [Math.min(...finite), Math.max(...finite)];
    const room = high > low ? high - low : Math.abs(high) || 1;
    return [low - room, high + room];
  }

  function slider({ label, get, set, range }) {
    const [low, high] = range;
    const input = html("input", { type: "range", min: low, max: high, step: "any", "aria-label": label });
    input.value = get();
    input.addEventListener("input", () => {
      // Three digits below the span are as fine as a hand can move it.
      const digits = Math.max(0, Math.min(12, 2 - Math.floor(Math.log10((high - low) / 10))));
      set(Number(Number(input.value).toFixed(digits)));
    });
    // The arrow keys move a hundredth of the range; "any" would leave that to the browser.
    input.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
      if (!step) return;
      event.preventDefault();
      input.value = Number(input.value) + (step * (high - low)) / 100;
      input.dispatchEvent(new Event("input"));
    });
    input.refresh = () => { if (document.activeElement !== input) input.value = get(); };
    return input;
  }

  function cell(state, i, letter, values, changed, error) {
    return field({
      label: letter === "x" && state.shape.length > 1 ? `x[${coordinates(i, state.shape).join(", ")}]` : indexed(letter, i),
      get: () => values()[i], set: (value) => { values()[i] = value; changed(); }, error,
    });
  }

  function vectorEditor(state, changed, error, box) {
    const values = () => state.x;
    const range = reach(state.x);
    const rows = html("div", { class: "vector" });
    rows.append(html("span", {}), html("span", { class: "heading", text: "input" }), html("span", {}), html("span", { class: "heading result", text: "output" }));
    state.x.forEach((_, i) => {
      rows.append(
        html("span", { class: "index", text: indexed("x", i) }), cell(state, i, "x", values, changed, error),
        slider({ label: `${indexed("x", i)} slider`, get: () => state.x[i], set: (value) => { state.x[i] = value; changed(); }, range }),
        html("span", { class: "result", "data-result": i }));
    });
    box.append(rows);
  }

  // One table for each index of the leading axes; the last two are its rows and columns.
  function gridEditor(state, changed, error, box) {
    const { shape } = state;
    const [rows, columns] = shape.length === 1 ? [1, shape[0]] : shape.slice(-2);
    const leading = shape.slice(0, -2);
    const one = html("div", { class: "one-cell" });
    const choose = (i) => {
      if (one.index === i) return;
      one.index = i;
      const name = `x[${coordinates(i, shape).join(", ")}]`;
      one.replaceChildren(html("span", { text: name }), slider({
        label: `${name} slider`, get: () => state.x[i], set: (value) => { state.x[i] = value; changed(); }, range: reach(state.x) }));
    };
    for (let block = 0; block < product(leading); block++) {
      const where = coordinates(block, leading);
      const table = html("table", { class: "grid" }, leading.length ? [html("caption", { text: `x[${where.join(", ")}]` })] : []);
      table.append(html("tr", {}, [html("th", {}), ...Array.from({ length: columns }, (_, c) => html("th", { scope: "col", text: c }))]));
      for (let r = 0; r < rows; r++) {
        const line = html("tr", {}, [html("th", { scope: "row", text: shape.length === 1 ? "" : r })]);
        for (let c = 0; c < columns; c++) {
          const i = (block * rows + r) * columns + c;
          const input = cell(state, i, "x", () => state.x, changed, error);
          input.addEventListener("focus", () => choose(i));
          line.append(html("td", {}, [input]));
        }
        table.append(line);
      }
      table.addEventListener("keydown", arrows);
      box.append(html("div", { class: "grid-box" }, [table]));
    }
    choose(0);
    box.append(one);
  }

  // Up and down move between rows; left and right too, once the caret is at the end of its field.
  function arrows(event) {
    const input = event.target;
    if (input.type !== "text") return;
    const place = input.closest("td");
    const atStart = input.selectionStart === 0 && input.selectionEnd === 0;
    const atEnd = input.selectionStart === input.value.length;
    const column = [...place.parentNode.children].indexOf(place);
    const row = place.parentNode;
    const next = { ArrowUp: row.previousElementSibling?.children[column], ArrowDown: row.nextElementSibling?.children[column],
      ArrowLeft: atStart && place.previousElementSibling, ArrowRight: atEnd && place.nextElementSibling }[event.key];
    const target = next && next.querySelector("input");
    if (!target) return;
    event.preventDefault();
    target.focus();
    target.select();
  }

  function buildValues(state, changed, rebuilt, error, box) {
    error.complaints = new Map();
    error.hidden = true;
    box.replaceChildren();
    const vector = state.shape.length === 1;
    if (vector && state.x.length <= SLIDERS) vectorEditor(state, changed, error, box);
    else gridEditor(state, changed, error, box);
    if (!vector) return;
    const resize = (change) => { window.evenkeel.state.resize(state, change); rebuilt(); };
    const remove = html("button", { type: "button", text: "Remove last", onclick: () => resize(-1) });
    remove.disabled = state.x.length < 2;
    const add = html("button", { type: "button", text: "Add element", onclick: () => resize(1) });
    add.disabled = state.x.length >= 64;
    box.append(html("div", { class: "actions" }, [add, remove]));
  }

  function buildParameters(state, changed, rebuilt, error, box) {
    box.replaceChildren();
    const sizes = parameterShape(state);
    const count = product(sizes);
    for (const [name, letter, fresh, title] of [["weight", "γ", 1 - state.offset, "weight γ"], ["bias", "β", 0, "bias β"]]) {
      if (!has(state, name)) continue;
      const toggle = html("input", { type: "checkbox", id: `use-${name}` });
      toggle.checked = state[name] !== null;
      toggle.addEventListener("change", () => {
        state[name] = toggle.checked ? new Array(count).fill(fresh) : null;
        buildParameters(state, changed, rebuilt, error, box);
        document.getElementById(`use-${name}`).focus();
        changed();
      });
      box.append(html("label", { class: "check" }, [toggle, title]));
      if (!state[name]) continue;
      const table = html("table", { class: "grid" });
      const across = 4;
      for (let start = 0; start < count; start += across) {
        const line = html("tr", {});
        for (let i = start; i < Math.min(count, start + across); i++) {
          line.append(html("td", {}, [html("span", { class: "small", text: indexed(letter, i) }), cell(state, i, letter, () => state[name], changed, error)]));
        }
        table.append(line);
      }
      table.addEventListener("keydown", arrows);
      box.append(table);
    }
    if (has(state, "weight_offset")) {
      box.append(html("label", { class: "field" }, ["added to γ", field({ label: "weight offset", get: () => state.offset, set: (value) => { state.offset = value; changed(); }, error, check: (value) => (Number.isFinite(value) ? "" : "it must be finite") })]));
    }
  }

  function select(choices, value, change, label) {
    const box = html("select", { "aria-label": label }, choices.map(([key, text]) => html("option", { value: key, text, selected: String(key) === String(value) })));
    box.addEventListener("change", () => change(box.value));
    return box;
  }

  // The options that only some norms have, and the axes.
  function buildOptions(state, changed, rebuilt, error, box) {
    box.replaceChildren();
    const labelled = (text, control) => box.append(html("label", { class: "field" }, [text, control]));
    const number = (text, get, set, check) => labelled(text, field({ label: text, get, set: (value) => { set(value); changed(); }, error, check }));
    const where = layout(state);
    if (state.shape.length > 1 && where.channel_axis === null) {
      labelled(state.norm === "dyt" ? "parameters along axis" : "statistics over axis", select(axisChoices(state.shape), (state.axis || where.shared).join(), (value) => {
        state.axis = value.split(",").map(Number);
        state.weight = state.bias = state.mean = state.variance = null;
        state.shown = 0;
        rebuilt();
      }, "axes"));
    }
    if (state.shape.length > 1 && where.channel_axis !== null && state.norm !== "image") {
      labelled("channel axis", select(state.shape.map((_, axis) => [axis, axis]), where.channel_axis, (value) => {
        state.channelAxis = Number(value);
        state.weight = state.bias = state.mean = state.variance = null;
        state.groups = state.shape[state.channelAxis] % state.groups ? 1 : state.groups;
        state.shown = 0;
        rebuilt();
      }, "channel axis"));
    }
    if (state.norm === "group") {
      const channels = state.shape[where.channel_axis];
      const divisors = Array.from({ length: channels }, (_, i) => i + 1).filter((n) => channels % n === 0);
      labelled("groups", select(divisors.map((n) => [n, n]), state.groups, (value) => { state.groups = Number(value); state.shown = 0; state.mean = state.variance = null; rebuilt(); }, "groups"));
    }
    if (has(state, "correction")) labelled("deviation", select([[0, "population (n)"], [1, "sample (n − 1)"]], state.correction, (value) => { state.correction = Number(value); changed(); }, "deviation"));
    if (has(state, "alpha")) number("α", () => state.alpha, (value) => { state.alpha = value; }, (value) => (Number.isFinite(value) ? "" : "α must be finite"));
    if (has(state, "scale")) number("scale", () => state.scale, (value) => { state.scale = value; }, (value) => (value > 0 && Number.isFinite(value) ? "" : "the scale must be positive"));
    if (has(state, "feature_range")) {
      number("low", () => state.range[0], (value) => { state.range[0] = value; }, (value) => (value < state.range[1] && Number.isFinite(value) ? "" : "low must be below high"));
      number("high", () => state.range[1], (value) => { state.range[1] = value; }, (value) => (value > state.range[0] && Number.isFinite(value) ? "" : "high must be above low"));
    }
    if (state.norm === "image") {
      for (const name of ["mean", "std"]) state[name].forEach((_, i) => number(`${name} ${i}`, () => state[name][i], (value) => { state[name][i] = value; }, (value) => (Number.isFinite(value) && (name === "mean" || value >= 0) ? "" : `${name} must be finite${name === "std" ? " and not negative" : ""}`)));
    }
  }

  // Each axis alone, and all trailing runs of axes.
  function axisChoices(shape) {
    const runs = new Map();
    const add = (axes) => runs.set(axes.join(), axes.length === shape.length ? "all" : axes.join(", "));
    shape.forEach((_, axis) => add([axis]));
    for (let first = shape.length - 2; first >= 0; first--) add(Array.from({ length: shape.length - first }, (_, i) => first + i));
    return [...runs];
  }

  function refresh() {
    for (const input of document.querySelectorAll("#form input")) if (input.refresh) input.refresh();
  }

  function showResults(output) {
    for (const cellOfResult of document.querySelectorAll("[data-result]")) cellOfResult.textContent = format(output[Number(cellOfResult.dataset.result)], 5);
  }

  Object.assign(window.evenkeel, { editor: { read, write, field, slider, select, cell, buildValues, buildParameters, buildOptions, refresh, showResults, mark, arrows } });
})();
